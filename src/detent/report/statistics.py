"""Statistics of returns from a few runs.

Scores come as *strata*: one array of final returns per task, one entry per run (seed). A single task is one stratum.
An interval is for these tasks and any seeds. Its level, 95%, is how often it covers what it estimates:
benchmarks/intervals.py simulates that, and docs/report.md says for which returns it holds and for which it does not.

The definitions of IQM, probability of improvement and performance profile are those of Agarwal et al., "Deep
Reinforcement Learning at the Edge of the Statistical Precipice" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Strata = Sequence[ArrayLike]
"""One array of scores per task."""

LAST = 10
"""Iterations over which the paper averages."""
LEVEL = 0.95
MOST_TERMS = 10_000
"""Maximum number of terms of a continued fraction."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its confidence interval, which are NaN if there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    why: str = ""
    """If there is no interval, what it would need."""

    def excludes(self, value: float) -> bool:
        """Whether `value` is outside the interval; False if there is no interval."""
        return self.low > value or self.high < value

    @property
    def verdict(self) -> str:
        """For a difference: `higher` or `lower` if the interval excludes 0, otherwise `undecided`."""
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
    """Mean and standard deviation (with n - 1) over runs; the latter is NaN for one run, both for none."""
    x = np.asarray(scores, np.float64)
    return (float(x.mean()) if x.size else math.nan, float(x.std(ddof=1)) if x.size > 1 else math.nan)


# --- Intervals ---


def _t_interval(value: float, parts: ArrayLike, freedom: ArrayLike, level: float) -> Interval:
    """Student's t interval of an estimate whose variance is the sum of `parts`, with these degrees of freedom each.

    t has (sum v_i)^2 / sum(v_i^2 / f_i) degrees of freedom (Welch and Satterthwaite).
    """
    v, f = np.asarray(parts, np.float64), np.asarray(freedom, np.float64)
    variance = float(v.sum())
    if variance == 0:
        return Interval(value, why="needs runs that differ")
    reach = t_quantile((1 + level) / 2, variance**2 / float((v**2 / f).sum())) * math.sqrt(variance)
    return Interval(value, value - reach, value + reach)


def mean_interval(scores: ArrayLike, level: float = LEVEL) -> Interval:
    """Student's t interval of the mean over runs."""
    mean, sd = mean_and_sd(scores)
    count = np.asarray(scores).size
    if count < 2:
        return Interval(mean, why="needs two runs")
    return _t_interval(mean, [sd**2 / count], [count - 1], level)


def share_interval(share: float, trials: float, level: float = LEVEL) -> Interval:
    """Clopper and Pearson's interval of a probability: it ends where the successes found become too unlikely.

    Of the binomial distribution with the lower (upper) end as its probability, (1 - level) / 2 lies at or above (at or
    below) the successes that were found. They and the trials need not be whole numbers.
    """
    tail, found = (1 - level) / 2, round(share * trials, 9)
    low = beta_quantile(tail, found, trials - found + 1) if found > 0 else 0.0
    high = beta_quantile(1 - tail, found + 1, trials - found) if found < trials else 1.0
    return Interval(share, low, high)


def _fewest(strata: Strata) -> int:
    """The number of runs of the task with the fewest."""
    return min((np.asarray(scores).size for scores in strata), default=0)


def _trials(runs: Sequence[int]) -> float:
    """The number of trials equivalent to a mean of shares over tasks: 1 / trials = mean(1 / runs) / tasks."""
    return len(runs) ** 2 / sum(1 / n for n in runs)


# --- Interquartile mean ---


def iqm(strata: Strata, level: float = LEVEL) -> Interval:
    """The mean of the middle half of all runs of all tasks: as robust as the median, with less variance.

    floor(n / 4) of all n runs are left out at either end and h are kept, so up to three runs it is the mean. The
    interval is Yuen's for a trimmed mean, with tasks as strata: its variance is the sum over tasks of

        v_t = (n - 1) / (n h (h - 1))  n_t s_t^2

    where n_t are the task's runs and s_t their standard deviation when every run that is left out is put at the nearest
    one that is kept; each v_t has (n_t - 1) (h - 1) / (n - 1) degrees of freedom. With one task that is Yuen's own, and
    up to three runs Student's for the mean.
    """
    arrays = [np.asarray(scores, np.float64) for scores in strata]
    together = np.sort(np.concatenate(arrays))
    n = together.size
    kept = together[n // 4 : n - n // 4]
    value, h = float(kept.mean()), kept.size
    if _fewest(strata) < (2 if len(arrays) == 1 else 3):
        return Interval(value, why="needs two runs" if len(arrays) == 1 else "needs three runs of each task")
    runs = np.array([x.size for x in arrays])
    variances = np.array([np.clip(x, kept[0], kept[-1]).var(ddof=1) for x in arrays])
    parts = (n - 1) / (n * h * (h - 1)) * runs * variances
    return _t_interval(value, parts, (runs - 1) * (h - 1) / (n - 1), level)


# --- Two policies ---


def difference(a: Strata, b: Strata, level: float = LEVEL) -> Interval:
    """mean(a) - mean(b), averaged over tasks, with Welch's t interval: the variances need not be equal."""
    tasks = _paired(a, b)
    arrays = [np.asarray(scores, np.float64) for scores in [*a, *b]]
    means = [x.mean() for x in arrays]
    value = float(np.mean(means[:tasks]) - np.mean(means[tasks:]))
    if _fewest(arrays) < 2:
        return Interval(value, why="needs two runs of each")
    runs = np.array([x.size for x in arrays])
    return _t_interval(value, np.array([x.var(ddof=1) for x in arrays]) / runs / tasks**2, runs - 1, level)


def different(a: Strata, b: Strata) -> bool:
    """Whether the 95% interval of the difference excludes 0; False if there is no interval."""
    return difference(a, b).excludes(0.0)


def probability_of_improvement(a: Strata, b: Strata, level: float = LEVEL) -> Interval:
    """The probability that a run of `a` is better than a run of `b`, ties counting half; the mean over tasks.

    For one task it is Mann and Whitney's U / (n m). Its variance is at most that of the share of wins in min(n, m)
    independent pairs (Birnbaum and Klose), whatever the distributions, and the interval is Clopper and Pearson's for
    that many.
    """
    _paired(a, b)
    pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in zip(a, b, strict=True)]
    wins = [0.5 + 0.5 * float(np.sign(x[:, None] - y[None, :]).mean()) for x, y in pairs]
    return share_interval(float(np.mean(wins)), _trials([min(x.size, y.size) for x, y in pairs]), level)


def ratio(a: ArrayLike, b: ArrayLike, level: float = LEVEL) -> Interval:
    """mean(a) / mean(b) of paired numbers, with the t interval of the mean of the residuals a - ratio * b."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    value = float(x.mean() / y.mean())
    if x.size < 2:
        return Interval(value, why="needs two runs")
    left = (x - value * y) / y.mean()
    return _t_interval(value, [left.var(ddof=1) / x.size], [x.size - 1], level)


def _paired(a: Strata, b: Strata) -> int:
    if len(a) != len(b) or not len(a):
        raise ValueError("two policies are compared on the same tasks, at least one")
    return len(a)


# --- Quantiles ---


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability above 1/2: f / (f + t^2) has a beta distribution."""
    x = beta_quantile(2 * (1 - probability), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x)


@cache
def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution with density x^(a - 1) (1 - x)^(b - 1) / B(a, b) reaches a probability."""
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(100):
        above = incomplete_beta(x, a, b) - probability
        low, high = (x, high) if above < 0 else (low, x)
        density = math.exp(-_log_beta(a, b) + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x))
        near = x - above / density if density else x  # Newton's step
        before, x = x, near if low < near < high else (low + high) / 2
        if abs(x - before) <= 1e-13 * x or not low < x < high:
            break
    return x


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The share of the beta distribution below x, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x > (a + 1) / (a + b + 2):  # on the other side it converges quickly
        return 1 - incomplete_beta(1 - x, b, a)
    front = -_log_beta(a, b) + a * math.log(x) + b * math.log1p(-x)
    # 1 + d_1 x / (1 + d_2 x / (1 + ...)), from the front (Lentz): `above` and `below` are ratios of successive terms.
    value, above, below = 1.0, 1.0, 0.0
    for n in range(1, MOST_TERMS):
        m = n // 2
        d = m * (b - m) if n % 2 == 0 else -(a + m) * (a + b + m)
        d *= x / ((a + n - 1) * (a + n))
        below = 1 / (1 + d * below)
        above = 1 + d / above
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return math.exp(front) / (a * value)


# --- Several tasks ---


@dataclass(frozen=True)
class Profile:
    """The share of runs with a score above each threshold, with a 95% band that holds for each threshold separately."""

    thresholds: Floats
    share: Floats
    low: Floats
    high: Floats


def performance_profile(strata: Strata, thresholds: ArrayLike, level: float = LEVEL) -> Profile:
    """Share of runs above each threshold, averaged over tasks.

    The band is Clopper and Pearson's for a binomial variable. The number of runs above a threshold varies less than
    that if the probability differs between tasks (Hoeffding).
    """
    tau = np.asarray(thresholds, np.float64)
    arrays = [np.asarray(scores, np.float64) for scores in strata]
    share = np.mean([[(x > t).mean() for t in tau] for x in arrays], axis=0)
    trials = _trials([x.size for x in arrays])
    found = [share_interval(float(one), trials, level) for one in share]
    return Profile(tau, share, np.array([one.low for one in found]), np.array([one.high for one in found]))


def normalized(scores: ArrayLike, low: float, high: float) -> Floats:
    """Scores on a scale where `low` is 0 and `high` is 1, so that tasks can be averaged; 0.5 if the two are equal."""
    x = np.asarray(scores, np.float64)
    return np.full(x.shape, 0.5) if high == low else (x - low) / (high - low)
