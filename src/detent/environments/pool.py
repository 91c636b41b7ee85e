"""EnvPool: tasks written in C++, stepped by a thread pool from inside an XLA program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import envpool
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from jaxtyping import Array, Bool, Float

from detent.environments import ActionSpace, Replay, Step
from detent.errors import BadInput

# Gymnasium warns that the bounds of EnvPool's spaces lose digits as float32: nothing that a user could do about it.
_quiet = partial(warnings.catch_warnings, action="ignore")


def sizes(task_id: str, without: Collection[str] = ()) -> tuple[int, int, int]:
    """Of a task: the length of its observations and of its actions, and its horizon."""
    with _quiet():
        spec = envpool.make_spec(task_id)
        actions = 1 if isinstance(spec.action_space, Discrete) else spec.action_space.shape[0]
        return flat_size(spec.observation_space, without), actions, spec.config.max_episode_steps


def flat_size(space: Any, without: Collection[str]) -> int:
    """The length of `flat` observations."""
    if not isinstance(space, Dict):
        return int(space.shape[0])
    return sum(int(np.prod(part.shape or ())) for name, part in space.items() if name not in without)


def flat(observation: Any, without: Collection[str]) -> Any:
    """Observations [n, d]; named parts, but for those to leave out, one after the other in the order of their names."""
    if not isinstance(observation, dict):
        return observation
    parts = [observation[name] for name in sorted(observation) if name not in without]
    library = np if isinstance(parts[0], np.ndarray) else jnp
    return library.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)


class PoolState(NamedTuple):
    """The pool's handle, threaded through the program to order its steps, and who resets next."""

    handle: Array
    ended: Bool[Array, " n"]


class Pool:
    """n EnvPool environments as one traceable environment.

    EnvPool's seeds are fixed when it is made, and it has no state to save. It speaks float64; everything that
    leaves this class is float32. Observations in named parts become vectors, leaving out the parts in `without`.
    """

    traceable = True

    def __init__(
        self,
        task_id: str,
        seed: int,
        num_envs: int,
        options: Mapping[str, Any],
        threads: int | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._without = without
        threads = min(num_envs, threads or len(os.sched_getaffinity(0)))
        try:
            with _quiet():
                self._pool = envpool.make(
                    task_id, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=seed, **options
                )
                observation_space, space = self._pool.observation_space, self._pool.action_space
        except (TypeError, ValueError, AssertionError) as error:
            raise BadInput(f"EnvPool could not make {task_id} with {dict(options)}: {error}") from error
        self._choices = isinstance(space, Discrete)
        self.space: ActionSpace
        if isinstance(space, Discrete):
            self.space = Box(0, np.array([space.n - 1]), dtype=np.int64)
        else:
            self.space = Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
        self.action_shape: tuple[int, ...] = space.shape
        self.observation_size = flat_size(observation_space, without)
        self.num_envs = num_envs
        self._action_dtype = np.int32 if self._choices else space.dtype
        # EnvPool fixes the types of its XLA interface here; without x64 its float64 would be misread.
        with jax.enable_x64(True):
            self._handle, _, _, self._step = self._pool.xla()

    def reset(self) -> tuple[PoolState, Float[Array, "n d"]]:
        observation, _ = self._pool.reset()
        return self._state(np.zeros(self.num_envs, bool)), jnp.asarray(flat(observation, self._without), jnp.float32)

    def step(self, state: PoolState, action: Float[Array, "n m"]) -> tuple[PoolState, Step]:
        """To be traced under `jax.enable_x64(True)`."""
        handle, (observation, reward, terminated, truncated, _) = self._step(state.handle, self._native(action))
        step = Step(
            flat(observation, self._without).astype(jnp.float32),
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
            observation[info["env_id"]] = flat(observed, self._without)
        lengths = np.array([len(actions) for actions in replay.actions])
        for t in range(int(lengths.max(initial=0))):
            ids = np.flatnonzero(lengths > t).astype(np.int32)
            actions = np.stack([replay.actions[i][t] for i in ids])
            observed, _, terminated, truncated, info = self._pool.step(np.asarray(self._native(actions)), ids)
            observation[info["env_id"]] = flat(observed, self._without)
            ended[info["env_id"]] = terminated | truncated
        return self._state(ended), jnp.asarray(observation)

    def close(self) -> None:
        self._pool.close()

    def _native(self, action: Any) -> Any:
        """Actions as EnvPool wants them: choices are whole numbers without an axis."""
        if self._choices:
            action = jnp.rint(action[:, 0])
        return action.astype(self._action_dtype)

    def _state(self, ended: np.ndarray[Any, Any]) -> PoolState:
        return PoolState(jnp.asarray(self._handle), jnp.asarray(ended))
