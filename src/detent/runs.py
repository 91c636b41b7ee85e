"""The run directory: configuration, records, checkpoints, status and policy of one training.

run.json            what was asked for: every option, the versions and the machine; never changes
records.jsonl       one record per iteration
checkpoints/        safetensors, the last two (all with `keep_all`)
checkpoints.jsonl   a hash chain over all checkpoints ever written
status.json         running, finished, stopped, diverged or failed, and why
policy.safetensors  the policy as of the last checkpoint; best_policy.safetensors with --eval-every
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from detent.configuration import Run
from detent.errors import BadInput, DetentError, Diverged
from detent.evaluation import evaluate
from detent.files import (
    CannotWrite,
    Corrupt,
    cannot_write,
    read_json,
    read_tensors,
    tensor_bytes,
    write_json,
    write_tensors,
    write_whole,
)  # fmt: skip
from detent.policy import Policy
from detent.snapshot import Snapshot
from detent.training import Record, make_environment
from detent.training import train as records_of

SCHEMA = 1
EVALUATION_SEED = 1_000_003
"""Evaluations happen in environments that training never sees."""


@dataclass(frozen=True)
class Execution:
    """How a run is carried out; nothing here changes what it computes."""

    resume: bool = False
    max_minutes: float | None = None
    checkpoint_seconds: float = 60.0
    keep_all: bool = False
    init_from: str | None = None
    stop: Callable[[], str | None] = lambda: None
    """Asked after every record; a reason ends the run there, resumable."""


class RunDirectory:
    """Reads and writes one run directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    def configuration(self) -> dict[str, Any]:
        if not self.exists:
            raise BadInput(f"{self.path} is not a run directory: it has no run.json.")
        described = read_json(self.path / "run.json")
        if described.get("schema") != SCHEMA:
            raise Corrupt(f"{self.path / 'run.json'} is not of version {SCHEMA}, the only one this Detent reads.")
        return described

    def run(self, **changes: Any) -> Run:
        return Run.from_configuration(self.configuration(), **changes)

    def create(self, run: Run) -> None:
        """Write run.json, unless something else lives here."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                what = "holds a run already" if self.exists else "is not empty"
                raise BadInput(f"{self.path} {what}; choose another --out" + " or add --resume." * self.exists)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        write_json(self.path / "run.json", {"schema": SCHEMA, **run.configuration, **_provenance()})

    def check_same(self, run: Run) -> None:
        """Refuse to continue a run under another configuration."""
        old, new = self.configuration(), run.identity
        differing = [k for k in ("task", "head", "algo") if old.get(k) != new[k]]
        differing += [k for k, v in new["options"].items() if old.get("options", {}).get(k) != v]
        if differing:
            name = differing[0]
            was, now = (c[name] if name in c else c["options"].get(name) for c in (old, new))
            raise BadInput(
                f"{self.path} holds another run: {name} is {was!r} there, not {now!r}; choose another --out."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process may write here; the lock goes with the process, however it ends."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BadInput(
                f"Another process is training in {self.path}; wait for it or choose another --out."
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)

    def write_status(self, status: str, why: str | None = None) -> None:
        write_json(self.path / "status.json", {"status": status, "why": why})

    def status(self) -> str:
        path = self.path / "status.json"
        return str(read_json(path)["status"]) if path.exists() else "running"

    # --- records ---

    def append(self, record: Record) -> None:
        line = json.dumps({key: _finite(value) for key, value in record.items()}, allow_nan=False)
        try:
            with open(self.path / "records.jsonl", "a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise cannot_write(self.path / "records.jsonl", error) from error

    def records(self) -> list[dict[str, float | None]]:
        """Every whole record; a line that a crash cut short is left out."""
        path = self.path / "records.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records

    def forget_after(self, iteration: int) -> None:
        """Drop the records of iterations that are about to be repeated."""
        kept = [r for r in self.records() if (r["time/iterations"] or 0) <= iteration]
        write_whole(self.path / "records.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())

    # --- checkpoints ---

    def checkpoint(self, record: Record, keep_all: bool) -> None:
        """Write the state and the policy after `record`, and add a link to the hash chain."""
        snapshot = record.snapshot()
        links = self._links()
        iteration = int(snapshot.meta["iteration"])
        if links and links[-1]["iteration"] == iteration:
            return
        data = tensor_bytes(snapshot.tensors, {"schema": SCHEMA, "kind": "checkpoint", **snapshot.meta})
        digest = hashlib.sha256(data).hexdigest()
        previous = links[-1]["chain"] if links else ""
        link = {
            "iteration": iteration,
            "steps": snapshot.meta["steps"],
            "sha256": digest,
            "chain": hashlib.sha256((previous + digest).encode()).hexdigest(),
        }
        write_whole(self._checkpoint_path(iteration), data)
        record.policy().save(self.path / "policy.safetensors")
        self._write_links([*links, link])
        if not keep_all:
            for old in links[:-1]:
                self._checkpoint_path(old["iteration"]).unlink(missing_ok=True)

    def latest(self) -> Snapshot | None:
        """The newest checkpoint that is whole; damaged ones are passed over."""
        links = self._links()
        for number, link in reversed(list(enumerate(links))):
            try:
                snapshot = self._read_checkpoint(link)
            except Corrupt:
                continue
            self._write_links(links[: number + 1])
            return snapshot
        if links:
            raise Corrupt(f"No checkpoint in {self.path / 'checkpoints'} is whole; start again under another --out.")
        return None

    def _read_checkpoint(self, link: dict[str, Any]) -> Snapshot:
        path = self._checkpoint_path(link["iteration"])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Corrupt(f"Cannot read {path}: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != link["sha256"]:
            raise Corrupt(f"{path} is damaged: its checksum is wrong.")
        tensors, meta = read_tensors(path)
        if meta.get("kind") != "checkpoint" or meta.get("schema") != SCHEMA:
            raise Corrupt(f"{path} is not a checkpoint of version {SCHEMA}.")
        return Snapshot(tensors, {"iteration": meta["iteration"], "steps": meta["steps"]})

    def _checkpoint_path(self, iteration: int) -> Path:
        return self.path / "checkpoints" / f"{int(iteration):09d}.safetensors"

    def _links(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoints.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        except ValueError as error:
            raise Corrupt(f"{path} is damaged: a line is not valid JSON.") from error

    def _write_links(self, links: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(link) + "\n" for link in links)
        write_whole(self.path / "checkpoints.jsonl", lines.encode())


def train(run: Run, out: str | os.PathLike[str] | None = None, **how: Any) -> Iterator[Record]:
    """Train, yielding a record per iteration; with `out`, in a run directory. Nothing happens until you iterate.

    `how` are the fields of `Execution`: `resume`, `max_minutes`, `keep_all`, ...
    """
    return records_of(run) if out is None else execute(run, out, Execution(**how))


def execute(run: Run, out: str | os.PathLike[str], how: Execution) -> Iterator[Record]:
    """Train in a run directory: every record is written before it is yielded."""
    directory = RunDirectory(out)
    resuming = how.resume and directory.exists
    if resuming:
        directory.check_same(run)
    else:
        directory.create(run)
    with directory.locked():
        if resuming and directory.status() == "finished":
            return
        if how.init_from and not resuming:
            _save_initial(directory, how.init_from)
        start = directory.latest() if resuming else None
        if resuming:
            directory.forget_after(int(start.meta["iteration"]) if start else 0)
        directory.write_status("running")
        yield from _watched(run, directory, how, start)


def _watched(run: Run, directory: RunDirectory, how: Execution, start: Snapshot | None) -> Iterator[Record]:
    """Records, with the directory kept true to them whatever happens."""
    began = saved = time.monotonic()
    best = max(
        (r["eval/mean_reward"] or -math.inf for r in directory.records() if "eval/mean_reward" in r), default=-math.inf
    )
    steps = int(start.meta["steps"]) if start else 0
    record: Record | None = None
    try:
        for record in records_of(run, start, _read_initial(directory)):
            record, best = _evaluated(run, directory, record, steps, best)
            steps = int(record["time/total_timesteps"] or 0)
            directory.append(record)
            yield record
            why = how.stop()
            if how.max_minutes and time.monotonic() - began > 60 * how.max_minutes:
                why = f"--max-minutes {how.max_minutes:g} have passed"
            if why and steps < run.settings.steps:
                directory.checkpoint(record, how.keep_all)
                directory.write_status("stopped", why)
                return
            if time.monotonic() - saved > how.checkpoint_seconds:
                directory.checkpoint(record, how.keep_all)
                saved = time.monotonic()
        if record:
            directory.checkpoint(record, how.keep_all)
        directory.write_status("finished")
    except GeneratorExit:
        if record:
            directory.checkpoint(record, how.keep_all)
        directory.write_status("stopped", "the caller stopped asking for records")
        raise
    except CannotWrite:
        raise
    except DetentError as error:
        directory.write_status("diverged" if isinstance(error, Diverged) else "failed", str(error))
        raise
    except KeyboardInterrupt:
        directory.write_status("stopped", "interrupted")
        raise


def _evaluated(
    run: Run, directory: RunDirectory, record: Record, steps_before: int, best: float
) -> tuple[Record, float]:
    """Evaluate whenever a multiple of --eval-every steps has been passed; keep the best policy beside the last."""
    every = run.settings.eval_every
    if not every or int(record["time/total_timesteps"] or 0) // every == steps_before // every:
        return record, best
    policy = record.policy()
    summary = evaluate_run(run, policy, run.settings.eval_episodes, seed=int(record["time/iterations"] or 0))
    if summary["mean_reward"] > best:
        best = summary["mean_reward"]
        policy.save(directory.path / "best_policy.safetensors")
    extra = {f"eval/{key}": value for key, value in summary.items() if key != "episodes"}
    return replace(record, metrics={**record.metrics, **extra}), best


def evaluate_run(
    run: Run, policy: Policy, episodes: int, seed: int, rng: np.random.Generator | None = None
) -> dict[str, float]:
    """Mean and spread of the return of a policy on the run's task; stochastic when given a generator."""
    env_seed = int(np.random.SeedSequence((EVALUATION_SEED, run.settings.seed, seed)).generate_state(1)[0])
    act = policy if rng is None else partial(policy.sample, rng=rng)
    return evaluate(act, partial(make_environment, run, env_seed), episodes).summary()


def _save_initial(directory: RunDirectory, source: str) -> None:
    """Copy what `--init-from` starts from, so that the run does not depend on the other's directory."""
    snapshot = RunDirectory(source).latest() if RunDirectory(source).exists else None
    if snapshot is None:
        raise BadInput(f"--init-from {source}: there is no run with a checkpoint.")
    kept = ("algorithm/parameters/", "memory/observation_moments/", "memory/return_moments/")
    tensors = {name: t for name, t in snapshot.tensors.items() if name.startswith(kept)}
    write_tensors(directory.path / "init.safetensors", tensors, {"schema": SCHEMA, "kind": "init", "steps": 0})


def _read_initial(directory: RunDirectory) -> Snapshot | None:
    path = directory.path / "init.safetensors"
    return Snapshot(*read_tensors(path)) if path.exists() else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _provenance() -> dict[str, Any]:
    packages = ("detent", "jax", "jaxlib", "optax", "envpool", "gymnasium", "mujoco", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
