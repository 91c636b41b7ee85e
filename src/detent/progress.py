"""Progress: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

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
