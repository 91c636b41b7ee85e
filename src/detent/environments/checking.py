"""`detent check`: whether an environment is suitable for training.

Gymnasium's and Stable-Baselines3's checkers test whether an environment follows the interface; this one also tests
whether a run on it would learn, resume and finish.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from detent.environments.processes import pickled
from detent.environments.serial import (
    FAILURES,
    Env,
    Make,
    Unusable,
    close_all,
    kind_of,
    make_all,
    number_of,
    reset_answer,
    step_answer,
    vector_of,
)
from detent.environments.spaces import action_space, observation_layout
from detent.errors import BadInput, one_line

STEPS = 3_000
"""The number of random steps, unless `SECONDS` pass first."""
SECONDS = 20.0
REPEATED = 100
"""The number of steps that are repeated with the same seed."""


class Finding(NamedTuple):
    """One finding about an environment."""

    kind: str
    """`problem` if it prevents training, `warning` if it impairs it, or `fine`."""
    sentence: str


class Unplayable(Exception):
    """A problem that prevents further checks."""


@dataclass
class Played:
    """The results of random steps."""

    observations: NDArray[Any]
    """[t, d]"""
    rewards: NDArray[np.float64]
    lengths: list[int]
    """Lengths of the episodes that ended."""
    terminated: int
    truncated: int
    reset_seconds: float
    step_seconds: float
    successes: bool
    outside: str | None
    """A sentence about an observation that is outside its space."""


def check(make: Make, name: str, steps: int = STEPS) -> Iterator[Finding]:
    """Findings about an environment, the most basic first; a problem may end the checks."""
    try:
        [env] = make_all(make, name, 1)
    except BadInput as error:
        yield Finding("problem", str(error))
        return
    try:
        yield from _spaces(env, name)
        played = _play(env, steps)
        yield from _episodes(played)
        yield from _rewards(played)
        yield from _observations(played)
        yield from _repeatable(make, env, name)
        yield from _speed(make, name, played)
    except Unplayable as problem:
        yield Finding("problem", str(problem))
    finally:
        close_all([env])


def _spaces(env: Env, name: str) -> Iterator[Finding]:
    try:
        size = observation_layout(name, env.observation_space).size
        action_space(name, env.action_space, bounded=True)
    except BadInput as error:
        raise Unplayable(str(error)) from error
    plain = isinstance(env.observation_space, spaces.Box) and len(env.observation_space.shape) == 1
    seen = f"vectors of {size}" + ("" if plain else f", flattened from a {type(env.observation_space).__name__}")
    yield Finding("fine", f"Observations are {seen}; actions are {_described(env.action_space)}.")


def _described(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        count, low, high = int(np.prod(space.shape)), float(space.low.min()), float(space.high.max())
        return f"{count} real number{'s' * (count > 1)} from {low:g} to {high:g}"
    return f"choices: {space}"


def _play(env: Env, steps: int) -> Played:
    """Take random steps."""
    rng = np.random.default_rng(0)
    observations, rewards, lengths = [], [], []
    ends = {"terminated": 0, "truncated": 0}
    outside: str | None = None
    reset_seconds = step_seconds = 0.0
    successes, length, resets = False, 0, 0
    observation, seconds = _reset(env, 0)
    reset_seconds += seconds
    began = time.perf_counter()
    env.action_space.seed(0)
    for number in range(1, steps + 1):
        outside = outside or _outside(env.observation_space, observation, number - 1)
        observations.append(np.asarray(observation, np.float64))
        action = env.action_space.sample()
        before = time.perf_counter()
        observation, reward, terminated, truncated, info = _step(env, action, number)
        step_seconds += time.perf_counter() - before
        rewards.append(float(reward))
        length += 1
        successes |= "is_success" in info
        if terminated or truncated:
            ends["terminated" if terminated else "truncated"] += 1
            lengths.append(length)
            resets, length = resets + 1, 0
            observation, seconds = _reset(env, int(rng.integers(2**31)))
            reset_seconds += seconds
        if time.perf_counter() - began > SECONDS:
            break
    return Played(
        np.array(observations),
        np.array(rewards),
        lengths,
        ends["terminated"],
        ends["truncated"],
        reset_seconds / (resets + 1),
        step_seconds / len(rewards),
        successes,
        outside,
    )


def _reset(env: Env, seed: int) -> tuple[NDArray[Any], float]:
    before = time.perf_counter()
    try:
        answer = env.reset(seed=seed)
    except FAILURES as error:
        raise Unplayable(f"`reset(seed={seed})` raised {one_line(error)}") from error
    seconds = time.perf_counter() - before
    try:
        observation, _ = reset_answer(answer)
    except Unusable as error:
        raise Unplayable(f"`reset` returned {error}.") from None
    return _vector(env, observation, "`reset`"), seconds


def _step(env: Env, action: Any, number: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
    try:
        answer = env.step(action)
    except FAILURES as error:
        raise Unplayable(f"`step` (step {number}, action {action}) raised {one_line(error)}") from error
    try:
        observation, reward, terminated, truncated, info = step_answer(answer)
        reward = float(number_of("its reward", reward))
    except Unusable as error:
        raise Unplayable(f"Step {number} returned {error}.") from None
    if not np.isfinite(reward):
        raise Unplayable(f"The reward of step {number} was {reward}; training would stop there (action {action}).")
    for flag, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            raise Unplayable(f"`{flag}` must be True or False; step {number} returned {kind_of(value)}.")
    return _vector(env, observation, f"Step {number}"), reward, bool(terminated), bool(truncated), info


def _vector(env: Env, observation: Any, who: str) -> NDArray[Any]:
    """[d] The observation as training would see it; raises `Unplayable` if training could not use it."""
    layout = observation_layout(who, env.observation_space)
    try:
        vector = vector_of(layout, observation)
    except Unusable as error:
        raise Unplayable(f"{who} returned {error}.") from None
    bad = np.flatnonzero(~np.isfinite(vector.astype(np.float32)))
    if len(bad):
        raise Unplayable(f"{who} returned {vector[bad[0]]} in number {bad[0]} of its observation.")
    return vector


def _outside(space: spaces.Space[Any], observation: NDArray[Any], number: int) -> str | None:
    """A sentence about the first number of an observation that its space does not allow."""
    bounds = spaces.flatten_space(space)
    assert isinstance(bounds, spaces.Box)
    wrong = np.flatnonzero((observation < bounds.low) | (observation > bounds.high))
    if not len(wrong):
        return None
    i = wrong[0]
    return (
        f"The observation after {number} steps is outside its space: number {i} is {observation[i]:g}, and the space "
        f"is {bounds.low[i]:g} to {bounds.high[i]:g}. This does not affect training, but other software may object."
    )


def _episodes(played: Played) -> Iterator[Finding]:
    steps = len(played.rewards)
    if not played.lengths:
        yield Finding(
            "warning",
            f"No episode ended in {steps:,} random steps. If episodes never end, there are no returns to report, no "
            "new starts to learn from, and nothing for `detent eval` to measure: wrap the environment in "
            "gymnasium.wrappers.TimeLimit.",
        )
        return
    mean = np.mean(played.lengths)
    ends = f"{played.terminated} terminated, {played.truncated} truncated"
    yield Finding("fine", f"{len(played.lengths)} episodes ended in {steps:,} random steps ({ends}), {mean:,.0f} long.")
    if mean < 2:
        yield Finding("warning", "Episodes last one step (a bandit). If this is not intended, check `terminated`.")
    if played.successes:
        yield Finding("fine", "It reports `is_success`: records and `detent eval` will show the success rate.")


def _rewards(played: Played) -> Iterator[Finding]:
    rewards = played.rewards
    low, high = rewards.min(), rewards.max()
    away = np.abs(rewards - np.median(rewards))
    summary = f"{low:.4g} to {high:.4g}, mean {rewards.mean():.4g}"
    if low == high and not played.terminated:
        yield Finding("warning", f"Every reward was {low:g} and no episode ended early: nothing to learn from.")
    elif max(abs(low), abs(high)) > 1e4:
        yield Finding("warning", f"Rewards are very large ({summary}); divide them so that they are about 1.")
    elif away.max() > 100 * np.quantile(away, 0.99) > 0:
        yield Finding("warning", f"A few rewards dwarf all others ({summary}) and will dominate training.")
    else:
        yield Finding("fine", f"Rewards are {summary}.")


def _observations(played: Played) -> Iterator[Finding]:
    if played.outside:
        yield Finding("warning", played.outside)
    spread = played.observations.std(axis=0)
    largest = np.abs(played.observations).max(axis=0)
    constant = np.flatnonzero(spread == 0)
    if len(constant) == len(spread):
        yield Finding("warning", "Observations never change, so a policy cannot see what it does.")
    elif len(constant):
        shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
        yield Finding("fine", f"{len(constant)} of {len(spread)} numbers in the observation never changed ({shown}).")
    # Variation below 1e-12 of the magnitude is rounding error of float64.
    lost = np.flatnonzero((spread > 1e-12 * largest) & (spread < 1e-6 * largest))
    if len(lost):
        yield Finding(
            "warning",
            f"Number {lost[0]} of the observation varies by {spread[lost[0]]:.2g} around {largest[lost[0]]:.4g}, which "
            "the seven digits of float32 cannot represent. Subtract the constant.",
        )


def _repeatable(make: Make, env: Env, name: str) -> Iterator[Finding]:
    """Whether the same seed and actions give the same steps, in an environment used before and in a new one."""
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(REPEATED)]
    first = _trajectory(env, 11, actions)
    other = _trajectory(env, 12, actions)
    again = _trajectory(env, 11, actions)
    [fresh] = make_all(make, name, 1)
    with contextlib.closing(fresh):
        elsewhere = _trajectory(fresh, 11, actions)
    advice = (
        "Runs on it cannot be resumed exactly, verified or repeated. Call super().reset(seed=seed) in `reset`, draw "
        "every random number from self.np_random, and carry nothing over from earlier episodes."
    )
    for where, second in (("in the same environment", again), ("in a new environment", elsewhere)):
        differs = _first_difference(first, second)
        if differs is not None:
            when = "at the reset" if differs == 0 else f"at step {differs}"
            yield Finding("warning", f"The same seed and actions gave different results {where}, {when}. {advice}")
            return
    alike = "; all seeds have the same start" if _first_difference(first[:1], other[:1]) is None else ""
    yield Finding("fine", f"The same seed and actions give the same steps, bit for bit{alike}.")
    still = _trajectory(env, 11, actions[::-1])
    if _first_difference(first, still) is None:
        yield Finding("warning", f"Other actions changed nothing in {len(first) - 1} steps: do they reach the physics?")


Trajectory = list[tuple[Any, ...]]


def _trajectory(env: Env, seed: int, actions: list[Any]) -> Trajectory:
    observation, _ = _reset(env, seed)
    rows: Trajectory = [(observation.tolist(),)]
    for number, action in enumerate(actions, 1):
        observation, reward, terminated, truncated, _ = _step(env, action, number)
        rows.append((observation.tolist(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return rows


def _first_difference(a: Trajectory, b: Trajectory) -> int | None:
    """The number of the first step at which two trajectories differ; 0 for the reset."""
    for number, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return number
    return None if len(a) == len(b) else min(len(a), len(b))


def _speed(make: Make, name: str, played: Played) -> Iterator[Finding]:
    resets = played.reset_seconds / max(1.0, float(np.mean(played.lengths)) if played.lengths else 1e9)
    rate = 1.0 / max(1e-9, played.step_seconds + resets)
    minutes = 1e6 / rate / 60
    speed = f"{rate:,.0f} steps per second in one process: {_duration(minutes)} for a million steps"
    try:
        pickled(make, name)
        advice = "Worker processes (--workers, one per core) step several environments at once."
    except BadInput as error:
        advice = str(error)
    yield Finding("fine" if minutes < 60 else "warning", f"{speed}, without learning. {advice}")
    if resets > played.step_seconds:
        yield Finding("warning", f"`reset` takes {played.reset_seconds:.3g} s, longer than all steps of an episode.")


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    count, unit = (minutes, "minute") if minutes < 120 else (minutes / 60, "hour")
    return f"{count:,.0f} {unit}{'s' * (round(count) != 1)}"
