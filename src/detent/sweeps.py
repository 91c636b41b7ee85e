"""Sweeps: which runs. Grids and random draws, from flags or a TOML file; each run is named by its configuration.

task = ["HalfCheetah-v5", "Humanoid-v5"]       # several values make a grid
head = ["gaussian", "ordinal"]
bins = [7, 11]                                  # only where there are bins
seed = "0-4"
draws = 30                                      # of each option that is drawn
learning_rate = {log_uniform = [1e-5, 1e-2]}

[[grid]]                                        # a union: one table for each part,
head = "beta"                                   # whose keys take the place of those above
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from detent.algorithms import ALGORITHMS
from detent.configuration import (
    DEFAULT_ALGO,
    DEFAULT_PRESET,
    Run,
    Settings,
    checked_preset,
    fitting_head,
    kind_of,
    option_parts,
    unknown_option,
)
from detent.directory import RunDirectory
from detent.errors import BadInput, NeedsImport
from detent.files import Corrupt, read_json, write_json
from detent.heads import HEADS
from detent.options import flag, options_of
from detent.registry import nearest
from detent.tasks import Task, find_task

SCHEMA = 1
"""Of sweep.json."""
NAMES = ("task", "head", "algo", "preset")
OWN_KEYS = ("seeds", "draws", "draw_seed")
"""What a sweep has and a run has not: the number of seeds, from 0 on; how many draws; the seed of the draws."""
LARGEST_FILE = 2**20
Table = dict[str, Any]
"""Keys as in the file: underscores, and values as TOML or the command line gives them."""


# --- names ---


def run_name(run: Run) -> str:
    """`<task>-<algo>-<head>-<seed>-<12 digits>`; the digits are of a hash over all that decides what is computed."""
    digest = hashlib.sha256(json.dumps(run.identity, sort_keys=True).encode()).hexdigest()
    return f"{run.slug}-{digest[:12]}"


def write_plan(out: Path, runs: Mapping[str, Run]) -> None:
    """Write `<out>/sweep.json`, for whoever wants to know what belongs to the sweep."""
    described = [{"name": name, **run.configuration} for name, run in runs.items()]
    write_json(out / "sweep.json", {"schema": SCHEMA, "detent": metadata.version("detent"), "runs": described})


def read_plan(out: Path) -> dict[str, dict[str, Any]]:
    """Name -> configuration of the runs of the sweep that was last started in `out`."""
    plan = read_json(out / "sweep.json")
    if plan.get("schema") != SCHEMA:
        raise Corrupt(
            f"{out / 'sweep.json'} is not of version {SCHEMA}, the only one this Detent reads: it was written by "
            f"Detent {plan.get('detent', 'of another version')}; choose another --out."
        )
    try:
        return {str(run["name"]): {k: v for k, v in run.items() if k != "name"} for run in plan["runs"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{out / 'sweep.json'} is damaged: it should list runs with their names.") from error


def listed(runs: Mapping[str, Run], out: Path) -> Iterator[str]:
    """A line per run: how far it is, its name, and the options that are not the same in all runs."""
    flat = {name: {"preset": run.names[3], **run.options} for name, run in runs.items()}
    values: dict[str, set[str]] = {}
    for options in flat.values():
        for key, value in options.items():
            values.setdefault(key, set()).add(str(value))
    for name, options in flat.items():
        directory = RunDirectory(out / name)
        status = directory.status() if directory.exists else "new"
        different = [f"{key}={value}" for key, value in options.items() if len(values[key]) > 1 and key != "seed"]
        yield f"{status:<9} {name}  {' '.join(different)}".rstrip()


# --- draws ---


@dataclass(frozen=True)
class Draw:
    """A random variable: `uniform` or `log_uniform` between two bounds, or a `choice` among values.

    The i-th value of an option depends on the seed of the draws, the option's name and i alone. So all heads and tasks
    of a sweep get the same draws, and more draws leave the first ones as they are.
    """

    kind: str
    values: tuple[Any, ...]
    whole: bool
    """Whether the option is a whole number; both bounds are then possible."""

    def value(self, seed: int, name: str, index: int) -> Any:
        digest = hashlib.sha256(f"{seed}/{name}/{index}".encode()).digest()
        u = (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # in [0, 1)
        if self.kind == "choice":
            return self.values[int(u * len(self.values))]
        low, high = (float(value) for value in self.values)
        if self.kind == "log_uniform":
            drawn = math.exp(math.log(low) + u * (math.log(high + self.whole) - math.log(low)))
        else:
            drawn = low + u * (high + self.whole - low)
        # Six digits: a name must not depend on the last bit of a machine's logarithm.
        return min(int(drawn), int(high)) if self.whole else float(f"{drawn:.6g}")


DRAWS = ("uniform", "log_uniform", "choice")


def _draw(key: str, kind: str, values: Any) -> Draw:
    whole = _kind(key) == "int"
    if kind not in DRAWS:
        raise BadInput(f"{flag(key)}: there is no distribution {kind!r}; there are {', '.join(DRAWS)}.")
    if kind == "choice":
        if not isinstance(values, list) or not values:
            raise BadInput(f"{flag(key)}: choice needs a list of values, not {values!r}.")
        return Draw(kind, tuple(values), whole)
    if _kind(key) not in ("int", "float"):
        raise BadInput(f"{flag(key)} is no number, so that it can be drawn by choice only, not by {kind}.")
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (kind == "uniform" or low > 0)):
        wanted = "two numbers, the lower one first" + ", both greater than 0" * (kind == "log_uniform")
        raise BadInput(f"{flag(key)}: {kind} needs {wanted}, not {values!r}.")
    if whole and (low % 1 or high % 1):
        raise BadInput(f"{flag(key)} is a whole number, so that the bounds of {kind} must be too, not {values!r}.")
    return Draw(kind, (low, high), whole)


# --- values ---


def option_kinds() -> dict[str, str]:
    """Every option that some run has -> `int`, `float`, `bool`, `str`, `tuple` or `dict`."""
    parts = [*map(HEADS.get, HEADS.names()), *map(ALGORITHMS.get, ALGORITHMS.names()), Settings]
    return {f.name: kind_of(f) for part in parts for f in options_of(part)}


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
            raise BadInput(f"{flag(key)} must be a name or a list of names, not {given!r}.")
        return list(dict.fromkeys(names))
    kind = _kind(key)
    if isinstance(given, dict) and kind != "dict":
        if len(given) != 1:
            raise BadInput(f"{flag(key)} can be drawn by one of {', '.join(DRAWS)}, not by {given!r}.")
        return _draw(key, *next(iter(given.items())))
    # [64, 64] is one value of an option that is a list itself; [[64, 64], [32]] are two.
    one = not isinstance(given, list) or (kind == "tuple" and all(isinstance(part, int) for part in given))
    values = [given] if one else given
    if not values:
        raise BadInput(f"{flag(key)} has no value.")
    texts = [value for value in values if isinstance(value, str)]
    drawn = next((match for text in texts if (match := _DRAWN.fullmatch(text))), None)
    if drawn:
        if len(values) > 1:
            raise BadInput(f"{flag(key)} can be drawn or have several values, not both: {values!r}.")
        return _draw(key, drawn[1].replace("-", "_"), [part for part in drawn[2].split(",") if part])
    if kind == "int":
        ranges = [_spread(key, value) for value in values]
        if len(ranges) == 1:
            return ranges[0]  # not listed: it may be long
        if sum(map(len, ranges)) > 10**6:
            raise BadInput(f"{flag(key)} has more than a million values; give them as one range.")
        values = list(itertools.chain.from_iterable(ranges))
    return [value for number, value in enumerate(values) if value not in values[:number]]


def _spread(key: str, value: Any) -> Sequence[Any]:
    """`"0-4"` is 0, 1, 2, 3, 4; anything else is itself."""
    found = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if not found:
        return [value]
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise BadInput(f"{flag(key)} {value}: a range begins with its smallest number.")
    return range(first, last + 1)


def _whole(table: Table, key: str, default: int, least: int) -> int:
    value = table.get(key, default)
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise BadInput(f"{flag(key)} must be a whole number of at least {least}, not {value!r}.")
    return int(text)


# --- grids ---


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of some options, times the draws of others.

    An option that a head or an algorithm does not have is not applied to it: the Gaussian runs once, however many
    numbers of bins there are.
    """

    axes: Mapping[str, Sequence[Any]]
    drawn: Mapping[str, Draw]
    draws: int
    draw_seed: int
    may_import: bool
    """Whether tasks may be named as module:factory of a module that is not imported yet."""

    def pairings(self) -> Iterator[tuple[str, str, str, str]]:
        """Task, head, algorithm and preset, in every combination."""
        defaults = {"head": (None,), "algo": (DEFAULT_ALGO,), "preset": (DEFAULT_PRESET,)}
        env_kwargs = self.axes.get("env_kwargs", (None,))[0]
        for task, head, algo, preset in itertools.product(*(self.axes.get(k) or defaults[k] for k in NAMES)):
            found = self._task(task)
            chosen = head or fitting_head(found, env_kwargs)
            checked_preset(preset, algo, chosen)
            yield task, chosen, algo, preset

    def _task(self, name: str) -> Task:
        return find_task(name, self.may_import or ":" not in name)

    def has(self, key: str) -> bool:
        """Whether some run of this grid has the option."""
        return any(key in _options(head, algo) for _, head, algo, _ in self.pairings())

    def refuse(self, key: str) -> None:
        """Say why no run of this grid has the option."""
        _, head, algo, _ = next(self.pairings())
        raise BadInput(unknown_option(key, head, algo))

    def count(self) -> int:
        """How many runs there are, without making them; duplicates count."""
        total = 0
        for _, head, algo, _ in self.pairings():
            has = _options(head, algo)
            sizes = [len(values) for key, values in self.axes.items() if key in has]
            total += math.prod(sizes) * (self.draws if has & self.drawn.keys() else 1)
        return total

    def runs(self) -> Iterator[Run]:
        """Draw by draw and seed by seed, so that a sweep that is under way has something of everything."""
        pairings = list(self.pairings())
        for index, seed in itertools.product(range(self.draws), self.axes.get("seed", (None,))):
            for task, head, algo, preset in pairings:
                has = _options(head, algo)
                if index and not has & self.drawn.keys():
                    continue
                fixed = {key: draw.value(self.draw_seed, key, index) for key, draw in self.drawn.items() if key in has}
                if seed is not None:
                    fixed["seed"] = seed
                keys = [key for key in self.axes if key in has and key != "seed"]
                for values in itertools.product(*(self.axes[key] for key in keys)):
                    options = fixed | dict(zip(keys, values, strict=True))
                    yield Run(self._task(task), head, algo, preset, **options)


@cache
def _options(head: str, algo: str) -> frozenset[str]:
    return frozenset(f.name for part in option_parts(head, algo) for f in options_of(part))


@dataclass(frozen=True)
class Plan:
    """A union of grids."""

    grids: tuple[Grid, ...]
    file: str | None = None

    def count(self) -> int:
        """How many runs there are at most (duplicates are dropped only from `runs`); a million are counted at once."""
        with _told_of(self.file):
            return sum(grid.count() for grid in self.grids)

    def runs(self) -> list[Run]:
        """Every run once. Each is checked: what it is made of exists and fits."""
        with _told_of(self.file):
            return list(by_name(itertools.chain.from_iterable(grid.runs() for grid in self.grids)).values())


def by_name(runs: Iterable[Run]) -> dict[str, Run]:
    """Name -> run, in order and without duplicates."""
    named: dict[str, Run] = {}
    for run in runs:
        named.setdefault(run_name(run), run)
    return named


@contextmanager
def _told_of(file: str | None) -> Iterator[None]:
    """Errors in a file name the file, and its keys instead of flags."""
    try:
        yield
    except NeedsImport:
        raise
    except BadInput as error:
        if file is None:
            raise
        text = re.sub(r"(?<!\w)--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), str(error))
        raise BadInput(f"{file}: {text}") from error


def plan_from_flags(flags: Table) -> Plan:
    """A grid from the command line: `{"task": ["Hopper-v5"], "learning_rate": ["log-uniform:1e-5,1e-2"], ...}`."""
    return Plan(_grids({}, [], flags, may_import=True))


def plan_from_file(path: str | Path, flags: Table | None = None) -> Plan:
    """Grids from a TOML file; flags take the place of its keys. No module that the file names is imported."""
    with _told_of(str(path)):
        shared = _read(Path(path))
        tables = shared.pop("grid", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise BadInput("grid must be a list of tables, each headed by [[grid]].")
        return Plan(_grids(shared, tables, flags or {}, may_import=False), str(path))


def _read(path: Path) -> Table:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadInput("a sweep file is smaller than 1 MB.")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"this is not valid TOML: {error}.") from error


def _grids(shared: Table, tables: list[Table], flags: Table, may_import: bool) -> tuple[Grid, ...]:
    shared, flags = _with_seed(shared), _with_seed(flags)
    tables = [_with_seed(table) for table in tables]
    grids = tuple(_grid({**shared, **table, **flags}, may_import) for table in tables or [{}])
    if not any(grid.drawn for grid in grids) and any("draws" in table for table in (shared, flags, *tables)):
        raise BadInput(
            "--draws needs an option to draw, such as --learning-rate log-uniform:1e-5,1e-2 (in a file: "
            "learning_rate = {log_uniform = [1e-5, 1e-2]})."
        )
    # An option may be left out where it does not exist, but it must exist somewhere in what it was given for.
    given = [(table, [grid]) for table, grid in zip(tables, grids, strict=False)]
    for table, where in [(shared, list(grids)), (flags, list(grids)), *given]:
        for key in table:
            if key not in (*NAMES, *OWN_KEYS) and not any(grid.has(key) for grid in where):
                where[0].refuse(key)
    return grids


def _with_seed(table: Table) -> Table:
    """`seeds = 5` is `seed = "0-4"`."""
    if "seeds" not in table:
        return table
    if "seed" in table:
        raise BadInput("--seeds and --seed say the same; give one of them.")
    last = _whole(table, "seeds", 1, 1) - 1
    return {**{k: v for k, v in table.items() if k != "seeds"}, "seed": f"0-{last}"}


def _grid(table: Table, may_import: bool) -> Grid:
    if "task" not in table:
        raise BadInput("There is no task; name at least one with --task.")
    read = {key: _axis(key, given) for key, given in table.items() if key not in OWN_KEYS}
    drawn = {key: values for key, values in read.items() if isinstance(values, Draw)}
    axes = {key: values for key, values in read.items() if not isinstance(values, Draw)}
    if drawn and "draws" not in table:
        raise BadInput(f"{flag(next(iter(drawn)))} is drawn at random; say how often with --draws.")
    draws = _whole(table, "draws", 1, 1) if drawn else 1
    return Grid(axes, drawn, draws, _whole(table, "draw_seed", 0, 0), may_import)
