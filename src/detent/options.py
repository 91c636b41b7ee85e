"""Options are fields of frozen dataclasses: a default, one line of help, and the values that make sense."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from detent.errors import BadInput


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field that appears as a command-line flag, with its help and its range."""
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "choices": choices}
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits})


def options_of(configurable: Any) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a dataclass (or an instance of one) that were declared with `option`."""
    return (f for f in dataclasses.fields(configurable) if "help" in f.metadata)


def flag(name: str) -> str:
    """`learning_rate` -> `--learning-rate`."""
    return "--" + name.replace("_", "-")


def check_options(configured: Any) -> None:
    """Raise `BadInput` for the first option outside its range. Called by `__post_init__`."""
    for declared in options_of(configured):
        value = getattr(configured, declared.name)
        if value is None:
            continue
        wanted = _complaint(value, **declared.metadata["limits"])
        if wanted:
            raise BadInput(f"{flag(declared.name)} must be {wanted}, not {value}.")


def _complaint(
    value: Any,
    at_least: float | None,
    above: float | None,
    at_most: float | None,
    choices: tuple[str, ...] | None,
) -> str | None:
    if choices is not None:
        return None if value in choices else "one of " + ", ".join(choices)
    if at_least is above is at_most is None:
        return None
    if not math.isfinite(value):
        return "a finite number"
    if at_least is not None and value < at_least:
        return f"at least {at_least:g}"
    if above is not None and value <= above:
        return f"greater than {above:g}"
    if at_most is not None and value > at_most:
        return f"at most {at_most:g}"
    return None
