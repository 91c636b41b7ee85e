"""EnvPool: tasks written in C++, stepped by a thread pool from inside an XLA program."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import envpool
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from jaxtyping import Array, Bool, Float

from detent.environments import ActionSpace, Replay, Step, Wanted
from detent.environments.seeds import small_seed
from detent.environments.spaces import observation_layout
from detent.errors import BadInput, quoted
from detent.observations import Layout

# Gymnasium warns that the bounds of EnvPool's spaces lose precision in float32, which users cannot help.
_quiet = partial(warnings.catch_warnings, action="ignore")


def actions_of(task_id: str, options: Mapping[str, Any]) -> ActionSpace:
    """The actions of a task made with these options."""
    with _quiet(), _as_sentence(task_id, options):
        return _action_space(envpool.make_spec(task_id, **options).action_space)


def _action_space(space: Any) -> ActionSpace:
    """EnvPool's action space in Detent's form."""
    if isinstance(space, Discrete):
        return Box(0, np.array([space.n - 1]), dtype=np.int64)
    return Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)


NOT_THE_TASK = {
    "num_envs", "batch_size", "num_threads", "thread_affinity_offset", "seed", "env_seed", "max_num_players",
    "env_type", "task_id", "base_path", "gym_reset_return_info",
    "render_mode", "render_env_id", "render_width", "render_height", "render_camera_id",
}  # fmt: skip
"""Options of EnvPool's that say how environments are run or shown, or where their files are, which is up to Detent."""


@contextlib.contextmanager
def _as_sentence(task_id: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Refuse options that are not the task's, and turn what EnvPool raises about the others into `BadInput`."""
    if refused := sorted(NOT_THE_TASK & set(options)):
        raise BadInput(f"{refused[0]} is no option of {task_id}, but of how EnvPool runs it, which is up to Detent.")
    try:
        yield
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(f"EnvPool could not make {task_id} with {quoted(dict(options))}: {first}") from error


def sizes(task_id: str, without: Collection[str] = ()) -> tuple[int, int, int]:
    """The length of a task's observations and of its actions, and its horizon."""
    with _quiet():
        spec = envpool.make_spec(task_id)
        actions = 1 if isinstance(spec.action_space, Discrete) else spec.action_space.shape[0]
        return _layout(task_id, spec.observation_space, without).size, actions, spec.config.max_episode_steps


def _layout(task_id: str, space: Any, without: Collection[str]) -> Layout:
    """The layout of observations; named parts are sorted by name, and those in `without` are left out."""
    if isinstance(space, Dict):
        space = Dict({name: space[name] for name in sorted(space) if name not in without})
    return observation_layout(task_id, space)


class PoolState(NamedTuple):
    """The pool's handle, threaded through the program to order its steps, and which environments reset next."""

    handle: Array
    ended: Bool[Array, " n"]


class Pool:
    """n EnvPool environments as one traceable environment.

    EnvPool's seeds are fixed when it is made, and its state cannot be saved. It uses float64; everything that leaves
    this class is float32. The parts of an observation named in `without` are left out.
    """

    saved = False

    def __init__(self, task_id: str, wanted: Wanted, without: Collection[str] = ()) -> None:
        self.num_envs = wanted.num_envs
        self.traceable = self.x64 = wanted.traced
        with _quiet(), _as_sentence(task_id, wanted.options):
            self._pool = envpool.make(
                task_id,
                env_type="gymnasium",
                num_envs=wanted.num_envs,
                num_threads=min(wanted.num_envs, wanted.threads or len(os.sched_getaffinity(0))),
                seed=small_seed(wanted.seed),
                **wanted.options,
            )
            observation_space, space = self._pool.observation_space, self._pool.action_space
        self._choices = isinstance(space, Discrete)
        self.space = _action_space(space)
        self.action_shape: tuple[int, ...] = space.shape
        self.observation_layout = _layout(task_id, observation_space, without)
        self._action_dtype = np.int32 if self._choices else space.dtype
        self._handle: Any = np.zeros(0, np.uint8)
        if self.traceable:
            # EnvPool fixes the types of its XLA interface here; without x64 its float64 would be misread.
            with jax.enable_x64(True):
                self._handle, _, _, self._step = self._pool.xla()

    def reset(self) -> tuple[PoolState, Float[Array, "n d"]]:
        observation, _ = self._pool.reset()
        return self._state(np.zeros(self.num_envs, bool)), jnp.asarray(self._flat(observation), jnp.float32)

    def step(self, state: PoolState, action: Float[Array, "n m"]) -> tuple[PoolState, Step]:
        if self.traceable:
            handle, taken = self._step(state.handle, self._native(action))
        else:
            handle, taken = state.handle, self._pool.step(self._native(np.asarray(action)))
        observation, reward, terminated, truncated, _ = taken
        step = Step(
            self._flat(observation).astype(np.float32),
            reward.astype(np.float32),
            terminated,
            truncated,
            valid=~state.ended,
            success=(jnp if self.traceable else np).full(self.num_envs, np.nan, np.float32),
        )
        return PoolState(handle, terminated | truncated), step

    def replay(self, replay: Replay) -> tuple[PoolState, Float[Array, "n d"]]:
        """Reset each environment as many times as before, then repeat the actions of its current episode."""
        observation = np.empty((self.num_envs, self.observation_layout.size), np.float32)
        ended = np.zeros(self.num_envs, bool)
        for times in range(int(replay.resets.max())):
            observed, info = self._pool.reset(options={"reset_mask": replay.resets > times})
            observation[info["env_id"]] = self._flat(observed)
        lengths = np.array([len(actions) for actions in replay.actions])
        for t in range(int(lengths.max(initial=0))):
            ids = np.flatnonzero(lengths > t).astype(np.int32)
            actions = np.stack([replay.actions[i][t] for i in ids])
            observed, _, terminated, truncated, info = self._pool.step(np.asarray(self._native(actions)), ids)
            observation[info["env_id"]] = self._flat(observed)
            ended[info["env_id"]] = terminated | truncated
        return self._state(ended), jnp.asarray(observation)

    def close(self) -> None:
        self._pool.close()

    def _flat(self, observation: Any) -> Any:
        return self.observation_layout.flat(observation)

    def _native(self, action: Any) -> Any:
        """Actions as EnvPool expects them: choices are integers without an axis."""
        if self._choices:
            action = action[:, 0].round()
        return action.astype(self._action_dtype)

    def _state(self, ended: np.ndarray[Any, Any]) -> PoolState:
        return PoolState(jnp.asarray(self._handle), jnp.asarray(ended))
