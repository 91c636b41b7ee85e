"""EnvPool: tasks written in C++, stepped by a thread pool from inside an XLA program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import envpool
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float

from detent.environments import Replay, Step
from detent.errors import BadInput


class PoolState(NamedTuple):
    """The pool's handle, threaded through the program to order its steps, and who resets next."""

    handle: Array
    ended: Bool[Array, " n"]


class Pool:
    """n EnvPool environments as one traceable environment.

    EnvPool's seeds are fixed when it is made, and it has no state to save. It speaks float64; everything that
    leaves this class is float32.
    """

    traceable = True

    def __init__(
        self,
        task_id: str,
        seed: int,
        num_envs: int,
        options: Mapping[str, Any],
        threads: int | None = None,
    ) -> None:
        threads = min(num_envs, threads or len(os.sched_getaffinity(0)))
        try:
            self._pool = envpool.make(
                task_id, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seed, **options
            )
        except (TypeError, ValueError, AssertionError) as error:
            raise BadInput(f"EnvPool could not make {task_id} with {dict(options)}: {error}") from error
        space = self._pool.action_space
        self.space = Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
        self.observation_size = int(self._pool.observation_space.shape[0])
        self.num_envs = num_envs
        self._action_dtype = space.dtype
        # EnvPool fixes the types of its XLA interface here; without x64 its float64 would be misread.
        with jax.enable_x64(True):
            self._handle, _, _, self._step = self._pool.xla()

    def reset(self) -> tuple[PoolState, Float[Array, "n d"]]:
        observation, _ = self._pool.reset()
        return self._state(np.zeros(self.num_envs, bool)), jnp.asarray(observation, jnp.float32)

    def step(self, state: PoolState, action: Float[Array, "n m"]) -> tuple[PoolState, Step]:
        """To be traced under `jax.enable_x64(True)`."""
        handle, (observation, reward, terminated, truncated, _) = self._step(
            state.handle, action.astype(self._action_dtype)
        )
        step = Step(
            observation.astype(jnp.float32),
            reward.astype(jnp.float32),
            terminated,
            truncated,
            valid=~state.ended,
            success=jnp.full(self.num_envs, jnp.nan, jnp.float32),
        )
        return PoolState(handle, terminated | truncated), step

    def replay(self, replay: Replay) -> tuple[PoolState, Float[Array, "n d"]]:
        """Reset each environment as often as before, then repeat the actions of its current episode."""
        observation = np.empty((self.num_envs, self.observation_size), np.float32)
        ended = np.zeros(self.num_envs, bool)
        for times in range(int(replay.resets.max())):
            observed, info = self._pool.reset(options={"reset_mask": replay.resets > times})
            observation[info["env_id"]] = observed
        lengths = np.array([len(actions) for actions in replay.actions])
        for t in range(int(lengths.max(initial=0))):
            ids = np.flatnonzero(lengths > t).astype(np.int32)
            actions = np.stack([replay.actions[i][t] for i in ids]).astype(self._action_dtype)
            observed, _, terminated, truncated, info = self._pool.step(actions, ids)
            observation[info["env_id"]] = observed
            ended[info["env_id"]] = terminated | truncated
        return self._state(ended), jnp.asarray(observation)

    def close(self) -> None:
        self._pool.close()

    def _state(self, ended: np.ndarray[Any, Any]) -> PoolState:
        return PoolState(jnp.asarray(self._handle), jnp.asarray(ended))
