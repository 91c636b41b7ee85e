"""The paper's tables, with our results beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box

from detent.networks import parameter_count
from detent.paper.experiments import Experiment
from detent.paper.layout import Block, Table
from detent.paper.printed import Printed, papers, printed
from detent.paper.selection import Choice, Placed, Scale, by_scale, cells
from detent.report import statistics
from detent.report.statistics import Floats, Interval
from detent.runs.run import Run

HEADS = ("gaussian", "gaussian_tanh", "beta", "discrete", "ordinal")
"""The order of the paper's columns."""


def tables_of(experiment: Experiment, members: Sequence[Placed], intervals: bool = False) -> list[Table]:
    """The results of an experiment: a table for each algorithm, preset and length, or the printed ones.

    `intervals` adds the intervals of the differences to the baseline, if there is one.
    """
    if not members:
        return printed_tables(experiment)
    make = _TABLES.get(experiment.shows) or (lambda part: _returns(part, experiment.shows == "curves", intervals))
    return [make(_Part(experiment, scale, group)) for scale, group in by_scale(members).items()]


@dataclass(frozen=True)
class _Part:
    """The runs of an experiment that can be compared with each other."""

    experiment: Experiment
    scale: Scale
    members: Sequence[Placed]

    @property
    def tasks(self) -> list[str]:
        """In the paper's order."""
        order = self.experiment.tasks
        return sorted({m.run.task for m in self.members}, key=lambda task: (order.index(papers(task) or ""), task))

    @property
    def heads(self) -> list[str]:
        return sorted({m.head for m in self.members}, key=in_order)

    @property
    def labels(self) -> list[str]:
        """Heads with their K."""
        known = {m.label: (in_order(m.head), m.bins or 0) for m in self.members}
        return sorted(known, key=lambda label: known[label])

    def printed(self, task: str) -> dict[str, str]:
        """Column -> what the paper prints for a task."""
        row = printed(self.experiment.name, self.scale.algo).get(papers(task) or "", {})
        return {column: as_printed(value) for column, value in row.items()}

    def table(self, columns: Sequence[str], blocks: Sequence[Block], *notes: str) -> Table:
        other = self.experiment.steps != self.scale.steps and self.experiment.shows in ("curves", "table")
        title = str(self.scale) + (f" (the paper: {self.experiment.steps:,})" if other else "")
        return Table(title, tuple(columns), tuple(blocks), notes)


def in_order(head: str) -> tuple[int, str]:
    """A key that sorts heads as the paper's columns."""
    return HEADS.index(head) if head in HEADS else len(HEADS), head


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
    """The ends of the 95% interval, or why there is none."""
    return found.why if math.isnan(found.low) else f"{number(found.low)} to {number(found.high)}"


def ended(choice: Choice) -> str:
    """The number of finished runs behind a cell, and the statuses of the others."""
    statuses = dict(choice.statuses)
    finished = statuses.pop("finished", 0)
    others = [f"{count} {status}" for status, count in sorted(statuses.items())]
    return ", ".join([str(finished)] * bool(finished or not others) + others)


def chosen(choice: Choice) -> str:
    """The setting of a cell, and how many others were left out because they have fewer runs."""
    return choice.setting + f" ({choice.fewer} with fewer runs left out)" * bool(choice.fewer)


# --- final returns ---


def _returns(part: _Part, by_bins: bool, intervals: bool) -> Table:
    """Heads (and K) against tasks."""
    found = cells(part.members, by_bins)
    ours = part.labels if by_bins else part.heads
    theirs = [] if by_bins else [column for task in part.tasks for column in part.printed(task)]
    columns = list(dict.fromkeys([*theirs, *ours]))
    baseline = "gaussian" if "gaussian" in columns else next(column for column in columns if column in ours)
    blocks = [_block(part, task, columns, baseline, found, intervals) for task in part.tasks]
    return part.table(columns, blocks, *_notes(baseline, found, by_bins))


def _block(
    part: _Part,
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
        lines["chosen"] = {column: chosen(choice) for column, choice in here.items() if choice.tried > 1}
    against = {
        column: statistics.difference([choice.scores], [known[baseline].scores])
        for column, choice in known.items()
        if column != baseline and baseline in known
    }
    if against and intervals:
        lines["difference"] = {column: interval(gap) for column, gap in against.items()}
    if against:
        lines["verdict"] = {column: gap.verdict for column, gap in against.items()}
    if part.printed(task):
        lines["paper"] = part.printed(task)
    return Block(task, lines)


def _notes(baseline: str, found: Mapping[tuple[str, str], Choice], by_bins: bool) -> tuple[str, ...]:
    notes = [
        "here: mean ± sd over runs of the mean of the last 10 iterations, as in the paper. verdict: against "
        f"{baseline}, where the 95% interval of the difference (Welch's t) excludes 0."
    ]
    if any(choice.tried > 1 for choice in found.values()):
        what = "the tuned option" if by_bins else "K and of the tuned option"
        notes.append(
            f"chosen: the best of {what}, as in the paper, picked on the same runs that are reported, which flatters "
            "whoever had more tries."
        )
    return (*notes, *_left_out(found))


def _left_out(found: Mapping[tuple[str, str], Choice]) -> tuple[str, ...]:
    """The note on settings that were left out."""
    cells = [f"{column} on {task} ({choice.fewer})" for (task, column), choice in found.items() if choice.fewer]
    if not cells:
        return ()
    return (
        "Settings with fewer runs than others of the same cell are left out, because few runs have a high mean by luck "
        f"more often: {', '.join(cells)}.",
    )


def printed_tables(experiment: Experiment) -> list[Table]:
    """What the paper prints, where nothing has been run."""
    tables = []
    for algo in dict.fromkeys(algo for part in experiment.parts for algo in part.algos):
        rows = printed(experiment.name, algo)
        if rows:
            columns = tuple(dict.fromkeys(column for row in rows.values() for column in row))
            texts = {task: {column: as_printed(value) for column, value in row.items()} for task, row in rows.items()}
            blocks = [Block(task.replace("*", ""), {"paper": row}) for task, row in texts.items()]
            tables.append(Table(f"{algo.upper()}, as printed", columns, tuple(blocks)))
    return tables


# --- final return against K ---


def _by_bins(part: _Part) -> Table:
    """A line for each K, a column for each task; the verdict is against K = 11."""
    found = cells(part.members, by_bins=True)

    def text(task: str, head: str, bins: int) -> str:
        choice, usual = (found.get((task, f"{head}, K = {k}")) for k in (bins, 11))
        if choice is None:
            return ""
        shown = f"{plus_minus(*choice.mean_and_sd)} ({ended(choice)})"
        if usual is None or usual is choice or not (usual.scores.size and choice.scores.size):
            return shown
        return f"{shown} {statistics.difference([choice.scores], [usual.scores]).verdict}"

    blocks = []
    for head in part.heads:
        sizes = sorted({m.bins for m in part.members if m.head == head and m.bins is not None})
        blocks.append(Block(head, {f"K = {k}": {task: text(task, head, k) for task in part.tasks} for k in sizes}))
    theirs = [as_printed(v) for row in printed(part.experiment.name, part.scale.algo).values() for v in row.values()]
    note = "mean ± sd (runs), and whether the 95% interval of the difference to K = 11 (Welch's t) excludes 0."
    return part.table(part.tasks, blocks, note, *_left_out(found), *(f"The paper: {text}." for text in theirs))


# --- cost ---


def _cost(part: _Part) -> Table:
    """Wall time against the Gaussian's run with the same seed, and parameters."""
    times = {(m.run.task, m.label, m.run.seed): seconds_per_step(m) for m in part.members if m.run.counted}
    blocks = []
    for task in part.tasks:
        lines = {}
        for label in part.labels:
            runs = [m for m in part.members if (m.run.task, m.label) == (task, label)]
            pairs = [(times.get((task, label, m.run.seed)), times.get((task, "gaussian", m.run.seed))) for m in runs]
            percent = np.array([100 * own / other for own, other in pairs if own and other])
            count = parameters(runs[0]) if runs else None
            lines[label] = {
                "time": f"{percent.mean():.0f}%" if percent.size else "-",
                "range over seeds": f"{percent.min():.0f} to {percent.max():.0f}%" if percent.size else "",
                "parameters": "" if count is None else f"{count:,}",
                "paper": part.printed(task).get(label, ""),
            }
        blocks.append(Block(task, lines))
    return part.table(
        ("time", "range over seeds", "parameters", "paper"),
        blocks,
        "time: of training, each seed against the Gaussian with the same seed, one run at a time; parameters: of the "
        "policy, without the value function.",
    )


def seconds_per_step(member: Placed) -> float | None:
    """The training time per step, without the first iteration, in which XLA compiles."""
    curve = member.run.curve
    if curve.steps.size < 3:
        return None
    return float((curve.seconds[-1] - curve.seconds[0]) / (curve.steps[-1] - curve.steps[0]))


def parameters(member: Placed) -> int | None:
    """The number of parameters of a run's policy: those of its network and those of its head."""
    run = Run.from_configuration(member.run.configuration)
    size = run.task.size()
    if size is None:
        return None
    space = Box(-1.0, 1.0, (size.action,))
    network = parameter_count(run.trunk.program(size.observation, run.head.outputs(space)))
    return network + sum(int(np.size(own)) for own in run.head.parameters(space).values())


# --- the bandit ---

OPTIMUM = 0.8
"""A run whose final reward is above this has found a peak of height 1; the other peak of probe/bimodal is 0.6 high."""


def _bandit(part: _Part) -> Table:
    """How many seeds found the optimum."""
    found = cells(part.members, by_bins=False)
    blocks = []
    for task in part.tasks:
        here = {head: found[task, head] for head in part.heads if (task, head) in found}
        lines = {
            "optimum": {
                head: f"{int((choice.scores > OPTIMUM).sum())} of {choice.scores.size} seeds"
                for head, choice in here.items()
            },
            "reward": {head: plus_minus(*choice.mean_and_sd) for head, choice in here.items()},
        }
        blocks.append(Block(task, lines | ({"paper": part.printed(task)} if part.printed(task) else {})))
    return part.table(
        part.heads,
        blocks,
        "The paper draws its reward function but does not give it. probe/bimodal has a wide peak of height 0.6 and a "
        "narrow one of height 1, probe/twin two of height 1; optimum: a final reward above 0.8.",
        *_left_out(found),
    )


# --- sensitivity ---


def _quantiles(part: _Part) -> Table:
    """Quartiles over the random settings, and whether one head is better than the other more often than not."""
    blocks = []
    for task in part.tasks:
        runs = {head: [m for m in part.members if (m.run.task, m.head) == (task, head)] for head in part.heads}
        known = {head: values for head, own in runs.items() if (values := finals(own)).size}
        lines = {"draws": {head: str(values.size) for head, values in known.items()}}
        for share in (25, 50, 75):
            lines[f"{share}%"] = {h: number(float(np.quantile(values, share / 100))) for h, values in known.items()}
        if "gaussian" in known:
            better = {
                head: statistics.probability_of_improvement([values], [known["gaussian"]])
                for head, values in known.items()
                if head != "gaussian"
            }
            lines["better"] = {h: f"{b.value:.2f} ({b.low:.2f} to {b.high:.2f})" for h, b in better.items()}
        blocks.append(Block(task, lines))
    return part.table(
        part.heads,
        blocks,
        "Quartiles of the final return over random settings, the same for both heads. better: the probability that a "
        "draw is better than one of the Gaussian, with its interval (Clopper and Pearson's, at least 95%).",
    )


def finals(members: Sequence[Placed]) -> Floats:
    """The final returns of the runs that count, sorted."""
    return np.sort(np.array([m.run.final for m in members if m.run.counted], np.float64))


_TABLES: dict[str, Callable[[_Part], Table]] = {
    "bins": _by_bins, "cost": _cost, "bandit": _bandit, "quantiles": _quantiles
}  # fmt: skip
