"""Gymnasium environments stepped one after the other.

A worker process imports this module and what the environments need, but nothing else from Detent.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from detent.environments.seeds import episode_seed
from detent.errors import BadInput, DetentError, EnvironmentFailed, one_line
from detent.observations import DoesNotFit, Layout, one
from detent.package import install_extra

FAILURES = (Exception, SystemExit, GeneratorExit)
"""What an environment may raise: whether a program exits is not for it to say."""
Env = gymnasium.Env[Any, Any]
Make = Callable[[], Env]


class Rows(NamedTuple):
    """What n environments and their caller share, one row each."""

    episode: NDArray[np.int64]
    """Number of the current episode, from 0."""
    step: NDArray[np.int64]
    """Number of the current step in it, from 1; 0 from the reset until the first step."""
    action: NDArray[np.float32]
    observation: NDArray[np.float32]
    reward: NDArray[np.float32]
    success: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    busy: NDArray[np.bool_]
    """Whether the environment's own code is running, to name the environment if its process dies."""


@dataclass(frozen=True)
class Interface:
    """How to communicate with one environment of a task."""

    name: str
    observation_layout: Layout
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    def native_action(self, row: NDArray[np.float32]) -> Any:
        """An action as the environment expects it: of its type and shape, and rounded if they are integers."""
        if np.issubdtype(self.action_dtype, np.integer):
            row = np.rint(row)
        # `astype` copies: an environment may keep the action, and the row is about to be overwritten. [()] turns an
        # array without axes into a number, as a Discrete space has it.
        return row.astype(self.action_dtype).reshape(self.action_shape)[()]

    @property
    def row_type(self) -> np.dtype[np.void]:
        """The memory layout of one environment's row of `Rows`."""
        return np.dtype(
            [
                ("episode", np.int64),
                ("step", np.int64),
                ("action", np.float32, (math.prod(self.action_shape),)),
                ("observation", np.float32, (self.observation_layout.size,)),
                ("reward", np.float32),
                ("success", np.float32),
                ("terminated", np.bool_),
                ("truncated", np.bool_),
                ("valid", np.bool_),
                ("busy", np.bool_),
            ],
            align=True,
        )

    def rows(self, num_envs: int, buffer: bytearray | mmap) -> Rows:
        """The rows in a buffer."""
        table: NDArray[np.void] = np.ndarray(num_envs, self.row_type, buffer)
        return Rows(*(table[field] for field in Rows._fields))

    def whereabouts(self, seed: int, rows: Rows, index: int) -> str:
        """What an environment of a run with this seed is doing, as the beginning of a sentence about its failure."""
        episode, step = int(rows.episode[index]), int(rows.step[index])
        action = ", ".join(str(value) for value in rows.action[index])
        doing = f"at step {step} with action [{action}]" if step else "in its reset"
        seeded = episode_seed(seed, index, episode)
        return f"{self.name}: environment {index}, in its episode {episode} (seed {seeded}), {doing},"


class Serial:
    """Some of the environments, stepped one after the other; the end of an episode is followed by a step that resets.

    Every reset is seeded, so the number of the episode and the actions since restore any environment that honours its
    seed, even one that draws random numbers in `step`. With `remake`, an environment that fails in a step is replaced
    by a new one, and the step only resets it; `failures` lists what happened.
    """

    def __init__(
        self, interface: Interface, seed: int, envs: Sequence[Env], first: int, rows: Rows, remake: Make | None
    ) -> None:
        self.rows = rows
        self.failures: list[str] = []
        self._interface, self._seed = interface, seed
        self._envs = dict(enumerate(envs, first))
        self._observations = rows.observation[first : first + len(envs)]
        self._rewards = rows.reward[first : first + len(envs)]
        self._remake = remake

    def reset(self) -> None:
        for index in self._envs:
            self._begin(index, 0)
        self._refuse_nonfinite()

    def step(self) -> None:
        for index in self._envs:
            following = int(self.rows.episode[index]) + 1
            try:
                if self.rows.terminated[index] or self.rows.truncated[index]:
                    self._begin(index, following)
                else:
                    self._advance(index)
            except EnvironmentFailed as failure:
                self._restart(index, following, failure)
        self._refuse_nonfinite()

    def replay(self, resets: NDArray[np.int64], actions: Sequence[NDArray[np.float32]]) -> None:
        """Restart each environment's current episode and repeat its actions."""
        for index in self._envs:
            self._begin(index, int(resets[index]) - 1)
            for action in actions[index]:
                self.rows.action[index] = action
                self._advance(index)

    def close(self) -> None:
        close_all(self._envs.values())

    def _restart(self, index: int, episode: int, failure: EnvironmentFailed) -> None:
        """Start an episode in a new environment, or raise `failure` if there are no restarts."""
        if self._remake is None:
            raise failure
        close_all([self._envs[index]])
        [self._envs[index]] = make_all(self._remake, self._interface.name, 1)
        self._begin(index, episode)
        self.failures.append(str(failure))

    def _refuse_nonfinite(self) -> None:
        """Treat an environment that returns values that are not finite as failed."""
        if np.isfinite(self._observations).all() and np.isfinite(self._rewards).all():
            return
        for index in self._envs:
            values = np.append(self.rows.observation[index], self.rows.reward[index])
            bad = values[~np.isfinite(values)]
            if len(bad):
                where = self._interface.whereabouts(self._seed, self.rows, index)
                failure = EnvironmentFailed(f"{where} returned {bad[0]:g} in its observation or reward.")
                # After a step, start the next episode; a reset is tried once more.
                self._restart(index, int(self.rows.episode[index] + self.rows.valid[index]), failure)
        if not (np.isfinite(self._observations).all() and np.isfinite(self._rewards).all()):
            raise EnvironmentFailed(f"{self._interface.name} returned values that are not finite, even after a reset.")

    def _begin(self, index: int, episode: int) -> None:
        rows = self.rows
        rows.episode[index] = episode
        rows.step[index] = 0
        rows.busy[index] = True
        try:
            answer = self._envs[index].reset(seed=episode_seed(self._seed, index, episode))
            rows.observation[index] = vector_of(self._interface.observation_layout, reset_answer(answer)[0])
        except FAILURES as error:
            raise self._failed(index, error) from error
        rows.busy[index] = False
        rows.reward[index] = 0.0
        rows.success[index] = np.nan
        rows.terminated[index] = rows.truncated[index] = rows.valid[index] = False

    def _advance(self, index: int) -> None:
        rows = self.rows
        rows.step[index] += 1
        action = self._interface.native_action(rows.action[index])
        rows.busy[index] = True
        try:
            answer = self._envs[index].step(action)
            observation, reward, terminated, truncated, info = step_answer(answer)
            rows.observation[index] = vector_of(self._interface.observation_layout, observation)
            rows.reward[index] = number_of("its reward", reward)
            rows.success[index] = number_of("is_success", info.get("is_success", np.nan))
            rows.terminated[index] = flag_of("terminated", terminated)
            rows.truncated[index] = flag_of("truncated", truncated)
        except FAILURES as error:
            raise self._failed(index, error) from error
        rows.busy[index] = False
        rows.valid[index] = True

    def _failed(self, index: int, error: BaseException) -> EnvironmentFailed:
        where = self._interface.whereabouts(self._seed, self.rows, index)
        if isinstance(error, Unusable):
            return EnvironmentFailed(f"{where} returned {error}.")
        return EnvironmentFailed(f"{where} raised {one_line(error)}")


class Unusable(Exception):
    """What a step returned is not of its kind. The text says what it is."""


def reset_answer(answer: Any) -> tuple[Any, dict[str, Any]]:
    """What `reset` returned, if it is what it should be."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise Unusable(f"{kind_of(answer)}; `reset` must return (observation, info), where info is a dictionary")
    return answer


def step_answer(answer: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """What `step` returned, if it is what it should be."""
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise Unusable(
            f"{kind_of(answer)}; `step` must return (observation, reward, terminated, truncated, info). Environments "
            "for the old Gym must return terminated and truncated instead of done"
        )
    if not isinstance(answer[4], dict):
        raise Unusable(f"{kind_of(answer[4])} as `info`, which should be a dictionary")
    return answer


def vector_of(layout: Layout, observation: Any) -> NDArray[Any]:
    """[d] The observation as the networks see it."""
    try:
        vector: NDArray[Any] = one(layout, observation)
    except DoesNotFit as error:
        raise Unusable(f"an observation that the observation space does not allow: {error}") from None
    return vector


def kind_of(value: Any) -> str:
    """A value that should have been another, in a few words."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"{type(value).__name__} {str(value)[:40]!r}"


_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))


def number_of(name: str, value: Any) -> Any:
    """A number, or an array of one: nothing that NumPy would only read as one, such as "1.5" or a complex number."""
    if type(value) in _NUMBERS:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise Unusable(f"{_brief(value)} as {name}, which should be a number")
    return array.reshape(())


def flag_of(name: str, value: Any) -> bool:
    """Whether an episode ended: True or False, in whichever type, or 1 or 0. The truth of "False" is not asked for."""
    if value is True or value is False:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub" or array.item() not in (0, 1):
        raise Unusable(f"{_brief(value)} as {name}, which should be True or False")
    return bool(array.item())


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def make_all(make: Make, name: str, count: int) -> list[Env]:
    """Make `count` environments, or none if one of them fails."""
    envs: list[Env] = []
    try:
        for _ in range(count):
            made: Any = make()
            missing = [
                part for part in ("reset", "step", "observation_space", "action_space") if not hasattr(made, part)
            ]
            if missing:
                raise BadInput(
                    f"{name} returned {kind_of(made)}, and should return a gymnasium.Env: that has no {missing[0]!r}."
                )
            envs.append(made)
    except DetentError:
        close_all(envs)
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        close_all(envs)
        extra = next((extra for extra in ("box2d",) if extra in str(error).lower()), None)
        how = f"install it with {install_extra(extra)}" if extra else " ".join(str(error).split()).rstrip(".")
        raise BadInput(f"{name} needs a package that is not installed; {how}.") from error
    except FAILURES as error:
        close_all(envs)
        raise BadInput(f"{name} could not be made: it raised {one_line(error)}") from error
    return envs


def close_all(envs: Iterable[Env]) -> None:
    """Close every environment, even if closing one of them fails."""
    for env in envs:
        with contextlib.suppress(*FAILURES):
            env.close()
