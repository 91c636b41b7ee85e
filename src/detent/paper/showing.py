"""`detent paper show`: an experiment as text, figures and a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from detent import report
from detent.errors import BadInput
from detent.paper.experiments import Experiment, reference
from detent.paper.figures import draw
from detent.paper.measuring import show_measured
from detent.paper.selection import placed
from detent.paper.tables import tables_of


def show(experiment: Experiment, places: Sequence[str | os.PathLike[str]], out: str, markdown: bool) -> Iterator[str]:
    """Write figures and page into `out`; the text, and where the files are."""
    yield f"{experiment.name}: {experiment.title}"
    if experiment.measure:
        yield from show_measured(experiment, places, Path(out), markdown)
        return
    members = placed(experiment, _runs(places))
    for table in tables_of(experiment, members, intervals=markdown):
        yield ""
        yield table.markdown() if markdown else table.text()
    yield ""
    if not members:
        yield f"Nothing of it has been run in {', '.join(map(str, places))}: detent paper run {experiment.name}"
        return
    page = Path(out) / f"{experiment.name}.html"
    report.write_page([member.run for member in members], page, reference(), f"{experiment.name}: {experiment.title}")
    for path in (*draw(experiment, members, Path(out)), page):
        yield str(path)


def _runs(places: Sequence[str | os.PathLike[str]]) -> list[report.RunSummary]:
    """The runs in some places; none is no error."""
    missing = [place for place in places if not Path(place).exists()]
    if missing and len(places) > 1:
        raise BadInput(f"There is no {missing[0]}.")
    try:
        return [] if missing else report.load_runs(places)
    except report.NoRuns:
        return []
