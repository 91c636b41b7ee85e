"""What a report needs to know about each run: its configuration, how it ended, and its learning curve."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.errors import DetentError
from detent.files import lines
from detent.options import FREE_OPTIONS
from detent.report.statistics import final_return
from detent.runs.directory import ENDED, RunDirectory
from detent.runs.identity import BEFORE, NAMES, version_of
from detent.runs.presets import edition
from detent.schemas import LARGEST_FLOAT32

Floats = NDArray[np.float64]
COUNTED = ENDED
"""Runs whose final return counts: those that went as far as they could, as in the paper."""
STATUSES = (*COUNTED, "running", "stopped", "failed", "damaged")


@dataclass(frozen=True)
class Curve:
    """One point per iteration; a return is NaN before the first episode has ended, and where training diverged."""

    steps: Floats
    seconds: Floats
    """Training time; what was done twice because of a crash is counted once."""
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
    trunk: str = BEFORE["trunk"]
    critic: str = BEFORE["critic"]
    options: Mapping[str, Any] = field(default_factory=dict)
    """As in the file."""
    baselines: Mapping[str, Any] | None = None
    """Baselines of the options that differ from theirs; None if the file is older than baselines (`completion`)."""
    formerly: Mapping[str, str] = field(default_factory=dict)
    """Earlier names of options -> their names in this file."""
    completed: Mapping[str, Any] = field(default_factory=dict)
    """Options that the file lacks because it is too old, at their baselines (`completion`)."""
    status: str = "damaged"
    """`finished`, `diverged`, `running`, `stopped` or `failed`, as in status.json; `damaged` if it cannot be read."""
    why: str | None = None
    curve: Curve = NO_CURVE
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    updated: float = 0.0
    """When the last record was written, in seconds since 1970; 0 if not known."""
    record: Mapping[str, Any] | None = None
    """Its line, if it comes from a compact file."""
    stated_final: float | None = None
    """The final return, if the curve has too few points to compute it."""

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def final(self) -> float | None:
        """The paper's final return: the mean of the last 10 iterations."""
        return final_return(self.curve.returns) if self.stated_final is None else self.stated_final

    @property
    def counted(self) -> bool:
        """Whether the run counts in statistics."""
        return self.status in COUNTED and self.final is not None

    @property
    def steps(self) -> int:
        return int(self.curve.steps[-1]) if self.curve.steps.size else 0

    @property
    def seconds(self) -> float:
        return float(self.curve.seconds[-1]) if self.curve.seconds.size else 0.0

    @property
    def configuration(self) -> dict[str, Any]:
        """As in the file, with today's names."""
        known = {} if self.baselines is None else {"baselines": self.baselines}
        every = {key: getattr(self, key) for key in NAMES}
        return {**every, "options": self.options, "versions": self.versions, **known}

    @property
    def compared(self) -> dict[str, Any]:
        """The choices and options that can make one run better than another, except for the seed."""
        every = {"trunk": self.trunk, "critic": self.critic, **self.completed, **self.options}
        return {k: v for k, v in every.items() if k != "seed" and k not in FREE_OPTIONS}


def summary(path: Path, name: str | None = None) -> RunSummary:
    """A summary of the run in one directory."""
    directory, name = RunDirectory(path), name or path.name
    try:
        described = directory.configuration()
    except (DetentError, OSError) as error:
        return RunSummary(path, name, why=str(error))
    known: dict[str, Any] = {
        **{key: str(described.get(key, "?")) for key in ("task", "algo", "head")},
        "preset": edition(str(described.get("preset", "?")), str(described.get("algo", "?")), version_of(described)),
        **{key: str(described.get(key, before)) for key, before in BEFORE.items()},
        "options": described["options"],
        **{key: described[key] for key in ("baselines", "formerly", "versions", "machine") if key in described},
        "updated": _updated(path),
    }
    try:
        status, why = directory.outcome()
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


_KEYS = ("time/total_timesteps", "time/time_elapsed", "rollout/ep_rew_mean")
_NUMBER = rb"(-?\d[\d.]*(?:e[-+]?\d+)?|null)"
_RECORD = re.compile(
    rb'\{"time/iterations": \d+, "time/total_timesteps": (\d{1,18}), (?:.*?, )??"time/time_elapsed": '
    + _NUMBER
    + rb', "rollout/ep_rew_mean": '
    + _NUMBER
    + rb"[,}].*\n"
)
"""A record as `RunDirectory.append` writes it. Extracting three numbers is several times faster than parsing it all."""


def read_curve(directory: RunDirectory) -> Curve:
    """The learning curve in records.jsonl; a last line that a crash cut short is left out."""
    path = directory.path / "records.jsonl"
    if not path.exists():
        return NO_CURVE
    rows = [found and found.groups() for found in map(_RECORD.fullmatch, lines(path, cut=True))]
    try:
        table = np.array([[math.nan if cell == b"null" else float(cell) for cell in row or (b"",)] for row in rows])
        if (np.abs(table) > LARGEST_FLOAT32).any():
            raise ValueError
    except ValueError:
        # Written by something else, or damaged: parse it fully, which reports what is wrong.
        parsed = ([record.get(key) for key in _KEYS] for record in directory.each_record())
        table = np.array([[math.nan if cell is None else cell for cell in row] for row in parsed], np.float64)
    steps, elapsed, returns = table.reshape(-1, 3).T
    return Curve(steps, _since_the_start(elapsed), returns)


def _since_the_start(elapsed: Floats) -> Floats:
    """Seconds over all processes of a run: each starts counting at 0, which shows as a decrease."""
    gains = np.diff(elapsed, prepend=0.0)
    return np.cumsum(np.where(gains < 0, elapsed, gains))
