"""Collecting rollouts: the only place where an environment meets a policy.

One function decides (`_decide`) and one takes in what came of it (`_absorb`). A traceable environment is
scanned inside one XLA program; any other is stepped from Python, between two calls of the same functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from detent.agent import Agent, Parameters
from detent.algorithms import Rollout
from detent.distributions import Action, Key
from detent.environments import Environment, EnvState, Step
from detent.moments import Moments

COMPILER_OPTIONS: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
"""Matrices here are small: splitting their products over threads costs more than it saves, and would let the
number of cores change the order of sums, hence the bits."""


@dataclass(frozen=True)
class Edge:
    """Between policy and environment: what becomes of observations, rewards and actions there."""

    actions: str
    """How a unit action becomes the environment's: `scale` to its bounds, only `clip` to them, or leave `raw`."""
    normalize_observations: bool
    normalize_rewards: bool
    clip: float
    """Largest size of a normalised observation or reward."""
    gamma: float
    """Discount of the returns whose spread scales the rewards."""

    def action(self, unit: Float[Array, "n m"], space: Box) -> Float[Array, "n m"]:
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)
        if self.actions == "raw":
            return unit
        if self.actions == "scale":
            # From the nearer end, so that -1 and 1 give the bounds exactly.
            half = 0.5 * (high - low)
            unit = jnp.where(unit < 0, low + (unit + 1.0) * half, high - (1.0 - unit) * half)
        return jnp.clip(unit, low, high)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """What collecting carries from step to step, apart from the environments themselves."""

    observation: Float[Array, "n d"]
    """As the environments gave it."""
    observation_moments: Moments
    return_moments: Moments
    discounted: Float[Array, " n"]
    """Discounted return of the current episode so far; its spread scales the rewards."""
    episode_return: Float[Array, " n"]
    episode_length: Int[Array, " n"]

    def at_episode_start(self, observation: Float[Array, "n d"]) -> Memory:
        """The same moments, in front of the first observations of new episodes."""
        nothing = jnp.zeros_like(self.discounted)
        return dataclasses.replace(
            self,
            observation=observation,
            discounted=nothing,
            episode_return=nothing,
            episode_length=jnp.zeros_like(self.episode_length),
        )


class Trace(NamedTuple):
    """What the books need of each step, besides the rollout."""

    env_action: Float[Array, "t n m"]
    """As the environment got it; repeating these brings it back."""
    ended: Bool[Array, "t n"]
    episode_return: Float[Array, "t n"]
    episode_length: Int[Array, "t n"]
    success: Float[Array, "t n"]
    clipped: Float[Array, "t n"]
    """Share of the action's dimensions that lay outside the bounds."""
    fault: Float[Array, "t n"]
    """0, or the sum of what was not finite in observation and reward."""


class Choice(NamedTuple):
    """A decision for every environment."""

    observation: Float[Array, "n d"]
    """Normalised: what the decision was based on."""
    action: Action
    log_prob: Float[Array, " n"]
    env_action: Float[Array, "n m"]
    clipped: Float[Array, " n"]


Collect = Callable[[Parameters, Memory, EnvState, Key], tuple[Memory, EnvState, Rollout, Trace]]


def begin(observation: Float[Array, "n d"]) -> Memory:
    """The memory before the first step."""
    n, size = observation.shape
    moments = Moments.zero((size,)).update(observation, jnp.ones(n))
    return Memory(
        observation=observation,
        observation_moments=moments,
        return_moments=Moments.zero(()),
        discounted=jnp.zeros(n),
        episode_return=jnp.zeros(n),
        episode_length=jnp.zeros(n, jnp.int32),
    )


def make_collect(agent: Agent, edge: Edge, env: Environment, steps: int) -> Collect:
    """A function that runs every environment for `steps` steps."""
    return (_scanned if env.traceable else _looped)(agent, edge, env, steps)


def normalized(edge: Edge, moments: Moments, observation: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """What the networks see of an observation."""
    return moments.normalize(observation, edge.clip) if edge.normalize_observations else observation


def _decide(
    agent: Agent, edge: Edge, parameters: Parameters, moments: Moments, observation: Float[Array, "n d"], key: Key
) -> Choice:
    observation = normalized(edge, moments, observation)
    distribution = agent.policy(parameters, observation)
    action = distribution.sample(key)
    unit = agent.head.to_unit(action)
    # A grid's end may lie a rounding error outside; that is no clipping.
    clipped = jnp.mean(jnp.abs(unit) > 1.0 + 1e-6, axis=-1, dtype=jnp.float32)
    return Choice(observation, action, distribution.log_prob(action), edge.action(unit, agent.space), clipped)


def _absorb(edge: Edge, memory: Memory, choice: Choice, step: Step) -> tuple[Memory, tuple[Rollout, Trace]]:
    """Take in one step. Steps that only reset carry no weight in any statistic."""
    ended = step.terminated | step.truncated
    valid = step.valid.astype(jnp.float32)
    reward = jnp.where(step.valid, step.reward, 0.0)

    discounted = edge.gamma * memory.discounted + reward
    return_moments = memory.return_moments.update(discounted, valid)
    # The policy acts on every observation but the final one of an episode.
    acted_on = 1.0 - ended.astype(jnp.float32)
    observation_moments = memory.observation_moments.update(step.observation, acted_on)
    episode_return = memory.episode_return + reward
    episode_length = memory.episode_length + step.valid.astype(jnp.int32)

    rollout = Rollout(
        observation=choice.observation,
        action=choice.action,
        log_prob=choice.log_prob,
        reward=return_moments.scale(reward, edge.clip) if edge.normalize_rewards else reward,
        terminated=step.terminated,
        truncated=step.truncated,
        valid=step.valid,
    )
    trace = Trace(
        choice.env_action,
        ended,
        episode_return,
        episode_length,
        step.success,
        jnp.where(step.valid, choice.clipped, 0.0),
        _not_finite(step.observation).sum(-1) + _not_finite(reward),
    )
    over = ended | ~step.valid  # an environment that failed begins a new episode without having ended the last one
    memory = Memory(
        observation=step.observation,
        observation_moments=observation_moments,
        return_moments=return_moments,
        discounted=jnp.where(over, 0.0, discounted),
        episode_return=jnp.where(over, 0.0, episode_return),
        episode_length=jnp.where(over, 0, episode_length),
    )
    return memory, (rollout, trace)


def _closed(edge: Edge, memory: Memory, rollout: Rollout) -> Rollout:
    """The rollout with the observations that its last step led to; an episode cut short by a failure is truncated."""
    last = normalized(edge, memory.observation_moments, memory.observation)
    resets_next = jnp.concatenate([~rollout.valid[1:], jnp.zeros_like(rollout.valid[:1])])
    return rollout._replace(
        observation=jnp.concatenate([rollout.observation, last[None]]),
        truncated=rollout.truncated | (resets_next & ~rollout.terminated),
    )


def _not_finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), 0.0, x)


def _scanned(agent: Agent, edge: Edge, env: Environment, steps: int) -> Collect:
    def collect(
        parameters: Parameters, memory: Memory, env_state: EnvState, key: Key
    ) -> tuple[Memory, EnvState, Rollout, Trace]:
        def one(carry: tuple[Memory, EnvState], key: Key) -> tuple[tuple[Memory, EnvState], tuple[Rollout, Trace]]:
            memory, env_state = carry
            choice = _decide(agent, edge, parameters, memory.observation_moments, memory.observation, key)
            env_state, step = env.step(env_state, choice.env_action)
            memory, taken = _absorb(edge, memory, choice, step)
            return (memory, env_state), taken

        (memory, env_state), (rollout, trace) = jax.lax.scan(one, (memory, env_state), jax.random.split(key, steps))
        return memory, env_state, _closed(edge, memory, rollout), trace

    compiled: list[Any] = []

    def call(
        parameters: Parameters, memory: Memory, env_state: EnvState, key: Key
    ) -> tuple[Memory, EnvState, Rollout, Trace]:
        if not compiled:
            with jax.enable_x64(True):  # for EnvPool's float64; everything of ours is explicitly float32
                lowered = jax.jit(collect).lower(parameters, memory, env_state, key)
                compiled.append(lowered.compile(COMPILER_OPTIONS))
        result: tuple[Memory, EnvState, Rollout, Trace] = compiled[0](parameters, memory, env_state, key)
        return result

    return call


def _looped(agent: Agent, edge: Edge, env: Environment, steps: int) -> Collect:
    """Between two steps only what the next action needs is computed; the rest is absorbed at the end, in one go.

    Handing an array to XLA and back costs more than computing with it, so what belongs together travels as one vector.
    """
    unpack: dict[str, Callable[[Array], Any]] = {}

    def packed(name: str, tree: Any) -> Array:
        vector, unpack[name] = ravel_pytree(tree)
        return vector

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def decide(parameters: Array, moments: Array, seen: Array, keys: Key, t: int) -> tuple[Array, Array, Array]:
        observation, acted_on = seen[:, :-1], seen[:, -1]
        updated = unpack["moments"](moments).update(observation, acted_on)
        choice = _decide(agent, edge, unpack["parameters"](parameters), updated, observation, keys[t])
        return packed("moments", updated), packed("choice", choice), choice.env_action

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def absorb(memory: Memory, choices: Array, taken: Step) -> tuple[Memory, Rollout, Trace]:
        rows = jax.vmap(unpack["choice"])(choices), taken
        memory, (rollout, trace) = jax.lax.scan(lambda m, row: _absorb(edge, m, *row), memory, rows)
        return memory, _closed(edge, memory, rollout), trace

    def collect(
        parameters: Parameters, memory: Memory, env_state: EnvState, key: Key
    ) -> tuple[Memory, EnvState, Rollout, Trace]:
        keys = jax.random.split(key, steps)
        vector, moments = packed("parameters", parameters), packed("moments", memory.observation_moments)
        seen = np.zeros((env.num_envs, env.observation_size + 1), np.float32)
        seen[:, :-1] = memory.observation
        # The last column: whether to count the observation. The first ones have been counted already.
        choices, taken = [], []
        for t in range(steps):
            moments, choice, action = decide(vector, moments, seen, keys, t)
            choices.append(choice)
            env_state, step = env.step(env_state, action)
            taken.append(step)
            seen = np.empty_like(seen)
            seen[:, :-1] = step.observation
            seen[:, -1] = ~(step.terminated | step.truncated)
        rows = jax.tree.map(lambda *row: np.stack(row), *taken)
        memory, rollout, trace = absorb(memory, np.stack(choices), rows)
        return memory, env_state, rollout, trace

    return collect
