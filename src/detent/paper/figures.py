"""The paper's figures, drawn from whatever has been run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from detent.errors import DetentError
from detent.paper.experiments import Experiment
from detent.paper.selection import Placed, Scale, by_scale, cells
from detent.paper.tables import finals, in_order
from detent.policy import load
from detent.report.actions import Bins, Normals, action_distributions
from detent.report.figures import count_steps, draw_panels, panelled, save
from detent.report.summaries import RunSummary
from detent.report.variants import COLOURS, HEAD_COLOURS
from detent.tasks.probes import RULES

KINDS = ("png", "pdf")


def draw(experiment: Experiment, members: Sequence[Placed], out: Path) -> list[Path]:
    """Draw the figure, one for each algorithm, preset and length; the paths of the files."""
    drawers = {"bandit": _bandit, "bins": _bins, "quantiles": _quantiles, "curves": _curves, "table": _curves}
    if experiment.shows not in drawers:
        return []
    written = []
    for scale, group in by_scale(members).items():
        for kind in KINDS:
            path = out / f"{experiment.name}-{scale.algo}-{scale.preset}-{scale.steps}.{kind}"
            drawers[experiment.shows](experiment, scale, group, path)
            written.append(path)
    return written


def _title(experiment: Experiment, scale: Scale) -> str:
    return f"{experiment.title}\n{scale}"


def _colour(head: str) -> str:
    return COLOURS[HEAD_COLOURS.get(head, len(COLOURS) - 1)]


def _curves(experiment: Experiment, scale: Scale, members: Sequence[Placed], path: Path) -> None:
    """Learning curves of the settings that the paper's rule picks, for every K separately."""
    chosen = [m.run for choice in cells(members, by_bins=True).values() for m in choice.members]
    draw_panels(chosen, path, _title(experiment, scale))


def _heads(members: Sequence[Placed]) -> list[str]:
    return sorted({m.head for m in members}, key=in_order)


def _bandit(experiment: Experiment, scale: Scale, members: Sequence[Placed], path: Path) -> None:
    """On the left the reward and the trained policies, on the right their learning curves, seed by seed."""
    tasks = sorted({m.run.task for m in members})
    titles = [title for task in tasks for title in (f"{task}: trained policies", f"{task}: learning curves")]
    figure, panels = panelled(titles, "", "", columns=2)
    grid = np.linspace(-1.0, 1.0, 401)
    handles: dict[str, Any] = {}
    for task, densities, curves in zip(tasks, panels[::2], panels[1::2], strict=True):
        reward = RULES[task.removeprefix("probe/")].reward
        nothing = jnp.zeros(grid.size)
        heights = np.asarray(reward(nothing, jnp.asarray(grid), nothing))
        (handles["reward"],) = densities.plot(grid, heights, color="black", linewidth=1)
        densities.set_xticks([-1.0, -0.5, 0.0, 0.5, 1.0])
        densities.set_xlabel("action", fontsize=8)
        densities.set_ylabel("reward; density, largest = 1", fontsize=8)
        curves.set_xlabel("steps", fontsize=8)
        curves.set_ylabel("reward", fontsize=8)
        for head in _heads(members):
            for member in (m for m in members if (m.run.task, m.head) == (task, head)):
                curve = member.run.curve
                (handles[head],) = curves.plot(curve.steps, curve.returns, color=_colour(head), alpha=0.7, linewidth=1)
                density = _density(member.run, grid)
                if density is not None:
                    densities.plot(*density, color=_colour(head), alpha=0.7, linewidth=1)
        count_steps(curves)
    save(figure, path, _title(experiment, scale), handles)


def _density(run: RunSummary, grid: Any) -> tuple[Any, Any] | None:
    """The density of the only action at the only state, highest value 1; None if the run left no policy."""
    try:
        shown = action_distributions(load(run.path / "policy.safetensors"), 1)
    except (DetentError, OSError):
        return None
    if isinstance(shown, Bins):
        p = shown.probabilities[0][0]
        return shown.positions[0], p / p.max()
    if isinstance(shown, Normals):
        return grid, np.exp(-0.5 * ((grid - shown.mean[0, 0]) / shown.std[0, 0]) ** 2)
    return None


def _bins(experiment: Experiment, scale: Scale, members: Sequence[Placed], path: Path) -> None:
    """Final return against K: the mean and every seed."""

    def line(axes: Any, runs: Sequence[Placed], colour: str) -> Any:
        returns: dict[int, list[float]] = defaultdict(list)
        for member in runs:
            returns[member.bins or 0].append(member.run.final or 0.0)
        sizes = sorted(returns)
        axes.plot([k for k in sizes for _ in returns[k]], [y for k in sizes for y in returns[k]], "o", color=colour,
                  alpha=0.4, markersize=3, clip_on=False)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
        return axes.plot(sizes, [np.mean(returns[k]) for k in sizes], color=colour, linewidth=1.5)[0]

    _head_by_head(members, "K", line, path, _title(experiment, scale))


def _quantiles(experiment: Experiment, scale: Scale, members: Sequence[Placed], path: Path) -> None:
    """The final returns of all random settings of a head in order, against their share."""

    def line(axes: Any, runs: Sequence[Placed], colour: str) -> Any:
        values = finals(runs)
        share = (np.arange(values.size) + 0.5) / values.size
        axes.set_xlim(0, 1)
        return axes.plot(share, values, color=colour, linewidth=1.5, marker=".", markersize=4)[0]

    _head_by_head(members, "share of settings", line, path, _title(experiment, scale))


def _head_by_head(
    members: Sequence[Placed], across: str, line: Callable[[Any, Sequence[Placed], str], Any], path: Path, title: str
) -> None:
    """A panel for each task, with what `line` draws of each head's runs that count: panel, runs, colour -> handle."""
    tasks = sorted({m.run.task for m in members})
    figure, panels = panelled(tasks, across, "final return")
    handles: dict[str, Any] = {}
    for task, axes in zip(tasks, panels, strict=True):
        for head in _heads(members):
            runs = [m for m in members if (m.run.task, m.head) == (task, head) and m.run.counted]
            if runs:
                handles[head] = line(axes, runs, _colour(head))
    save(figure, path, title, handles)
