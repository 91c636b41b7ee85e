"""Probes: tiny tasks with known answers, for testing heads and algorithms. They are written in JAX and scanned.

probe/value      reward 1 for any action: V = 1
probe/discount   reward 1 in the second of two steps: V(first) = gamma
probe/context    reward = observation, which is -1 or 1 at random: V = observation
probe/action     reward -(a - 0.5)^2: the best action is 0.5
probe/follow     reward -(a - 0.5 o)^2 with o = -1 or 1 at random: the best action is half the observation
probe/bimodal    two peaks, 0.6 high at -0.6 (wide) and 1 high at 0.6 (narrow): the best action is 0.6
probe/twin       two equal peaks, at -0.6 and 0.6: either is best, and so is any mixture
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float, Int

from detent.environments import Environment, Replay, Step, Wanted
from detent.environments.seeds import small_seed
from detent.observations import Layout, Numbers
from detent.tasks import TASKS, Size, Task


@dataclass(frozen=True)
class Rules:
    """Reward of (observation, action, step), episode length, and whether the observation is -1 or 1 at random."""

    reward: Callable[[Float[Array, " n"], Float[Array, " n"], Int[Array, " n"]], Float[Array, " n"]]
    length: int = 1
    random_observation: bool = False


def bimodal(action: Float[Array, " n"]) -> Float[Array, " n"]:
    wide, narrow = jnp.exp(-(((action + 0.6) / 0.4) ** 2)), jnp.exp(-(((action - 0.6) / 0.15) ** 2))
    return 0.6 * wide + narrow


def twin(action: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.exp(-(((action + 0.6) / 0.2) ** 2)) + jnp.exp(-(((action - 0.6) / 0.2) ** 2))


RULES = {
    "value": Rules(lambda o, a, t: jnp.ones_like(o)),
    "discount": Rules(lambda o, a, t: (t == 1).astype(o.dtype), length=2),
    "context": Rules(lambda o, a, t: o, random_observation=True),
    "action": Rules(lambda o, a, t: -((a - 0.5) ** 2)),
    "follow": Rules(lambda o, a, t: -((a - 0.5 * o) ** 2), random_observation=True),
    "bimodal": Rules(lambda o, a, t: bimodal(a)),
    "twin": Rules(lambda o, a, t: twin(a)),
}


class ProbeState(NamedTuple):
    episode: Int[Array, " n"]
    time: Int[Array, " n"]
    ended: Bool[Array, " n"]


class Probe:
    """n probes, each with one observation and one action in [-1, 1]. The observation is 1 + t unless it is random."""

    traceable = True
    x64 = saved = False
    observation_layout: Layout = Numbers((1,))

    def __init__(self, rules: Rules, wanted: Wanted) -> None:
        self.num_envs = wanted.num_envs
        self.space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_shape = self.space.shape
        self._rules = rules
        self._key = jax.random.key(small_seed(wanted.seed))

    def reset(self) -> tuple[ProbeState, Float[Array, "n 1"]]:
        zero = jnp.zeros(self.num_envs, jnp.int32)
        state = ProbeState(zero, zero, zero > 0)
        return state, self._observation(state)[:, None]

    def step(self, state: ProbeState, action: Float[Array, "n 1"]) -> tuple[ProbeState, Step]:
        valid = ~state.ended
        reward = self._rules.reward(self._observation(state), action[:, 0], state.time)
        time = jnp.where(valid, state.time + 1, 0)
        after = ProbeState(state.episode + state.ended, time, time == self._rules.length)
        step = Step(
            self._observation(after)[:, None],
            jnp.where(valid, reward, 0.0),
            terminated=after.ended,
            truncated=jnp.zeros_like(after.ended),
            valid=valid,
            success=jnp.full(self.num_envs, jnp.nan, jnp.float32),
        )
        return after, step

    def replay(self, replay: Replay) -> tuple[ProbeState, Float[Array, "n 1"]]:
        time = jnp.asarray([len(actions) for actions in replay.actions], jnp.int32)
        episode = jnp.asarray(replay.resets, jnp.int32) - 1
        state = ProbeState(episode, time, time == self._rules.length)
        return state, self._observation(state)[:, None]

    def close(self) -> None:
        """There is nothing to close."""

    def _observation(self, state: ProbeState) -> Float[Array, " n"]:
        if not self._rules.random_observation:
            return 1.0 + state.time.astype(jnp.float32)
        numbers = jnp.arange(self.num_envs, dtype=jnp.int32)
        keys = jax.vmap(lambda i, k: jax.random.fold_in(jax.random.fold_in(self._key, i), k))(numbers, state.episode)
        bits = jax.vmap(partial(jax.random.bits, dtype=jnp.uint8))(keys)
        return jnp.where(bits % 2 == 1, jnp.float32(1.0), jnp.float32(-1.0))


def _task(name: str, rules: Rules) -> Task:
    def make(wanted: Wanted) -> Environment:
        return Probe(rules, wanted)

    return Task(name, "probe", "jax", make, size=lambda: Size(1, 1, None))


for name, rules in RULES.items():
    TASKS.register(f"probe/{name}", _task(f"probe/{name}", rules))
