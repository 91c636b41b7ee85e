"""The runs of a sweep: grids and random draws, from flags or a TOML file. A run is named by its configuration.

task = ["HalfCheetah-v5", "Humanoid-v5"]       # several values make a grid
head = ["gaussian", "ordinal"]
bins = [7, 11]                                  # only where there are bins
seed = "0-4"
draws = 30                                      # of each option that is drawn
learning_rate = {log_uniform = [1e-5, 1e-2]}

[[grid]]                                        # a union: one table for each part,
head = "beta"                                   # whose keys override those above
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from detent import package
from detent.draws import KINDS, Draw
from detent.errors import BadInput, DetentError, in_file, quoted
from detent.files import Corrupt, beginning, read_json, read_toml, write_json
from detent.options import flag, old_names, options_of, whole_number
from detent.registry import nearest
from detent.runs.directory import RunDirectory
from detent.runs.identity import hashed, identity
from detent.runs.presets import preset_options
from detent.runs.run import (
    PARTS,
    Names,
    Run,
    Settings,
    described,
    fitting_head,
    kind_of,
    read_configuration,
    unknown_option,
)
from detent.schemas import Field, Schema, is_object, is_word
from detent.tasks import Task, find_task

SCHEMA = 1
"""Of sweep.json."""
NAMES = Names._fields
DEFAULTS = {**Names._field_defaults, "head": None}
"""Defaults of the names; None for the head that fits the task."""
OWN_KEYS = ("seeds", "draws", "draw_seed")
"""Keys of a sweep that are not options of a run: the number of seeds, of draws, and the seed of the draws."""
Table = dict[str, Any]
"""Keys as in the file, with underscores, and values as in TOML or on the command line."""


# --- names ---


def run_name(run: Run) -> str:
    """`<task>-<algo>-<head>-<seed>-<12 digits>`; the digits are from a hash of the run's identity."""
    return f"{run.slug}-{hashed(run.identity)[:12]}"


def write_plan(out: Path, runs: Mapping[str, Run]) -> None:
    """Write `<out>/sweep.json`, the list of the sweep's runs."""
    described = [{"name": name, **run.configuration} for name, run in runs.items()]
    write_json(out / "sweep.json", {"schema": SCHEMA, "detent": package.version(), "runs": described})


PLAN = Schema(
    "the plan of a sweep",
    {
        "runs": Field(
            lambda runs: isinstance(runs, list) and all(is_object(run) and is_word(run.get("name")) for run in runs),
            "a list of runs with their names",
        )
    },
)


def read_plan(out: Path) -> dict[str, dict[str, Any]]:
    """Name -> configuration of the runs of the sweep last started in `out`."""
    check_version(out)
    path = out / "sweep.json"
    plan = read_json(path, PLAN, path.stat().st_size)
    return {run["name"]: {k: v for k, v in run.items() if k != "name"} for run in plan["runs"]}


def check_version(out: Path) -> None:
    """Refuse a plan of another version. Only its beginning is read, because a plan can be long."""
    path = out / "sweep.json"
    found = re.match(rb'\{\s*"schema": (\d+)(?:,\s*"detent": "([\w.+-]*)")?', beginning(path))
    if found is None:
        raise Corrupt(f"{path} is damaged: it does not begin as the plan of a sweep does; choose another --out.")
    if found[1] != str(SCHEMA).encode():
        raise Corrupt(
            f"{path} is not of version {SCHEMA}, the only one that this version of Detent can read: it was written by "
            f"Detent {(found[2] or b'of another version').decode()}; choose another --out."
        )


def listed(runs: Mapping[str, Run], out: Path) -> Iterator[str]:
    """A line per run: its status, its name, and the options that differ between runs."""
    in_the_name = ("task", "head", "algo")
    flat = {
        name: {k: v for k, v in run.names._asdict().items() if k not in in_the_name} | run.options
        for name, run in runs.items()
    }
    values: dict[str, set[str]] = {}
    for options in flat.values():
        for key, value in options.items():
            values.setdefault(key, set()).add(str(value))
    for name, options in flat.items():
        directory = RunDirectory(out / name)
        try:
            status = directory.status() if directory.exists else "new"
        except Corrupt:
            status = "damaged"
        different = [f"{key}={value}" for key, value in options.items() if len(values[key]) > 1 and key != "seed"]
        yield f"{status:<9} {name}  {' '.join(different)}".rstrip()


# --- draws ---


def draw_of(key: str, kind: str, values: Any) -> Draw:
    """How an option is drawn, if it can be drawn so."""
    whole = _kind(key) == "int"
    if kind not in KINDS:
        raise BadInput(f"{flag(key)}: there is no distribution {quoted(kind)}; there are {', '.join(KINDS)}.")
    if kind == "choice":
        if not isinstance(values, list) or not values:
            raise BadInput(f"{flag(key)}: choice needs a list of values, not {quoted(values)}.")
        return Draw(kind, tuple(values), whole)
    if _kind(key) not in ("int", "float"):
        raise BadInput(f"{flag(key)} is not a number, so it can only be drawn by choice, not by {kind}.")
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (kind == "uniform" or low > 0)):
        wanted = "two numbers, the lower one first" + ", both greater than 0" * (kind == "log_uniform")
        raise BadInput(f"{flag(key)}: {kind} needs {wanted}, not {quoted(values)}.")
    if whole and (low % 1 or high % 1):
        raise BadInput(f"{flag(key)} is a whole number, so the bounds of {kind} must be too, not {quoted(values)}.")
    return Draw(kind, (low, high), whole)


# --- values ---


def _parts() -> list[type]:
    """Everything that has options of a run."""
    return [part for registry in PARTS.values() for part in map(registry.get, registry.names())] + [Settings]


def option_kinds() -> dict[str, str]:
    """Every option that some run has, old names included -> `int`, `float`, `bool`, `str`, `tuple` or `dict`."""
    declared = [f for part in _parts() for f in options_of(part)]
    return {name: kind_of(f) for f in declared for name in (f.name, *f.metadata["formerly"])}


def _kind(key: str) -> str:
    kinds = option_kinds()
    if key not in kinds:
        known = [*NAMES, *OWN_KEYS, *kinds]
        raise BadInput(f"There is no option {flag(key)}.{nearest(key, known)}")
    return kinds[key]


_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
_DRAWN = re.compile(r"(uniform|log[-_]uniform|choice):(.*)")


def _axis(key: str, given: Any) -> Sequence[Any] | Draw:
    """The values of one key, or how they are drawn."""
    if key in NAMES:
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise BadInput(f"{flag(key)} must be a name or a list of names, not {quoted(given)}.")
        return list(dict.fromkeys(names))
    kind = _kind(key)
    if isinstance(given, dict) and kind != "dict":
        if len(given) != 1:
            raise BadInput(f"{flag(key)} can be drawn by one of {', '.join(KINDS)}, not by {quoted(given)}.")
        return draw_of(key, *next(iter(given.items())))
    # [64, 64] is one value of an option that is a list itself; [[64, 64], [32]] are two.
    one = not isinstance(given, list) or (kind == "tuple" and all(isinstance(part, int) for part in given))
    values = [given] if one else given
    if not values:
        raise BadInput(f"{flag(key)} has no value.")
    texts = [value for value in values if isinstance(value, str)]
    drawn = next((match for text in texts if (match := _DRAWN.fullmatch(text))), None)
    if drawn:
        if len(values) > 1:
            raise BadInput(f"{flag(key)} can be drawn or have several values, not both: {quoted(values)}.")
        return draw_of(key, drawn[1].replace("-", "_"), [part for part in drawn[2].split(",") if part])
    if kind == "int":
        ranges = [_spread(key, value) for value in values]
        if len(ranges) == 1:
            return ranges[0]  # not listed: it may be long
        if sum(map(len, ranges)) > 10**6:
            raise BadInput(f"{flag(key)} has more than a million values; give them as one range.")
        values = list(itertools.chain.from_iterable(ranges))
    return list({repr(value): value for value in values}.values())


def _spread(key: str, value: Any) -> Sequence[Any]:
    """`"0-4"` is 0, 1, 2, 3, 4; anything else is itself."""
    found = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return [value]
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise BadInput(f"{flag(key)} {value}: a range must start with its smallest number.")
    return range(first, last + 1)


def _whole(table: Table, key: str, default: int, least: int) -> int:
    return whole_number(flag(key), table.get(key, default), least, 10**18)


# --- grids ---


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of some options, times the draws of others.

    An option is not applied to a head or an algorithm that does not have it: the Gaussian runs once, however many
    numbers of bins there are.
    """

    tasks: Mapping[str, Task]
    """The tasks by name. They are shared, because a task remembers its actions once they are known."""
    axes: Mapping[str, Sequence[Any]]
    drawn: Mapping[str, Draw]
    draws: int
    draw_seed: int

    def pairings(self) -> Iterator[tuple[Names, Any]]:
        """Every combination of names, with the arguments of the environments, if given.

        A head that is not named depends on the task and these arguments.
        """
        drawn = self.drawn["env_kwargs"].values[0] if "env_kwargs" in self.drawn else None
        named = [self.axes.get(key) or (DEFAULTS[key],) for key in NAMES]
        for *chosen, env_kwargs in itertools.product(*named, self.axes.get("env_kwargs", (None,))):
            task, head, *others = chosen
            names = Names(task, head or fitting_head(self.tasks[task], env_kwargs or drawn), *others)
            preset_options(names.preset, names.algo, names.head)  # raises if there is no such preset
            yield names, env_kwargs

    def has(self, key: str) -> bool:
        """Whether some run of this grid has the option."""
        return any(key in _options(names) for names, _ in self.pairings())

    def refuse(self, key: str) -> None:
        """Raise `BadInput` that says why no run of this grid has the option."""
        names, _ = next(self.pairings())
        raise BadInput(unknown_option(key, names))

    def count(self) -> int:
        """The number of runs, including duplicates, without making them."""
        total = 0
        for names, _ in self.pairings():
            has = _options(names)
            sizes = [len(values) for key, values in self.axes.items() if key in has and key != "env_kwargs"]
            total += math.prod(sizes) * (self.draws if has & self.drawn.keys() else 1)
        return total

    def runs(self) -> Iterator[Run]:
        """Draw by draw and seed by seed, so that an unfinished sweep has some runs of everything."""
        pairings = list(self.pairings())
        for index, seed in itertools.product(range(self.draws), self.axes.get("seed", (None,))):
            for names, env_kwargs in pairings:
                has = _options(names)
                if index and not has & self.drawn.keys():
                    continue
                fixed = {key: draw.value(self.draw_seed, key, index) for key, draw in self.drawn.items() if key in has}
                fixed |= {"seed": seed} if seed is not None else {}
                fixed |= {"env_kwargs": env_kwargs} if env_kwargs is not None else {}
                keys = [key for key in self.axes if key in has and key not in ("seed", "env_kwargs")]
                for values in itertools.product(*(self.axes[key] for key in keys)):
                    options = fixed | dict(zip(keys, values, strict=True))
                    yield Run(self.tasks[names.task], *names[1:], **options)


@cache
def _options(names: Names) -> frozenset[str]:
    return frozenset(f.name for part in names.option_parts for f in options_of(part))


@dataclass(frozen=True)
class Plan:
    """A union of grids."""

    grids: tuple[Grid, ...]
    file: str | None = None

    def count(self) -> int:
        """The maximum number of runs, counted without making them; only `runs` drops duplicates."""
        with in_file(self.file):
            return sum(grid.count() for grid in self.grids)

    def runs(self) -> list[Run]:
        """Every run once. Each is checked: its parts exist and fit together."""
        with in_file(self.file):
            return list(by_name(itertools.chain.from_iterable(grid.runs() for grid in self.grids)).values())


def by_name(runs: Iterable[Run], out: Path | None = None) -> dict[str, Run]:
    """Name -> run, in order and without duplicates; a run that `out` has under another name keeps that name."""
    named: dict[str, Run] = {}
    for run in runs:
        named.setdefault(run_name(run), run)
    present = _names_in(out, named) if out else {}
    return {present.get(hashed(run.identity), name): run for name, run in named.items()}


def _names_in(out: Path, expected: Collection[str]) -> dict[str, str]:
    """Hash of identity -> name, of the directories in `out` whose names are not expected."""
    found: dict[str, str] = {}
    for path in sorted(out.glob("[!.]*/run.json")):
        if path.parent.name not in expected:
            try:
                written = RunDirectory(path.parent).configuration()
                found.setdefault(hashed(identity(described(*read_configuration(written)))), path.parent.name)
            except (DetentError, OSError):
                continue  # unreadable, so not known to belong to this sweep
    return found


def plan_from_flags(flags: Table) -> Plan:
    """A grid from the command line: `{"task": ["Hopper-v5"], "learning_rate": ["log-uniform:1e-5,1e-2"], ...}`."""
    return Plan(_grids({}, [], flags))


def plan_from_file(path: str | Path, flags: Table | None = None, imports: Collection[str] = ()) -> Plan:
    """Grids from a TOML file; flags override its keys.

    A task that the file names as module:factory is accepted only if its module is in `imports`, the modules that the
    user trusts.
    """
    with in_file(str(path)):
        shared = read_toml(Path(path), "a sweep file")
        tables = shared.pop("grid", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise BadInput("grid must be a list of tables, each headed by [[grid]].")
        return Plan(_grids(shared, tables, flags or {}, imports), str(path))


def _grids(shared: Table, tables: list[Table], flags: Table, imports: Collection[str] = ()) -> tuple[Grid, ...]:
    shared, flags = (_with_seed(_renamed(table)) for table in (shared, flags))
    tables = [_with_seed(_renamed(table)) for table in tables]
    named = None if "task" in flags else imports
    tasks: dict[str, Task] = {}
    grids = tuple(_grid({**shared, **table, **flags}, tasks, named) for table in tables or [{}])
    if not any(grid.drawn for grid in grids) and any("draws" in table for table in (shared, flags, *tables)):
        raise BadInput(
            "--draws needs an option to draw, such as --learning-rate log-uniform:1e-5,1e-2 (in a file: "
            "learning_rate = {log_uniform = [1e-5, 1e-2]})."
        )
    # An option need not exist in every run that it is given for, but it must exist in at least one.
    given = [(table, [grid]) for table, grid in zip(tables, grids, strict=False)]
    for table, where in [(shared, list(grids)), (flags, list(grids)), *given]:
        for key in table:
            if key not in (*NAMES, *OWN_KEYS) and not any(grid.has(key) for grid in where):
                where[0].refuse(key)
    return grids


def _renamed(table: Table) -> Table:
    """Options that the table calls by an old name, under today's."""
    renamed = old_names(_parts())
    return {renamed.get(key, key): value for key, value in table.items()}


def _with_seed(table: Table) -> Table:
    """`seeds = 5` is `seed = "0-4"`."""
    if "seeds" not in table:
        return table
    if "seed" in table:
        raise BadInput("--seeds and --seed both set the seeds; give only one of them.")
    last = _whole(table, "seeds", 1, 1) - 1
    return {**{k: v for k, v in table.items() if k != "seeds"}, "seed": f"0-{last}"}


def _grid(table: Table, tasks: dict[str, Task], imports: Collection[str] | None) -> Grid:
    """The grid of a table, which adds the tasks that it names to those found so far.

    `imports` are the modules that the user named, if the tasks come from a file; None if the user named the tasks.
    """
    if "task" not in table:
        raise BadInput("There is no task; name at least one with --task.")
    read = {key: _axis(key, given) for key, given in table.items() if key not in OWN_KEYS}
    drawn = {key: values for key, values in read.items() if isinstance(values, Draw)}
    axes = {key: values for key, values in read.items() if not isinstance(values, Draw)}
    if drawn and "draws" not in table:
        raise BadInput(f"{flag(next(iter(drawn)))} is drawn at random; set the number of draws with --draws.")
    draws = _whole(table, "draws", 1, 1) if drawn else 1
    for name in axes["task"]:
        tasks[name] = tasks.get(name) or find_task(name, imports if ":" in name else None)
    return Grid(tasks, axes, drawn, draws, _whole(table, "draw_seed", 0, 0))
