"""What can be said about returns from a few runs.

Scores come as *strata*: one array of final returns per task, one entry per run (seed). A single task is one stratum.
Resampling draws runs within each task, never tasks, so that an interval speaks of these tasks and of any seeds.
All randomness comes from the `seed` argument: same input, same numbers.

The definitions of IQM, probability of improvement and performance profile are those of Agarwal et al., "Deep
Reinforcement Learning at the Edge of the Statistical Precipice" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Strata = Sequence[ArrayLike]
"""One array of scores per task."""
Statistic = Callable[[list[Floats]], Floats]
"""One number (or row of numbers) for each resample: arrays [resamples, runs], one per task -> [resamples, ...]."""

LAST = 10
"""Iterations over which the paper averages."""
RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its confidence interval, which are NaN where the runs are too few for one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def excludes(self, value: float) -> bool:
        """False also where there is no interval: what is not known is not claimed."""
        return self.low > value or self.high < value

    @property
    def verdict(self) -> str:
        """Of a difference: `higher` or `lower` only where the interval excludes 0, and otherwise `undecided`."""
        if not self.excludes(0.0):
            return "undecided"
        return "higher" if self.value > 0 else "lower"


# --- The paper's definition ---


def final_return(returns: ArrayLike, last: int = LAST) -> float | None:
    """The mean of the last 10 iterations that have a return; None if there is none.

    A run that diverged counts with the iterations before its end, as in the paper.
    """
    known = np.asarray(returns, np.float64)
    known = known[np.isfinite(known)][-last:]
    return float(known.mean()) if known.size else None


def mean_and_sd(scores: ArrayLike) -> tuple[float, float]:
    """Mean and standard deviation (with n - 1) over runs; the second is NaN for one run, both for none."""
    x = np.asarray(scores, np.float64)
    return (float(x.mean()) if x.size else math.nan, float(x.std(ddof=1)) if x.size > 1 else math.nan)


# --- Intervals ---


def resampled(strata: Strata, seed: int, resamples: int = RESAMPLES) -> list[Floats]:
    """Runs drawn with replacement within each task: arrays [resamples, runs]."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(scores, np.float64) for scores in strata]
    return [scores[rng.integers(scores.size, size=(resamples, scores.size))] for scores in arrays]


def bootstrap(
    statistic: Statistic, strata: Strata, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """The stratified percentile bootstrap: the middle `level` of the statistic's values over the resamples."""
    value = float(statistic(_once(strata))[0])
    if not _repeated(strata):
        return Interval(value)
    low, high = _middle(statistic(resampled(strata, seed, resamples)), level)
    return Interval(value, float(low), float(high))


def _once(strata: Strata) -> list[Floats]:
    """The scores themselves, in the form of one resample."""
    return [np.asarray(scores, np.float64)[None] for scores in strata]


def _repeated(strata: Strata) -> bool:
    """Whether every task has more than one run; where one has not, nothing tells how much it varies."""
    return bool(len(strata)) and all(np.asarray(scores).size > 1 for scores in strata)


def _middle(values: Floats, level: float) -> Any:
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


# --- Interquartile mean ---


def iqm(strata: Strata, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """The mean of the middle half of all runs of all tasks: as robust as the median, with less variance.

    floor(n / 4) runs are left out at either end, so up to three runs it is the mean.
    """
    return bootstrap(interquartile_mean, strata, seed, resamples, level)


def interquartile_mean(strata: list[Floats]) -> Floats:
    """Arrays [resamples, runs] -> [resamples]."""
    together = np.sort(np.concatenate(strata, axis=1), axis=1)
    cut = together.shape[1] // 4
    middle: Floats = together[:, cut : together.shape[1] - cut].mean(axis=1)
    return middle


# --- Two policies ---


def probability_of_improvement(
    a: Strata, b: Strata, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """The probability that a run of `a` is better than a run of `b`, ties counting half; the mean over tasks.

    For one task it is Mann and Whitney's U / (n m). Where all pairs went one way, so do all resamples; the interval
    then ends at the probability p with p^k = (1 - level) / 2, where k pairs can be formed without using a run twice.
    """
    tasks = _paired(a, b)

    def probability(strata: list[Floats]) -> Floats:
        wins = [_wins(x, y) for x, y in zip(strata[:tasks], strata[tasks:], strict=True)]
        mean: Floats = np.mean(wins, axis=0)
        return mean

    found = bootstrap(probability, [*a, *b], seed, resamples, level)
    if found.value not in (0.0, 1.0) or math.isnan(found.low):
        return found
    pairs = sum(min(np.asarray(x).size, np.asarray(y).size) for x, y in zip(a, b, strict=True))
    reach = ((1 - level) / 2) ** (1 / pairs)
    return Interval(1.0, reach, 1.0) if found.value == 1.0 else Interval(0.0, 0.0, 1 - reach)


def _wins(x: Floats, y: Floats) -> Floats:
    """[resamples, n], [resamples, m] -> the share of pairs with x > y."""
    pieces = max(1, x.shape[0] * x.shape[1] * y.shape[1] // 2**20)  # all pairs of all resamples may not fit in memory
    parts = zip(np.array_split(x, pieces), np.array_split(y, pieces), strict=True)
    share: Floats = np.concatenate([np.sign(u[:, :, None] - v[:, None, :]).mean(axis=(1, 2)) for u, v in parts])
    return 0.5 + 0.5 * share


def difference(a: Strata, b: Strata, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """mean(a) - mean(b), averaged over tasks, with the wider of two intervals at either end.

    One is the stratified percentile bootstrap, which assumes nothing about the distribution but is far too narrow for
    a handful of runs: two equal policies with three runs each lie apart by chance one time in ten, and then every
    resample does. The other is Welch's t interval, which knows how few the runs are but takes them for normal.
    """
    tasks = _paired(a, b)

    def of_means(strata: list[Floats]) -> Floats:
        gaps = [x.mean(axis=1) - y.mean(axis=1) for x, y in zip(strata[:tasks], strata[tasks:], strict=True)]
        mean: Floats = np.mean(gaps, axis=0)
        return mean

    resampling, normal = bootstrap(of_means, [*a, *b], seed, resamples, level), welch(a, b, level)
    return Interval(resampling.value, min(resampling.low, normal.low), max(resampling.high, normal.high))


def different(a: Strata, b: Strata, seed: int = 0) -> bool:
    """Whether the 95% interval of the difference excludes 0. Without an interval nothing is claimed."""
    return difference(a, b, seed).excludes(0.0)


def welch(a: Strata, b: Strata, level: float = LEVEL) -> Interval:
    """The t interval of the mean over tasks of mean(a) - mean(b), with unequal variances.

    With s_i^2 / n_i the variance of each mean: t has (sum s_i^2 / n_i)^2 / sum((s_i^2 / n_i)^2 / (n_i - 1)) degrees of
    freedom (Welch and Satterthwaite).
    """
    tasks = _paired(a, b)
    means = [np.mean(np.asarray(scores, np.float64)) for scores in [*a, *b]]
    value = float(np.mean(means[:tasks]) - np.mean(means[tasks:]))
    if not _repeated([*a, *b]):
        return Interval(value)
    runs = np.array([np.asarray(scores).size for scores in [*a, *b]])
    parts = np.array([np.var(np.asarray(scores, np.float64), ddof=1) for scores in [*a, *b]]) / runs
    total = float(parts.sum())
    if total == 0:
        return Interval(value, value, value)
    freedom = total**2 / float((parts**2 / (runs - 1)).sum())
    reach = t_quantile((1 + level) / 2, freedom) * math.sqrt(total) / tasks
    return Interval(value, value - reach, value + reach)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability of at least 1/2.

    With t = sqrt(f) tan(angle), the density of the angle is proportional to cos(angle)^(f - 1).
    """
    freedom = min(freedom, 1e4)  # beyond, t is normal to four digits
    angle = np.linspace(0.0, math.pi / 2, 40_001)
    density = np.cos(angle) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    found = np.interp((2 * probability - 1) * share[-1], share, angle)
    return math.sqrt(freedom) * math.tan(float(found))


def _paired(a: Strata, b: Strata) -> int:
    if len(a) != len(b) or not len(a):
        raise ValueError("two policies are compared on the same tasks, at least one")
    return len(a)


# --- Several tasks ---


@dataclass(frozen=True)
class Profile:
    """The share of runs with a score above each threshold, with a 95% band for each threshold by itself."""

    thresholds: Floats
    share: Floats
    low: Floats
    high: Floats


def performance_profile(
    strata: Strata, thresholds: ArrayLike, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Profile:
    """Share of runs above each threshold, averaged over tasks. The band is NaN where a task has one run."""
    tau = np.asarray(thresholds, np.float64)

    def above(samples: list[Floats]) -> Floats:
        shares = [np.stack([(x > t).mean(axis=1) for t in tau], axis=1) for x in samples]
        mean: Floats = np.mean(shares, axis=0)
        return mean

    unknown = np.full(tau.shape, math.nan)
    low, high = _middle(above(resampled(strata, seed, resamples)), level) if _repeated(strata) else (unknown, unknown)
    return Profile(tau, above(_once(strata))[0], low, high)


def normalized(scores: ArrayLike, low: float, high: float) -> Floats:
    """Scores on a scale where `low` is 0 and `high` is 1, so that tasks can be averaged; 0.5 where they coincide."""
    x = np.asarray(scores, np.float64)
    return np.full(x.shape, 0.5) if high == low else (x - low) / (high - low)
