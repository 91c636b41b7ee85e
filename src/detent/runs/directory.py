"""The run directory: configuration, records, checkpoints, status and policy of one training.

run.json            what was asked for: every option, the versions and the machine
records.jsonl       one record per iteration
checkpoints/        safetensors: after the first iteration, and the last two (all with `keep_all`)
checkpoints.jsonl   a hash chain over the configuration and all checkpoints ever written
status.json         running, finished, stopped, diverged or failed, and why
policy.safetensors  the policy as of the last checkpoint; best_policy.safetensors with --eval-every
error.txt           the traceback of what made a run fail
init.safetensors    where a run with --init-from began
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import traceback
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent import package
from detent.errors import BadInput
from detent.files import (
    TEMPORARY,
    Corrupt,
    append_line,
    cannot_write,
    file_hash,
    flush,
    lines,
    locked,
    parsed,
    read_json,
    read_lines,
    read_tensors,
    refuse_odd,
    remove,
    tensor_bytes,
    write_json,
    write_tensors,
    write_whole,
)
from detent.runs.identity import CONFIGURATION, NAMES, hashed, identity, without_free
from detent.runs.snapshot import Snapshot
from detent.schemas import NUMBER, REASON, WHOLE, WORD, Field, Schema, is_whole, optional

if TYPE_CHECKING:  # reading a run directory needs NumPy, not JAX
    from detent.runs.run import Run
    from detent.runs.training import Record

SCHEMA = 2
"""Of run.json. Version 1, of Detent 0.1, has no `baselines`, and the hash chain begins with all of its options."""
CHECKPOINT_SCHEMA = 1
Link = dict[str, Any]
"""One line of checkpoints.jsonl: `iteration`, `steps`, `from` (the iteration at which the process that wrote it began),
`sha256` of the checkpoint, `policy` and `best_policy`, the same of the policy files then (not in version 0.1;
`best_policy` only where there is one), and `chain`, a hash over all of this and the `chain` before it."""
PARTS = (
    "run.json", "records.jsonl", "checkpoints.jsonl", "status.json", "policy.safetensors", "best_policy.safetensors",
    "init.safetensors", "error.txt", ".lock",
)  # fmt: skip
"""The files of a run directory, besides checkpoints."""
BEST = "best_policy.safetensors"
CHECKPOINT = r"\d{9,18}\.safetensors"
"""The name of a checkpoint."""
ENDED = ("finished", "diverged")
"""Runs that went as far as they could."""
STATUS = Schema(
    "a status",
    {
        "status": Field(lambda value: value in (*ENDED, "running", "stopped", "failed"), "a status that Detent knows"),
        "why": REASON,
    },
)
RECORD = Schema("a record", {"time/iterations": WHOLE, "time/total_timesteps": WHOLE}, others=NUMBER)
LINK = Schema(
    "a link of the chain",
    {
        "iteration": Field(lambda value: is_whole(value) and value < 10**18, "a whole number of at most 18 digits"),
        **dict.fromkeys(("steps", "from"), WHOLE),
        **dict.fromkeys(("sha256", "chain"), WORD),
        **dict.fromkeys(("policy", "best_policy"), optional(WORD)),
    },
)
_SNAPSHOT = Schema("the state of a run", {"kind": WORD, "schema": WHOLE, "steps": WHOLE, "iteration": optional(WHOLE)})
BEFORE_THE_RUN = (".lock", "init.safetensors")
"""What a process that died before it wrote run.json may have left."""


class RunDirectory:
    """Reads and writes one run directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # an environment may change the current directory

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    def configuration(self) -> dict[str, Any]:
        if not self.exists:
            raise BadInput(f"{self.path} is not a run directory: it has no run.json.")
        self.refuse_odd_parts()
        described = read_json(self.path / "run.json")
        if described.get("schema") not in (1, SCHEMA) or not is_whole(described["schema"]):
            raise Corrupt(f"{self.path / 'run.json'} is not of version 1 or {SCHEMA}, which this Detent reads.")
        if described.pop("checksum", None) != hashed(described):
            raise Corrupt(f"{self.path / 'run.json'} was changed after it was written; use another copy of it.")
        fault = CONFIGURATION.fault(described)
        if described["schema"] > 1 and "baselines" not in described:
            fault = "it has no baselines"
        if fault:
            raise Corrupt(f"{self.path / 'run.json'} is damaged: {fault}; use another copy of it.")
        return described

    def refuse_odd_parts(self) -> None:
        """Refuse a run directory with a part that is a link, a fifo or a device: it would lead elsewhere or nowhere."""
        for name in PARTS:
            refuse_odd(self.path / name)
        refuse_odd(self.path / "checkpoints", directory=True)
        for path in (self.path / "checkpoints").glob("*.safetensors"):
            refuse_odd(path)

    def _write_configuration(self, described: dict[str, Any]) -> None:
        write_json(self.path / "run.json", {**described, "checksum": hashed(described)})

    def run(self, imports: Collection[str] = (), task: str | None = None, **changes: Any) -> Run:
        """The run; a task that is `module:factory` needs its module among `imports`, which the user trusts.

        `task` says where it is found, whatever its name was.
        """
        from detent.runs.run import Run

        return Run.from_configuration(self.configuration(), imports, task, **changes)

    @property
    def begun(self) -> bool:
        """Whether the run has made a step: there is a record, a checkpoint or a policy."""
        records, checkpoints = self.path / "records.jsonl", self.path / "checkpoints"
        with contextlib.suppress(OSError):
            if os.lstat(records).st_size:
                return True
        left = [self.path / name for name in ("checkpoints.jsonl", "policy.safetensors", BEST)]
        return any(map(os.path.lexists, left)) or (os.path.lexists(checkpoints) and any(checkpoints.iterdir()))

    def refuse_others(self, resuming: bool, overwriting: bool = False) -> None:
        """Only an empty directory or a run without a step can become a run, and only an existing run can be resumed.

        With `overwriting`, any run can become another.
        """
        if self.exists and (resuming or overwriting or not self.begun):
            return
        try:
            found = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if any(name not in BEFORE_THE_RUN and not name.endswith(".tmp") for name in found):
            if self.exists:
                raise BadInput(
                    f"{self.path} holds a run already; choose another --out, or add --resume or --overwrite."
                )
            raise BadInput(f"{self.path} is not empty and holds no run; choose another --out.")

    def clear(self) -> None:
        """Delete the run, and nothing that Detent does not write; what was killed while doing so can be repeated."""
        self.refuse_odd_parts()
        refuse_odd(self.path / "tensorboard", directory=True)
        place = self.path.resolve()
        parts = "|".join(re.escape(name) for name in PARTS if name not in ("run.json", ".lock"))
        remove(place / "checkpoints", re.compile(f"{CHECKPOINT}|{TEMPORARY.format(CHECKPOINT)}"))
        remove(place / "tensorboard", re.compile(r"events\.out\.tfevents\..+"))
        remove(place, re.compile(f"{parts}|{TEMPORARY.format(parts)}"))
        remove(place, re.compile(r"run\.json"))  # last: it is what makes a directory a run

    def create(self, run: Run, initial: Snapshot | None) -> None:
        """Write run.json, last: it is what makes a directory a run."""
        if initial:
            meta = {"schema": CHECKPOINT_SCHEMA, "kind": "init", **initial.meta}
            write_tensors(self.path / "init.safetensors", initial.tensors, meta)
        resumes = "exactly" if run.task.replayable else "with new episodes"
        self._write_configuration({"schema": SCHEMA, **run.configuration, "resumes": resumes, **provenance()})

    def check_same(self, run: Run) -> None:
        """Refuse to continue a run under another configuration; more steps are welcome where nothing depends on it."""
        from detent.runs.run import described, read_configuration

        before, after = described(*read_configuration(self.configuration())), run.configuration
        was, now = ({**{k: v[k] for k in NAMES}, **without_free(v)["options"]} for v in (before, after))
        for name, value in now.items():
            if name == "task" and was[name] == f"__main__:{value.partition(':')[2]}":
                continue  # a script's task, from before these had the name of its file
            if name not in ("steps", "preset") and was.get(name) != value:
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
        return _snapshot(path, "init") if path.exists() else None

    def locked(self) -> AbstractContextManager[None]:
        """Only one process may write here; the lock goes with the process, however it ends."""
        return locked(self.path, "training")

    def write_status(self, status: str, why: str | None = None) -> None:
        write_json(self.path / "status.json", {"status": status, "why": why})

    def status(self) -> str:
        return self.outcome()[0]

    def why(self) -> str | None:
        """The reason for the status, if it has one."""
        return self.outcome()[1]

    def outcome(self) -> tuple[str, str | None]:
        """The status and the reason for it, if it has one."""
        path = self.path / "status.json"
        written = read_json(path, STATUS) if path.exists() else {"status": "running"}
        return written["status"], written.get("why")

    def write_error(self, error: BaseException) -> Path:
        """Write where an error happened, and return the file."""
        path = self.path / "error.txt"
        write_whole(path, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
        return path

    # --- records ---

    def append(self, record: Record) -> None:
        line = json.dumps({key: finite_or_null(value) for key, value in record.items()}, allow_nan=False)
        append_line(self.path / "records.jsonl", line)

    def records(self) -> list[dict[str, float | None]]:
        """Every whole record; a last line that a crash cut short is left out."""
        return list(self.each_record())

    def each_record(self) -> Iterator[dict[str, float | None]]:
        """The records one by one, however many there are."""
        path = self.path / "records.jsonl"
        for number, line in enumerate(lines(path, cut=True) if path.exists() else (), 1):
            yield parsed(path, line, RECORD, number)

    def odd_record(self, iteration: int) -> int | None:
        """The first line that is not the record of the iteration of its number, up to this iteration and to the end."""
        last = 0
        for last, record in enumerate(self.each_record(), 1):
            if record["time/iterations"] != last:
                return last
        return last + 1 if last < iteration else None

    def refuse_lost_records(self, iteration: int) -> None:
        """Refuse to continue after an iteration if a record up to it is missing, repeated or in another's place."""
        odd = self.odd_record(iteration)
        if odd is not None:
            raise Corrupt(
                f"{self.path / 'records.jsonl'} is damaged: line {odd} should be the record of iteration {odd}; "
                "use another copy of it."
            )

    def forget_after(self, iteration: int) -> None:
        """Drop the records of iterations that are about to be repeated."""
        kept = [json.dumps(r) for r in self.each_record() if (r["time/iterations"] or 0) <= iteration]
        write_whole(self.path / "records.jsonl", "".join(line + "\n" for line in kept).encode())

    def tidy(self) -> None:
        """Remove what processes that failed or were killed left behind, and nothing that Detent does not write."""
        known = {self.checkpoint_path(link).name for link in self.links()}
        place = self.path.resolve()
        parts = "|".join(map(re.escape, PARTS))
        remove(place, re.compile(rf"{TEMPORARY.format(parts)}|error\.txt"))
        remove(place / "checkpoints", re.compile(f"{CHECKPOINT}|{TEMPORARY.format(CHECKPOINT)}"), known)

    # --- checkpoints ---

    def checkpoint(self, record: Record, began: int, keep_all: bool, is_best: bool = False) -> None:
        """Write the state and the policy after `record`, and add a link to the hash chain.

        The best policy so far is written last: until then, the link's own policy is the same (`restore_best`).
        """
        snapshot = record.snapshot()
        links = self.links()
        if links and links[-1]["iteration"] == snapshot.meta["iteration"]:
            return
        data, policy, best = checkpoint_bytes(snapshot), record.policy().to_bytes(), self.path / BEST
        link = {**snapshot.meta, "from": began, "sha256": sha256(data), "policy": sha256(policy)}
        if is_best or best.exists():
            link["best_policy"] = link["policy"] if is_best else file_hash(best)
        link["chain"] = _chained(links[-1]["chain"] if links else self._root(), link)
        flush(self.path / "records.jsonl")  # no checkpoint without the records that lead to it, even if the power fails
        write_whole(self.checkpoint_path(link), data)
        write_whole(self.path / "policy.safetensors", policy)
        self._write_links([*links, link])
        if is_best:
            write_whole(best, policy)
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

    def refuse_lost_links(self) -> None:
        """Refuse to continue where checkpoints are left whose links are gone: that would throw them away.

        A process that is killed leaves at most one such checkpoint: the one of the last record.
        """
        links, last = self.links(), None
        for record in self.each_record():
            last = record["time/iterations"]
        known = {self.checkpoint_path(link).name for link in links}
        behind = links[-1]["iteration"] if links else 0
        lost = []
        for path in sorted((self.path / "checkpoints").glob("*.safetensors")):
            if re.fullmatch(CHECKPOINT, path.name) and path.name not in known and int(path.stem) > behind:
                with contextlib.suppress(Corrupt):
                    _snapshot(path, "checkpoint")
                    lost.append(int(path.stem))
        if lost and lost != [last]:
            raise Corrupt(
                f"{self.path / 'checkpoints.jsonl'} has lost its end: it does not name the checkpoint of iteration "
                f"{lost[-1]}; use another copy of it."
            )

    def forget_links_after(self, iteration: int) -> None:
        """Drop the links to checkpoints that are damaged and about to be written again."""
        links = self.links()
        kept = [link for link in links if link["iteration"] <= iteration]
        if len(kept) < len(links):
            self._write_links(kept)

    def restore_best(self, steps: int) -> None:
        """Make the best policy that of the last link: a process may have been killed between the two.

        One of more than this many steps belongs to an iteration that is about to be repeated, and is dropped.
        """
        best, policy = self.path / BEST, self.path / "policy.safetensors"
        wanted = next(iter(self.links()[-1:]), {}).get("best_policy")
        if best.exists() and file_hash(best) != wanted:
            with contextlib.suppress(Corrupt):
                if read_tensors(best)[1].get("steps", 0) > steps:
                    best.unlink()
        missing = wanted is not None and (not best.exists() or file_hash(best) != wanted)
        if missing and policy.exists() and file_hash(policy) == wanted:
            write_whole(best, policy.read_bytes())

    def read_checkpoint(self, link: Link) -> Snapshot:
        path = self.checkpoint_path(link)
        if file_hash(path) != link["sha256"]:
            raise Corrupt(f"{path} is damaged: its checksum is wrong.")
        snapshot = _snapshot(path, "checkpoint")
        if any(snapshot.meta.get(key) != link[key] for key in ("iteration", "steps")):
            raise Corrupt(f"{path} is damaged: it is not the checkpoint of iteration {link['iteration']}.")
        return snapshot

    def checkpoint_path(self, link: Link) -> Path:
        return self.path / "checkpoints" / f"{link['iteration']:09d}.safetensors"

    def links(self) -> list[Link]:
        """The hash chain, from the first checkpoint on; every link follows from those before it and from run.json."""
        path = self.path / "checkpoints.jsonl"
        links = list(read_lines(path, LINK)) if path.exists() else []
        if path.exists() and not links:
            raise Corrupt(f"{path} is damaged: it is empty; use another copy of it.")
        chain, iteration = self._root(), 0
        for number, link in enumerate(links, 1):
            if link["iteration"] <= iteration:
                raise Corrupt(f"{path} is damaged: line {number} is not of a later iteration than the one before.")
            chain, iteration = _chained(chain, link), link["iteration"]
            if link["chain"] != chain:
                raise Corrupt(
                    f"{path} does not belong to this run from line {number} on: it or run.json was changed; "
                    "use another copy of the run."
                )
        return links

    def _root(self) -> str:
        """What the chain begins with: a hash of all that decides what the run computes, but for its length."""
        described = self.configuration()
        if described["schema"] == 1:
            names, options = [described.get(k) for k in ("task", "head", "algo")], without_free(described)["options"]
            return hashed([*names, {k: v for k, v in options.items() if k != "steps"}])
        decisive = identity(described)
        return hashed({**decisive, "options": {k: v for k, v in decisive["options"].items() if k != "steps"}})

    def _write_links(self, links: list[Link]) -> None:
        lines = "".join(json.dumps(link) + "\n" for link in links)
        write_whole(self.path / "checkpoints.jsonl", lines.encode())


def checkpoint_bytes(snapshot: Snapshot) -> bytes:
    """The checkpoint file: the same state always gives the same bytes."""
    return tensor_bytes(snapshot.tensors, {"schema": CHECKPOINT_SCHEMA, "kind": "checkpoint", **snapshot.meta})


def _snapshot(path: Path, kind: str) -> Snapshot:
    tensors, meta = read_tensors(path, _SNAPSHOT)
    if (meta["kind"], meta["schema"]) != (kind, CHECKPOINT_SCHEMA):
        raise Corrupt(f"{path} is not a {kind} of version {CHECKPOINT_SCHEMA}.")
    return Snapshot(tensors, {key: meta[key] for key in ("iteration", "steps") if key in meta})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _chained(previous: str, link: Link) -> str:
    return hashed([previous, {k: v for k, v in link.items() if k != "chain"}])


def finite_or_null(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def provenance() -> dict[str, Any]:
    """The versions and the machine on which bits depend."""
    versions = {"detent": package.version()}
    for name in ("jax", "jaxlib", "optax", "envpool", "gymnasium", "mujoco", "numpy"):
        try:
            versions[name] = metadata.version(name)
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
