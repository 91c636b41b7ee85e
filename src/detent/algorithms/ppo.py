"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from detent.agent import Agent, Parameters
from detent.algorithms import Metrics, Rollout, register_algorithm
from detent.algorithms.samples import (
    Sample,
    check_minibatches,
    explained_variance,
    minibatches,
    samples,
    spread_out,
    standardized,
    weights,
)
from detent.distributions import Key
from detent.draws import choice, log_uniform, uniform
from detent.options import check_options, option

KL_SAMPLES = 100
"""Number of samples of a batch on which KL(old || new) is measured: accurate to within a tenth, at less than 1% of the
time of an update (docs/performance.md)."""


class PPOState(NamedTuple):
    parameters: Parameters
    optimizer: optax.OptState


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation: clipped probability ratios, several epochs of minibatches per batch."""

    batch_size: int = option(2048, "steps collected per update", at_least=1, at_most=2**24)
    minibatch_size: int = option(64, "steps per gradient step", at_least=1, search=choice(32, 64, 128, 256))
    epochs: int = option(10, "passes over each batch", at_least=1, search=uniform(3, 20))
    learning_rate: float = option(3e-4, "Adam's step size", above=0, search=log_uniform(3e-5, 3e-3))
    anneal_learning_rate: bool = option(True, "decrease the learning rate linearly to 0 over the run")
    gamma: float = option(0.99, "discount factor", at_least=0, at_most=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", at_least=0, at_most=1)
    clip_range: float = option(0.2, "how far a probability ratio may move from 1", above=0)
    clip_range_value: float = option(0.0, "how far a value may move per update; 0 for no limit", at_least=0)
    value_coef: float = option(0.25, "weight of the value loss", at_least=0)
    entropy_coef: float = option(0.0, "weight of the entropy bonus", at_least=0, search=log_uniform(1e-5, 3e-2))
    max_grad_norm: float = option(0.5, "clip gradients to this norm", above=0)
    target_kl: float = option(
        0.0, "skip the remaining epochs once KL(old || new), summed over action dimensions, exceeds this; 0 for never",
        at_least=0, search=log_uniform(0.03, 1.0),
    )  # fmt: skip
    divide_target_kl: bool = option(
        False, "divide --target-kl by the number m of action dimensions, which allows each dimension 1/m^2 of it",
        formerly=("kl_per_dimension",),
    )  # fmt: skip
    kl_from: str = option(
        "distributions",
        f"what --target-kl limits: distributions, the KL between them, on {KL_SAMPLES} samples of the batch; or "
        "samples, an estimate from the very actions being fitted, which is larger for heads with many outputs",
        choices=("distributions", "samples"),
        baseline="samples",
    )
    adam_epsilon: float = option(1e-5, "Adam's epsilon", above=0)
    recompute_advantages: bool = option(True, "estimate the advantages again before every epoch")
    bootstrap_truncated: bool = option(True, "bootstrap from the value where a time limit ends an episode")

    def __post_init__(self) -> None:
        check_options(self)
        check_minibatches(self.batch_size, self.minibatch_size)

    @property
    def scheduled(self) -> bool:
        return self.anneal_learning_rate

    @property
    def adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=self.adam_epsilon)

    def init(self, agent: Agent, key: Key) -> PPOState:
        parameters = agent.init(key)
        return PPOState(parameters, self.adam.init(ravel_pytree(parameters)[0]))

    def update(
        self, agent: Agent, state: PPOState, rollout: Rollout, progress: Float[Array, ""], key: Key
    ) -> tuple[PPOState, Metrics]:
        learning_rate = self.learning_rate * (1.0 - progress if self.anneal_learning_rate else 1.0)
        before = agent.value(state.parameters, rollout.observation)

        def gradient_step(state: PPOState, minibatch: Sample) -> tuple[PPOState, Metrics]:
            gradient, metrics = jax.grad(self.loss, argnums=1, has_aux=True)(agent, state.parameters, minibatch)
            # As one vector: with a dozen short ones, the calls would cost more than the arithmetic.
            gradient, as_parameters = ravel_pytree(gradient)
            gradient *= jnp.minimum(1.0, self.max_grad_norm * jax.lax.rsqrt(gradient @ gradient))
            direction, optimizer = self.adam.update(gradient, state.optimizer)
            parameters = jax.tree.map(lambda p, d: p - learning_rate * d, state.parameters, as_parameters(direction))
            return PPOState(parameters, optimizer), metrics

        start = samples(self, rollout, before, before)
        state = state._replace(parameters=agent.adapted(state.parameters, start.target, start.valid))
        kl_of = kl_from_old(agent, state.parameters, start)
        watched = "kl_divergence_loss" if self.target_kl and self.kl_from == "distributions" else "approx_kl"

        def epoch(state: PPOState, key: Key) -> tuple[PPOState, Metrics]:
            now = agent.value(state.parameters, rollout.observation) if self.recompute_advantages else before
            shuffled = minibatches(key, samples(self, rollout, before, now), self.minibatch_size)
            state, metrics = jax.lax.scan(gradient_step, state, shuffled)
            metrics = jax.tree.map(jnp.mean, metrics)
            if watched == "kl_divergence_loss":
                metrics[watched] = kl_of(state.parameters)
            return state, metrics

        limit = self.target_kl / (agent.space.shape[0] if self.divide_target_kl else 1) or jnp.inf

        def near(carry: tuple[Int[Array, ""], PPOState, Metrics]) -> Bool[Array, ""]:
            done, _, metrics = carry
            return (done < self.epochs) & (metrics[watched] <= limit)

        def next_epoch(carry: tuple[Int[Array, ""], PPOState, Metrics]) -> tuple[Int[Array, ""], PPOState, Metrics]:
            done, state, _ = carry
            return (done + 1, *epoch(state, jax.random.fold_in(key, done)))

        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(epoch, state, key)[1])
        done, state, metrics = jax.lax.while_loop(near, next_epoch, (jnp.int32(0), state, nothing))
        return state, metrics | {
            "epochs": done.astype(jnp.float32),
            "learning_rate": jnp.asarray(learning_rate, jnp.float32),
            "explained_variance": explained_variance(start),
        }

    def loss(self, agent: Agent, parameters: Parameters, batch: Sample) -> tuple[Float[Array, ""], Metrics]:
        weight = weights(batch.valid)
        advantage = standardized(batch)

        def mean(x: Float[Array, " b"]) -> Float[Array, ""]:
            return weight @ x

        # Eq. 7: L_clip = E[min(r A, clip(r, 1 - eps, 1 + eps) A)], r = pi_new(a|s) / pi_old(a|s).
        distribution = agent.policy(parameters, batch.observation)
        log_ratio = jnp.where(batch.valid, distribution.log_prob(batch.action) - batch.log_prob, 0.0)
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1.0 - self.clip_range, 1.0 + self.clip_range)
        policy_loss = -mean(jnp.minimum(ratio * advantage, clipped * advantage))

        outputs = agent.value_outputs(parameters, batch.observation)
        if self.clip_range_value:
            lost = agent.critic.clipped_loss(*outputs, batch.target, batch.value, self.clip_range_value)
        else:
            lost = agent.critic.loss(*outputs, batch.target)
        value_loss = mean(lost)

        # Eq. 9. The entropy takes time, so it is computed only if it is used.
        bonus = self.entropy_coef * mean(distribution.entropy()) if self.entropy_coef else 0.0
        loss = policy_loss + self.value_coef * value_loss - bonus
        return loss, {
            "loss": loss,
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            # The estimator (r - 1) - log r of KL(old || new): never negative, but unbiased only for fresh samples.
            "approx_kl": mean(ratio - 1.0 - log_ratio),
            "clip_fraction": mean((jnp.abs(ratio - 1.0) > self.clip_range).astype(jnp.float32)),
        }


def kl_from_old(agent: Agent, parameters: Parameters, batch: Sample) -> Callable[[Parameters], Float[Array, ""]]:
    """A function from new parameters to E[KL(old || new)], on `KL_SAMPLES` samples of the batch.

    An estimate from the probabilities of the actions taken is no substitute: the epochs change these probabilities
    most, and the more outputs a head has, the better it can fit their noise.
    """
    part = spread_out(batch.valid.size, KL_SAMPLES)
    observation, weight = batch.observation[part], weights(batch.valid[part])
    old = agent.policy(parameters, observation)
    return lambda new: weight @ old.kl(agent.policy(new, observation))


register_algorithm("ppo", PPO)
