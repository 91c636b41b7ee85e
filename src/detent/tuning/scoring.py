"""What is better: returns on several tasks as one number.

Trial 0 is the default settings. Its runs are the yardstick of each task: m is their mean final return, and d the
distance between the lowest and the highest return on their learning curves. The score of a trial with mean final return
r is

    mean over tasks of asinh((r - m) / d)

so 0 is as good as the default settings, whatever the sign or the unit of a task's returns. d is not |m|, which may be
0, nor the gain from the first return to the last, which may be 0 or negative where the default settings do not learn.
Near 0, asinh(x) is x; far from 0 it grows like a logarithm, so one task on which the default settings fail, or a trial
diverges, does not outvote all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detent.errors import BadInput
from detent.report.statistics import final_return
from detent.report.summaries import Curve, RunSummary, summary
from detent.runs.run import Run

Returns = Mapping[str, Sequence[float]]
"""Task -> final returns, one per seed."""


class Failed(Exception):
    """A trial has no score; the text says why."""


@dataclass(frozen=True)
class Yardstick:
    """What the default settings reach on one task."""

    mean: float
    distance: float

    def normalized(self, value: float) -> float:
        return (value - self.mean) / self.distance


def score(returns: Returns, yardsticks: Mapping[str, Yardstick]) -> float:
    """0 for the default settings; higher is better."""
    return float(np.mean([math.asinh(yardsticks[t].normalized(float(np.mean(x)))) for t, x in returns.items()]))


def final_returns(runs: Mapping[str, Run], place: Path, until: int | None = None) -> dict[str, list[float]]:
    """The final returns of runs that have ended, or of their first `until` steps, by task."""
    found: dict[str, list[float]] = {}
    for name, run in runs.items():
        ended = summary(place / name)
        if ended.status not in ("finished", "diverged") and not (until and ended.status == "stopped"):
            raise Failed(f"{name}: {ended.why or ended.status}")
        value = final_return(_curve(ended, until).returns)
        if value is None:
            raise Failed(f"{name}: no episode ended" + " before it diverged" * (ended.status == "diverged"))
        found.setdefault(run.names.task, []).append(value)
    return found


def _curve(run: RunSummary, until: int | None) -> Curve:
    kept = run.curve.steps <= (until or math.inf)
    return Curve(run.curve.steps[kept], run.curve.seconds[kept], run.curve.returns[kept])


def yardsticks(runs: Mapping[str, Run], place: Path) -> dict[str, Yardstick]:
    """The yardsticks of all tasks, from the runs of the default settings."""
    try:
        means = {task: float(np.mean(values)) for task, values in final_returns(runs, place).items()}
    except Failed as failure:
        raise BadInput(
            f"The default settings give no return to compare with ({failure}); more --steps or other flags may help."
        ) from failure
    seen: dict[str, list[float]] = {}
    for name, run in runs.items():
        known = summary(place / name).curve.returns
        seen.setdefault(run.names.task, []).extend(known[np.isfinite(known)].tolist())
    return {task: Yardstick(means[task], (max(x) - min(x)) or abs(means[task]) or 1.0) for task, x in seen.items()}
