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

from detent.errors import BadInput
from detent.options import FREE_OPTIONS, options_of
from detent.paper.experiments import PRESET, Experiment, Part
from detent.paper.printed import papers, todays
from detent.report import RunSummary, statistics
from detent.report.comparisons import distinct
from detent.runs.identity import as_json
from detent.runs.presets import base, is_file
from detent.runs.run import Names, Run, preset_values, read_configuration
from detent.sweeps.plan import plan_from_flags
from detent.tasks import find_task

MOST_DRAWS = 1000
"""The number of draws among which a run is searched."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A run that belongs to an experiment, and its place in it."""

    run: RunSummary
    head: str
    """The column of the paper's table: a head's name, or that of a setting."""
    preset: str
    """The name of its settings, with the version if they have changed since."""
    bins: int | None
    tuned: tuple[str, float] | None
    """The option that the paper tuned, and its value here."""

    @property
    def scale(self) -> Scale:
        return Scale(self.run.algo, self.preset, int(self.run.options["steps"]))

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
    """The runs that belong to the experiment: they have all its options, whatever the seed, the steps and K.

    Heads other than the paper's are included. An option that the paper tuned must have one of the values that it tried,
    or the preset's; one that it drew at random must have one of the values drawn.
    """
    found = []
    for run in runs:
        task = papers(run.task)
        for part in experiment.parts:
            preset = _preset(experiment, part, run) if task in part.tasks and run.options.get("steps") else None
            if preset:
                column = part.column or run.head
                found.append(Placed(run, column, preset, run.options.get("bins"), _tuned(experiment, run)))
                break
    return _with_several_bins(found) if experiment.shows == "bins" else found


def _with_several_bins(found: Sequence[Placed]) -> list[Placed]:
    """The runs of heads that have been run with several K; a single K shows nothing about the effect of K."""
    sizes: dict[tuple[Scale, str], set[int | None]] = defaultdict(set)
    for member in found:
        sizes[member.scale, member.head].add(member.bins)
    return [member for member in found if len(sizes[member.scale, member.head]) > 1]


def _preset(experiment: Experiment, part: Part, run: RunSummary) -> str | None:
    """The name of the settings of a run that belongs to this part; None if it does not belong.

    They are the preset's, as it is today or as it was in the version that made the run.
    """
    if run.algo not in part.algos or (part.column and run.head not in part.heads):
        return None
    try:
        if _fits(experiment, part, run, earlier=False):
            return run.preset
        then = f"{base(run.preset)}-{'.'.join(str(run.versions.get('detent')).split('.')[:2])}"
        return then if _fits(experiment, part, run, earlier=True) else None
    except BadInput:
        return None  # an unknown head, preset or option


def _fits(experiment: Experiment, part: Part, run: RunSummary, earlier: bool) -> bool:
    if is_file(run.preset):  # which is not read again: no experiment of the paper has one
        return False
    names, options = read_configuration(run.configuration)
    fixed, drawn = _options(part, run.algo, run.head, run.preset, earlier)
    tuned = experiment.tuned.get(run.algo)
    given = {"trunk": names.trunk, "critic": names.critic, **{name: as_json(value) for name, value in options.items()}}
    for key, value in fixed.items():
        if key in ("steps", "bins") or key in drawn or given[key] == value:
            continue
        if not (tuned and key == tuned[0] and base(run.preset) == PRESET and given[key] in tuned[1]):
            return False
    wanted = {key: given[key] for key in drawn}
    return not drawn or json.dumps(wanted, sort_keys=True) in _draws(part, run.algo, run.head, run.preset)


@cache
def _options(part: Part, algo: str, head: str, preset: str, earlier: bool) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The required values of all options but the seed, as JSON, and the names of the options that are drawn."""
    names = Names(todays(part.tasks[0])[0], head, algo, preset)
    known = {f.name for option_part in names.option_parts for f in options_of(option_part)}
    given = {key: value for key, value in {**part.options, "bins": part.bins}.items() if key in known}
    drawn = tuple(key for key, value in given.items() if isinstance(value, dict))
    fixed = {key: value for key, value in given.items() if key not in drawn and key != "bins"}
    described = Run.made(find_task(names.task), names, preset_values(names, earlier) | fixed).configuration
    whole = {"trunk": described["trunk"], "critic": described["critic"], **described["options"]}
    return {k: v for k, v in whole.items() if k != "seed" and k not in FREE_OPTIONS}, drawn


@cache
def _draws(part: Part, algo: str, head: str, preset: str) -> frozenset[str]:
    """The values of the drawn options in each draw, as JSON."""
    _, drawn = _options(part, algo, head, preset, earlier=False)
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
    """One cell of a table: all seeds of the setting with the highest mean, among the settings with the most seeds."""

    members: tuple[Placed, ...]
    scores: NDArray[np.float64]
    """Final returns of the runs that finished or diverged, by the paper's definition."""
    tried: int
    """The number of settings (K, tuned values)."""
    fewer: int
    """The number of settings left out because they have fewer seeds than others: with few seeds, luck counts more."""

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
    """The paper's rule, among the settings with the most seeds.

    It picks the winner on the same runs that it then reports, which favours heads with more settings.
    """
    settings: dict[Any, list[Placed]] = defaultdict(list)
    for member in members:
        settings[member.bins, member.tuned].append(member)
    seeds = {setting: _seeds(group) for setting, group in settings.items()}
    scores = {setting: _scores(group) for setting, group in seeds.items()}
    most = max(known.size for known in scores.values())
    compared = [setting for setting, known in scores.items() if known.size == most]
    chosen = max(compared, key=lambda setting: scores[setting].mean() if most else 0.0)
    return Choice(tuple(seeds[chosen]), scores[chosen], len(settings), len(settings) - len(compared))


def _seeds(group: Sequence[Placed]) -> list[Placed]:
    """Each seed once."""
    kept = set(map(id, distinct([member.run for member in group])))
    return [member for member in group if id(member.run) in kept]


def _scores(group: Sequence[Placed]) -> NDArray[np.float64]:
    return np.array([member.run.final for member in group if member.run.counted], np.float64)


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
