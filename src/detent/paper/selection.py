"""Which runs belong to an experiment of the paper, and which of them it reports: the paper's rule of the best."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent import statistics
from detent.configuration import FREE_OPTIONS, Run
from detent.heads import HEADS
from detent.paper.experiments import PRESET, Experiment, Part, papers, todays
from detent.presets import PRESETS
from detent.report import RunSummary
from detent.report.comparisons import distinct
from detent.sweeps import plan_from_flags

MOST_DRAWS = 1000
"""A run is looked for among so many draws."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A run that belongs to an experiment, and where."""

    run: RunSummary
    head: str
    """The column of the paper's table: a head's name, or that of a setting."""
    bins: int | None
    tuned: tuple[str, float] | None
    """The option that the paper tuned, and its value here."""

    @property
    def scale(self) -> Scale:
        return Scale(self.run.algo, self.run.preset, int(self.run.options["steps"]))

    @property
    def label(self) -> str:
        return self.head if self.bins is None else f"{self.head}, K = {self.bins}"


@dataclass(frozen=True, order=True)
class Scale:
    """Runs are compared only with runs of the same algorithm, preset and length."""

    algo: str
    preset: str
    steps: int

    def __str__(self) -> str:
        return f"{self.algo.upper()}, preset {self.preset}, {self.steps:,} steps"


def placed(experiment: Experiment, runs: Iterable[RunSummary]) -> list[Placed]:
    """Those of the runs that belong to the experiment: all its options, whatever the seed, the steps and K.

    Other heads than the paper's are welcome. An option that the paper tuned must have one of the values that it tried,
    or the preset's own; one that it drew at random must have been drawn.
    """
    found = []
    for run in runs:
        task = papers(run.task)
        parts = [part for part in experiment.parts if task in part.tasks and _fits(experiment, part, run)]
        if parts and run.options.get("steps"):
            column = parts[0].column or run.head
            found.append(Placed(run, column, run.options.get("bins"), _tuned(experiment, run)))
    return _with_several_bins(found) if experiment.shows == "bins" else found


def _with_several_bins(found: Sequence[Placed]) -> list[Placed]:
    """Those of heads that have been run with several K; one K says nothing about K."""
    sizes: dict[tuple[Scale, str], set[int | None]] = defaultdict(set)
    for member in found:
        sizes[member.scale, member.head].add(member.bins)
    return [member for member in found if len(sizes[member.scale, member.head]) > 1]


def _fits(experiment: Experiment, part: Part, run: RunSummary) -> bool:
    if run.algo not in part.algos or run.preset not in PRESETS or run.head not in HEADS.names():
        return False
    if part.column and run.head not in part.heads:
        return False
    fixed, drawn = _options(part, run.algo, run.head, run.preset)
    tuned = experiment.tuned.get(run.algo)
    for key, value in run.compared.items():
        if key in ("steps", "bins") or key in drawn or (key in fixed and value == fixed[key]):
            continue
        if not (tuned and key == tuned[0] and run.preset == PRESET and value in tuned[1]):
            return False
    if len(run.compared) != len(fixed):
        return False
    wanted = {key: run.options.get(key) for key in drawn}
    return not drawn or json.dumps(wanted, sort_keys=True) in _draws(part, run.algo, run.head, run.preset)


@cache
def _options(part: Part, algo: str, head: str, preset: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What every option but the seed must be, as JSON has it, and the names of those that are drawn."""
    task, known = todays(part.tasks[0])[0], Run(todays(part.tasks[0])[0], head, algo, preset).options
    given = {key: value for key, value in {**part.options, "bins": part.bins}.items() if key in known}
    drawn = tuple(key for key, value in given.items() if isinstance(value, dict))
    fixed = {key: value for key, value in given.items() if key not in drawn and key != "bins"}
    whole = Run(task, head, algo, preset, **fixed).configuration["options"]
    return {k: v for k, v in whole.items() if k != "seed" and k not in FREE_OPTIONS}, drawn


@cache
def _draws(part: Part, algo: str, head: str, preset: str) -> frozenset[str]:
    """The values of the drawn options in each draw, as JSON."""
    _, drawn = _options(part, algo, head, preset)
    table = {key: value for key, value in {**part.options, "bins": part.bins}.items() if key in drawn}
    table |= {"task": todays(part.tasks[0])[0], "algo": algo, "head": head, "preset": preset, "draws": MOST_DRAWS}
    runs = itertools.chain.from_iterable(grid.runs() for grid in plan_from_flags(table).grids)
    return frozenset(json.dumps({key: run.options[key] for key in drawn}, sort_keys=True) for run in runs)


def _tuned(experiment: Experiment, run: RunSummary) -> tuple[str, float] | None:
    if run.algo not in experiment.tuned:
        return None
    option = experiment.tuned[run.algo][0]
    return option, float(run.options[option])


# --- the best ---


@dataclass(frozen=True, eq=False)
class Choice:
    """What stands in one cell: all seeds of the setting with the highest mean, among those that were tried."""

    members: tuple[Placed, ...]
    scores: NDArray[np.float64]
    """Final returns of the runs that finished or diverged, by the paper's definition."""
    tried: int
    """How many settings (K, tuned values) had runs to choose from."""

    @property
    def mean_and_sd(self) -> tuple[float, float]:
        return statistics.mean_and_sd(self.scores)

    @property
    def statuses(self) -> Mapping[str, int]:
        return Counter(member.run.status for member in self.members)

    @property
    def setting(self) -> str:
        first = self.members[0]
        parts = [f"K = {first.bins}"] if first.bins is not None else []
        parts += [f"{first.tuned[0]} {first.tuned[1]:g}"] if first.tuned else []
        return ", ".join(parts)


def best(members: Sequence[Placed]) -> Choice:
    """The paper's rule. It picks the winner on the runs that it then reports, which flatters whoever had more tries."""
    settings: dict[Any, list[Placed]] = defaultdict(list)
    for member in members:
        settings[member.bins, member.tuned].append(member)
    choices = [_choice(group, len(settings)) for group in settings.values()]
    return max(choices, key=lambda choice: choice.mean_and_sd[0] if choice.scores.size else -np.inf)


def _choice(group: Sequence[Placed], tried: int) -> Choice:
    kept = set(map(id, distinct([member.run for member in group])))
    members = tuple(member for member in group if id(member.run) in kept)
    return Choice(members, np.array([m.run.final for m in members if m.run.counted], np.float64), tried)


def cells(members: Iterable[Placed], by_bins: bool) -> dict[tuple[str, str], Choice]:
    """(Task, column) -> what the paper would report; with `by_bins` every K has a column."""
    groups: dict[tuple[str, str], list[Placed]] = defaultdict(list)
    for member in members:
        groups[member.run.task, member.label if by_bins else member.head].append(member)
    return {key: best(group) for key, group in groups.items()}


def by_scale(members: Iterable[Placed]) -> dict[Scale, list[Placed]]:
    groups: dict[Scale, list[Placed]] = defaultdict(list)
    for member in members:
        groups[member.scale].append(member)
    return {scale: groups[scale] for scale in sorted(groups)}
