"""A pendulum written in JAX: an environment that is scanned without x64 and whose state is saved, not replayed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float, Int, UInt32

from detent.environments import Replay, Step, Wanted
from detent.environments.seeds import small_seed
from detent.observations import Layout, Numbers
from detent.tasks import Task

LENGTH = 23
"""Steps of an episode: no divisor of the rollouts in the tests."""


class State(NamedTuple):
    angle: Float[Array, " n"]
    speed: Float[Array, " n"]
    time: Int[Array, " n"]
    ended: Bool[Array, " n"]
    key: UInt32[Array, " 2"]
    """Goes on with every step: no number of resets would bring it back."""


class Pendulum:
    """n pendulums to be held upright; observations [2, 2] of the angle's cosine and sine, the speed and the time."""

    traceable = saved = True
    x64 = False
    observation_layout: Layout = Numbers((2, 2))

    def __init__(self, wanted: Wanted) -> None:
        self.num_envs = wanted.num_envs
        self.space = Box(-2.0, 2.0, (1,), np.float32)
        self.action_shape = self.space.shape
        self._key = jax.random.key_data(jax.random.key(small_seed(wanted.seed)))

    def reset(self) -> tuple[State, Float[Array, "n 4"]]:
        nothing = jnp.zeros(self.num_envs, jnp.float32)
        state = State(nothing, nothing, nothing.astype(jnp.int32), nothing > 1, self._key)
        state = self._begun(state, jnp.ones(self.num_envs, bool))
        return state, self._seen(state)

    def step(self, state: State, action: Float[Array, "n 1"]) -> tuple[State, Step]:
        assert not jax.config.jax_enable_x64
        valid = ~state.ended
        torque = action[:, 0]
        speed = state.speed + 0.05 * (15.0 * jnp.sin(state.angle) + 3.0 * torque)
        angle = state.angle + 0.05 * speed
        reward = -(jnp.square(jnp.sin(angle / 2.0)) + 0.01 * jnp.square(speed) + 0.001 * jnp.square(torque))
        time = state.time + 1
        after = State(angle, speed, time, (time == LENGTH) & valid, state.key)
        after = self._begun(after, state.ended)
        step = Step(
            self._seen(after),
            jnp.where(valid, reward, 0.0),
            terminated=jnp.zeros_like(valid),
            truncated=after.ended,
            valid=valid,
            success=jnp.full(self.num_envs, jnp.nan, jnp.float32),
        )
        return after, step

    def replay(self, replay: Replay) -> tuple[State, Float[Array, "n 4"]]:
        raise AssertionError("the state is saved")

    def close(self) -> None:
        """There is nothing to close."""

    def _begun(self, state: State, which: Bool[Array, " n"]) -> State:
        """New episodes where they are due; a new key in any case."""
        key, used = jax.random.split(jax.random.wrap_key_data(state.key))
        angle, speed = jax.random.uniform(used, (2, self.num_envs), jnp.float32, -1.0, 1.0)
        return State(
            jnp.where(which, jnp.pi * angle, state.angle),
            jnp.where(which, speed, state.speed),
            jnp.where(which, 0, state.time),
            jnp.where(which, False, state.ended),
            jax.random.key_data(key),
        )

    def _seen(self, state: State) -> Float[Array, "n 4"]:
        time = state.time.astype(jnp.float32) / LENGTH
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed, time], axis=-1)


TASK = Task("test/pendulum", "test", "jax", Pendulum)
