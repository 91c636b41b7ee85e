"""The paper's tables with ours beside them, for a terminal of 80 columns and as Markdown."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box

from detent import statistics
from detent.configuration import Run
from detent.paper.experiments import Experiment, Printed, papers, printed
from detent.paper.selection import Choice, Placed, Scale, by_scale, cells
from detent.statistics import Interval
from detent.tasks import find_task

WIDTH = 80
HEADS = ("gaussian", "gaussian_tanh", "beta", "discrete", "ordinal")
"""The order of the paper's columns."""


@dataclass(frozen=True)
class Block:
    """A task: lines of a label and a text per column."""

    title: str
    lines: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Aligned; columns that do not fit side by side continue below."""
        labels = max((len(label) for block in self.blocks for label in block.lines), default=0) + 4
        widths = {
            column: 2 + max(len(column), *(len(line.get(column, "")) for b in self.blocks for line in b.lines.values()))
            for column in self.columns
        }
        pieces = [self.title]
        for columns in _fitting(self.columns, widths, WIDTH - labels):
            pieces.append(" " * labels + "".join(column.rjust(widths[column]) for column in columns))
            for block in self.blocks:
                lines = [(label, line) for label, line in block.lines.items() if any(line.get(c) for c in columns)]
                pieces += [f"  {block.title}"] * bool(block.title and lines)
                for label, line in lines:
                    row = "".join(line.get(column, "").rjust(widths[column]) for column in columns)
                    pieces.append((f"    {label}".ljust(labels) + row).rstrip())
        for note in self.notes:
            pieces.append(textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="  "))
        return "\n".join(pieces)

    def markdown(self) -> str:
        rows = [f"**{self.title}**", "", f"| | | {' | '.join(self.columns)} |", "|---" * (len(self.columns) + 2) + "|"]
        for block in self.blocks:
            title = block.title
            for label, line in block.lines.items():
                rows.append(f"| {title} | {label} | {' | '.join(line.get(column, '') for column in self.columns)} |")
                title = ""
        return "\n".join([*rows, *(f"\n{note}" for note in self.notes)])


def _fitting(columns: Sequence[str], widths: Mapping[str, int], room: int) -> Iterator[list[str]]:
    line: list[str] = []
    for column in columns:
        if line and sum(widths[c] for c in line) + widths[column] > room:
            yield line
            line = []
        line.append(column)
    yield line


# --- numbers ---


def number(value: float) -> str:
    """As many digits as the paper prints."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.3g}"


def plus_minus(mean: float, sd: float) -> str:
    if math.isnan(mean):
        return "-"
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 1 else 2
    return f"{mean:,.{digits}f}" + ("" if math.isnan(sd) else f" ± {sd:,.{digits}f}")


def as_printed(value: Printed) -> str:
    """With the digits that the paper gives."""
    return value if isinstance(value, str) else " ± ".join(f"{part:,}" for part in value)


def interval(found: Interval) -> str:
    if math.isnan(found.low):
        return f"{found.value:+,.0f}" if abs(found.value) >= 100 else f"{found.value:+.2g}"
    return f"{number(found.low)} to {number(found.high)}"


def ended(choice: Choice) -> str:
    """How many runs a cell rests on, and what became of the others."""
    statuses = dict(choice.statuses)
    finished = statuses.pop("finished", 0)
    others = [f"{count} {status}" for status, count in sorted(statuses.items())]
    return ", ".join([str(finished)] * bool(finished or not others) + others)


# --- final returns ---


def return_tables(experiment: Experiment, members: Sequence[Placed], by_bins: bool, intervals: bool) -> list[Table]:
    """A table for each algorithm, preset and length; `intervals` adds those of the differences to the baseline."""
    tables = []
    for scale, group in by_scale(members).items():
        found = cells(group, by_bins)
        columns = _columns(experiment, scale, [column for _, column in found], by_bins)
        baseline = next((column for column in columns if column == "gaussian"), None) or next(
            column for column in columns if any(column == known for _, known in found)
        )
        tasks = sorted({task for task, _ in found}, key=lambda task: _place(experiment, task))
        blocks = [_block(experiment, scale, task, columns, baseline, found, intervals) for task in tasks]
        title = str(scale) + (f" (the paper: {experiment.steps:,})" if experiment.steps != scale.steps else "")
        tables.append(Table(title, tuple(columns), tuple(blocks), _notes(baseline, found, by_bins)))
    return tables


def _columns(experiment: Experiment, scale: Scale, found: Sequence[str], by_bins: bool) -> list[str]:
    """The printed ones first, in the paper's order, then ours."""
    rows = printed(experiment.name, scale.algo).values()
    told = [] if by_bins else list(dict.fromkeys(column for row in rows for column in row))
    ours = sorted(set(found), key=lambda column: (_order(column.partition(",")[0]), _bins(column), column))
    return list(dict.fromkeys([*told, *ours]))


def _order(head: str) -> int:
    return HEADS.index(head) if head in HEADS else len(HEADS)


def _bins(column: str) -> int:
    digits = column.partition("K = ")[2]
    return int(digits) if digits.isdigit() else 0


def _place(experiment: Experiment, task: str) -> tuple[int, str]:
    name = papers(task)
    return experiment.tasks.index(name) if name in experiment.tasks else len(experiment.tasks), task


def _block(
    experiment: Experiment,
    scale: Scale,
    task: str,
    columns: Sequence[str],
    baseline: str,
    found: Mapping[tuple[str, str], Choice],
    intervals: bool,
) -> Block:
    here = {column: found[task, column] for column in columns if (task, column) in found}
    known = {column: choice for column, choice in here.items() if choice.scores.size}
    lines = {
        "here": {column: plus_minus(*choice.mean_and_sd) for column, choice in here.items()},
        "runs": {column: ended(choice) for column, choice in here.items()},
    }
    if any(choice.tried > 1 for choice in here.values()):
        lines["chosen"] = {column: choice.setting for column, choice in here.items() if choice.tried > 1}
    against = {
        column: statistics.difference([choice.scores], [known[baseline].scores])
        for column, choice in known.items()
        if column != baseline and baseline in known
    }
    if against and intervals:
        lines["difference"] = {column: interval(gap) for column, gap in against.items()}
    if against:
        lines["verdict"] = {column: gap.verdict for column, gap in against.items()}
    told = printed(experiment.name, scale.algo).get(papers(task) or "", {})
    if told:
        lines["paper"] = {column: as_printed(value) for column, value in told.items()}
    return Block(task, lines)


def _notes(baseline: str, found: Mapping[tuple[str, str], Choice], by_bins: bool) -> tuple[str, ...]:
    notes = [
        "here: mean ± sd over runs of the mean of the last 10 iterations, as in the paper. verdict: against "
        f"{baseline}, where the 95% interval of the difference excludes 0."
    ]
    if any(choice.tried > 1 for choice in found.values()):
        what = "the tuned option" if by_bins else "K and of the tuned option"
        notes.append(
            f"chosen: the best of {what}, as in the paper, picked on the same runs that are reported, which flatters "
            "whoever had more tries."
        )
    return tuple(notes)


def printed_tables(experiment: Experiment) -> list[Table]:
    """What the paper prints, where nothing has been run."""
    tables = []
    for algo in dict.fromkeys(algo for part in experiment.parts for algo in part.algos):
        rows = printed(experiment.name, algo)
        if rows:
            columns = tuple(dict.fromkeys(column for row in rows.values() for column in row))
            blocks = [
                Block(
                    "" if task == "*" else task, {"paper": {column: as_printed(value) for column, value in row.items()}}
                )
                for task, row in rows.items()
            ]
            tables.append(Table(f"{algo.upper()}, as printed", columns, tuple(blocks)))
    return tables


# --- final return against K ---


def bins_tables(experiment: Experiment, members: Sequence[Placed]) -> list[Table]:
    """A line for each K, a column for each task; the verdict is against K = 11."""
    tables = []
    for scale, group in by_scale(members).items():
        found = cells(group, by_bins=True)
        tasks = sorted({task for task, _ in found}, key=lambda task: _place(experiment, task))
        heads = list(dict.fromkeys(member.head for member in sorted(group, key=lambda m: _order(m.head))))
        blocks = []
        for head in heads:
            sizes = sorted({m.bins for m in group if m.head == head and m.bins is not None})
            lines = {}
            for size in sizes:
                label = f"{head}, K = {size}"
                line = {}
                for task in tasks:
                    choice = found.get((task, label))
                    if choice is None:
                        continue
                    line[task] = f"{plus_minus(*choice.mean_and_sd)} ({ended(choice)})"
                    usual = found.get((task, f"{head}, K = 11"))
                    if usual is not None and usual is not choice and usual.scores.size and choice.scores.size:
                        line[task] += f" {statistics.difference([choice.scores], [usual.scores]).verdict}"
                lines[f"K = {size}"] = line
            blocks.append(Block(head, lines))
        notes = ["mean ± sd (runs), and whether the 95% interval of the difference to K = 11 excludes 0."]
        notes += [
            f"The paper: {as_printed(v)}."
            for row in printed(experiment.name, scale.algo).values()
            for v in row.values()
        ]
        tables.append(Table(str(scale), tuple(tasks), tuple(blocks), tuple(notes)))
    return tables


# --- cost ---


def seconds_per_step(member: Placed) -> float | None:
    """Of training, without the first iteration, in which XLA compiles."""
    curve = member.run.curve
    if curve.steps.size < 3:
        return None
    return float((curve.seconds[-1] - curve.seconds[0]) / (curve.steps[-1] - curve.steps[0]))


def cost_tables(experiment: Experiment, members: Sequence[Placed]) -> list[Table]:
    """Wall time against the Gaussian's run with the same seed, and parameters."""
    tables = []
    for scale, group in by_scale(members).items():
        times = {(m.run.task, m.label, m.run.seed): seconds_per_step(m) for m in group if m.run.counted}
        tasks = sorted({m.run.task for m in group}, key=lambda task: _place(experiment, task))
        labels = sorted({m.label for m in group}, key=lambda c: (_order(c.partition(",")[0]), _bins(c), c))
        blocks = []
        for task in tasks:
            lines = {}
            told = printed(experiment.name, scale.algo).get(papers(task) or "", {})
            for label in labels:
                of_this = [m for m in group if (m.run.task, m.label) == (task, label)]
                pairs = [
                    (times.get((task, label, m.run.seed)), times.get((task, "gaussian", m.run.seed))) for m in of_this
                ]
                ratios = np.array([own / other for own, other in pairs if own and other])
                lines[label] = {
                    "time": f"{100 * ratios.mean():.0f}%" if ratios.size else "-",
                    "range over seeds": f"{100 * ratios.min():.0f} to {100 * ratios.max():.0f}%" if ratios.size else "",
                    "parameters": f"{count:,}" if of_this and (count := parameters(of_this[0])) else "",
                    "paper": as_printed(told[label]) if label in told else "",
                }
            blocks.append(Block(task, lines))
        note = (
            "time: of training, each seed against the Gaussian with the same seed, one run at a time; parameters: of "
            "the policy, without the value function."
        )
        tables.append(Table(str(scale), ("time", "range over seeds", "parameters", "paper"), tuple(blocks), (note,)))
    return tables


def parameters(member: Placed) -> int | None:
    """How many numbers the policy of a run has: weights and biases of its layers, and what its head adds."""
    summary = member.run
    size = find_task(summary.task, may_import=False).size()
    if size is None:
        return None
    run = Run(summary.task, summary.head, summary.algo, summary.preset, **summary.compared)
    space = Box(-1.0, 1.0, (size.action,))
    widths = [size.observation, *run.settings.hidden_sizes, run.head.outputs(space)]
    layers = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    return layers + sum(int(np.size(own)) for own in run.head.parameters(space).values())


# --- the bandit ---

OPTIMUM = 0.8
"""A run whose final reward is above this has found a peak of height 1; the other peak of probe/bimodal is 0.6 high."""


def bandit_tables(experiment: Experiment, members: Sequence[Placed]) -> list[Table]:
    """How many seeds found the optimum."""
    tables = []
    for scale, group in by_scale(members).items():
        found = cells(group, by_bins=False)
        columns = sorted({column for _, column in found}, key=_order)
        blocks = []
        for task in sorted({task for task, _ in found}):
            here = {column: found[task, column] for column in columns if (task, column) in found}
            lines = {
                "optimum": {
                    column: f"{int((choice.scores > OPTIMUM).sum())} of {choice.scores.size} seeds"
                    for column, choice in here.items()
                },
                "reward": {column: plus_minus(*choice.mean_and_sd) for column, choice in here.items()},
            }
            told = printed(experiment.name, scale.algo).get(papers(task) or "", {})
            if told:
                lines["paper"] = {column: as_printed(value) for column, value in told.items()}
            blocks.append(Block(task, lines))
        note = (
            "The paper draws its reward function but does not give it. probe/bimodal has a wide peak of height 0.6 and "
            "a narrow one of height 1, probe/twin two of height 1; optimum: a final reward above 0.8."
        )
        tables.append(Table(str(scale), tuple(columns), tuple(blocks), (note,)))
    return tables


# --- sensitivity ---


def quantile_tables(experiment: Experiment, members: Sequence[Placed]) -> list[Table]:
    """Quartiles over the random settings, and whether one head is better than the other more often than not."""
    tables = []
    for scale, group in by_scale(members).items():
        blocks = []
        tasks = sorted({m.run.task for m in group}, key=lambda task: _place(experiment, task))
        heads = sorted({m.head for m in group}, key=_order)
        for task in tasks:
            scores = {head: finals(group, task, head) for head in heads}
            known = {head: values for head, values in scores.items() if values.size}
            lines = {
                "draws": {head: str(values.size) for head, values in known.items()},
                **{
                    f"{share}%": {
                        head: number(float(np.quantile(values, share / 100))) for head, values in known.items()
                    }
                    for share in (25, 50, 75)
                },
            }
            if "gaussian" in known:
                better = {
                    head: statistics.probability_of_improvement([values], [known["gaussian"]])
                    for head, values in known.items()
                    if head != "gaussian"
                }
                lines["better"] = {h: f"{b.value:.2f} ({b.low:.2f} to {b.high:.2f})" for h, b in better.items()}
            blocks.append(Block(task, lines))
        note = (
            "Quartiles of the final return over random settings, the same for both heads. better: the probability that "
            "a draw is better than one of the Gaussian, with its 95% interval."
        )
        tables.append(Table(str(scale), tuple(heads), tuple(blocks), (note,)))
    return tables


def finals(members: Sequence[Placed], task: str, head: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The final returns of all runs of a head on a task, sorted."""
    values = [m.run.final for m in members if (m.run.task, m.head) == (task, head) and m.run.counted]
    return np.sort(np.array(values, np.float64))


def tables_of(experiment: Experiment, members: Sequence[Placed], intervals: bool = False) -> list[Table]:
    """What an experiment comes to."""
    if not members:
        return printed_tables(experiment)
    makers = {"bins": bins_tables, "cost": cost_tables, "bandit": bandit_tables, "quantiles": quantile_tables}
    if experiment.shows in makers:
        return makers[experiment.shows](experiment, members)
    return return_tables(experiment, members, experiment.shows == "curves", intervals)
