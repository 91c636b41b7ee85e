"""Any Gymnasium environment whose observations are vectors and whose actions are Box, Discrete or MultiDiscrete."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from detent.environments import ActionSpace, Replay, Step
from detent.environments.workers import Make, Serial, Setup, Workers, close_all, make_all
from detent.errors import BadInput, EnvironmentFailed

_log = logging.getLogger(__name__)


def make_factory(env_id: str, kwargs: Mapping[str, Any]) -> Make:
    """What makes a registered environment, here or, pickled, in another process.

    It raises what Gymnasium raises; `Host` turns that into a sentence.
    """
    # The registration goes along: another process may not have imported the module that made it.
    registered = gymnasium.registry.get(env_id, env_id)
    return functools.partial(gymnasium.make, registered, **{"disable_env_checker": True, **kwargs})


class Host:
    """n environments made by `factory`, stepped in this process (`workers=0`) or by that many worker processes.

    Both give the same bits. An environment that takes longer than `timeout` seconds in a worker process has failed, and
    a host with a failed environment can only be closed, unless it was made with `restarts`: so often a failed
    environment is replaced by a new one, which begins a new episode. Action bounds must be finite if `bounded`.
    """

    traceable = False

    def __init__(
        self,
        factory: Make,
        name: str,
        seed: int,
        num_envs: int,
        workers: int = 0,
        timeout: float = 60.0,
        bounded: bool = True,
        restarts: int = 0,
    ) -> None:
        envs = make_all(factory, name, 1)
        try:
            self.num_envs = num_envs
            self._restarts, self._most_restarts = 0, restarts
            self.observation_size = observation_size(name, envs[0].observation_space)
            native = envs[0].action_space
            self.space = action_space(name, native, bounded)
            self.action_shape: tuple[int, ...] = native.shape or ()
            setup = Setup(name, seed, num_envs, self.observation_size, self.action_shape, np.dtype(native.dtype))
            self._stepper: Serial | Workers
            if workers == 0:
                envs += make_all(factory, name, num_envs - 1)
                remake = factory if restarts else None
                self._stepper = Serial(setup, envs, 0, setup.rows(bytearray(setup.num_bytes)), remake)
            else:
                close_all(envs)
                self._stepper = Workers(setup, factory, min(workers, num_envs), timeout, restarts > 0)
        except BaseException:
            close_all(envs)
            raise
        # Also runs when the object is forgotten or the interpreter ends, and only once.
        self._close = weakref.finalize(self, self._stepper.close)

    def reset(self) -> tuple[None, Float[Array, "n d"]]:
        self._stepper.reset()
        return None, _kept(self._stepper.rows.observation)

    def step(self, state: object, action: ArrayLike) -> tuple[None, Step]:
        self._stepper.rows.action[:] = np.asarray(action, np.float32)
        self._stepper.step()
        if self._stepper.failures:
            self._count_failures()
        return None, Step(*(_kept(getattr(self._stepper.rows, field)) for field in Step._fields))

    def replay(self, replay: Replay) -> tuple[None, Float[Array, "n d"]]:
        """Begin each environment's latest episode again, by its seed, and repeat its actions."""
        self._stepper.replay(replay.resets, replay.actions)
        return None, _kept(self._stepper.rows.observation)

    def _count_failures(self) -> None:
        for failure in self._stepper.failures:
            self._restarts += 1
            if self._restarts > self._most_restarts:
                raise EnvironmentFailed(
                    f"{failure.rstrip('.')}, after {self._most_restarts} restarts, the most --max-env-restarts allows."
                )
            told = f"{failure.rstrip('.')}; restarted ({self._restarts} of at most {self._most_restarts})."
            _log.warning(told)
        self._stepper.failures.clear()

    def close(self) -> None:
        """End workers and close environments; to do so again does nothing."""
        self._close()


def observation_size(name: str, space: spaces.Space[Any]) -> int:
    """The length of observations, which must be vectors."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return space.shape[0]
    kind = f"Box of shape {space.shape}" if isinstance(space, spaces.Box) else type(space).__name__
    refusal = f"{name} has {kind} observations; Detent supports Box observations with one axis"
    if space.is_np_flattenable and not isinstance(space, spaces.Text) and space.shape != (0,):
        raise BadInput(f"{refusal}, which wrapping it in gymnasium.wrappers.FlattenObservation gives.")
    raise BadInput(f"{refusal} and has no support for these.")


def action_space(name: str, space: spaces.Space[Any], bounded: bool) -> ActionSpace:
    """The actions of an environment as Detent sees them: with one axis, real or choices."""
    choices = choices_of(space)
    if choices is not None:
        first = np.broadcast_to(np.asarray(space.start, np.int64).ravel(), len(choices))  # type: ignore[attr-defined]
        return spaces.Box(first, first + np.array(choices) - 1, dtype=np.int64)
    if not isinstance(space, spaces.Box):
        raise BadInput(
            f"{name} has {type(space).__name__} actions; Detent trains Box, Discrete and MultiDiscrete actions, so "
            "wrap it in a gymnasium.ActionWrapper that makes one of these of them."
        )
    if space.shape == () or 0 in space.shape:
        raise BadInput(
            f"{name} has Box actions of shape {space.shape}; Detent trains Box actions with axes, none of them empty."
        )
    return _flat_box(name, space, bounded)


def choices_of(space: spaces.Space[Any]) -> tuple[int, ...] | None:
    """The numbers of choices per dimension of a Discrete or MultiDiscrete space."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    return None


def _flat_box(name: str, space: spaces.Box, bounded: bool) -> ActionSpace:
    """The Box with one axis of float32 actions that lies within another."""
    low, high = _rounded(space.low.ravel(), np.inf), _rounded(space.high.ravel(), -np.inf)
    if not np.all(low < high):
        raise BadInput(f"{name} has action bounds that leave no choice; every `low` must be below its `high`.")
    if bounded and not np.all(np.isfinite([low, high])):
        raise BadInput(f"{name} has actions without finite bounds; give its Box finite ones or pass actions on raw.")
    return spaces.Box(low, high, dtype=np.float32)


def _rounded(bound: NDArray[Any], inward: float) -> NDArray[np.float32]:
    """A bound in float32, rounded inward: an environment may refuse an action that is outside by a rounding error."""
    with np.errstate(over="ignore"):
        near = bound.astype(np.float32)
    outside = near < bound if inward > 0 else near > bound
    return np.where(outside, np.nextafter(near, np.float32(inward)), near)


def _kept(row: NDArray[Any]) -> Any:
    """A copy: the next step overwrites the original, perhaps before JAX has read it."""
    return row.copy()
