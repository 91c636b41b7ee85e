"""Compact files: what there is to know of many runs, in one small text file that can be kept with a program's sources.

The first line is a header, every other one a run, all of them JSON objects:

name, task, algo, head, preset, options, status, why, versions, machine    as in the run directory
curve              `steps`, `seconds`, `returns`: about 60 iterations, and those that make the final return, exactly
last_checkpoint    the last link of the run's hash chain: its `sha256` is what the same run gives again; null if none
init_sha256        of what --init-from began with; null if the run began with random weights
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detent.directory import RunDirectory
from detent.errors import BadInput, DetentError
from detent.files import LARGEST_TEXT, Corrupt, file_hash, read_lines, write_whole
from detent.report.summaries import COUNTED, STATUSES, Curve, RunSummary
from detent.statistics import LAST

SCHEMA = 1
KIND = "runs"
POINTS = 60
"""Of a curve, at most, besides the iterations that make the final return."""
DIGITS = 5
"""Of the seconds, and of the returns of those points."""
DEEPEST = 32
"""Objects and lists inside each other, at most: what is read can then be written again whatever stands around it."""
_AS_THEY_ARE = ("name", "task", "algo", "head", "preset", "options", "status", "why", "versions", "machine")
"""What a line has of a `RunSummary` under the same name."""


class Written(NamedTuple):
    """What came of writing a compact file."""

    runs: int
    """How many the file has now."""
    left_out: list[RunSummary]
    """Those that cannot be read, as `damaged`, with the reason."""


def write_compact(runs: Iterable[RunSummary], path: str | os.PathLike[str]) -> Written:
    """Write the runs, by name, or add them to the file if it is there: the same runs always give the same bytes.

    A run that is in the file already is written anew, but one that has ended does not give way to one that has not.
    Runs that cannot be read are left out.
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
            f"Several runs with different options are named {name}, which is one too many for {path}; write another "
            "file, or give a directory further up: a run's name is its path below the directory given."
        )
    header = {"schema": SCHEMA, "kind": KIND, "detent": metadata.version("detent")}
    lines = [header, *(run.record for run in sorted(known, key=lambda run: run.name))]
    data = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines).encode()
    if len(data) > LARGEST_TEXT:
        raise BadInput(f"{len(known):,} runs are too many for {path}, which could not be read again; write several.")
    write_whole(path, data)
    return Written(len(known), left_out)


def read_compact(path: Path) -> list[RunSummary]:
    """The runs in a compact file."""
    header, *records = read_lines(path) or [{}]
    if header.get("kind") != KIND or "schema" not in header:
        raise Corrupt(f"{path} is neither a directory nor a file that `detent report --compact` writes.")
    if header["schema"] != SCHEMA:
        raise Corrupt(f"{path} is not of version {SCHEMA}, the only one this Detent reads.")
    for number, record in enumerate(records, 2):
        fault = _fault(record)
        if fault:
            raise Corrupt(f"{path} is damaged: on line {number}, {fault}.")
    return [_summary(path, record) for record in records]


def once(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """A run that is in several places, at least one of them a compact file, from one of them.

    It is the first, directories before files, of those where it has ended, or else of all. Runs are the same when they
    have the same name and nothing that decides their results differs but their length.
    """
    if all(run.record is None for run in runs):
        return list(runs)
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
        "curve": _thinned(run.curve),
        "last_checkpoint": links[-1] if links else None,
        "init_sha256": file_hash(initial) if initial.exists() else None,
    }
    fault = _fault(record)
    if fault:
        raise Corrupt(f"{run.path} does not fit into a compact file: {fault}.")
    return record


def _thinned(curve: Curve) -> dict[str, list[Any]]:
    """The iterations that make the final return exactly, before them evenly spaced ones with a few digits.

    Evenly, so that means over seeds are those of the whole curves at these points; extremes would make bands wider.
    Iterations without a return are left out, but for the last: it tells how far the run came.
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


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


# --- From a line to a summary ---


def _summary(path: Path, record: Mapping[str, Any]) -> RunSummary:
    columns = (record["curve"][axis] for axis in _AXES)
    curve = Curve(*(np.array([math.nan if x is None else x for x in column], np.float64) for column in columns))
    return RunSummary(path, **{key: record[key] for key in _AS_THEY_ARE}, curve=curve, record=record)


def _fault(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a line; None if nothing is."""
    for key, (fits, wanted) in _FIELDS.items():
        if key not in record:
            return f"{key} is missing"
        if not fits(record[key]):
            return f"{key} is not {wanted}"
    return None if _plain(record) else "a number is not finite or too large, or objects are too deep inside each other"


def _plain(value: Any, depth: int = 0) -> bool:
    inside = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(inside, list):
        return depth < DEEPEST and all(_plain(one, depth + 1) for one in inside)
    return not isinstance(inside, int | float) or abs(inside) <= sys.float_info.max


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_word(value: Any) -> bool:
    """What can stand in a label or a message: one line, and no halves of characters."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_configuration(value: Any) -> bool:
    return _is_object(value) and _is_whole(value.get("steps")) and _is_whole(value.get("seed"))


_AXES = ("steps", "seconds", "returns")


def _is_curve(value: Any) -> bool:
    columns = [value.get(axis) for axis in _AXES] if _is_object(value) else []
    if not columns or not all(isinstance(column, list) for column in columns):
        return False
    steps, seconds, returns = columns
    known = [*steps, *seconds, *(x for x in returns if x is not None)]
    return len(steps) == len(seconds) == len(returns) and all(map(_is_number, known))


def _is_link(value: Any) -> bool:
    return value is None or (
        _is_object(value)
        and all(_is_whole(value.get(key)) for key in ("iteration", "steps", "from"))
        and all(_is_word(value.get(key)) for key in ("sha256", "chain"))
    )


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("name", "task", "algo", "head", "preset"), (_is_word, "a text of one line")),
    "options": (_is_configuration, "an object with steps and seed, whole numbers"),
    "status": (lambda value: value in STATUSES and value != "damaged", "a status that Detent knows"),
    "why": (lambda value: value is None or isinstance(value, str), "a text or null"),
    "versions": (_is_object, "an object"),
    "machine": (_is_object, "an object"),
    "curve": (_is_curve, "an object with steps, seconds and returns, as many numbers each"),
    "last_checkpoint": (_is_link, "a link of a hash chain or null"),
    "init_sha256": (lambda value: value is None or _is_word(value), "a hash or null"),
}
