"""Finding runs, in run directories and in compact files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from detent.errors import BadInput
from detent.report.compact import once, read_compact
from detent.report.summaries import RunSummary, summary


def load_runs(places: Iterable[str | os.PathLike[str]]) -> list[RunSummary]:
    """Every run in or below the directories, by name, and in the compact files.

    A run directory that cannot be read is included as `damaged`. A run in both a directory and a file is included once.
    """
    places = list(places)
    runs = once([run for path, name in found_runs(places) for run in runs_at(path, name)])
    if not runs:
        raise BadInput(f"There is no run (a directory with a run.json) below {', '.join(map(str, places))}.")
    return runs


def found_runs(places: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[Path, str]]:
    """The run directories in or below `places`, each once, with their names, in order, and the files among `places`."""
    seen = set()
    for top in map(Path, places):
        if not top.is_dir() and not top.is_file():
            raise BadInput(f"There is no directory or file {top}.")
        if top.is_dir():
            os.scandir(top).close()  # raises if it cannot be read; `os.walk` would find nothing in it
        for path in [top] if top.is_file() else _below(top):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                relative = path.relative_to(top)
                yield path, str(relative) if relative.parts else path.resolve().name


def _below(top: Path) -> Iterator[Path]:
    for place, below, files in os.walk(top):
        below.sort()
        if "run.json" in files:
            below.clear()
            yield Path(place)


def runs_at(path: Path, name: str) -> list[RunSummary]:
    """The run in a directory, or those in a compact file."""
    return read_compact(path) if path.is_file() else [summary(path, name)]
