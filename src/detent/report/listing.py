"""Runs as a short table of text: each group with its mean, how certain that is, and what else became of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from detent.report import statistics
from detent.report.comparisons import distinct
from detent.report.summaries import RunSummary
from detent.report.variants import find_variants, groups

WIDEST = 44
"""Characters of a group's name."""


def listing(runs: Sequence[RunSummary]) -> Iterator[str]:
    """A line for each group of runs that differ only in their seeds: the paper's final return over its runs."""
    readable = [run for run in runs if run.task != "?"]
    variants = find_variants(readable)
    members = groups(readable, variants)
    several = len({task for task, _ in members}) > 1
    yield f"{'group':<{WIDEST}} {'runs':>4} {'mean':>10}  95% interval"
    for (task, variant), group in members.items():
        label = f"{task} · {variants.labels[variant]}" if several else variants.labels[variant]
        kept = distinct(group)
        scores = [run.final for run in kept if run.counted and run.final is not None]
        others = [f"{n} {status}" for status, n in _others(kept).items()]
        interval = statistics.mean_interval(scores)
        told = "-" if math.isnan(interval.value) else f"{interval.value:,.1f}"
        sure = interval.why if interval.why else f"{interval.low:,.1f} to {interval.high:,.1f}"
        shown = label if len(label) <= WIDEST else f"{label[: WIDEST - 3]}..."
        yield f"{shown:<{WIDEST}} {len(scores):>4} {told:>10}  {'; '.join([sure, *others])}"
    damaged = len(runs) - len(readable)
    if damaged:
        yield f"{damaged} more cannot be read."


def _others(group: Sequence[RunSummary]) -> dict[str, int]:
    """How many runs are not in the mean, or diverged, by status."""
    found: dict[str, int] = {}
    for run in group:
        if run.status != "finished":
            found[run.status] = found.get(run.status, 0) + 1
    return found
