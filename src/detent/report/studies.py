"""The studies of `detent tune` on the page. They are read from `study.json`, which needs neither Optuna nor JAX."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.errors import DetentError
from detent.files import Corrupt, read_json
from detent.report import statistics
from detent.report.statistics import Interval
from detent.report.summaries import RunSummary
from detent.schemas import (
    NUMBER,
    OBJECT,
    REASON,
    WHOLE,
    WORD,
    Field,
    Schema,
    is_number,
    is_object,
    is_whole,
    is_word,
    optional,
    or_null,
)

FILE = "study.json"
SCHEMA = 1
LARGEST = 2**26
"""Bytes of a study; a trial takes about 500."""


def _is_returns(value: Any) -> bool:
    return is_object(value) and all(
        is_word(task) and isinstance(returns, list) and all(map(is_number, returns)) for task, returns in value.items()
    )


RETURNS = Field(_is_returns, "an object of tasks and lists of returns")
TRIAL = Schema(
    "a trial",
    {
        "number": WHOLE,
        "state": Field(lambda value: value in ("finished", "pruned", "failed"), "finished, pruned or failed"),
        "values": OBJECT,
        "score": NUMBER,
        "halfway": NUMBER,
        "returns": RETURNS,
        "why": REASON,
        "runs": Field(lambda value: isinstance(value, list) and all(map(is_word, value)), "a list of names"),
    },
)
FRESH = Schema(
    "a check on fresh seeds",
    {
        "trial": WHOLE,
        "seeds": Field(lambda value: isinstance(value, list) and all(map(is_whole, value)), "a list of seeds"),
        "default": RETURNS,
        "best": RETURNS,
    },
)
YARDSTICK = Schema(
    "a yardstick",
    {
        "mean": Field(is_number, "a number"),
        "distance": Field(lambda value: is_number(value) and value > 0, "a number greater than 0"),
    },
)


def _are(schema: Schema) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(one in schema for one in value)


def _are_shares(value: Any) -> bool:
    return is_object(value) and all(map(is_number, value.values()))


STUDY = Schema(
    "a study",
    {
        "schema": Field(lambda value: value == SCHEMA, f"{SCHEMA}, the only version that this version can read"),
        "settings": OBJECT,
        "asked": WHOLE,
        "yardsticks": Field(lambda v: is_object(v) and all(one in YARDSTICK for one in v.values()), "yardsticks"),
        "trials": Field(_are(TRIAL), "a list of trials"),
        "importances": Field(or_null(_are_shares), "an object of shares or null"),
        "fresh": Field(or_null(FRESH.__contains__), "a check on fresh seeds or null"),
        "flags": optional(WORD),
    },
)


def read_study(place: Path) -> dict[str, Any]:
    """The study in a directory, checked."""
    study = read_json(place / FILE, STUDY, LARGEST)
    fresh, tasks = study["fresh"], study["yardsticks"].keys()
    if fresh and not all(fresh[who].keys() == tasks and all(fresh[who].values()) for who in ("default", "best")):
        raise Corrupt(f"{place / FILE} is damaged: the check on fresh seeds is of other tasks; use another copy of it.")
    return study


def found_studies(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The directories in or below `places` that hold a study, in order."""
    found: dict[Path, None] = {}
    for top in map(Path, places):
        for place, below, files in os.walk(top):
            below.sort()
            if "run.json" in files or "sweep.json" in files:
                below.clear()
            if FILE in files:
                found[Path(place)] = None
    return list(found)


@dataclass(frozen=True)
class FreshTask:
    """Returns on fresh seeds of one task: the default settings', the winner's, and their difference."""

    task: str
    default: Interval
    best: Interval
    difference: Interval


def fresh_tasks(fresh: Mapping[str, Any]) -> list[FreshTask]:
    """IQMs and Welch's interval of the difference of the means, task by task."""
    return [
        FreshTask(task, statistics.iqm([a]), statistics.iqm([b]), statistics.difference([b], [a]))
        for task, a in fresh["default"].items()
        for b in [fresh["best"][task]]
    ]


def fresh_score(study: Mapping[str, Any]) -> Interval:
    """The winner's score on fresh seeds less that of the default settings: as a trial's, but run by run."""
    fresh, units = study["fresh"], study["yardsticks"]
    best, default = (
        [[math.asinh((x - u["mean"]) / u["distance"]) for x in fresh[who][task]] for task, u in units.items()]
        for who in ("best", "default")
    )
    return statistics.difference(best, default)


def best_of(study: Mapping[str, Any]) -> dict[str, Any] | None:
    """The finished trial with the highest score; of equal ones, the first. None before there is any."""
    finished = [trial for trial in study["trials"] if trial["state"] == "finished" and trial["score"] is not None]
    return max(finished, key=lambda trial: (trial["score"], -trial["number"]), default=None)


def study_data(place: Path, runs: Sequence[RunSummary]) -> dict[str, Any]:
    """What the page shows of a study: `runs` become indices into the page's list."""
    try:
        study = read_study(place)
    except DetentError as error:  # which spoils no other part of the page
        return {"name": place.resolve().name, "why": str(error)}
    index = {run.path.resolve(): number for number, run in enumerate(runs)}
    best = best_of(study)
    drawn = [(0, "default"), *([(best["number"], "best")] if best and best["number"] else [])]
    by_number = {trial["number"]: trial for trial in study["trials"]}
    settings = study["settings"]
    return {
        "name": place.resolve().name,
        "tasks": list(study["yardsticks"]),
        "head": str(settings.get("head")),
        "algo": str(settings.get("algo")),
        "asked": study["asked"],
        "seeds": settings.get("seeds"),
        "options": sorted({name for trial in study["trials"] for name in trial["values"]}),
        "trials": [{k: v for k, v in trial.items() if k not in ("returns", "runs")} for trial in study["trials"]],
        "best": best and best["number"],
        "importances": study["importances"],
        "flags": study.get("flags"),
        "curves": [
            {"label": label, "runs": [index[p] for name in by_number[n]["runs"] if (p := _path(place, name)) in index]}
            for n, label in drawn
            if n in by_number
        ],
        "fresh": study["fresh"] and _fresh_data(study),
    }


def _path(place: Path, name: str) -> Path:
    return (place / "runs" / name).resolve()


def _fresh_data(study: Mapping[str, Any]) -> dict[str, Any]:
    def numbers(interval: Interval) -> list[float | str | None]:
        ends = [None if x != x else x for x in (interval.value, interval.low, interval.high)]
        return [*ends, interval.why or None]

    return {
        "trial": study["fresh"]["trial"],
        "seeds": len(study["fresh"]["seeds"]),
        "score": numbers(fresh_score(study)),
        "tasks": [
            {"task": one.task, "default": numbers(one.default), "best": numbers(one.best),
             "difference": numbers(one.difference), "verdict": one.difference.verdict}
            for one in fresh_tasks(study["fresh"])
        ],
    }  # fmt: skip
