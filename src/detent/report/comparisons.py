"""Groups of runs side by side: the paper's numbers, today's statistics, and whether a difference is only chance."""

from __future__ import annotations

import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.errors import BadInput
from detent.files import LARGEST_OBJECT
from detent.report import statistics
from detent.report.statistics import Interval, Profile
from detent.report.summaries import RunSummary
from detent.report.variants import Variant, Variants, find_variants, groups

Reference = Mapping[tuple[str, str, str], tuple[float, float]]
"""(task, algorithm, head) -> the printed mean and standard deviation."""
Scores = NDArray[np.float64]
THRESHOLDS = np.linspace(0.0, 1.0, 41)
MOST_VALUES = 12
"""An option with more is no choice of baseline."""
COPY = "copy"
"""In counts of statuses: a run with the same seed and options as another, which is not counted twice."""


class Baseline(NamedTuple):
    """What others are compared with: one value of what variants differ in (`Variant.aspects`)."""

    aspect: str
    value: str

    @property
    def label(self) -> str:
        return self.value if self.aspect == "head" else f"{self.aspect}={self.value}"


@dataclass(frozen=True)
class Versus:
    """A policy against a baseline."""

    difference: Interval
    """The difference of the means over runs, in units of the return (across tasks, of the normalised score)."""
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
    """Number of runs in the statistics: those that finished or diverged."""
    statuses: Mapping[str, int]
    """Number of runs of each status, whether counted or not."""
    mean: float
    sd: float
    """By the paper's definition: over seeds, of the mean over the last 10 iterations."""
    iqm: Interval
    versus: Mapping[str, Versus] = field(default_factory=dict)
    """By the label of the baseline."""
    reference: tuple[float, float] | None = None
    """What the paper prints."""


@dataclass(frozen=True)
class AcrossTasks:
    """One variant over several tasks, on a scale where the worst of all runs on a task is 0 and the best is 1."""

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
    """For each algorithm and preset with several variants, over the tasks on which all of them have runs."""
    baselines: list[Baseline]
    """What groups can be compared with: heads first."""

    @property
    def heads(self) -> list[str]:
        return [baseline.value for baseline in self.baselines if baseline.aspect == "head"]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row.task for row in self.rows))


def comparison(runs: Sequence[RunSummary], reference: Reference | None = None) -> Comparison:
    """Compare every variant with its counterparts under the other heads, learning rates, presets, ...

    Finished and diverged runs count, a diverged one with its last 10 iterations, as in the paper. Other runs appear
    only in `statuses`. A counterpart differs in the one aspect that the baseline names, and agrees in the task and in
    all other aspects that both have.
    """
    readable = [run for run in runs if run.task != "?"]
    variants = find_variants(readable)
    members = groups(readable, variants)
    scores = {key: _scores(group) for key, group in members.items()}
    baselines = _baselines(variants.all)

    present: dict[str, list[Variant]] = defaultdict(list)
    for (task, variant), known in scores.items():
        if len(known):
            present[task].append(variant)
    rows = []
    for (task, variant), group in members.items():
        own = scores[task, variant]
        mean, sd = statistics.mean_and_sd(own)
        against = {
            baseline.label: _versus([own], [scores[task, other]])
            for baseline in baselines
            for other in [_counterpart(variant, baseline, present[task])]
            if other and len(own)
        }
        found = (reference or {}).get((task, variant.algo, variant.head))
        interval = statistics.iqm([own]) if len(own) else Interval(mean)
        rows.append(
            Row(task, variant, variants.labels[variant], len(own), _statuses(group), mean, sd, interval, against, found)
        )
    across = _across(variants, scores, baselines)
    return Comparison(rows, across, baselines)


def _baselines(variants: Sequence[Variant]) -> list[Baseline]:
    """Every value of the aspects in which these differ, in the order of the variants; the heads always.

    Not of those with many values: they were drawn at random, and no two variants agree in all others.
    """
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for variant in variants:
        for aspect, value in variant.aspects.items():
            values[aspect][value] = None
    return [
        Baseline(aspect, value)
        for aspect, known in values.items()
        if aspect == "head" or 1 < len(known) <= MOST_VALUES
        for value in (sorted(known) if aspect == "head" else known)
    ]


def _counterpart(variant: Variant, baseline: Baseline, others: Sequence[Variant]) -> Variant | None:
    """The variant that is the same but for what the baseline says; None if there is not exactly one."""
    own = variant.aspects
    if own.get(baseline.aspect) in (None, baseline.value):
        return None
    wanted = own | {baseline.aspect: baseline.value}
    fitting = [other for other in others if all(wanted.get(k, v) == v for k, v in other.aspects.items())]
    return fitting[0] if len(fitting) == 1 else None


def distinct(group: Sequence[RunSummary]) -> list[RunSummary]:
    """One run per seed, because others would be copies: the first that is counted, or else the first."""
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
    variants: Variants, scores: Mapping[tuple[str, Variant], Scores], baselines: Sequence[Baseline]
) -> list[AcrossTasks]:
    """Each algorithm and preset over the tasks on which all its variants have runs."""
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
                baseline.label: _versus(strata[v], strata[other])
                for baseline in baselines
                for other in [_counterpart(v, baseline, kin)]
                if other
            }
            found.append(
                AcrossTasks(
                    v,
                    variants.labels[v],
                    tuple(tasks),
                    sum(map(len, strata[v])),
                    statistics.iqm(strata[v]),
                    statistics.performance_profile(strata[v], THRESHOLDS),
                    against,
                )
            )
    return found


def _versus(a: Sequence[Scores], b: Sequence[Scores]) -> Versus:
    return Versus(statistics.difference(a, b), statistics.probability_of_improvement(a, b), len(a))


def read_reference(path: str | os.PathLike[str]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Printed numbers from a TOML file: tables [[result]] with task, algo, head, mean and sd."""
    try:
        with open(path, "rb") as file:
            tables = tomllib.loads(file.read(LARGEST_OBJECT).decode())["result"]
        return {(str(t["task"]), str(t["algo"]), str(t["head"])): (float(t["mean"]), float(t["sd"])) for t in tables}
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}.") from error
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} should have tables [[result]] with task, algo, head, mean and sd.") from error
