"""How often the intervals of `detent.report.statistics` cover what they estimate.

    python benchmarks/intervals.py          simulate, write benchmarks/intervals.json, print the table of docs/report.md
    python benchmarks/intervals.py table    print the table

Returns are drawn from known distributions, so that the truth is known; what is simulated is a number of tasks, each at
another level, with a number of runs. Of two policies, the first is better by one standard deviation, and the second has
returns of the same kind or (`steady`) returns that hardly vary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.report import statistics

FILE = Path(__file__).with_suffix(".json")
TRIALS = 3000
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def _log_normal(sigma: float) -> Draw:
    mean, sd = np.exp(sigma**2 / 2), np.sqrt(np.expm1(sigma**2) * np.exp(sigma**2))
    return lambda rng, size: (np.exp(sigma * rng.standard_normal(size)) - mean) / sd


def _basin(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Three of ten runs are stuck far below the others."""
    return ((rng.random(size) > 0.3) - 0.7 + 0.1 * rng.standard_normal(size)) / np.sqrt(0.21 + 0.01)


RETURNS: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "skewed": _log_normal(0.5),
    "very skewed": _log_normal(1.0),
    "basin": _basin,
}
"""Kinds of returns, with mean 0 and standard deviation 1; the skewness of the log-normal ones is 1.8 and 6.2."""
STEADY: Draw = lambda rng, size: 0.05 * rng.standard_normal(size)
BETTER = 1.0
LEVELS = {tasks: np.linspace(0.0, tasks - 1.0, tasks) for tasks in range(1, 9)}
"""Of the tasks: a standard deviation apart."""
THRESHOLDS = (-1.0, 0.0, 1.0)
POPULATION = 200_000

Trial = tuple[float, statistics.Interval]
"""What is to be covered, and the interval."""


def _population(draw: Draw, tasks: int) -> Floats:
    """[tasks, many]: returns from which the truth is taken."""
    return LEVELS[tasks][:, None] + np.array([draw(np.random.default_rng([1, t]), (POPULATION,)) for t in range(tasks)])


def _middle(population: Floats, tasks: int, runs: int) -> float:
    """The mean without the share that `iqm` leaves out of this many runs."""
    ordered = np.sort(population, axis=None)
    cut = round(ordered.size * (tasks * runs // 4) / (tasks * runs))
    return float(ordered[cut : ordered.size - cut].mean())


def of_iqm(rng: np.random.Generator, draw: Draw, tasks: int, runs: int) -> Iterator[Trial]:
    truth = _middle(_population(draw, tasks), tasks, runs)
    while True:
        yield truth, statistics.iqm([*(LEVELS[tasks][:, None] + draw(rng, (tasks, runs)))])


def of_scaled_iqm(rng: np.random.Generator, draw: Draw, tasks: int, runs: int) -> Iterator[Trial]:
    """Scores on the scale of the worst and the best run of both policies, as the report has it."""
    population = np.quantile(_population(draw, tasks), np.linspace(0.0005, 0.9995, 1000), axis=1).T
    while True:
        both = LEVELS[tasks][:, None] + draw(rng, (tasks, 2 * runs))
        both[:, :runs] += BETTER
        scales = list(zip(both.min(axis=1), both.max(axis=1), strict=True))
        strata = [statistics.normalized(x[:runs], *scale) for x, scale in zip(both, scales, strict=True)]
        everyone = [statistics.normalized(x + BETTER, *scale) for x, scale in zip(population, scales, strict=True)]
        yield _middle(np.array(everyone), tasks, runs), statistics.iqm(strata)


def of_difference(rng: np.random.Generator, draw: Draw, tasks: int, runs: int, other: Draw) -> Iterator[Trial]:
    while True:
        yield BETTER, statistics.difference([*draw(rng, (tasks, runs)) + BETTER], [*other(rng, (tasks, runs))])


def of_improvement(rng: np.random.Generator, draw: Draw, tasks: int, runs: int, other: Draw) -> Iterator[Trial]:
    fixed = np.random.default_rng(2)
    gaps = draw(fixed, (POPULATION,)) + BETTER - other(fixed, (POPULATION,))
    truth = 0.5 + 0.5 * float(np.sign(gaps).mean())
    while True:
        a, b = draw(rng, (tasks, runs)) + BETTER, other(rng, (tasks, runs))
        yield truth, statistics.probability_of_improvement([*a], [*b])


def of_profile(rng: np.random.Generator, draw: Draw, tasks: int, runs: int, threshold: float) -> Iterator[Trial]:
    truth = float((_population(draw, tasks) > threshold).mean())
    while True:
        found = statistics.performance_profile([*(LEVELS[tasks][:, None] + draw(rng, (tasks, runs)))], [threshold])
        yield truth, statistics.Interval(found.share[0], found.low[0], found.high[0])


def of_ratio(rng: np.random.Generator, draw: Draw, _: int, runs: int) -> Iterator[Trial]:
    """Positive numbers in pairs that vary by a fifth, as variances of gradients do."""
    while True:
        a, b = 1.0 + 0.2 * draw(rng, (2, runs))
        yield 2.0, statistics.ratio(2.0 * a, (a + b) / 2)


def coverage(make: Callable[..., Iterator[Trial]], *what: Any, trials: int = TRIALS, seed: int = 0) -> float:
    """How often there is an interval that covers the truth."""
    found = make(np.random.default_rng([3, seed]), *what)
    return (
        sum(interval.low <= truth <= interval.high for truth, interval in (next(found) for _ in range(trials))) / trials
    )


def cases() -> Iterator[tuple[str, tuple[int, int], Callable[[Draw], list[tuple[Any, ...]]]]]:
    """Name, (tasks, runs), and for a kind of returns what is simulated; the lowest coverage counts."""
    for size in ((1, 2), (1, 3), (1, 4), (1, 5), (1, 7), (1, 10), (1, 20), (2, 3), (4, 3), (4, 5), (4, 10), (8, 3)):
        yield "IQM", size, lambda draw, size=size: [(of_iqm, draw, *size)]
    for size in ((2, 3), (4, 3), (4, 5), (4, 10)):
        yield "IQM of scaled scores", size, lambda draw, size=size: [(of_scaled_iqm, draw, *size)]
    for size in ((1, 2), (1, 3), (1, 5), (1, 10), (4, 2), (4, 3), (4, 5)):
        yield "difference", size, lambda draw, size=size: [(of_difference, draw, *size, draw)]
    for size in ((1, 2), (1, 3), (1, 5), (1, 10), (4, 2), (4, 3), (4, 5)):
        yield "difference to a steady policy", size, lambda draw, size=size: [(of_difference, draw, *size, STEADY)]
    for size in ((1, 1), (1, 3), (1, 5), (1, 10), (4, 1), (4, 3), (4, 5)):
        yield "P(better)", size, lambda draw, size=size: [(of_improvement, draw, *size, o) for o in (draw, STEADY)]
    for size in ((1, 3), (1, 10), (4, 1), (4, 3), (4, 10)):
        yield "profile", size, lambda draw, size=size: [(of_profile, draw, *size, t) for t in THRESHOLDS]
    yield "ratio", (1, 10), lambda draw: [(of_ratio, draw, 1, 10)]


def simulate(trials: int = TRIALS) -> dict[str, Any]:
    found = [
        {
            "interval": name,
            "tasks": size[0],
            "runs": size[1],
            "coverage": {
                kind: min(coverage(*case, trials=trials, seed=number) for case in made(draw))
                for kind, draw in RETURNS.items()
            },
        }
        for number, (name, size, made) in enumerate(cases())
    ]
    return {"trials": trials, "level": statistics.LEVEL, "cases": found}


def table(record: dict[str, Any]) -> str:
    lines = [f"| interval | tasks x runs | {' | '.join(RETURNS)} |", "|---" * (2 + len(RETURNS)) + "|"]
    for case in record["cases"]:
        cells = " | ".join(f"{100 * case['coverage'][kind]:.0f}" for kind in RETURNS)
        lines.append(f"| {case['interval']} | {case['tasks']} x {case['runs']} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] != ["table"]:
        FILE.write_text(json.dumps(simulate(), indent=1) + "\n")
    print(table(json.loads(FILE.read_text())))
