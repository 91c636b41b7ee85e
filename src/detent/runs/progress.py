"""Progress: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from detent.runs.training import Record

PLAIN_SECONDS = 10.0
"""Seconds between two plain lines."""


class Patient:
    """A stream whose reader may go away (`| head -1`, a lost terminal, a full disk): what is written then is lost."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except OSError:
            # What the stream still holds must go somewhere, or the interpreter complains when it ends.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self._stream = None
        except ValueError:  # it was closed
            self._stream = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(text: str) -> None:
    """Print a line of a run's or a sweep's outcome; that nobody reads it does not change the exit code."""
    print(text, file=Patient(sys.stdout), flush=True)


def follow(records: Iterator[Record], name: str, total: int) -> Iterator[Record]:
    """Pass the records on, showing the run's progress, speed and return."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from _lines(records, name, total)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[text]}"),
        console=Console(file=Patient(sys.stderr)),  # type: ignore[arg-type]
    )
    with bar:
        task: TaskID = bar.add_task(fitted(name), total=total, text="compiling ...")
        rate = _Rate()
        for record in records:
            bar.update(task, completed=_steps(record), text=_text(record, rate, total))
            yield record


def fitted(name: str, most: int = 24) -> str:
    """A name that leaves room for the rest of a line of 80 characters: of a long one, the two ends."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}...{name[len(name) - most // 2 + 2 :]}"


def _lines(records: Iterator[Record], name: str, total: int) -> Iterator[Record]:
    rate, shown, watched = _Rate(), -PLAIN_SECONDS, Patient(sys.stderr)
    for record in records:
        text = _text(record, rate, total)
        if time.monotonic() - shown >= PLAIN_SECONDS or _steps(record) >= total:
            print(f"{name}: {text}", file=watched, flush=True)
            shown = time.monotonic()
        yield record


class _Rate:
    """Steps per second, averaged over the last ten seconds or so; None after the first iteration of a process."""

    def __init__(self) -> None:
        self._compiled = False
        self.smooth: float | None = None

    def update(self, fps: float) -> float | None:
        if not self._compiled:  # which was most of the first iteration
            self._compiled = True
            return None
        self.smooth = fps if self.smooth is None else 0.95 * self.smooth + 0.05 * fps
        return self.smooth


def _steps(record: Record) -> int:
    return int(record["time/total_timesteps"] or 0)


def _text(record: Record, rate: _Rate, total: int) -> str:
    steps = _steps(record)
    speed = rate.update(record["time/fps"] or 0.0)
    value = record["rollout/ep_rew_mean"]
    shown = f"{short(steps)}/{short(total)} steps  return {'-' if value is None else rounded(value)}"
    if speed is None:
        return shown
    return f"{shown}  {speed:,.0f}/s  {clock(max(0, total - steps) / max(speed, 1e-9))} left"


def rounded(value: float) -> str:
    """A return with a readable number of digits."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3f}"


def short(steps: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{unit}"
    return str(int(steps))


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
