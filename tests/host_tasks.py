"""Small Gymnasium environments for `test_host.py`. Worker processes import this module, so it imports little."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space, Tuple
from numpy.typing import NDArray

Observation = NDArray[np.float64]
Stepped = tuple[Observation, float, bool, bool, dict[str, Any]]


class Task(gymnasium.Env[Any, Any]):
    """Three observations, two actions with unequal bounds, episodes without end."""

    observation_space: Space[Any] = Box(-np.inf, np.inf, (3,), np.float64)
    action_space: Space[Any] = Box(np.array([-1.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32))

    def __init__(self) -> None:
        self.taken = 0
        self.closed = False

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(3), {}

    def step(self, action: NDArray[Any]) -> Stepped:
        self.taken += 1
        return np.full(3, self.taken), 1.0, False, False, {}

    def close(self) -> None:
        self.closed = True


class Drift(Task):
    """A random walk that draws from its generator in `step` and ends at random or, truncated, after nine steps."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3)
        return self.place, {"is_success": True}

    def step(self, action: NDArray[Any]) -> Stepped:
        self.taken += 1
        self.place = 0.9 * self.place + action.sum() + self.np_random.normal(size=3)
        terminated = bool(self.np_random.random() < 0.1)
        truncated = not terminated and self.taken == 9
        info = {"is_success": terminated} if terminated or truncated else {}
        return self.place, float(self.place.sum()), terminated, truncated, info


class Parts(Task):
    """Observations in named parts of every kind; episodes of ten steps, rewarded for the action nearest to the goal."""

    observation_space = Dict(
        place=Box(-np.inf, np.inf, (2, 2), np.float64),
        goal=Discrete(3, start=-1),
        flags=MultiBinary(2),
        time=Tuple((Box(0.0, 10.0, (), np.float32),)),
    )

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action: NDArray[Any]) -> Any:
        self.taken += 1
        reward = -float(abs(action[0] - self.goal))
        return self.seen(), reward, False, self.taken == 10, {}

    def seen(self) -> dict[str, Any]:
        self.goal = int(self.np_random.integers(3)) - 1
        place = self.np_random.normal(size=(2, 2))
        flags = self.np_random.integers(2, size=2).astype(np.int8)
        return {"goal": self.goal, "place": place, "flags": flags, "time": (np.float32(self.taken),)}


class Camera(Task):
    observation_space = Dict(camera=Box(0, 255, (8, 8, 3), np.uint8))


class Forgetful(Parts):
    """Leaves out a part of its second observation."""

    def seen(self) -> dict[str, Any]:
        whole = super().seen()
        return {key: part for key, part in whole.items() if key != "goal" or self.taken == 0}


class Seeded(Task):
    """Shows the seed of its episode, in two halves that float32 can hold; an episode is one step."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        return np.array([seed % 2**16, seed // 2**16, 0.0]), {}

    def step(self, action: NDArray[Any]) -> Stepped:
        return np.full(3, -1.0), 1.0, True, False, {}


class Grid(Task):
    """Actions in two rows of three; shows them as they arrive and asserts that they are its own kind."""

    observation_space = Box(-np.inf, np.inf, (6,), np.float32)
    action_space = Box(
        np.array([[-0.1, -1.0, -2.0], [0.0, 0.1, 0.3]]), np.array([[0.1, 1.0, 0.7], [5.0, 0.7, 0.9]]), dtype=np.float64
    )

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        return np.zeros(6), {}

    def step(self, action: NDArray[Any]) -> Stepped:
        assert action.shape == (2, 3)
        assert action.dtype == np.float64
        assert self.action_space.contains(action)
        return action.ravel(), 0.0, False, False, {}


class Smooth(Task):
    """Keeps the action it got, and rewards the distance of the next one from it."""

    last: NDArray[Any] = np.zeros(2)

    def step(self, action: NDArray[Any]) -> Stepped:
        reward = float(np.abs(action - self.last).sum())
        self.last = action
        return np.zeros(3), reward, False, False, {}


class Raises(Task):
    """Raises at its third step."""

    def step(self, action: NDArray[Any]) -> Stepped:
        if self.taken == 2:
            raise ValueError("the arm\nis broken")
        return super().step(action)


class Fragile(Drift):
    """Raises or returns NaN at random, as its seed has it."""

    def step(self, action: NDArray[Any]) -> Stepped:
        observation, *rest = super().step(action)
        fate = self.np_random.random()
        if fate < 0.1:
            raise ValueError("broken")
        return (observation * np.nan if fate < 0.2 else observation), *rest  # type: ignore[return-value]


class DiesOnce(Task):
    """Ends its process at its second step, if it is the first to make a file."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def step(self, action: NDArray[Any]) -> Stepped:
        if self.taken == 1:
            with contextlib.suppress(FileExistsError), open(self.marker, "x"):
                os._exit(7)
        return super().step(action)


class Poisoned(Task):
    """Returns NaN from some step on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def step(self, action: NDArray[Any]) -> Stepped:
        observation, *rest = super().step(action)
        return (observation * np.nan if self.taken >= self.after else observation), *rest  # type: ignore[return-value]


class RaisesInReset(Task):
    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        raise RuntimeError("no power")


class Dies(Task):
    """Ends its process at its second step."""

    def step(self, action: NDArray[Any]) -> Stepped:
        if self.taken == 1:
            os._exit(7)
        return super().step(action)


class Hangs(Task):
    """Does not come back from its second step."""

    def step(self, action: NDArray[Any]) -> Stepped:
        if self.taken == 1:
            time.sleep(600)
        return super().step(action)


class Process(Task):
    """Shows the process it runs in: its number and whether it has imported JAX."""

    def step(self, action: NDArray[Any]) -> Stepped:
        return np.array([os.getpid(), "jax" in sys.modules, 0.0]), 0.0, False, False, {}
