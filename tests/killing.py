"""Runs that are killed at random moments, and whether they end as if nothing had happened.

Used by `test_reliability.py` and by `benchmarks/reliability.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field

from detent.options import options_of
from detent.runs.directory import RunDirectory
from detent.runs.run import Names
from detent.runs.training import CLOCK_KEYS

QUICK = {"batch_size": 128, "minibatch_size": 32, "epochs": 2, "envs": 8}
PATIENCE = 180.0
"""Seconds within which a process must have got somewhere."""


def quick(algo):
    """`QUICK`, as far as the algorithm has these options."""
    known = {field.name for part in Names("", "ordinal", algo).option_parts for field in options_of(part)}
    return {"algo": algo} | {name: value for name, value in QUICK.items() if name in known}


def told(directory):
    """The records without their clock."""
    return [{k: v for k, v in r.items() if k not in CLOCK_KEYS} for r in RunDirectory(directory).records()]


def differences(out, reference):
    """The parts of a run that are not those of another, line by line and byte for byte."""
    parts = {
        "records": told,
        "policy": lambda d: (d / "policy.safetensors").read_bytes(),
        "last checkpoint": lambda d: RunDirectory(d).links()[-1]["sha256"],
        "temporary files": lambda d: len(list(d.rglob("*.tmp"))),
    }
    return [name for name, of in parts.items() if of(out) != of(reference)]


@dataclass(frozen=True)
class Victim:
    """A run to be killed, as `detent train` is given it. A good part of its time is spent writing checkpoints."""

    task: str
    options: dict[str, object]
    flags: list[str] = field(default_factory=list)

    def command(self, out):
        wanted = {**self.options, "checkpoint_minutes": 1e-6}
        options = [text for name, value in wanted.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "detent.cli", "train", self.task, "--out", str(out), "--resume", "--quiet"]
        return [*command, *self.flags, *options]

    def finish(self, out):
        """Carry it out to its end."""
        done = subprocess.run(self.command(out), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def kill(self, out, rng, early=0.0):
        """Continue it in a process that is killed at a random moment; returns whether it was, or had ended before.

        Usually that is after the process has got somewhere, and in this fraction of cases while it is starting.
        """
        seen = len(RunDirectory(out).records())
        starting = rng.random() < early
        process = subprocess.Popen(self.command(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + PATIENCE
        while not starting and process.poll() is None and len(RunDirectory(out).records()) <= seen + 1:
            assert time.monotonic() < deadline, "it gets nowhere"
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 5.0 if starting else 0.5))
        process.kill()
        _, errors = process.communicate()
        assert process.returncode in (0, -9), errors
        return process.returncode == -9
