"""Collecting rollouts: the only place where an environment meets a policy.

`_decide` chooses the actions and `_absorb` processes the results. A traceable environment is scanned inside one XLA
program; any other is stepped from Python, with the same two functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float, Int, UInt32
from numpy.typing import NDArray

from detent.agent import Agent, Parameters
from detent.algorithms import Rollout
from detent.distributions import Action, Key
from detent.environments import Environment, EnvState, Step
from detent.moments import Moments

Bits = UInt32[Array, "_"]
"""A packed pytree."""

COMPILER_OPTIONS: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
"""The matrices are small: splitting their products over threads costs more than it saves, and the number of cores would
change the order of sums and hence the bits."""


@dataclass(frozen=True)
class Edge:
    """How observations, rewards and actions are transformed between policy and environment."""

    actions: str
    """How a unit action becomes the environment's: `scale` to its bounds, only `clip` to them, or keep it `raw`."""
    normalize_observations: bool
    normalize_rewards: bool
    clip: float
    """Largest magnitude of a normalised observation or reward."""
    gamma: float
    """Discount of the returns whose standard deviation scales the rewards."""
    least_variance: float = 0.0
    """Lower limit of the variance that observations are normalised by."""
    returns_across_episodes: bool = False
    """Whether those returns continue across the end of an episode."""

    def action(self, unit: Float[Array, "n m"], space: Box) -> Float[Array, "n m"]:
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)
        if self.actions == "raw":
            return unit
        if self.actions == "scale":
            # Computed from the nearer end, so that -1 and 1 give the bounds exactly.
            half = 0.5 * (high - low)
            unit = jnp.where(unit < 0, low + (unit + 1.0) * half, high - (1.0 - unit) * half)
        return jnp.clip(unit, low, high)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """The state of collecting, apart from that of the environments themselves."""

    observation: Float[Array, "n d"]
    """Not normalised."""
    observation_moments: Moments
    return_moments: Moments
    discounted: Float[Array, " n"]
    """Discounted return so far, of the current episode unless it continues across episodes; its standard deviation
    scales the rewards."""
    episode_return: Float[Array, " n"]
    episode_length: Int[Array, " n"]

    def at_episode_start(self, observation: Float[Array | NDArray[Any], "n d"]) -> Memory:
        """The same moments, at the first observations of new episodes."""
        nothing = jnp.zeros_like(self.discounted)
        return dataclasses.replace(
            self,
            observation=jnp.asarray(observation),
            discounted=nothing,
            episode_return=nothing,
            episode_length=jnp.zeros_like(self.episode_length),
        )


class Trace(NamedTuple):
    """What is recorded of each step, besides the rollout."""

    env_action: Float[Array, "t n m"]
    """As passed to the environment; a replay repeats these."""
    ended: Bool[Array, "t n"]
    episode_return: Float[Array, "t n"]
    episode_length: Int[Array, "t n"]
    success: Float[Array, "t n"]
    clipped: Float[Array, "t n"]
    """Fraction of the action's dimensions that were outside the bounds."""
    fault: Float[Array, "t n"]
    """0, or the sum of the values in observation and reward that are not finite."""


class Choice(NamedTuple):
    """The decisions for all environments."""

    observation: Float[Array, "n d"]
    """Normalised, as the policy saw it."""
    action: Action
    log_prob: Float[Array, " n"]
    env_action: Float[Array, "n m"]
    clipped: Float[Array, " n"]


Collect = Callable[[Parameters, Memory, EnvState, Key], tuple[Memory, EnvState, Rollout, Trace]]


def begin(observation: Float[Array | NDArray[Any], "n d"]) -> Memory:
    """The memory before the first step."""
    n, size = observation.shape
    first = jnp.asarray(observation)
    return Memory(
        observation=first,
        observation_moments=Moments.zero((size,)).update(first, jnp.ones(n)),
        return_moments=Moments.zero(()),
        discounted=jnp.zeros(n),
        episode_return=jnp.zeros(n),
        episode_length=jnp.zeros(n, jnp.int32),
    )


def make_collect(agent: Agent, edge: Edge, env: Environment, steps: int) -> Collect:
    """A function that runs every environment for `steps` steps."""
    return (_scanned if env.traceable else _looped)(agent, edge, env, steps)


def rollout_shapes(
    agent: Agent, edge: Edge, env: Environment, parameters: Parameters, steps: int
) -> tuple[Rollout, Trace]:
    """The shapes of the rollout and the trace that `collect` returns, without collecting anything."""
    n = env.num_envs

    def collect(parameters: Parameters, key: Key) -> tuple[Rollout, Trace]:
        memory = begin(jnp.zeros((n, env.observation_layout.size)))
        choice = _decide(agent, edge, parameters, memory.observation_moments, memory.observation, key)
        number, flag = jnp.zeros(n), jnp.zeros(n, bool)
        memory, taken = _absorb(edge, memory, choice, Step(memory.observation, number, flag, flag, flag, number))
        rollout, trace = jax.tree.map(lambda x: jnp.broadcast_to(x, (steps, *x.shape)), taken)
        return _closed(edge, memory, rollout), trace

    shapes: tuple[Rollout, Trace] = jax.eval_shape(collect, parameters, jax.random.key(0))
    return shapes


def normalized(edge: Edge, moments: Moments, observation: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """An observation as the networks see it."""
    if not edge.normalize_observations:
        return observation
    return moments.normalize(observation, edge.clip, edge.least_variance)


def _decide(
    agent: Agent, edge: Edge, parameters: Parameters, moments: Moments, observation: Float[Array, "n d"], key: Key
) -> Choice:
    observation = normalized(edge, moments, observation)
    distribution = agent.policy(parameters, observation)
    action = distribution.sample(key)
    unit = agent.head.to_unit(action)
    # The end of a grid may be outside by a rounding error, which does not count as clipping.
    clipped = jnp.mean(jnp.abs(unit) > 1.0 + 1e-6, axis=-1, dtype=jnp.float32)
    return Choice(observation, action, distribution.log_prob(action), edge.action(unit, agent.space), clipped)


def _absorb(edge: Edge, memory: Memory, choice: Choice, step: Step) -> tuple[Memory, tuple[Rollout, Trace]]:
    """Process one step. Steps that only reset have no weight in any statistic."""
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
    over = ended | ~step.valid  # an environment that failed starts a new episode without having ended the last one
    memory = Memory(
        observation=step.observation,
        observation_moments=observation_moments,
        return_moments=return_moments,
        discounted=jnp.where(step.valid, discounted, memory.discounted)
        if edge.returns_across_episodes
        else jnp.where(over, 0.0, discounted),
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
            with jax.enable_x64(env.x64):  # Detent's own arrays are explicitly float32
                lowered = jax.jit(collect).lower(parameters, memory, env_state, key)
                compiled.append(lowered.compile(COMPILER_OPTIONS))
        result: tuple[Memory, EnvState, Rollout, Trace] = compiled[0](parameters, memory, env_state, key)
        return result

    return call


def _looped(agent: Agent, edge: Edge, env: Environment, steps: int) -> Collect:
    """Between steps, compute only what the next action needs; the rest is processed at the end, all at once."""
    programs: list[Programs] = []

    def collect(
        parameters: Parameters, memory: Memory, env_state: EnvState, key: Key
    ) -> tuple[Memory, EnvState, Rollout, Trace]:
        if not programs:
            programs.append(_programs(agent, edge, parameters, memory, key))
        [(pack, decide, absorb)] = programs
        keys = jax.random.split(key, steps)
        vector, moments = pack(parameters, memory.observation_moments)
        seen = np.zeros((env.num_envs, env.observation_layout.size + 1), np.float32)
        seen[:, :-1] = memory.observation
        # The last column is the weight of the observation in the moments; the first observations are counted already.
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


class Programs(NamedTuple):
    """What is compiled for an environment that is stepped from Python. Pytrees are passed as one vector each."""

    pack: Callable[[Parameters, Moments], tuple[Bits, Bits]]
    decide: Callable[[Bits, Bits, NDArray[np.float32], Key, int], tuple[Bits, Bits, Array]]
    """Parameters, moments before the last observation, that observation with its weight, keys, number of the step ->
    moments after the observation, choice, action."""
    absorb: Callable[[Memory, NDArray[np.uint32], Step], tuple[Memory, Rollout, Trace]]
    """Memory, all choices and the steps that followed -> new memory, rollout, trace."""


def _programs(agent: Agent, edge: Edge, parameters: Parameters, memory: Memory, key: Key) -> Programs:
    """The programs for parameters and memory of these shapes."""
    decision = partial(_decide, agent, edge)
    choice = jax.eval_shape(decision, parameters, memory.observation_moments, memory.observation, key)
    of_parameters, of_moments, of_choice = map(Packing.like, (parameters, memory.observation_moments, choice))
    compiled = partial(jax.jit, compiler_options=COMPILER_OPTIONS)

    @compiled
    def pack(parameters: Parameters, moments: Moments) -> tuple[Bits, Bits]:
        return of_parameters.pack(parameters), of_moments.pack(moments)

    @compiled
    def decide(parameters: Bits, moments: Bits, seen: Array, keys: Key, t: int) -> tuple[Bits, Bits, Array]:
        observation, acted_on = seen[:, :-1], seen[:, -1]
        updated = of_moments.unpack(moments).update(observation, acted_on)
        choice = decision(of_parameters.unpack(parameters), updated, observation, keys[t])
        return of_moments.pack(updated), of_choice.pack(choice), choice.env_action

    @compiled
    def absorb(memory: Memory, choices: Array, taken: Step) -> tuple[Memory, Rollout, Trace]:
        rows = jax.vmap(of_choice.unpack)(choices), taken
        memory, (rollout, trace) = jax.lax.scan(lambda m, row: _absorb(edge, m, *row), memory, rows)
        return memory, _closed(edge, memory, rollout), trace

    return Programs(pack, decide, absorb)


class Packing(NamedTuple):
    """How a pytree of 32-bit numbers is stored in one vector of their bits.

    Passing an array to XLA and back costs more than computing with it.
    """

    structure: Any
    shapes: list[tuple[int, ...]]
    dtypes: list[np.dtype[Any]]

    @staticmethod
    def like(tree: Any) -> Packing:
        """The packing of a tree of arrays, or of their shapes and types."""
        leaves, structure = jax.tree.flatten(tree)
        return Packing(structure, [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves])

    def pack(self, tree: Any) -> Bits:
        bits = [jax.lax.bitcast_convert_type(leaf, jnp.uint32) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate([leaf.ravel() for leaf in bits])

    def unpack(self, vector: Bits) -> Any:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = zip(jnp.split(vector, ends[:-1]), self.shapes, self.dtypes, strict=True)
        leaves = [jax.lax.bitcast_convert_type(part.reshape(shape), dtype) for part, shape, dtype in parts]
        return jax.tree.unflatten(self.structure, leaves)
