"""Verification: stretches of a run are executed again, and their bits compared with what the run wrote down."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.errors import BadInput, DetentError
from detent.files import Corrupt, file_hash, read_tensors
from detent.policy import POLICY, Policy
from detent.runs.directory import Link, RunDirectory, checkpoint_bytes, finite_or_null, provenance, sha256
from detent.runs.execution import evaluated
from detent.runs.run import Run
from detent.runs.snapshot import Snapshot
from detent.runs.training import CLOCK_KEYS, Record, train

STEPS_TOLERANCE = 0.01
"""Of the mean observation over the first rollout, in standard deviations, on another machine."""
UPDATE_TOLERANCE = 0.01
"""Of the parameters after the first update, relative to their length, on another machine."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive links of the hash chain, and the kept checkpoint from which they can be reached."""

    numbers: range
    """Of the links, from 1."""
    links: Sequence[Link]
    start: Link | None
    """None for the beginning of the run."""

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        links = f"link {first}" if first == last else f"links {first} to {last}"
        return (
            f"{links}, iterations {(self.start or {'iteration': 0})['iteration'] + 1} to {self.links[-1]['iteration']}"
        )


@dataclass(frozen=True)
class Finding:
    """The result of executing a stretch again."""

    stretch: Stretch
    difference: str | None
    """None if every record and every checkpoint is identical."""
    notes: list[str] = field(default_factory=list)
    """Comparisons without a verdict."""


def stretches(directory: RunDirectory, run: Run) -> list[Stretch]:
    """The run, cut at the checkpoints that were kept."""
    links = directory.links()
    if not links:
        raise BadInput(f"{directory.path} has no checkpoint yet, so there is nothing to verify.")
    found: list[Stretch] = []
    begin, start = 0, None
    for end, link in enumerate(links, 1):
        following = links[end] if end < len(links) else None
        # What cannot be resumed exactly can be repeated only from where a process really began.
        cut = run.task.replayable or (following and following["from"] == link["iteration"])
        if following is None or (cut and directory.checkpoint_path(link).exists()):
            found.append(Stretch(range(begin + 1, end + 1), links[begin:end], start))
            begin, start = end, link
    return found


def chosen(
    found: Sequence[Stretch], link: int | None, sample: int | None, everything: bool, seed: int
) -> list[Stretch]:
    """The stretches to check: with one link, a random sample or all; else the first and the last."""
    if everything:
        return list(found)
    if sample is not None:
        picked = np.random.default_rng(seed).choice(len(found), size=min(sample, len(found)), replace=False)
        return [found[i] for i in sorted(picked)]
    if link is None:
        return [found[0]] + ([found[-1]] if len(found) > 1 else [])
    for stretch in found:
        if link in stretch.numbers:
            up_to = stretch.numbers.index(link) + 1
            return [Stretch(stretch.numbers[:up_to], stretch.links[:up_to], stretch.start)]
    raise BadInput(f"There is no link {link}; the run has links 1 to {found[-1].numbers[-1]}.")


def foreign(directory: RunDirectory) -> str | None:
    """How versions and processor differ from those of the run; None if they do not."""
    was, now = directory.configuration(), provenance()
    pairs = {"processor": (was.get("machine", {}).get("processor"), now["machine"]["processor"])}
    versions = was.get("versions", {})
    pairs |= {name: (versions.get(name), now["versions"].get(name)) for name in {*versions, *now["versions"]}}
    differences = [f"{name} {a} there, {b} here" for name, (a, b) in sorted(pairs.items()) if a != b]
    return "; ".join(differences) or None


def published(directory: RunDirectory) -> list[str]:
    """Inconsistencies between the files themselves, which can be found without executing anything.

    Missing files are not reported: a run can be verified from run.json and the chain alone.
    """
    links, found = directory.links(), []
    last = links[-1]
    if (directory.path / "records.jsonl").exists():
        odd = directory.odd_record(last["iteration"])
        if odd is not None:
            found.append(f"records.jsonl does not have every iteration once: its line {odd} is not of iteration {odd}")
    for link in links:
        path = directory.checkpoint_path(link)
        if path.exists() and file_hash(path) != link["sha256"]:
            found.append(f"checkpoints/{path.name} is not the one of its link")
    for name in ("policy", "best_policy"):
        path = directory.path / f"{name}.safetensors"
        if "policy" in last and path.exists() and file_hash(path) != last.get(name):
            found.append(
                f"{path.name} is not the one of the last link (if the run was killed, `detent resume` puts that right)"
            )
    return found


def check(directory: RunDirectory, run: Run, stretch: Stretch) -> Finding:
    """Execute a stretch again and compare every record, every checkpoint and the policies that come of it."""
    start = directory.read_checkpoint(stretch.start) if stretch.start else None
    links = {link["iteration"]: link for link in stretch.links}
    policies = _policies(directory)
    steps = int(start.meta["steps"]) if start else 0
    try:
        for record, written in _again(directory, run, start, stretch.links[-1]["iteration"]):
            iteration = int(record["time/iterations"] or 0)
            difference = _record_difference(written, evaluated(run, record, steps) if written is not None else record)
            link = links.get(iteration)
            if difference is None and link is not None:
                difference = _checkpoint_difference(directory, link, record.snapshot())
            for path in policies.get(iteration, ()) if difference is None else ():
                difference = difference or _policy_difference(
                    path, record.policy(), run, exact="policy" in (link or {})
                )
            if difference is not None:
                return Finding(stretch, f"at iteration {iteration}, {difference}")
            steps = int(record["time/total_timesteps"] or 0)
    except DetentError as error:
        return Finding(stretch, f"this time it failed: {error}")
    return Finding(stretch, None)


def _policies(directory: RunDirectory) -> dict[int, list[Path]]:
    """Iteration -> the policy files that are of it: the last link's, and that of the first best evaluation."""
    found: dict[int, list[Path]] = {}
    last, best = directory.path / "policy.safetensors", directory.path / "best_policy.safetensors"
    links = directory.links()
    if last.exists():
        found[links[-1]["iteration"]] = [last]
    values = [
        (record["eval/mean_reward"] or -math.inf, -int(record["time/iterations"] or 0))
        for record in directory.each_record()
        if "eval/mean_reward" in record
    ]
    if best.exists() and values:
        found.setdefault(-max(values)[1], []).append(best)
    return found


def check_elsewhere(directory: RunDirectory, run: Run, stretch: Stretch) -> Finding:
    """Where bits may differ: the first steps and the first update within tolerances, and the returns as they are."""
    links = {link["iteration"]: link for link in stretch.links}
    difference, notes = None, []
    try:
        first = directory.read_checkpoint(directory.links()[0])
    except Corrupt:
        return Finding(stretch, "it is not identical, and the first checkpoint, which could tell more, is missing")
    try:
        for record, written in _again(directory, run, None, stretch.links[-1]["iteration"]):
            iteration = int(record["time/iterations"] or 0)
            if iteration == first.meta["iteration"]:
                difference = _first_difference(first.tensors, record.snapshot().tensors)
            if iteration in links:
                here, there = (r.get("rollout/ep_rew_mean") for r in (record, written or {}))
                notes.append(f"mean return at iteration {iteration}: {_shown(here)} here, {_shown(there)} in the run")
    except DetentError as error:
        difference = difference or f"this time it failed: {error}"
    return Finding(stretch, difference, notes)


def _again(
    directory: RunDirectory, run: Run, start: Snapshot | None, last: int
) -> Iterator[tuple[Record, Mapping[str, float | None] | None]]:
    """Records of executing the run again up to iteration `last`, each with what the run wrote down."""
    written = {r["time/iterations"]: r for r in directory.records()}
    with closing(train(run, start, directory.initial())) as records:
        for record in records:
            yield record, written.get(record["time/iterations"])
            if record["time/iterations"] == last:
                return
    raise BadInput(f"the run ends before iteration {last}, which its chain names.")


def _record_difference(written: Mapping[str, float | None] | None, record: Record) -> str | None:
    for key, value in record.items():
        if written is not None and key not in CLOCK_KEYS and written.get(key) != finite_or_null(value):
            return f"{key} is {value!r} and was {written.get(key)!r}"
    more = sorted(set(written or ()) - set(record))
    return f"there is no {more[0]}, and it was {(written or {})[more[0]]!r}" if more else None


def _policy_difference(path: Path, policy: Policy, run: Run, exact: bool) -> str | None:
    """How a policy file differs from the policy that came of executing the run again.

    Not `exact`: it was written by version 0.1, which described the same numbers in other words.
    """
    try:
        tensors, meta = read_tensors(path, POLICY)
    except Corrupt as error:
        return str(error)
    for name in sorted({*tensors, *policy.tensors} if exact else tensors.keys() & policy.tensors.keys()):
        here, there = policy.tensors.get(name), tensors.get(name)
        if here is None or there is None or here.dtype != there.dtype or not np.array_equal(here, there):
            return f"{name} of {path.name} differs"
    described = meta.get("configuration", {})
    names = dict(zip(("task", "head", "algo"), run.names, strict=False))
    if meta.get("steps") != policy.meta["steps"] or any(described.get(k) != name for k, name in names.items()):
        return f"{path.name} says that it comes from another run"
    if exact and any(meta.get(key) != _as_read(value) for key, value in policy.meta.items() if key != "configuration"):
        return f"{path.name} says that it acts in another way"
    return None


def _as_read(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _checkpoint_difference(directory: RunDirectory, link: Link, snapshot: Snapshot) -> str | None:
    if sha256(checkpoint_bytes(snapshot)) == link["sha256"]:
        return None
    try:
        kept = directory.read_checkpoint(link).tensors
    except Corrupt:
        return "the checkpoint has another hash"
    for name, tensor in snapshot.tensors.items():
        if name not in kept or tensor.dtype != kept[name].dtype or not np.array_equal(tensor, kept[name]):
            return f"{name} of the checkpoint differs"
    return "the checkpoint has another hash"


def _first_difference(there: Mapping[str, NDArray[Any]], here: Mapping[str, NDArray[Any]]) -> str | None:
    """Whether the first rollout and the first update agree within the tolerances; NaN does not."""
    mean, var = "memory/observation_moments/mean", "memory/observation_moments/var"
    names = sorted(name for name in here if name.startswith("algorithm/parameters/"))
    if any(name not in there or there[name].shape != here[name].shape for name in (mean, var, *names)):
        return "the first checkpoint has other parts"
    with np.errstate(all="ignore"):
        steps = float(np.max(np.abs(here[mean] - there[mean]) / np.sqrt(there[var] + 1e-8)))
        flat_here, flat_there = (np.concatenate([t[name].ravel() for name in names]) for t in (here, there))
        update = float(np.linalg.norm(flat_here - flat_there) / np.linalg.norm(flat_there))
    if not steps <= STEPS_TOLERANCE:
        return f"the first steps differ: the mean observation by {steps:.2g} standard deviations"
    if not update <= UPDATE_TOLERANCE:
        return f"the first update differs: the parameters by {update:.2g} of their length"
    return None


def _shown(value: float | None) -> str:
    return "none yet" if value is None else f"{value:,.1f}"
