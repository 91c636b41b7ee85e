"""What is searched: the options that declare a range (`option(..., search=...)`), or those that the user names.

The space is fixed before the search begins: a product of ranges in which nearly every point makes a valid run.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.draws import KINDS, Draw, readable
from detent.errors import BadInput, in_file, quoted
from detent.files import read_toml
from detent.options import FREE_OPTIONS, flag, old_names, options_of, rivals
from detent.runs.identity import as_json
from detent.runs.run import Names, coerced, kind_of, unknown_option
from detent.sweeps.plan import draw_of

Space = dict[str, Draw]
"""Option -> its range."""
Values = Mapping[str, Any]
NOT_SEARCHED = ("steps", "seed", "env_kwargs", "anneal_steps", "eval_every", "eval_episodes", *FREE_OPTIONS)
"""Options that say what the task is and how long to train, or that change no result."""


def find_space(names: Names, fixed: Values, asked: Space, only: bool, make: Callable[[Values], object]) -> Space:
    """The ranges that the user asked for and those that other options declare; with `only`, just the former.

    Options that are fixed, or that set the same as one that is (`instead_of`), are not searched. `make` raises
    `BadInput` for values that no run can have.
    """
    rival = rivals(names.option_parts)
    taken = {*fixed, *asked} | {rival[name] for name in (*fixed, *asked) if name in rival}
    for name, draw in asked.items():
        if name in fixed:
            raise BadInput(f"{flag(name)} is either fixed or searched; give it either as a flag or in --search.")
        for value in draw.values:
            make({name: value})
    space = dict(asked)
    for part in [] if only else names.option_parts:
        declared = {
            f.name: dataclasses.replace(f.metadata["search"], whole=kind_of(f) == "int")
            for f in options_of(part)
            if f.metadata["search"] and f.name not in taken
        }
        for name, draw in _narrowed(part, declared, fixed, asked).items():
            possible = tuple(value for value in draw.values if _can(make, {name: value}))
            if len(set(possible)) > 1:
                space[name] = dataclasses.replace(draw, values=possible)
    if not space:
        raise BadInput("There is nothing to search: name options with --search, or fix fewer.")
    return dict(sorted(space.items()))


def _narrowed(part: type, declared: Space, fixed: Values, asked: Space) -> Space:
    """The declared ranges, inside the `bounds` that the part has whatever its other options are."""
    if not hasattr(part, "bounds"):
        return declared
    own = {f.name: f for f in options_of(part)}
    given = {name: coerced(own[name], value) for name, value in fixed.items() if name in own}
    limited = part(**given).bounds()
    others = {name: d.values for name, d in {**asked, **declared}.items() if name in own and name not in limited}
    narrowed = dict(declared)
    for chosen in itertools.product(*others.values()):
        bounds: dict[str, tuple[float, float]] = part(**given, **dict(zip(others, chosen, strict=True))).bounds()
        for name, (least, most) in bounds.items():
            if name in narrowed and narrowed[name].kind != "choice":
                low, high = narrowed[name].values
                # A little inside, so that rounding does not lead out.
                inside = max(low, readable(least * 1.0001)), min(high, readable(most * 0.9999))
                narrowed[name] = dataclasses.replace(narrowed[name], values=inside)
    return {name: d for name, d in narrowed.items() if d.kind == "choice" or d.values[0] < d.values[1]}


def _can(make: Callable[[Values], object], values: Values) -> bool:
    try:
        make(values)
    except BadInput:
        return False
    return True


def as_text(space: Space) -> dict[str, Any]:
    """The space as JSON, in the form of a --space file."""
    return {name: {draw.kind: [as_json(value) for value in draw.values]} for name, draw in space.items()}


# --- what the user asks for ---


def asked_by_flags(texts: Sequence[str], names: Names) -> Space:
    """`learning-rate=1e-5:1e-2` is a range; `bins=7,11,15` are choices; `log-uniform:1e-5,1e-2` works as in a sweep."""
    space: Space = {}
    for text in texts:
        key, _, given = text.partition("=")
        if not key or not given:
            raise BadInput(f"--search {text}: write it like --search learning-rate=1e-5:1e-2 or --search bins=7,11,15.")
        declared = searchable(key.replace("-", "_"), names)
        first, colon, rest = given.partition(":")
        kind = first.replace("-", "_")
        if colon and kind in KINDS:
            values = rest.split(",")
        elif colon:
            like = declared.metadata["search"]
            kind, values = like.kind if like and like.kind != "choice" else "uniform", given.split(":")
        else:
            kind, values = "choice", given.split(",")
        space[declared.name] = _typed(declared, draw_of(declared.name, kind, values))
    return space


def asked_by_file(path: str, names: Names) -> Space:
    """Keys of a TOML file: `learning_rate = {log_uniform = [1e-5, 1e-2]}`, `bins = [7, 11, 15]`."""
    space: Space = {}
    with in_file(path):
        for key, given in read_toml(Path(path), "a space").items():
            declared = searchable(key, names)
            table = {"choice": given} if isinstance(given, list) else given
            if not isinstance(table, dict) or len(table) != 1:
                raise BadInput(
                    f"{flag(key)} must be a list of values or one of {', '.join(KINDS)}, not {quoted(given)}."
                )
            space[declared.name] = _typed(declared, draw_of(declared.name, *next(iter(table.items()))))
        if not space:
            raise BadInput("there is no option in it.")
    return space


def searchable(name: str, names: Names) -> dataclasses.Field[Any]:
    """The option of that name, former names included, if it can be searched."""
    name = old_names(names.option_parts).get(name, name)
    found = {f.name: f for part in names.option_parts for f in options_of(part)}
    if name in NOT_SEARCHED or name in Names._fields:
        raise BadInput(f"{flag(name)} cannot be searched: it says what to train or how, not how well.")
    if name not in found:
        raise BadInput(unknown_option(name, names))
    return found[name]


def _typed(declared: dataclasses.Field[Any], draw: Draw) -> Draw:
    """With values of the option's type; numbers to choose from in order, since nearby ones are alike."""
    if draw.kind != "choice":
        return dataclasses.replace(draw, values=tuple(coerced(declared, value) for value in draw.values))
    values = list({str(v): v for v in (coerced(declared, value) for value in draw.values)}.values())
    if len(values) < 2:
        raise BadInput(f"{flag(declared.name)} needs two values to choose from; one value can be fixed as a flag.")
    ordered = sorted(values) if kind_of(declared) in ("int", "float") else values
    return dataclasses.replace(draw, values=tuple(ordered))
