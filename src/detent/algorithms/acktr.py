"""Actor-critic using Kronecker-factored trust region (Wu et al. 2017, arXiv:1708.05144)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from detent.agent import Agent, Parameters
from detent.algorithms import Metrics, Rollout, register_algorithm
from detent.algorithms.samples import Sample, explained_variance, samples, standardized, weights
from detent.distributions import Action, Key
from detent.draws import log_uniform, uniform
from detent.heads import output_blocks
from detent.kfac import (
    KFAC,
    KFACState,
    Matrix,
    Scalar,
    Seen,
    as_matrices,
    inputs_and_scores,
    one_block,
    share_within,
)
from detent.options import check_options, option

SLOWEST, FASTEST = 1e-8, 1.0
"""Bounds of the policy's step size."""


class ACKTRState(NamedTuple):
    parameters: Parameters
    policy: KFACState
    value: KFACState
    step_size: Scalar
    """The policy's; the value function's is constant."""


@dataclass(frozen=True)
class ACKTR:
    """Actor-critic with K-FAC: natural-gradient steps for policy and value function, by inverting small matrices."""

    batch_size: int = option(1024, "steps collected per update", at_least=1, at_most=2**24)
    gamma: float = option(0.99, "discount factor", at_least=0, at_most=1)
    gae_lambda: float = option(
        0.95, "lambda of generalised advantage estimation", at_least=0, at_most=1, search=uniform(0.9, 0.99)
    )
    learning_rate: float = option(0.03, "the policy's initial step size", above=0, at_most=FASTEST)
    target_kl: float = option(
        0.02, "KL(old || new) to which the policy's step size is adapted", above=0, search=log_uniform(0.002, 0.04)
    )
    clip_kl: float = option(0.04, "maximum KL(old || new) of a step, both as estimated and as measured", above=0)
    damping: float = option(
        0.01, "multiple of the identity added to the policy's Fisher matrix", above=0, search=log_uniform(0.001, 0.1)
    )
    decay: float = option(
        0.95, "decay of the running averages of the policy's Fisher matrix", at_least=0, at_most=0.9999
    )
    momentum: float = option(
        0.9, "share of the previous step in the next, for policy and value function", at_least=0, at_most=0.999
    )
    value_steps: int = option(25, "gradient steps of the value function per update", at_least=1)
    value_learning_rate: float = option(
        0.1, "the value function's step size; 1 is a full natural-gradient step", above=0, at_most=1,
        search=log_uniform(0.01, 1.0),
    )  # fmt: skip
    value_lambda: float = option(
        0.95, "lambda of the returns that the value function learns; 1 for Monte Carlo", at_least=0, at_most=1
    )
    value_clip_kl: float = option(
        0.15, "maximum KL of a step of the value function; with a squared error, half the mean squared change",
        above=0,
    )  # fmt: skip
    value_damping: float = option(0.1, "multiple of the identity added to the value function's Fisher matrix", above=0)
    value_decay: float = option(
        0.95, "decay of the running averages of the value function's Fisher matrix", at_least=0, at_most=0.9999
    )
    bootstrap_truncated: bool = option(True, "bootstrap from the value where a time limit ends an episode")
    scheduled = False

    def __post_init__(self) -> None:
        check_options(self)

    def policy_kfac(self, agent: Agent, parameters: Parameters) -> KFAC:
        """The last layer's curvature has a block for each action dimension; the head's parameters are another layer."""
        blocks = [one_block(matrix.shape[1]) for matrix in policy_matrices(parameters)[0]]
        blocks[len(parameters["policy"]) - 1] = output_blocks(agent.head, agent.space)
        return KFAC(blocks, self.decay, self.damping, self.clip_kl, self.momentum)

    def value_kfac(self, parameters: Parameters) -> KFAC:
        blocks = [one_block(matrix.shape[1]) for matrix in as_matrices(parameters["value"])[0]]
        return KFAC(blocks, self.value_decay, self.value_damping, self.value_clip_kl, self.momentum)

    def init(self, agent: Agent, key: Key) -> ACKTRState:
        parameters = agent.init(key)
        policy = self.policy_kfac(agent, parameters).init(policy_matrices(parameters)[0])
        value = self.value_kfac(parameters).init(as_matrices(parameters["value"])[0])
        return ACKTRState(parameters, policy, value, jnp.float32(self.learning_rate))

    def update(
        self, agent: Agent, state: ACKTRState, rollout: Rollout, progress: Scalar, key: Key
    ) -> tuple[ACKTRState, Metrics]:
        policy_key, value_key = jax.random.split(key)
        value = agent.value(state.parameters, rollout.observation)
        batch = samples(self, rollout, value, value)
        returns = samples(dataclasses.replace(self, gae_lambda=self.value_lambda), rollout, value, value)
        state, metrics = self.improve_policy(agent, state, batch, policy_key)
        state = state._replace(parameters=agent.adapted(state.parameters, returns.target, returns.valid))
        state, value_loss = self.fit_value(agent, state, returns, value_key)
        return state, metrics | {"value_loss": value_loss, "explained_variance": explained_variance(returns)}

    def improve_policy(self, agent: Agent, state: ACKTRState, batch: Sample, key: Key) -> tuple[ACKTRState, Metrics]:
        """One step up the natural gradient of E[A log pi(a|s)], and the step size of the next."""
        weight, advantage = weights(batch.valid), standardized(batch)
        old = agent.policy(state.parameters, batch.observation)
        matrices, with_matrices = policy_matrices(state.parameters)

        def objective(matrices: list[Matrix]) -> Scalar:
            new = agent.policy(with_matrices(matrices), batch.observation)
            return weight @ (advantage * new.log_prob(batch.action))

        before, gradient = jax.value_and_grad(objective)(matrices)
        kfac = self.policy_kfac(agent, state.parameters)
        seen = policy_seen(agent, state.parameters, batch.observation, key)
        policy = kfac.observe(state.policy, seen, weight)
        steps = kfac.step(policy.momentum, kfac.inverses(policy), gradient, state.step_size)

        def shortened(share: Scalar) -> Parameters:
            return with_matrices(jax.tree.map(lambda matrix, step: matrix + share * step, matrices, steps))

        def kl_of(share: Scalar) -> Scalar:
            return weight @ old.kl(agent.policy(shortened(share), batch.observation))

        whole_kl = kl_of(jnp.float32(1.0))
        share, kl = share_within(kl_of, whole_kl, self.clip_kl)
        policy = policy._replace(momentum=[share * step for step in steps])
        # The rule of continuous ACKTR: adapt the step size until steps have about the target KL.
        shorter, longer = whole_kl > 2.0 * self.target_kl, whole_kl < 0.5 * self.target_kl
        step_size = state.step_size * jnp.where(shorter, 1.0 / 1.5, jnp.where(longer, 1.5, 1.0))
        metrics = {"policy_gradient_loss": -before, "kl_divergence_loss": kl, "learning_rate": state.step_size}
        return ACKTRState(shortened(share), policy, state.value, jnp.clip(step_size, SLOWEST, FASTEST)), metrics

    def fit_value(self, agent: Agent, state: ACKTRState, batch: Sample, key: Key) -> tuple[ACKTRState, Scalar]:
        """Natural gradient steps on the critic's loss; with a squared error, these are Gauss-Newton steps."""
        weight = weights(batch.valid)
        start, as_layers = as_matrices(state.parameters["value"])
        kfac = self.value_kfac(state.parameters)
        log_prob = lambda out, _: agent.critic.sampled_log_prob(out, key).sum()
        seen, _ = inputs_and_scores(agent.value_program, state.parameters["value"], batch.observation, log_prob)

        def loss(matrices: list[Matrix]) -> Scalar:
            outputs = agent.value_outputs(state.parameters | {"value": as_layers(matrices)}, batch.observation)
            return weight @ agent.critic.loss(*outputs, batch.target)

        value = kfac.observe(state.value, seen, weight)
        inverses = kfac.inverses(value)

        def gradient_step(carry: tuple[list[Matrix], list[Matrix]], _: None) -> tuple[Any, Scalar]:
            matrices, momentum = carry
            lost, gradient = jax.value_and_grad(loss)(matrices)
            steps = kfac.step(momentum, inverses, gradient, self.value_learning_rate)
            return (jax.tree.map(jnp.subtract, matrices, steps), steps), lost

        (matrices, momentum), losses = jax.lax.scan(gradient_step, (start, value.momentum), length=self.value_steps)
        parameters = state.parameters | {"value": as_layers(matrices)}
        return state._replace(parameters=parameters, value=value._replace(momentum=momentum)), losses[-1]


def policy_matrices(parameters: Parameters) -> tuple[list[Matrix], Callable[[Sequence[Matrix]], Parameters]]:
    """The policy's layers as matrices, and a function that returns the parameters with other matrices in their place.

    The head's own parameters, if any, form one more layer, which has no inputs.
    """
    layers, as_layers = as_matrices(parameters["policy"])
    own, as_head = ravel_pytree(parameters["head"])

    def with_matrices(matrices: Sequence[Matrix]) -> Parameters:
        head = {"head": as_head(matrices[-1][0])} if own.size else {}
        return parameters | {"policy": as_layers(matrices[: len(layers)])} | head

    return layers + ([own[None]] if own.size else []), with_matrices


def policy_seen(agent: Agent, parameters: Parameters, observation: Float[Array, "b d"], key: Key) -> list[Seen]:
    """Inputs and scores of every layer of the policy, for actions drawn from it."""
    action = agent.policy(parameters, observation).sample(key)
    own, as_head = ravel_pytree(parameters["head"])

    def log_prob(out: Float[Array, "b o"], own: Float[Array, "b p"]) -> Scalar:
        def of_one(out: Float[Array, " o"], own: Float[Array, " p"], action: Action) -> Scalar:
            return agent.head.distribution(out, as_head(own)).log_prob(action)

        return jax.vmap(of_one)(out, own, action).sum()

    repeated = jnp.broadcast_to(own, (observation.shape[0], own.size))
    seen, scores = inputs_and_scores(agent.policy_program, parameters["policy"], observation, log_prob, repeated)
    return seen + ([Seen(jnp.ones_like(observation[:, :1]), scores)] if own.size else [])


register_algorithm("acktr", ACKTR)
