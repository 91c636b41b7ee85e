"""Whether a long training needs ever more memory.

    python benchmarks/soak.py [--minutes 60] [--out DIR]

HalfCheetah-v5 is trained in a run directory, with an evaluation every 50,000 steps and a checkpoint every 10 seconds,
six times as often as by default. About once a second, between two iterations, the process's memory, open files and
threads are noted: resident memory, and the part of it that is anonymous, which depends on no other process (pages of
libraries come and go with the system's caches). The first half is warm-up. A line is fitted to the second half, and its
slope extrapolated to 12 hours. Neighbouring samples are alike, so the line is fitted to the means of 30 stretches of
equal length, and its 95% interval is Student's. The growth counts as less than 1% if the whole interval is. Prints the
result and writes `soak.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("NPROC", "1")  # as `detent train` does

import numpy as np
from numpy.typing import NDArray

from detent.report.statistics import t_quantile
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run

RESULTS = Path(__file__).parent / "soak.json"
TASK = "HalfCheetah-v5"
HOURS = 12
LIMIT = 0.01
"""Growth in `HOURS` hours that is too much, relative to the memory in use."""
STRETCHES = 30
EVERY = 1.0
"""Seconds between two samples."""
FIELDS = ("seconds", "resident", "anonymous", "files", "threads")
"""Of a sample; memory in megabytes."""


def sample(began: float) -> tuple[float, ...]:
    memory = _fields("/proc/self/smaps_rollup")  # exact; VmRSS is off by up to 64 pages for every thread
    files = len(os.listdir("/proc/self/fd")) - 1  # one of them is this directory
    threads = _fields("/proc/self/status")["Threads"]
    return time.monotonic() - began, memory["Rss"] / 1024, memory["Anonymous"] / 1024, files, threads


def _fields(path: str) -> dict[str, int]:
    """The lines `name: number ...` of a file in /proc."""
    lines = (line.replace(":", " ").split() for line in Path(path).read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def soak(minutes: float, out: Path) -> dict[str, NDArray[np.float64]]:
    """Train for this many minutes; the samples, field by field."""
    run = Run(TASK, steps=10**12, eval_every=50_000)
    how = Execution(max_minutes=minutes, checkpoint_seconds=10.0)
    # Written to now, so that the samples themselves need no more memory as they grow in number.
    samples = np.full((int(60 * minutes / EVERY) + 1, len(FIELDS)), -1.0)
    count, began = 0, time.monotonic()
    for _ in execute(run, out, how):
        if time.monotonic() - began >= EVERY * (count + 1) and count < len(samples):
            samples[count] = sample(began)
            count += 1
    return dict(zip(FIELDS, samples[:count].T, strict=True))


def growth(seconds: NDArray[np.float64], megabytes: NDArray[np.float64]) -> dict[str, Any]:
    """The slope of a line, and what it adds in 12 hours."""
    x, y = (np.array([part.mean() for part in np.array_split(v, STRETCHES)]) for v in (seconds / 3600, megabytes))
    slope, start = np.polyfit(x, y, 1)
    freedom = STRETCHES - 2
    error = np.sqrt(np.sum((y - start - slope * x) ** 2) / freedom / np.sum((x - x.mean()) ** 2))
    reach = t_quantile(0.975, freedom) * error
    slopes = [float(slope - reach), float(slope + reach)]
    return {
        "megabytes": float(y.mean()),
        "megabytes_per_hour": float(slope),
        "megabytes_per_hour_interval": slopes,
        "growth": HOURS * float(slope / y.mean()),
        "growth_interval": [HOURS * float(end / y.mean()) for end in slopes],
    }


def summary(samples: dict[str, NDArray[np.float64]], out: Path) -> dict[str, Any]:
    seconds = samples["seconds"]
    second_half = seconds >= seconds[-1] / 2
    half = {name: values[second_half] for name, values in samples.items()}
    minutes = np.unique(seconds // 60, return_index=True)[1]
    records = RunDirectory(out).records()
    found = {
        "task": TASK,
        "minutes": float(seconds[-1] / 60),
        "steps": int(records[-1]["time/total_timesteps"] or 0),
        "evaluations": sum("eval/mean_reward" in record for record in records),
        "checkpoints": len(RunDirectory(out).links()),
        "samples": int(second_half.sum()),
        "hours": HOURS,
        **{name: growth(half["seconds"], half[name]) for name in ("resident", "anonymous")},
        **{name: [int(half[name].min()), int(half[name].max())] for name in ("files", "threads")},
        "resident_by_minute": [round(float(value), 1) for value in samples["resident"][minutes]],
    }
    return {**found, "less_than_1_percent": found["resident"]["growth_interval"][1] < LIMIT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="the run directory (default: a temporary one)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        out = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        samples = soak(options.minutes, out)
        if len(samples["seconds"]) < 2 * STRETCHES:
            raise SystemExit("Too short: there are fewer samples than the line needs; try --minutes 2.")
        found = summary(samples, out)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    low, high = found["resident"]["growth_interval"]
    print(f"In {HOURS} hours: {found['resident']['growth']:+.2%} [{low:+.2%}, {high:+.2%}]", end="; ")
    print("less than 1%." if found["less_than_1_percent"] else "1% is not ruled out.")


if __name__ == "__main__":
    main()
