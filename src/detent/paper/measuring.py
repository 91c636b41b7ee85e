"""What the paper measures without training: the variance of the gradient at initialisation (Figure 5a)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from detent.files import read_json, write_json
from detent.options import whole_number
from detent.paper import variance
from detent.paper.experiments import Experiment
from detent.paper.layout import Block, Table
from detent.paper.printed import papers

FILE = "variance.json"


def measure(
    experiment: Experiment,
    out: Path,
    tasks: Sequence[str],
    heads: Sequence[str] = (),
    bins: Sequence[str] = (),
    initialisations: int | None = None,
) -> Iterator[str]:
    """Carry out the experiment's measurements, yield a line for each, and write all to `<out>/variance.json`.

    Measurements that are already in the file are replaced if they are repeated, and kept otherwise.
    """
    wanted = experiment.measure
    sizes = [whole_number("--bins", k, 2) for k in bins] or wanted["bins"]
    chosen = experiment.todays_tasks(tasks)
    kept = {_key(old): old for old in _read(out / FILE)}
    for task, head, output in itertools.product(chosen, heads or wanted["head"], wanted["output_init"]):
        found = variance.measure(
            task,
            sizes,
            head=head,
            initialisations=initialisations or wanted["initialisations"],
            samples=wanted["samples"],
            seed=0,
            output_init=output,
        )
        kept[_key(found)] = found
        write_json(out / FILE, variance.as_json([kept[key] for key in sorted(kept)]))
        yield f"{task}, {head}, {variance.OUTPUT_INITS[output]}: done"
    yield str(out / FILE)


def _key(found: variance.Measurement) -> tuple[str, str, str]:
    return found.head, found.output_init, found.task


def _read(path: Path) -> tuple[variance.Measurement, ...]:
    return variance.from_json(read_json(path.resolve())) if path.exists() else ()


def measured(places: Sequence[str | os.PathLike[str]]) -> list[variance.Measurement]:
    """The measurements in some directories, or in files named variance.json."""
    files = [path / FILE if path.is_dir() else path for path in map(Path, places)]
    return [found for file in files if file.name == FILE for found in _read(file)]


def show_measured(
    experiment: Experiment, places: Sequence[str | os.PathLike[str]], out: Path, markdown: bool
) -> Iterator[str]:
    """The figure as text and as files."""
    found = measured(places)
    if not found:
        yield f"Not measured here yet. To measure it: detent paper run {experiment.name}"
        return
    for table in variance_tables(found):
        yield ""
        yield table.markdown() if markdown else table.text()
    yield ""
    yield from map(str, variance.draw(found, out / experiment.name))


def variance_tables(found: Sequence[variance.Measurement]) -> list[Table]:
    """A table for each head and initialisation: for every K the variance of each task, and the theory."""
    tables = []
    for head, output in dict.fromkeys((one.head, one.output_init) for one in found):
        group = [one for one in found if (one.head, one.output_init) == (head, output)]
        points = {papers(one.task) or one.task: variance.normalised(one) for one in group}
        theory = {f"K = {point.bins}": f"{point.theory:.2f}" for some in points.values() for point in some}
        blocks = []
        for name, weighting in variance.WEIGHTS.items():
            lines: dict[str, dict[str, str]] = {label: {"theory": value} for label, value in theory.items()}
            for task, some in points.items():
                for point in some:
                    lines[f"K = {point.bins}"][task] = f"{getattr(point, name).value:.2f}"
            blocks.append(Block(weighting, lines))
        title = f"{head}, {variance.OUTPUT_INITS[output]}"
        tables.append(Table(title, ("theory", *points), tuple(blocks), (_note(len(group[0].constant[0]), points),)))
    return tables


def _note(networks: int, points: Mapping[str, Sequence[variance.Point]]) -> str:
    """How well the theory for the initialisation that was used does, with constant reward, below the largest K."""
    summary = f"Variance of the gradient relative to its value at the largest K, {networks} networks."
    known = [(point, task) for task, some in points.items() for point in some[:-1]]
    if not known:
        return summary
    inside = sum(not point.constant.excludes(point.expected) for point, _ in known)
    off, worst, where = max((abs(p.constant.value / p.expected - 1), p.bins, task) for p, task in known)
    return (
        f"{summary} With constant reward, {inside} of {len(known)} intervals (95%, Student's t over networks) contain "
        f"the theory for this initialisation; the largest deviation from it is {off:.1%} ({where}, K = {worst})."
    )
