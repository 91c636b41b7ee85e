"""The run directory: configuration, records, checkpoints, status and policy of one training.

run.json            what was asked for: every option, the versions and the machine
records.jsonl       one record per iteration
checkpoints/        safetensors: after the first iteration, and the last two (all with `keep_all`)
checkpoints.jsonl   a hash chain over the configuration and all checkpoints ever written
status.json         running, finished, stopped, diverged or failed, and why
policy.safetensors  the policy as of the last checkpoint; best_policy.safetensors with --eval-every
init.safetensors    where a run with --init-from began
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from detent.configuration import FREE_OPTIONS, Run
from detent.errors import BadInput
from detent.files import (
    Corrupt,
    cannot_write,
    file_hash,
    flush,
    locked,
    read_json,
    read_lines,
    read_tensors,
    tensor_bytes,
    write_json,
    write_tensors,
    write_whole,
)  # fmt: skip
from detent.snapshot import Snapshot
from detent.training import Record

SCHEMA = 1
Link = dict[str, Any]
"""One line of checkpoints.jsonl: `iteration`, `steps`, `from` (the iteration at which the process that wrote it began),
`sha256` of the checkpoint, and `chain`, a hash over all of this and the `chain` before it."""
BEFORE_THE_RUN = (".lock", "init.safetensors")
"""What a process that died before it wrote run.json may have left."""


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
        if described.pop("checksum", None) != _hashed(described):
            raise Corrupt(f"{self.path / 'run.json'} was changed after it was written; use another copy of it.")
        if not isinstance(described.get("options"), dict):
            raise Corrupt(f"{self.path / 'run.json'} is incomplete: it has no options.")
        return described

    def _write_configuration(self, described: dict[str, Any]) -> None:
        write_json(self.path / "run.json", {**described, "checksum": _hashed(described)})

    def run(self, **changes: Any) -> Run:
        return Run.from_configuration(self.configuration(), **changes)

    def refuse_others(self, resuming: bool) -> None:
        """Only an empty directory can become a run, and only an existing run can be resumed."""
        if resuming and self.exists:
            return
        try:
            found = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if any(name not in BEFORE_THE_RUN and not name.endswith(".tmp") for name in found):
            what = "holds a run already" if self.exists else "is not empty"
            raise BadInput(f"{self.path} {what}; choose another --out{' or add --resume' * self.exists}.")

    def create(self, run: Run, initial: Snapshot | None) -> None:
        """Write run.json, last: it is what makes a directory a run."""
        if initial:
            meta = {"schema": SCHEMA, "kind": "init", **initial.meta}
            write_tensors(self.path / "init.safetensors", initial.tensors, meta)
        resumes = "exactly" if run.task.replayable else "with new episodes"
        self._write_configuration({"schema": SCHEMA, **run.configuration, "resumes": resumes, **provenance()})

    def check_same(self, run: Run) -> None:
        """Refuse to continue a run under another configuration; more steps are welcome where nothing depends on it."""
        old, new = self.configuration(), run.identity
        was = {**old["options"], **{k: old.get(k) for k in ("task", "head", "algo")}}
        now = {**new["options"], **{k: new[k] for k in ("task", "head", "algo")}}
        for name, value in now.items():
            if name != "steps" and was.get(name) != value:
                raise BadInput(
                    f"{self.path} holds another run: {name} is {was.get(name)!r} there, not {value!r}; "
                    "choose another --out."
                )
        if now["steps"] == was["steps"]:
            return
        if now["steps"] < was["steps"]:
            raise BadInput(f"{self.path} was begun with --steps {was['steps']}; a run can be made longer, not shorter.")
        if run.algorithm.scheduled and not run.settings.anneal_steps:
            raise BadInput(
                f"{self.path} was begun with --steps {was['steps']}, and its learning rate falls to 0 over them: with "
                f"--steps {now['steps']} it would have been another run from its first update. Give --anneal-steps to "
                "a run that may be made longer, or start a new one with --init-from."
            )

    def extend(self, steps: int) -> None:
        """Note that the run is to have this many steps, if it is not so already."""
        described = self.configuration()
        if described["options"]["steps"] != steps:
            self._write_configuration({**described, "options": {**described["options"], "steps": steps}})

    def initial(self) -> Snapshot | None:
        """Where a run with --init-from began."""
        path = self.path / "init.safetensors"
        return Snapshot(*read_tensors(path)) if path.exists() else None

    def locked(self) -> AbstractContextManager[None]:
        """Only one process may write here; the lock goes with the process, however it ends."""
        return locked(self.path, "training")

    def write_status(self, status: str, why: str | None = None) -> None:
        write_json(self.path / "status.json", {"status": status, "why": why})

    def status(self) -> str:
        path = self.path / "status.json"
        return str(read_json(path).get("status")) if path.exists() else "running"

    def why(self) -> str | None:
        """The reason for the status, if it has one."""
        path = self.path / "status.json"
        return read_json(path).get("why") if path.exists() else None

    # --- records ---

    def append(self, record: Record) -> None:
        line = json.dumps({key: finite_or_null(value) for key, value in record.items()}, allow_nan=False)
        try:
            with open(self.path / "records.jsonl", "a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise cannot_write(self.path / "records.jsonl", error) from error

    def records(self) -> list[dict[str, float | None]]:
        """Every whole record; a last line that a crash cut short is left out."""
        path = self.path / "records.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        records: list[dict[str, float | None]] = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("time/iterations"), int):
                raise Corrupt(f"{path} is damaged: line {number} is not a record; use another copy of it.")
            records.append(record)
        return records

    def forget_after(self, iteration: int) -> None:
        """Drop the records of iterations that are about to be repeated."""
        kept = [r for r in self.records() if (r["time/iterations"] or 0) <= iteration]
        write_whole(self.path / "records.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())

    def tidy(self) -> None:
        """Remove what processes that were killed left half-written."""
        known = {self.checkpoint_path(link) for link in self.links()}
        for path in [*self.path.glob(".*.tmp"), *(self.path / "checkpoints").glob("*")]:
            if path not in known:
                path.unlink()

    # --- checkpoints ---

    def checkpoint(self, record: Record, began: int, keep_all: bool) -> None:
        """Write the state and the policy after `record`, and add a link to the hash chain."""
        snapshot = record.snapshot()
        links = self.links()
        if links and links[-1]["iteration"] == snapshot.meta["iteration"]:
            return
        data = checkpoint_bytes(snapshot)
        digest = hashlib.sha256(data).hexdigest()
        link = {**snapshot.meta, "from": began, "sha256": digest}
        link["chain"] = _chained(links[-1]["chain"] if links else self._root(), link)
        flush(self.path / "records.jsonl")  # no checkpoint without the records that lead to it, even if the power fails
        write_whole(self.checkpoint_path(link), data)
        record.policy().save(self.path / "policy.safetensors")
        self._write_links([*links, link])
        if not keep_all:
            for old in links[1:-1]:
                self.checkpoint_path(old).unlink(missing_ok=True)

    def latest(self) -> Snapshot | None:
        """The newest checkpoint that is whole; damaged ones are passed over."""
        links = self.links()
        for link in reversed(links):
            try:
                return self.read_checkpoint(link)
            except Corrupt:
                continue
        if links:
            raise Corrupt(f"No checkpoint in {self.path / 'checkpoints'} is whole; start again under another --out.")
        return None

    def forget_links_after(self, iteration: int) -> None:
        """Drop the links to checkpoints that are damaged and about to be written again."""
        links = self.links()
        kept = [link for link in links if link["iteration"] <= iteration]
        if len(kept) < len(links):
            self._write_links(kept)

    def read_checkpoint(self, link: Link) -> Snapshot:
        path = self.checkpoint_path(link)
        if file_hash(path) != link["sha256"]:
            raise Corrupt(f"{path} is damaged: its checksum is wrong.")
        tensors, meta = read_tensors(path)
        if meta.get("kind") != "checkpoint" or meta.get("schema") != SCHEMA:
            raise Corrupt(f"{path} is not a checkpoint of version {SCHEMA}.")
        return Snapshot(tensors, {"iteration": meta["iteration"], "steps": meta["steps"]})

    def checkpoint_path(self, link: Link) -> Path:
        return self.path / "checkpoints" / f"{link['iteration']:09d}.safetensors"

    def links(self) -> list[Link]:
        """The hash chain, from the first checkpoint on; every link follows from those before it and from run.json."""
        path = self.path / "checkpoints.jsonl"
        links = read_lines(path) if path.exists() else []
        chain = self._root()
        for number, link in enumerate(links, 1):
            whole = all(isinstance(link.get(k), int) and link[k] >= 0 for k in ("iteration", "steps", "from"))
            if not whole or not isinstance(link.get("sha256"), str):
                raise Corrupt(f"{path} is damaged: line {number} is not a link of the chain.")
            chain = _chained(chain, link)
            if link.get("chain") != chain:
                raise Corrupt(
                    f"{path} does not belong to this run from line {number} on: it or run.json was changed; "
                    "use another copy of the run."
                )
        return links

    def _root(self) -> str:
        """What the chain begins with: a hash of all that decides what the run computes, but for its length."""
        described = self.configuration()
        what = {k: v for k, v in described["options"].items() if k not in (*FREE_OPTIONS, "steps")}
        return _hashed([described.get(k) for k in ("task", "head", "algo")] + [what])

    def _write_links(self, links: list[Link]) -> None:
        lines = "".join(json.dumps(link) + "\n" for link in links)
        write_whole(self.path / "checkpoints.jsonl", lines.encode())


def checkpoint_bytes(snapshot: Snapshot) -> bytes:
    """The checkpoint file: the same state always gives the same bytes."""
    return tensor_bytes(snapshot.tensors, {"schema": SCHEMA, "kind": "checkpoint", **snapshot.meta})


def _chained(previous: str, link: Link) -> str:
    return _hashed([previous, {k: v for k, v in link.items() if k != "chain"}])


def _hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def finite_or_null(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def provenance() -> dict[str, Any]:
    """The versions and the machine on which bits depend."""
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
