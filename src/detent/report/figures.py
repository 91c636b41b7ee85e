"""Learning curves in the paper's layout: one small panel per task, mean ± sd over seeds, one colour per head."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detent.files import write_whole
from detent.package import import_optional
from detent.report.summaries import Curve, Floats, RunSummary
from detent.report.variants import find_variants, groups

POINTS = 300
TOGETHER = 0.02
"""Runs whose ends are closer than this fraction of the axis count as ending together."""


def draw_figures(runs: Sequence[RunSummary], out: str | os.PathLike[str]) -> list[Path]:
    """One figure per algorithm and preset, as PNG and PDF; the files' paths.

    Curves of all runs are drawn, whatever their status, as far as they go; a cross marks where one diverged.
    """
    written = []
    for algo, preset in sorted({(run.algo, run.preset) for run in runs if run.curve.steps.size}):
        chosen = [run for run in runs if (run.algo, run.preset) == (algo, preset)]
        for kind in ("png", "pdf"):
            path = Path(out) / (re.sub(r"[^\w.-]+", "_", f"curves-{algo}-{preset}") + f".{kind}")
            draw_panels(chosen, path, f"{algo.upper()}, settings: {preset}")
            written.append(path)
    return written


def draw_panels(runs: Sequence[RunSummary], path: Path, title: str) -> None:
    """One figure with a panel per task, into a file whose name ends in png, pdf or svg.

    Returns are means of the last 100 training episodes.
    """
    variants = find_variants(runs)
    members = groups(runs, variants)
    tasks = list(dict.fromkeys(task for task, _ in members))
    figure, panels = panelled(tasks, "steps", "return")
    handles: dict[str, Any] = {}
    for task, axes in zip(tasks, panels, strict=True):
        for (_, variant), group in ((key, group) for key, group in members.items() if key[0] == task):
            colour, dashes = variants.styles[variant]
            line = _draw_band(axes, [run for run in group if run.curve.steps.size], colour, dashes)
            handles.setdefault(variants.labels[variant], line)
        count_steps(axes)
    save(figure, path, title, {label: line for label, line in handles.items() if line is not None})


def panelled(titles: Sequence[str], across: str, up: str, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure with a small panel for each title, at most `columns` side by side, and its panels."""
    rows = math.ceil(len(titles) / columns)
    columns = math.ceil(len(titles) / rows)  # four are two rows of two, not three and one
    size = (7.5, 4.5) if len(titles) == 1 else (3.6 * columns, 2.7 * rows + 0.6)
    figure = import_optional("matplotlib.figure", "report").Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for title, axes in zip(titles, panels, strict=False):
        axes.set_title(_literal(title), fontsize=10)
        axes.set_xlabel(across, fontsize=8)
        axes.set_ylabel(up, fontsize=8)
        axes.margins(x=0)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.4g}" if abs(y) < 1e4 else f"{y:,.0f}")
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(titles) :]:
        axes.set_visible(False)
    return figure, panels[: len(titles)]


def count_steps(axes: Any) -> None:
    """Let a panel's horizontal axis start at step 0, with labels such as 200k and 1M."""
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: _short(x))


def save(figure: Any, path: Path, title: str, handles: Mapping[str, Any]) -> None:
    """Write a figure with a title above and one legend below."""
    figure.suptitle(_literal(title), fontsize=11)
    figure.legend(
        handles.values(),
        map(_literal, handles),
        loc="outside lower center",
        ncols=max(1, min(5, len(handles))),
        fontsize=8,
    )
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a png, pdf or svg file. It contains no date, so the same figure gives the same file."""
    kind, data = path.suffix[1:], io.BytesIO()
    figure.savefig(data, format=kind, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
    write_whole(path, data.getvalue())


def _draw_band(axes: Any, runs: Sequence[RunSummary], colour: str, dashes: tuple[int, ...] = ()) -> Any:
    """Draw mean ± sd over runs as a line and a band, and a cross where one diverged; the line, or None without runs."""
    if not runs:
        return None
    grid, mean, sd = band([run.curve for run in runs])
    axes.fill_between(grid, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
    (line,) = axes.plot(grid, mean, color=colour, linewidth=1.5, linestyle=(0, dashes) if dashes else "-")
    for run in runs:
        if run.status == "diverged":
            ends = np.flatnonzero(np.isfinite(run.curve.returns))[-1:]
            axes.plot(run.curve.steps[ends], run.curve.returns[ends], "x", color=colour, markersize=6)
    return line


def band(curves: Sequence[Curve], points: int = POINTS) -> tuple[Floats, Floats, Floats]:
    """Mean and standard deviation, at evenly spaced steps, over the runs that got that far.

    The deviation is 0 where only one run is left; the mean is NaN before any has a return.
    """
    known = [(c.steps[np.isfinite(c.returns)], c.returns[np.isfinite(c.returns)]) for c in curves]
    known = [(steps, returns) for steps, returns in known if steps.size]
    grid = np.linspace(0.0, max((steps[-1] for steps, _ in known), default=1.0), points)
    if not known:
        return grid, np.full(points, math.nan), np.zeros(points)
    values = np.array([np.interp(grid, s, r, left=math.nan) for s, r in known])
    values[[grid > s[-1] + TOGETHER * grid[-1] for s, _ in known]] = math.nan
    there = np.isfinite(values)
    count = there.sum(axis=0)
    some = np.maximum(count, 1)
    mean = np.where(there, values, 0.0).sum(axis=0) / some
    squares = (np.where(there, values - mean, 0.0) ** 2).sum(axis=0)
    return grid, np.where(count > 0, mean, math.nan), np.sqrt(squares / np.maximum(count - 1, 1))


def _literal(text: str) -> str:
    """Escape dollar signs: Matplotlib treats what is between them as a formula, and fails if it is not one."""
    return text.replace("$", r"\$")


def _short(steps: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(steps) >= size:
            return f"{steps / size:.4g}{unit}"
    return f"{steps:.4g}"
