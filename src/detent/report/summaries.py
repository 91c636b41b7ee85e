"""What a report needs to know of each run: what it was asked to do, how it ended, and its learning curve."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.configuration import FREE_OPTIONS
from detent.directory import RunDirectory
from detent.errors import DetentError
from detent.files import LARGEST_TEXT, Corrupt, read_json
from detent.statistics import final_return

Floats = NDArray[np.float64]
COUNTED = ("finished", "diverged")
"""Runs whose final return enters statistics: those that went as far as they could, as in the paper."""
STATUSES = (*COUNTED, "running", "stopped", "failed", "damaged")


@dataclass(frozen=True)
class Curve:
    """One point per iteration; a return is NaN before the first episode has ended, and where training diverged."""

    steps: Floats
    seconds: Floats
    """Training time; what a crash made the run do twice is counted once."""
    returns: Floats
    """Means of the last 100 training episodes."""


NO_CURVE = Curve(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, eq=False)
class RunSummary:
    """One run, as far as it could be read."""

    path: Path
    """The run directory, or the compact file."""
    name: str
    """The path below the directory that was searched."""
    task: str = "?"
    algo: str = "?"
    head: str = "?"
    preset: str = "?"
    options: Mapping[str, Any] = field(default_factory=dict)
    status: str = "damaged"
    """`finished`, `diverged`, `running`, `stopped` or `failed`, as in status.json; `damaged`: it cannot be read."""
    why: str | None = None
    curve: Curve = NO_CURVE
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    updated: float = 0.0
    """When the last record was written, in seconds since 1970; 0: not known."""
    record: Mapping[str, Any] | None = None
    """Its line, if it comes from a compact file."""

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def final(self) -> float | None:
        """The paper's final return: the mean of the last 10 iterations."""
        return final_return(self.curve.returns)

    @property
    def counted(self) -> bool:
        """Whether the run enters statistics."""
        return self.status in COUNTED and self.final is not None

    @property
    def steps(self) -> int:
        return int(self.curve.steps[-1]) if self.curve.steps.size else 0

    @property
    def seconds(self) -> float:
        return float(self.curve.seconds[-1]) if self.curve.seconds.size else 0.0

    @property
    def compared(self) -> dict[str, Any]:
        """The options that can make one run better than another, but for the seed."""
        return {k: v for k, v in self.options.items() if k != "seed" and k not in FREE_OPTIONS}


def summary(path: Path, name: str | None = None) -> RunSummary:
    """What can be said of the run in one directory."""
    directory, name = RunDirectory(path), name or path.name
    try:
        described = directory.configuration()
    except (DetentError, OSError) as error:
        return RunSummary(path, name, why=str(error))
    known: dict[str, Any] = {
        **{key: str(described.get(key, "?")) for key in ("task", "algo", "head", "preset")},
        "options": described["options"],
        **{key: described[key] for key in ("versions", "machine") if isinstance(described.get(key), dict)},
        "updated": _updated(path),
    }
    try:
        status, why = _status(path)
        return RunSummary(path, name, **known, status=status, why=why, curve=read_curve(directory))
    except (DetentError, OSError) as error:
        return RunSummary(path, name, **known, why=str(error))


def _updated(path: Path) -> float:
    for file in ("records.jsonl", "run.json"):
        try:
            return (path / file).stat().st_mtime
        except OSError:
            continue
    return 0.0


def _status(path: Path) -> tuple[str, str | None]:
    if not (path / "status.json").exists():
        return "running", None
    told = read_json(path / "status.json")
    if told.get("status") not in STATUSES:
        raise Corrupt(f"{path / 'status.json'} is damaged: it has no status that Detent knows.")
    why = told.get("why")
    return str(told["status"]), None if why is None else str(why)


_KEYS = ("time/total_timesteps", "time/time_elapsed", "rollout/ep_rew_mean")
_RECORD = re.compile(
    rb'^\{"time/iterations": \d+, "time/total_timesteps": (\d+), (?:[^\n]*?, )??"time/time_elapsed": ([^,\n}]+), '
    rb'"rollout/ep_rew_mean": ([^,\n}]+)[^\n]*\}$',
    re.MULTILINE,
)
"""A record as `RunDirectory.append` writes it. Taking three numbers out is several times quicker than parsing all."""


def read_curve(directory: RunDirectory) -> Curve:
    """The learning curve in records.jsonl; a last line that a crash cut short is left out."""
    path = directory.path / "records.jsonl"
    if not path.exists():
        return NO_CURVE
    if path.stat().st_size > LARGEST_TEXT:
        raise Corrupt(f"{path} is damaged or foreign: it is larger than any that Detent writes.")
    whole = path.read_bytes().rpartition(b"\n")[0]
    rows = _RECORD.findall(whole)
    try:
        if len(rows) != whole.count(b"\n") + bool(whole):
            raise ValueError
        table = [[math.nan if cell == b"null" else float(cell) for cell in row] for row in rows]
    except ValueError:
        # Written by something else, or damaged: the careful way, which says what is wrong.
        table = [[_number(path, record.get(key)) for key in _KEYS] for record in directory.records()]
    steps, elapsed, returns = np.array(table, np.float64).reshape(-1, 3).T
    return Curve(steps, _since_the_start(elapsed), returns)


def _number(path: Path, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Corrupt(f"{path} is damaged: {json.dumps(value)[:40]} is not a number.")
    return float(value)


def _since_the_start(elapsed: Floats) -> Floats:
    """Seconds over all processes of a run: each begins to count at 0, which shows as a step back."""
    gains = np.diff(elapsed, prepend=0.0)
    return np.cumsum(np.where(gains < 0, elapsed, gains))
