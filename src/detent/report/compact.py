"""Compact files: what is known about many runs, in one text file small enough to be kept under version control.

The first line is a header and every other line is a run, all of them JSON objects:

name, task, algo, head, preset, trunk, critic, options, baselines, formerly, status, why, versions, machine
                   as in the run directory; version 0.1.0 wrote no trunk, critic, baselines and formerly
curve              `steps`, `seconds`, `returns`: about 60 iterations, and exactly those that make the final return
last_checkpoint    the last link of the run's hash chain: the same run gives the same `sha256`; null if there is none
init_sha256        hash of the parameters from --init-from; null if the run started with random weights
final              optional: the final return, if the curve has too few points to compute it
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detent import package
from detent.errors import BadInput, DetentError
from detent.files import LARGEST_OBJECT, Corrupt, file_hash, lines, parsed, read_lines, write_whole
from detent.report.completion import complete
from detent.report.statistics import LAST
from detent.report.summaries import COUNTED, Curve, RunSummary
from detent.runs.directory import LINK, STATUS, RunDirectory
from detent.runs.identity import CONFIGURATION, version_of
from detent.runs.presets import edition
from detent.schemas import ANY, WORD, Field, Schema, is_number, is_object, is_word, or_null

SCHEMA = 1
KIND = "runs"
POINTS = 60
"""Maximum number of points of a curve, besides the iterations that make the final return."""
DIGITS = 5
"""Significant digits of the seconds, and of the returns of those points."""
_AS_THEY_ARE = ("name", "task", "algo", "head", "preset", "options", "status", "why", "versions", "machine")
"""Fields that a line and a `RunSummary` have in common."""
_SINCE = ("trunk", "critic", "baselines", "formerly")
"""Further such fields, which lines of version 0.1.0 lack."""


class Written(NamedTuple):
    """The result of writing a compact file."""

    runs: int
    """Number of runs in the file now."""
    left_out: list[RunSummary]
    """The runs that cannot be read, as `damaged`, with the reason."""


def write_compact(runs: Iterable[RunSummary], path: str | os.PathLike[str]) -> Written:
    """Write the runs, sorted by name, or add them to the file if it exists. The same runs give the same bytes.

    A run that is already in the file is replaced, unless the one in the file has ended and the new one has not. Runs
    that cannot be read are left out.
    """
    path = Path(path)
    records: list[RunSummary] = []
    left_out: list[RunSummary] = []
    for run in runs:
        try:
            records.append(run if run.record else replace(run, record=_record(run)))
        except (DetentError, OSError, ValueError) as error:
            left_out.append(replace(run, status="damaged", why=str(error)))
    known = once([*records, *(read_compact(path) if path.exists() else ())])
    name, times = Counter(run.name for run in known).most_common(1)[0] if known else ("", 0)
    if times > 1:
        raise BadInput(
            f"Several runs with different options are named {name}, so they cannot all be in {path}; write another "
            "file, or give a directory further up: a run's name is its path below the directory given."
        )
    header = {"schema": SCHEMA, "kind": KIND, "detent": package.version()}
    lines = [header, *(run.record for run in sorted(known, key=lambda run: run.name))]
    write_whole(path, "".join(_line(line) for line in lines if line).encode())
    return Written(len(known), left_out)


def read_compact(path: Path) -> list[RunSummary]:
    """The runs in a compact file."""
    place = path.resolve()
    header = next(read_lines(place, ANY), {})
    if header.get("kind") != KIND or "schema" not in header:
        raise Corrupt(f"{path} is neither a directory nor a file written by `detent report --compact`.")
    if header["schema"] != SCHEMA:
        raise Corrupt(f"{path} is not of version {SCHEMA}, the only one that this version of Detent can read.")
    records = (parsed(path, line, RUN, number) for number, line in enumerate(lines(place), 1) if number > 1)
    return [_summary(path, record) for record in records]


def once(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs, each once, where some are in several places of which at least one is a compact file.

    The first place is used in which the run has ended, or else the first of all; directories come before files. Runs
    are the same if they have the same name and agree in everything that decides their results except their length.
    """
    runs = complete(runs)
    if all(run.record is None for run in runs):
        return runs
    same: dict[tuple[str, str], list[RunSummary]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: not run.path.is_dir()):
        options = {name: value for name, value in run.compared.items() if name != "steps"}
        what = [run.task, run.algo, run.head, run.seed, options]
        same[run.name, json.dumps(what, sort_keys=True)].append(run)
    return [max(places, key=lambda run: run.status in COUNTED) for places in same.values()]


# --- From a run directory to a line ---


def _record(run: RunSummary) -> dict[str, Any]:
    if run.status == "damaged":
        raise Corrupt(run.why or f"{run.path} is damaged.")
    links, initial = RunDirectory(run.path).links(), run.path / "init.safetensors"
    record = {
        **{key: getattr(run, key) for key in _AS_THEY_ARE},
        **{key: getattr(run, key) for key in _SINCE if getattr(run, key) is not None},
        "curve": _thinned(run.curve),
        "last_checkpoint": links[-1] if links else None,
        "init_sha256": file_hash(initial) if initial.exists() else None,
    }
    fault = RUN.fault(record) or ("it is too long" if len(_line(record)) > LARGEST_OBJECT else None)
    if fault:
        raise Corrupt(f"{run.path} does not fit into a compact file: {fault}.")
    return record


def _thinned(curve: Curve) -> dict[str, list[Any]]:
    """The iterations that make the final return, exactly, and before them evenly spaced ones with a few digits.

    They are evenly spaced so that means over seeds equal those of the whole curves; extremes would make bands wider.
    Iterations without a return are left out, except for the last, which shows how far the run got.
    """
    known = np.flatnonzero(np.isfinite(curve.returns))
    before, exact = known[:-LAST], known[-LAST:]
    thinned = before[np.linspace(0, before.size - 1, min(POINTS, before.size)).round().astype(int)]
    kept = sorted({*thinned.tolist(), *exact.tolist(), *range(curve.steps.size)[-1:]})
    precise = set(exact.tolist())
    returns = ((i, float(curve.returns[i])) for i in kept)
    return {
        "steps": [int(curve.steps[i]) for i in kept],
        "seconds": [_short(float(curve.seconds[i])) for i in kept],
        "returns": [value if i in precise else _short(value) for i, value in returns],
    }


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


# --- From a line to a summary ---


def _summary(path: Path, record: Mapping[str, Any]) -> RunSummary:
    columns = (record["curve"][axis] for axis in _AXES)
    curve = Curve(*(np.array([math.nan if x is None else x for x in column], np.float64) for column in columns))
    known = {key: record[key] for key in (*_AS_THEY_ARE, *_SINCE) if key in record}
    known["preset"] = edition(known["preset"], known["algo"], version_of(record))
    return RunSummary(path, **known, curve=curve, record=record, stated_final=record.get("final"))


_AXES = ("steps", "seconds", "returns")


def _is_curve(value: Any) -> bool:
    columns = [value.get(axis) for axis in _AXES] if is_object(value) else []
    if not columns or not all(isinstance(column, list) for column in columns):
        return False
    steps, seconds, returns = columns
    known = [*steps, *seconds, *(x for x in returns if x is not None)]
    return len(steps) == len(seconds) == len(returns) and all(map(is_number, known))


RUN = Schema(
    "a run",
    {
        "name": WORD,
        **CONFIGURATION.fields,
        **{name: CONFIGURATION.fields[name]._replace(required=True) for name in ("versions", "machine")},
        **STATUS.fields,
        "curve": Field(_is_curve, "an object with steps, seconds and returns, as many numbers each"),
        "last_checkpoint": Field(or_null(LINK.__contains__), "a link of a hash chain or null"),
        "init_sha256": Field(or_null(is_word), "a hash or null"),
        "final": Field(is_number, "a number", required=False),
    },
)
