"""Verification: stretches of a run are executed again, and their bits compared with what the run wrote down."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.configuration import Run
from detent.directory import Link, RunDirectory, checkpoint_bytes, finite_or_null, provenance
from detent.errors import BadInput, DetentError
from detent.files import Corrupt
from detent.snapshot import Snapshot
from detent.training import CLOCK_KEYS, Record, train

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
    """None: from the beginning of the run."""

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        links = f"link {first}" if first == last else f"links {first} to {last}"
        return (
            f"{links}, iterations {(self.start or {'iteration': 0})['iteration'] + 1} to {self.links[-1]['iteration']}"
        )


@dataclass(frozen=True)
class Finding:
    """What executing a stretch again has shown."""

    stretch: Stretch
    difference: str | None
    """None: every record and every checkpoint is identical."""
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
    told = [f"{name} {a} there, {b} here" for name, (a, b) in sorted(pairs.items()) if a != b]
    return "; ".join(told) or None


def check(directory: RunDirectory, run: Run, stretch: Stretch) -> Finding:
    """Execute a stretch again and compare every record and every checkpoint of it."""
    start = directory.read_checkpoint(stretch.start) if stretch.start else None
    links = {link["iteration"]: link for link in stretch.links}
    try:
        for record, told in _again(directory, run, start, stretch.links[-1]["iteration"]):
            difference = _record_difference(told, record)
            link = links.get(int(record["time/iterations"] or 0))
            if difference is None and link is not None:
                difference = _checkpoint_difference(directory, link, record.snapshot())
            if difference is not None:
                return Finding(stretch, f"at iteration {record['time/iterations']}, {difference}")
    except DetentError as error:
        return Finding(stretch, f"this time it failed: {error}")
    return Finding(stretch, None)


def check_elsewhere(directory: RunDirectory, run: Run, stretch: Stretch) -> Finding:
    """Where bits may differ: the first steps and the first update within tolerances, and the returns as they are."""
    links = {link["iteration"]: link for link in stretch.links}
    difference, notes = None, []
    try:
        first = directory.read_checkpoint(directory.links()[0])
    except Corrupt:
        return Finding(stretch, "it is not identical, and the first checkpoint, which could tell more, is missing")
    try:
        for record, told in _again(directory, run, None, stretch.links[-1]["iteration"]):
            iteration = int(record["time/iterations"] or 0)
            if iteration == first.meta["iteration"]:
                difference = _first_difference(first.tensors, record.snapshot().tensors)
            if iteration in links:
                here, there = (r.get("rollout/ep_rew_mean") for r in (record, told or {}))
                notes.append(f"mean return at iteration {iteration}: {_shown(here)} here, {_shown(there)} in the run")
    except DetentError as error:
        difference = difference or f"this time it failed: {error}"
    return Finding(stretch, difference, notes)


def _again(
    directory: RunDirectory, run: Run, start: Snapshot | None, last: int
) -> Iterator[tuple[Record, Mapping[str, float | None] | None]]:
    """Records of executing the run again up to iteration `last`, each with what the run wrote down."""
    written = {r["time/iterations"]: r for r in directory.records()}
    with closing(train(run, start, directory.initial())) as records:  # type: ignore[type-var]
        for record in records:
            yield record, written.get(record["time/iterations"])
            if record["time/iterations"] == last:
                return
    raise BadInput(f"the run ends before iteration {last}, which its chain names.")


def _record_difference(told: Mapping[str, float | None] | None, record: Record) -> str | None:
    for key, value in record.items():
        if told is not None and key not in CLOCK_KEYS and told.get(key) != finite_or_null(value):
            return f"{key} is {value!r} and was {told.get(key)!r}"
    return None


def _checkpoint_difference(directory: RunDirectory, link: Link, snapshot: Snapshot) -> str | None:
    if hashlib.sha256(checkpoint_bytes(snapshot)).hexdigest() == link["sha256"]:
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
    """Whether the first rollout and the first update agree within the tolerances."""
    mean, var = "memory/observation_moments/mean", "memory/observation_moments/var"
    steps = float(np.max(np.abs(here[mean] - there[mean]) / np.sqrt(there[var] + 1e-8)))
    if not steps <= STEPS_TOLERANCE:
        return f"the first steps differ: the mean observation by {steps:.2g} standard deviations"
    names = sorted(name for name in there if name.startswith("algorithm/parameters/"))
    flat_here, flat_there = (np.concatenate([t[name].ravel() for name in names]) for t in (here, there))
    update = float(np.linalg.norm(flat_here - flat_there) / np.linalg.norm(flat_there))
    if not update <= UPDATE_TOLERANCE:
        return f"the first update differs: the parameters by {update:.2g} of their length"
    return None


def _shown(value: float | None) -> str:
    return "none yet" if value is None else f"{value:,.1f}"
