"""Heads side by side: the paper's numbers, today's statistics, and whether a difference is more than luck."""

from __future__ import annotations

import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detent import statistics
from detent.errors import BadInput
from detent.report.summaries import RunSummary
from detent.report.variants import Variant, Variants, find_variants, groups
from detent.statistics import Interval, Profile

Reference = Mapping[tuple[str, str, str], tuple[float, float]]
"""(task, algorithm, head) -> the printed mean and standard deviation."""
Scores = NDArray[np.float64]
THRESHOLDS = np.linspace(0.0, 1.0, 41)
COPY = "copy"
"""In counts of statuses: a run with the seed and the options of another. It is not counted twice."""


@dataclass(frozen=True)
class Versus:
    """A policy against a baseline."""

    difference: Interval
    """Of the means over runs, in units of the return (across tasks: of the normalised score)."""
    improvement: Interval
    """The probability that a run is better than one of the baseline."""
    tasks: int = 1


@dataclass(frozen=True)
class Row:
    """All runs of one variant on one task."""

    task: str
    variant: Variant
    label: str
    runs: int
    """How many enter the statistics: those that finished or diverged."""
    statuses: Mapping[str, int]
    """How many there are of each status, whether counted or not."""
    mean: float
    sd: float
    """The paper's definition: over seeds, of the mean over the last 10 iterations."""
    iqm: Interval
    versus: Mapping[str, Versus] = field(default_factory=dict)
    """By the head of the baseline."""
    reference: tuple[float, float] | None = None
    """What the paper prints."""


@dataclass(frozen=True)
class AcrossTasks:
    """One variant over several tasks, on the scale where each task's worst run of all is 0 and its best is 1."""

    variant: Variant
    label: str
    tasks: tuple[str, ...]
    runs: int
    iqm: Interval
    profile: Profile
    versus: Mapping[str, Versus]


@dataclass(frozen=True)
class Comparison:
    rows: list[Row]
    across: list[AcrossTasks]
    """For each algorithm and preset, over the tasks that all its variants have runs of, where these are several."""
    heads: list[str]
    """Possible baselines."""

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row.task for row in self.rows))


def comparison(
    runs: Sequence[RunSummary],
    reference: Reference | None = None,
    seed: int = 0,
    resamples: int = statistics.RESAMPLES,
) -> Comparison:
    """Compare every variant with the same one under each other head.

    Finished and diverged runs enter the numbers, a diverged one with its last 10 iterations, as in the paper. Others
    are counted in `statuses`. A baseline has the same task, algorithm, preset and options, as far as both heads have
    them.
    """
    readable = [run for run in runs if run.task != "?"]
    variants = find_variants(readable)
    members = groups(readable, variants)
    scores = {key: _scores(group) for key, group in members.items()}
    heads = sorted({v.head for v in variants.all})

    present: dict[str, list[Variant]] = defaultdict(list)
    for (task, variant), known in scores.items():
        if len(known):
            present[task].append(variant)
    rows = []
    for (task, variant), group in members.items():
        own = scores[task, variant]
        mean, sd = statistics.mean_and_sd(own)
        against = {
            head: _versus([own], [scores[task, other]], seed, resamples)
            for head in heads
            for other in [_counterpart(variant, head, present[task])]
            if other and len(own)
        }
        found = (reference or {}).get((task, variant.algo, variant.head))
        interval = statistics.iqm([own], seed, resamples) if len(own) else Interval(mean)
        rows.append(
            Row(task, variant, variants.labels[variant], len(own), _statuses(group), mean, sd, interval, against, found)
        )
    across = _across(variants, scores, heads, seed, resamples)
    return Comparison(rows, across, heads)


def _counterpart(variant: Variant, head: str, others: Sequence[Variant]) -> Variant | None:
    """The same variant under another head; None if there is none or if several would do."""
    own = dict(variant.options)
    fitting = [
        other
        for other in others
        if other.head == head != variant.head
        and (other.algo, other.preset) == (variant.algo, variant.preset)
        and all(own.get(name, value) == value for name, value in other.options)
    ]
    return fitting[0] if len(fitting) == 1 else None


def distinct(group: Sequence[RunSummary]) -> list[RunSummary]:
    """Of several runs with one seed, the first that is counted, or else the first: it would be the same run again."""
    by_seed: dict[int, RunSummary] = {}
    for run in sorted(group, key=lambda run: not run.counted):
        by_seed.setdefault(run.seed, run)
    return list(by_seed.values())


def _scores(group: Sequence[RunSummary]) -> Scores:
    return np.array([run.final for run in distinct(group) if run.counted], np.float64)


def _statuses(group: Sequence[RunSummary]) -> dict[str, int]:
    kept = distinct(group)
    return dict(Counter(run.status for run in kept)) | (
        {COPY: len(group) - len(kept)} if len(group) > len(kept) else {}
    )


def _across(
    variants: Variants, scores: Mapping[tuple[str, Variant], Scores], heads: Sequence[str], seed: int, resamples: int
) -> list[AcrossTasks]:
    """Each algorithm and preset over the tasks that all its variants have runs of."""
    ranges = {
        task: (min(map(min, known)), max(map(max, known)))
        for task in sorted({task for task, _ in scores})
        for known in [[s for (t, _), s in scores.items() if t == task and len(s)]]
        if known
    }
    found = []
    for algo, preset in sorted({(v.algo, v.preset) for v in variants.all}):
        kin = [v for v in variants.all if (v.algo, v.preset) == (algo, preset)]
        tasks = [task for task in ranges if all(len(scores.get((task, v), ())) for v in kin)]
        if len(tasks) < 2 or len(kin) < 2:
            continue
        strata = {v: [statistics.normalized(scores[task, v], *ranges[task]) for task in tasks] for v in kin}
        for v in kin:
            against = {
                head: _versus(strata[v], strata[other], seed, resamples)
                for head in heads
                for other in [_counterpart(v, head, kin)]
                if other
            }
            found.append(
                AcrossTasks(
                    v,
                    variants.labels[v],
                    tuple(tasks),
                    sum(map(len, strata[v])),
                    statistics.iqm(strata[v], seed, resamples),
                    statistics.performance_profile(strata[v], THRESHOLDS, seed, resamples),
                    against,
                )
            )
    return found


def _versus(a: Sequence[Scores], b: Sequence[Scores], seed: int, resamples: int) -> Versus:
    return Versus(
        statistics.difference(a, b, seed, resamples),
        statistics.probability_of_improvement(a, b, seed, resamples),
        len(a),
    )


def read_reference(path: str | os.PathLike[str]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Printed numbers from a TOML file: tables [[result]] with task, algo, head, mean and sd."""
    try:
        tables = tomllib.loads(Path(path).read_text())["result"]
        return {(str(t["task"]), str(t["algo"]), str(t["head"])): (float(t["mean"]), float(t["sd"])) for t in tables}
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}.") from error
    except (LookupError, TypeError, ValueError) as error:
        raise BadInput(f"{path} should have tables [[result]] with task, algo, head, mean and sd.") from error
