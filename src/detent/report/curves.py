"""Learning curves: the mean return of the last 100 training episodes against steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from detent.directory import RunDirectory


def draw_curves(runs: Mapping[str, RunDirectory], title: str, file: Path | BinaryIO) -> None:
    """One curve per run, labelled at its end, into one picture, a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, directory in runs.items():
        points = [
            (record["time/total_timesteps"], record["rollout/ep_rew_mean"])
            for record in directory.records()
            if record["rollout/ep_rew_mean"] is not None
        ]
        steps, returns = zip(*points, strict=True) if points else ((), ())
        (line,) = axes.plot(steps, returns, label=label, linewidth=1.8)
        if points:
            end, text = (steps[-1], returns[-1]), f" {label}  {returns[-1]:,.0f}"
            axes.annotate(text, end, color=line.get_color(), va="center", fontsize=9)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("steps of the environment")
    axes.set_ylabel("return (mean of the last 100 training episodes)", fontsize=9)
    axes.margins(x=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k" if x else "0")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    # Room for the labels at the ends of the curves.
    axes.set_xlim(0, axes.get_xlim()[1] * 1.22)
    figure.savefig(file, format="png", dpi=150)
