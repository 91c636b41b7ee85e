"""The paper's experiments: each figure and table as runs, at the paper's scale or another, in full or in part."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from detent.errors import BadInput
from detent.options import options_of
from detent.paper.printed import read, todays
from detent.registry import nearest
from detent.runs.presets import base
from detent.runs.run import Names, Run
from detent.sweeps.plan import by_name, plan_from_flags

PRESET = "paper"
"""The preset that the paper's tuning belongs to, and the default of `detent paper run`."""
UNTUNED = ("beta",)
"""Heads whose settings the paper fixes."""
_OWN_KEYS = ("task", "algo", "head", "column", "steps", "seeds", "draws", "bins")
_SHARED_KEYS = ("title", "shows", "tuned", "alone", "measure", "grid")


@dataclass(frozen=True, eq=False)
class Part:
    """Some tasks under some algorithms and heads, with the same options."""

    tasks: tuple[str, ...]
    """The paper's names."""
    algos: tuple[str, ...]
    heads: tuple[str, ...]
    column: str | None
    """The column of the table that these runs fill; None for one column per head."""
    steps: float
    seeds: int | None
    """The number of seeds, from 0; None if they are drawn."""
    draws: int | None
    bins: Any
    """A value, a list, how they are drawn, or None if no head has bins."""
    options: Mapping[str, Any]
    """The other options, as in a sweep's table."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper."""

    name: str
    title: str
    shows: str
    """How it is shown: curves, table, bandit, variance, bins, cost or quantiles."""
    parts: tuple[Part, ...]
    tuned: Mapping[str, tuple[str, tuple[float, ...]]]
    """Algorithm -> the option that the paper tuned for it, and the values that it tried."""
    alone: bool = False
    """Whether runs must not share the machine, because their time is measured."""
    measure: Mapping[str, Any] = field(default_factory=dict)
    """What is measured without training."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task for part in self.parts for task in part.tasks))

    @property
    def steps(self) -> int:
        """The number of steps of the paper's longest runs."""
        return int(max(part.steps for part in self.parts))

    def runs(
        self,
        *,
        tasks: Sequence[str] = (),
        algos: Sequence[str] = (),
        heads: Sequence[str] = (),
        bins: Sequence[Any] = (),
        presets: Sequence[str] = (PRESET,),
        steps: Any = None,
        seeds: Any = None,
        draws: Any = None,
        tuning: bool = True,
    ) -> list[Run]:
        """The runs of this experiment, seed by seed; whatever is given replaces the paper's choice.

        `tasks` are the paper's names or names of ours for them; `heads` and `bins` may be others than the paper's.
        With `tuning`, the values of the learning rate or KL that the paper tried are all tried under its preset.
        """
        self._check(tasks, algos, bins, seeds, draws)
        made: list[Run] = []
        for part in self.parts:
            chosen = [today for task in part.tasks for today in _wanted(task, tasks)]
            pairs = itertools.product(_narrowed(part.algos, algos), _heads(part, heads), presets)
            for algo, head, preset in pairs if chosen else ():
                table = {"task": chosen, "algo": algo, "head": head, "preset": preset, "steps": steps or part.steps}
                table |= {key: value for key, value in part.options.items() if _has(head, algo, key)}
                if part.seeds is not None:
                    table["seeds"] = seeds or part.seeds
                if part.draws is not None:
                    table["draws"] = draws or part.draws
                if part.bins is not None and _has(head, algo, "bins"):
                    table["bins"] = list(bins) or part.bins
                if tuning and base(preset) == PRESET and head not in UNTUNED and algo in self.tuned:
                    option, values = self.tuned[algo]
                    table.setdefault(option, list(values))
                made += plan_from_flags(table).runs()
        if not made:
            raise BadInput(f"No run of {self.name} matches these flags.")
        if bins and not any("bins" in run.options for run in made):
            raise BadInput(f"None of these heads has --bins: {_listed(heads)}.")
        return list(by_name(sorted(made, key=lambda run: run.settings.seed)).values())

    def todays_tasks(self, asked: Sequence[str] = ()) -> list[str]:
        """Our names for the tasks of this experiment, or for those among `asked`."""
        self._check(asked, (), (), None, None)
        return [today for task in self.tasks for today in _wanted(task, asked)]

    def _check(self, tasks: Sequence[str], algos: Sequence[str], bins: Sequence[Any], seeds: Any, draws: Any) -> None:
        known = [name for task in self.tasks for name in (task, *todays(task))]
        for name in tasks:
            if name not in known:
                raise BadInput(f"{self.name} has no task {name!r}.{nearest(name, known)} It has {_listed(self.tasks)}.")
        mine = list(dict.fromkeys(algo for part in self.parts for algo in part.algos))
        for name in algos:
            if name not in mine:
                raise BadInput(f"{self.name} has no algorithm {name!r}; it has {_listed(mine)}.")
        if bins and all(part.bins is None for part in self.parts):
            raise BadInput(f"{self.name} has no --bins: none of its policies has any.")
        if seeds and all(part.seeds is None for part in self.parts):
            raise BadInput(f"The seeds of {self.name} are drawn at random; set the number of draws with --draws.")
        if draws and all(part.draws is None for part in self.parts):
            raise BadInput(f"{self.name} draws nothing at random; set the number of seeds with --seeds.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _wanted(task: str, asked: Sequence[str]) -> Iterator[str]:
    """Our names for a task of the paper that are among `asked`; the first one if nothing is asked for."""
    if not asked or task in asked:
        yield todays(task)[0]
    yield from (name for name in todays(task) if name in asked)


def _narrowed(own: Sequence[str], asked: Sequence[str]) -> list[str]:
    return [name for name in own if not asked or name in asked]


def _heads(part: Part, asked: Sequence[str]) -> Sequence[str]:
    """A part with a column of its own has fixed heads; elsewhere any head can be used."""
    if part.column:
        return _narrowed(part.heads, asked)
    return asked or part.heads


@cache
def _has(head: str, algo: str, name: str) -> bool:
    return any(f.name == name for p in Names("", head, algo).option_parts for f in options_of(p))


# --- reading ---


@cache
def experiments() -> dict[str, Experiment]:
    """Name -> experiment, in the order of the paper."""
    tables = read("experiments.toml")
    return {name: _experiment(name, table) for name, table in tables.items() if name not in ("tasks", "tuned")}


def find(name: str) -> list[Experiment]:
    """The experiment of this name; both halves of `figure5`."""
    known = experiments()
    found = [known[name]] if name in known else [e for e in known.values() if e.name in (f"{name}a", f"{name}b")]
    if not found:
        raise BadInput(f"The paper has no {name!r} with an experiment.{nearest(name, known)} See `detent paper`.")
    return found


def _experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    shared = {key: value for key, value in table.items() if key not in _SHARED_KEYS}
    tuned = {
        algo: next((option, tuple(values)) for option, values in tuned.items())
        for algo, tuned in read("experiments.toml")["tuned"].items()
        if table.get("tuned", True)
    }
    parts = tuple(_part(shared | grid) for grid in table.get("grid", [{}]))
    return Experiment(
        name, table["title"], table["shows"], parts, tuned, table.get("alone", False), table.get("measure", {})
    )


def _part(table: Mapping[str, Any]) -> Part:
    return Part(
        tuple(_names(table["task"])),
        tuple(_names(table.get("algo", ()))),
        tuple(_names(table.get("head", ()))),
        table.get("column"),
        float(table.get("steps", 0)),
        table.get("seeds"),
        table.get("draws"),
        table.get("bins"),
        {key: value for key, value in table.items() if key not in _OWN_KEYS},
    )


def _names(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
