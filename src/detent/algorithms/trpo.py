"""Trust region policy optimisation (Schulman et al. 2015, arXiv:1502.05477)."""

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
    standardized,
    weights,
)
from detent.distributions import Key
from detent.draws import log_uniform, uniform
from detent.options import check_options, option
from detent.solvers import Vector, conjugate_gradient

Scalar = Float[Array, ""]
Fit = tuple[Vector, optax.OptState]  # the value function's parameters and Adam's state


class TRPOState(NamedTuple):
    parameters: Parameters
    value_optimizer: optax.OptState


class Search(NamedTuple):
    """The state of the line search: the step it tried last, and whether that was accepted."""

    tried: Int[Array, ""]
    theta: Vector
    objective: Scalar
    kl: Scalar
    accepted: Bool[Array, ""]


@dataclass(frozen=True)
class TRPO:
    """Trust region policy optimisation: one natural-gradient step per batch, limited by the KL divergence."""

    batch_size: int = option(1024, "steps collected per update", at_least=1, at_most=2**24)
    gamma: float = option(0.99, "discount factor", at_least=0, at_most=1)
    gae_lambda: float = option(
        0.95, "lambda of generalised advantage estimation", at_least=0, at_most=1, search=uniform(0.9, 0.99)
    )
    max_kl: float = option(0.02, "target KL(old || new) of an update", above=0, search=log_uniform(0.003, 0.1))
    kl_tolerance: float = option(1.0, "accept steps of up to this many times --max-kl", at_least=1)
    cg_iterations: int = option(10, "iterations of conjugate gradient", at_least=1)
    damping: float = option(
        0.03, "multiple of the identity added to the Fisher matrix", above=0, search=log_uniform(0.003, 0.3)
    )
    fisher_every: int = option(1, "estimate the Fisher matrix from every Nth sample", at_least=1)
    line_search_steps: int = option(10, "step lengths to try before skipping the update", at_least=1)
    line_search_factor: float = option(0.8, "ratio of each step length to the one before", above=0, at_most=0.99)
    minibatch_size: int = option(128, "steps per gradient step of the value function", at_least=1)
    epochs: int = option(10, "passes over each batch to fit the value function", at_least=1, search=uniform(3, 20))
    learning_rate: float = option(
        1e-3, "Adam's step size, for the value function", above=0, search=log_uniform(1e-4, 1e-2)
    )
    bootstrap_truncated: bool = option(True, "bootstrap from the value where a time limit ends an episode")
    scheduled = False

    def __post_init__(self) -> None:
        check_options(self)
        check_minibatches(self.batch_size, self.minibatch_size)

    @property
    def adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def init(self, agent: Agent, key: Key) -> TRPOState:
        parameters = agent.init(key)
        return TRPOState(parameters, self.adam.init(ravel_pytree(parameters["value"])[0]))

    def update(
        self, agent: Agent, state: TRPOState, rollout: Rollout, progress: Scalar, key: Key
    ) -> tuple[TRPOState, Metrics]:
        value = agent.value(state.parameters, rollout.observation)
        batch = samples(self, rollout, value, value)
        parameters, metrics = self.improve_policy(agent, state.parameters, batch)
        parameters = agent.adapted(parameters, batch.target, batch.valid)
        state, value_loss = self.fit_value(agent, state._replace(parameters=parameters), batch, key)
        return state, metrics | {
            "value_loss": value_loss,
            "learning_rate": jnp.float32(self.learning_rate),
            "explained_variance": explained_variance(batch),
        }

    def improve_policy(self, agent: Agent, parameters: Parameters, batch: Sample) -> tuple[Parameters, Metrics]:
        """The largest step along the natural gradient that stays within the trust region, or none.

        maximise L(theta) = E[r A], r = pi_theta(a|s) / pi_old(a|s), subject to E[KL(old || theta)] <= max_kl (Eq. 14)
        """
        theta, with_theta = policy_vector(parameters)
        old = agent.policy(parameters, batch.observation)
        weight, advantage = weights(batch.valid), standardized(batch)

        def objective_and_kl(theta: Vector) -> tuple[Scalar, Scalar]:
            new = agent.policy(with_theta(theta), batch.observation)
            ratio = jnp.exp(jnp.where(batch.valid, new.log_prob(batch.action) - batch.log_prob, 0.0))
            return weight @ (ratio * advantage), weight @ old.kl(new)

        (before, _), gradient = jax.value_and_grad(objective_and_kl, has_aux=True)(theta)
        fisher = self.fisher_product(agent, parameters, batch)

        def damped(v: Vector) -> Vector:
            return fisher(v) + self.damping * v

        # Appendix C: s = F^-1 g, and beta = sqrt(2 max_kl / s^T F s) makes the KL of beta s max_kl to second order.
        direction = conjugate_gradient(damped, gradient, self.cg_iterations)
        curvature = direction @ damped(direction)
        full_step = direction * jnp.sqrt(2.0 * self.max_kl / jnp.maximum(curvature, 1e-30))
        found = self.line_search(objective_and_kl, theta, full_step, before)
        return with_theta(found.theta), {
            "policy_objective": found.objective,
            "kl_divergence_loss": found.kl,
            "is_line_search_success": found.accepted.astype(jnp.float32),
        }

    def fisher_product(self, agent: Agent, parameters: Parameters, batch: Sample) -> Callable[[Vector], Vector]:
        """v -> F v, with the Fisher information F of the policy's parameters.

        F = J^T H J: J is the derivative of the outputs (of the network, and the head's own parameters) in theta,
        H the Hessian of E[KL(old || new)] in the outputs of new. At new = old the gradient of the KL is 0, so this
        is the whole Hessian of the KL in theta; and both factors are linearised once for all products.
        """
        observation, valid = batch.observation[:: self.fisher_every], batch.valid[:: self.fisher_every]
        theta, with_theta = policy_vector(parameters)
        outputs, jacobian = jax.linearize(lambda t: agent.outputs(with_theta(t), observation), theta)
        old = agent.head.distribution(*outputs)
        mean_kl = lambda new: weights(valid) @ old.kl(agent.head.distribution(*new))
        _, hessian = jax.linearize(jax.grad(mean_kl), outputs)
        transposed = jax.linear_transpose(jacobian, theta)

        def product(v: Vector) -> Vector:
            f_v: Vector = transposed(hessian(jacobian(v)))[0]
            return f_v

        return product

    def line_search(
        self,
        objective_and_kl: Callable[[Vector], tuple[Scalar, Scalar]],
        theta: Vector,
        full_step: Vector,
        before: Scalar,
    ) -> Search:
        """The first step full_step * factor^i that does not lower the objective and stays within the KL limit.

        If there is none, theta is unchanged, bit for bit.
        """

        def searching(search: Search) -> Bool[Array, ""]:
            return (search.tried < self.line_search_steps) & ~search.accepted

        def shorter(search: Search) -> Search:
            there = theta + full_step * self.line_search_factor ** search.tried.astype(theta.dtype)
            objective, kl = objective_and_kl(there)
            # Comparisons with NaN are false, so a step that is not finite is rejected.
            accepted = (objective >= before) & (kl <= self.kl_tolerance * self.max_kl)
            return Search(search.tried + 1, there, objective, kl, accepted)

        start = Search(jnp.int32(0), theta, before, jnp.zeros_like(before), jnp.asarray(False))
        found = jax.lax.while_loop(searching, shorter, start)
        given_up = start._replace(tried=found.tried)
        result: Search = jax.tree.map(lambda f, g: jnp.where(found.accepted, f, g), found, given_up)
        return result

    def fit_value(self, agent: Agent, state: TRPOState, batch: Sample, key: Key) -> tuple[TRPOState, Scalar]:
        """Fit the lambda-returns with Adam, on minibatches."""

        def loss(value: Vector, minibatch: Sample) -> Scalar:
            outputs = agent.value_outputs(state.parameters | {"value": as_layers(value)}, minibatch.observation)
            return weights(minibatch.valid) @ agent.critic.loss(*outputs, minibatch.target)

        def gradient_step(carry: Fit, minibatch: Sample) -> tuple[Fit, Scalar]:
            value, optimizer = carry
            lost, gradient = jax.value_and_grad(loss)(value, minibatch)
            step, optimizer = self.adam.update(gradient, optimizer)
            return (value + step, optimizer), lost

        def epoch(carry: Fit, key: Key) -> tuple[Fit, Float[Array, " s"]]:
            return jax.lax.scan(gradient_step, carry, minibatches(key, batch, self.minibatch_size))

        value, as_layers = ravel_pytree(state.parameters["value"])
        keys = jax.random.split(key, self.epochs)
        (value, optimizer), losses = jax.lax.scan(epoch, (value, state.value_optimizer), keys)
        return TRPOState(state.parameters | {"value": as_layers(value)}, optimizer), losses[-1].mean()


def policy_vector(parameters: Parameters) -> tuple[Vector, Callable[[Vector], Parameters]]:
    """All parameters of the policy as one vector theta, and a function that puts another theta in their place."""
    theta, as_policy = ravel_pytree({"policy": parameters["policy"], "head": parameters["head"]})
    return theta, lambda theta: parameters | as_policy(theta)


register_algorithm("trpo", TRPO)
