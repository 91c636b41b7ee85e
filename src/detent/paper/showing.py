"""`detent paper show`: an experiment as text, figures and a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from detent import report
from detent.paper.experiments import Experiment
from detent.paper.figures import draw
from detent.paper.measuring import show_measured
from detent.paper.printed import reference
from detent.paper.selection import placed
from detent.paper.tables import tables_of
from detent.report.loading import found_runs


def show(experiment: Experiment, places: Sequence[str | os.PathLike[str]], out: str, markdown: bool) -> Iterator[str]:
    """Write the figures and the page into `out`; yield the text and the paths of the files."""
    title = f"{experiment.name}: {experiment.title}"
    if experiment.measure:
        yield title
        yield from show_measured(experiment, places, Path(out), markdown)
        return
    runs = report.load_runs(places) if any(found_runs(places)) else []
    members = placed(experiment, runs)
    yield title
    for table in tables_of(experiment, members, intervals=markdown):
        yield ""
        yield table.markdown() if markdown else table.text()
    yield ""
    if not members:
        yield f"Nothing has been run here yet. To run it: detent paper run {experiment.name}"
        return
    page = Path(out) / f"{experiment.name}.html"
    report.write_page([member.run for member in members], page, reference(), title)
    for path in (*draw(experiment, members, Path(out)), page):
        yield str(path)
