"""The progress of a sweep: live lines in a terminal, plain ones elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from detent.runs.progress import Patient, clock, fitted, rounded, short
from detent.sweeps.job import Event


def follow_sweep(events: Iterator[Event], total: int, steps: int, title: str = "sweep") -> Iterator[Event]:
    """Pass the events of a sweep of this many runs and steps on, showing how far it is: one line in all and one per run
    under way in a terminal, elsewhere a line per run that has ended."""
    tally, watched = _Tally(total, steps), Patient(sys.stderr)
    if sys.stderr is None or not sys.stderr.isatty():
        for event in events:
            tally.add(event)
            if event.ended and not event.before:
                print(f"[{tally.ended}/{total}] {_ending(event)}", file=watched, flush=True)
            yield event
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[text]}", markup=False),
        console=Console(file=watched),  # type: ignore[arg-type]
    )
    with bar:
        whole = bar.add_task(title, total=steps, text=tally.summary())
        lines: dict[str, TaskID] = {}
        for event in events:
            tally.add(event)
            if event.ended and event.name in lines:
                bar.remove_task(lines.pop(event.name))
            elif not event.ended:
                if event.name not in lines:
                    lines[event.name] = bar.add_task(f"  {fitted(event.name)}", total=event.total, text="")
                bar.update(lines[event.name], completed=event.steps, total=event.total, text=_standing(event))
            if event.status in ("failed", "diverged") and not event.before:
                bar.console.print(_ending(event), markup=False, highlight=False)
            bar.update(whole, completed=tally.done, text=tally.summary())
            yield event


class _Tally:
    """The runs of a sweep by status, the steps done, and the time left at the speed so far."""

    def __init__(self, runs: int, steps: int) -> None:
        self.runs, self.steps = runs, steps
        self.status: dict[str, str] = {}
        self._reached: dict[str, int] = {}
        self._gained, self._began = 0, time.monotonic()

    def add(self, event: Event) -> None:
        if not event.before and event.name in self._reached:  # a resumed run's first steps are not this sweep's work
            self._gained += max(0, event.steps - self._reached[event.name])
        self.status[event.name] = event.status
        # A run that ended early has no steps left.
        over = event.status in ("finished", "diverged", "failed")
        self._reached[event.name] = event.total if over else event.steps

    @property
    def done(self) -> int:
        return sum(self._reached.values())

    @property
    def ended(self) -> int:
        return sum(status != "running" for status in self.status.values())

    def summary(self) -> str:
        counts = Counter(self.status.values())
        shown = ("finished", "diverged", "failed", "stopped")
        parts = [f"{counts[status]} {status}" for status in shown if counts[status] or status == "finished"]
        speed = self._gained / max(time.monotonic() - self._began, 1e-9)
        left = f"  {clock((self.steps - self.done) / speed)} left" if speed else ""
        return f"{', '.join(parts)} of {self.runs}{left}"


def _standing(event: Event) -> str:
    value = "-" if event.value is None else rounded(event.value)
    return f"{short(event.steps)}/{short(event.total)} steps  return {value}"


def _ending(event: Event) -> str:
    why = f" ({event.why})" if event.why else ""
    return f"{event.name}: {event.status}, {_standing(event)}{why}"
