"""Progress: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from detent.jobs import Event
from detent.training import Record

PLAIN_SECONDS = 10.0
"""Between two plain lines."""


def follow(records: Iterator[Record], name: str, total: int) -> Iterator[Record]:
    """Pass the records on, showing how far the run is, how fast, and how well it does."""
    if not sys.stderr.isatty():
        yield from _lines(records, name, total)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[told]}"),
        console=Console(stderr=True),
    )
    with bar:
        task: TaskID = bar.add_task(name, total=total, told="compiling ...")
        rate = _Rate()
        for record in records:
            bar.update(task, completed=_steps(record), told=_told(record, rate, total))
            yield record


def _lines(records: Iterator[Record], name: str, total: int) -> Iterator[Record]:
    rate, shown = _Rate(), -PLAIN_SECONDS
    for record in records:
        told = _told(record, rate, total)
        if time.monotonic() - shown >= PLAIN_SECONDS or _steps(record) >= total:
            print(f"{name}: {told}", file=sys.stderr, flush=True)
            shown = time.monotonic()
        yield record


def follow_sweep(events: Iterator[Event], total: int, steps: int) -> Iterator[Event]:
    """Pass the events of a sweep of so many runs and steps on, showing how far it is: one line in all and one per run
    under way in a terminal, elsewhere a line per run that has ended."""
    tally = _Tally(total, steps)
    if not sys.stderr.isatty():
        for event in events:
            tally.add(event)
            if event.ended and not event.before:
                print(f"[{tally.ended}/{total}] {_ending(event)}", file=sys.stderr, flush=True)
            yield event
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[told]}", markup=False),
        console=Console(stderr=True),
    )
    with bar:
        whole = bar.add_task("sweep", total=steps, told=tally.told())
        lines: dict[str, TaskID] = {}
        for event in events:
            tally.add(event)
            if event.ended and event.name in lines:
                bar.remove_task(lines.pop(event.name))
            elif not event.ended:
                if event.name not in lines:
                    lines[event.name] = bar.add_task(f"  {event.name}", total=event.total, told="")
                bar.update(lines[event.name], completed=event.steps, total=event.total, told=_standing(event))
            if event.status in ("failed", "diverged") and not event.before:
                bar.console.print(_ending(event), markup=False, highlight=False)
            bar.update(whole, completed=tally.done, told=tally.told())
            yield event


class _Tally:
    """The books of a sweep: runs by status, steps done, and how long the rest takes at the speed so far."""

    def __init__(self, runs: int, steps: int) -> None:
        self.runs, self.steps = runs, steps
        self.status: dict[str, str] = {}
        self._reached: dict[str, int] = {}
        self._gained, self._began = 0, time.monotonic()

    def add(self, event: Event) -> None:
        if not event.before and event.name in self._reached:  # a resumed run's first steps are not this sweep's work
            self._gained += max(0, event.steps - self._reached[event.name])
        self.status[event.name] = event.status
        # What has ended early has no steps left.
        over = event.status in ("finished", "diverged", "failed")
        self._reached[event.name] = event.total if over else event.steps

    @property
    def done(self) -> int:
        return sum(self._reached.values())

    @property
    def ended(self) -> int:
        return sum(status != "running" for status in self.status.values())

    def told(self) -> str:
        counts = Counter(self.status.values())
        shown = ("finished", "diverged", "failed", "stopped")
        parts = [f"{counts[status]} {status}" for status in shown if counts[status] or status == "finished"]
        speed = self._gained / max(time.monotonic() - self._began, 1e-9)
        left = f"  {_clock((self.steps - self.done) / speed)} left" if speed else ""
        return f"{', '.join(parts)} of {self.runs}{left}"


def _standing(event: Event) -> str:
    value = "-" if event.value is None else rounded(event.value)
    return f"{_short(event.steps)}/{_short(event.total)} steps  return {value}"


def _ending(event: Event) -> str:
    why = f" ({event.why})" if event.why else ""
    return f"{event.name}: {event.status}, {_standing(event)}{why}"


class _Rate:
    """Steps per second, averaged over the last ten seconds or so."""

    def __init__(self) -> None:
        self.smooth: float | None = None

    def update(self, fps: float, iteration: int) -> float:
        if iteration <= 1:  # compiling is no speed
            return fps
        self.smooth = fps if self.smooth is None else 0.95 * self.smooth + 0.05 * fps
        return self.smooth


def _steps(record: Record) -> int:
    return int(record["time/total_timesteps"] or 0)


def _told(record: Record, rate: _Rate, total: int) -> str:
    steps = _steps(record)
    speed = rate.update(record["time/fps"] or 0.0, int(record["time/iterations"] or 0))
    value = record["rollout/ep_rew_mean"]
    left = max(0, total - steps) / max(speed, 1e-9)
    return (
        f"{_short(steps)}/{_short(total)} steps  {speed:,.0f}/s  "
        f"return {'-' if value is None else rounded(value)}  {_clock(left)} left"
    )


def rounded(value: float) -> str:
    """A return as people like to read it."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _short(steps: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{unit}"
    return str(int(steps))


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
