"""Any Gymnasium environment whose observations are numbers and whose actions are Box, Discrete or MultiDiscrete."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from detent.environments import Replay, Step, Wanted
from detent.environments.processes import Workers
from detent.environments.serial import Interface, Make, Serial, close_all, make_all
from detent.environments.spaces import action_space, observation_layout
from detent.errors import EnvironmentFailed

_log = logging.getLogger(__name__)


def make_factory(env_id: str, kwargs: Mapping[str, Any]) -> Make:
    """A callable that makes a registered environment, here or, pickled, in another process.

    It raises what Gymnasium raises; `Host` turns that into `BadInput`.
    """
    # The registration is included: another process may not have imported the module that made it.
    registered = gymnasium.registry.get(env_id, env_id)
    return functools.partial(gymnasium.make, registered, **{"disable_env_checker": True, **kwargs})


class Host:
    """n environments made by `factory`, stepped in this process or by worker processes, with the same bits.

    A host with a failed environment can only be closed, unless `wanted` allows restarts. In that case a new environment
    replaces the one that failed, and starts a new episode.
    """

    traceable = x64 = saved = False

    def __init__(self, factory: Make, name: str, wanted: Wanted) -> None:
        envs = make_all(factory, name, 1)
        try:
            self.num_envs = wanted.num_envs
            self._restarts, self._most_restarts = 0, wanted.restarts
            self.observation_layout = observation_layout(name, envs[0].observation_space)
            native = envs[0].action_space
            self.space = action_space(name, native, wanted.bounded)
            self.action_shape: tuple[int, ...] = native.shape or ()
            interface = Interface(name, self.observation_layout, self.action_shape, np.dtype(native.dtype))
            self._stepper: Serial | Workers
            if wanted.workers == 0:
                envs += make_all(factory, name, wanted.num_envs - 1)
                rows = interface.rows(wanted.num_envs, bytearray(wanted.num_envs * interface.row_type.itemsize))
                self._stepper = Serial(interface, wanted.seed, envs, 0, rows, factory if wanted.restarts else None)
            else:
                close_all(envs)
                self._stepper = Workers(interface, wanted, factory)
        except BaseException:
            close_all(envs)
            raise
        # Also runs when the object is garbage collected or the interpreter exits, and only once.
        self._close = weakref.finalize(self, self._stepper.close)

    def reset(self) -> tuple[None, Float[NDArray[Any], "n d"]]:
        self._stepper.reset()
        return None, _kept(self._stepper.rows.observation)

    def step(self, state: object, action: ArrayLike) -> tuple[None, Step]:
        self._stepper.rows.action[:] = np.asarray(action, np.float32)
        self._stepper.step()
        if self._stepper.failures:
            self._count_failures()
        return None, Step(*(_kept(getattr(self._stepper.rows, field)) for field in Step._fields))

    def replay(self, replay: Replay) -> tuple[None, Float[NDArray[Any], "n d"]]:
        """Restart each environment's current episode from its seed, and repeat its actions."""
        self._stepper.replay(replay.resets, replay.actions)
        return None, _kept(self._stepper.rows.observation)

    def _count_failures(self) -> None:
        for failure in self._stepper.failures:
            self._restarts += 1
            if self._restarts > self._most_restarts:
                raise EnvironmentFailed(
                    f"{failure.rstrip('.')}, after {self._most_restarts} restarts, the limit set by --max-env-restarts."
                )
            _log.warning("%s; restarted (%d of at most %d).", failure.rstrip("."), self._restarts, self._most_restarts)
        self._stepper.failures.clear()

    def close(self) -> None:
        """Stop the workers and close the environments; calling this again does nothing."""
        self._close()


def _kept(row: NDArray[Any]) -> Any:
    """A copy: the next step overwrites the original, perhaps before JAX has read it."""
    return row.copy()
