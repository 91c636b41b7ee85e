"""What JSON from a file must be before anything is computed from it: one schema per kind of file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DEEPEST = 32
"""Maximum nesting of objects and lists, so that whatever is read can be written again."""
LARGEST_FLOAT32 = 3.4028234663852886e38
"""What training computes with; whatever it writes down is no larger, so means and variances of it are finite."""
LARGEST_WHOLE = 2**63 - 1
MOST_AXES = 64
"""Of an array, as in NumPy."""


class Field(NamedTuple):
    """The value of one key."""

    fits: Callable[[Any], bool]
    wanted: str
    """What it should be, as in "steps is not a whole number"."""
    required: bool = True


@dataclass(frozen=True)
class Schema:
    """A JSON object. Keys that it does not mention are left to later versions, unless `others` says what they are."""

    what: str
    """What the object is, as in "a record"."""
    fields: Mapping[str, Field] = field(default_factory=dict)
    others: Field | None = None

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value; None if nothing is."""
        if not isinstance(value, Mapping):
            return "it should hold a JSON object"
        for key, (fits, wanted, required) in self.fields.items():
            if key not in value:
                if required:
                    return f"{key} is missing"
            elif not fits(value[key]):
                return f"{key} is not {wanted}"
        if self.others:
            for key in value:
                if key not in self.fields and not self.others.fits(value[key]):
                    return f"{key} is not {self.others.wanted}"
        return None if is_plain(value) else _ODD

    def __contains__(self, value: Any) -> bool:
        return self.fault(value) is None


_ODD = "a number is not finite or too large, a text is not Unicode, or objects are nested too deeply"
ANY = Schema("an object")


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is JSON that any program can read: finite numbers, Unicode, a limited depth."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) <= sys.float_info.max  # which NaN is not
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, Mapping):
        return depth < DEEPEST and all(
            isinstance(key, str) and is_plain(key) and is_plain(one, depth + 1) for key, one in value.items()
        )
    return isinstance(value, list) and depth < DEEPEST and all(is_plain(one, depth + 1) for one in value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT32


def is_whole(value: Any) -> bool:
    """Whether a value is a count: steps, iterations, a seed."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_WHOLE


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_word(value: Any) -> bool:
    """Whether a value can be part of a label or a message: one line of printable characters."""
    return isinstance(value, str) and value != "" and value.isprintable()


def is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_facts(value: Any) -> bool:
    """Whether a value is an object of short facts: versions, a processor, a number of cores."""
    return isinstance(value, Mapping) and all(
        one is None or is_whole(one) or (isinstance(one, str) and one.isprintable()) for one in value.values()
    )


def or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


WORD = Field(is_word, "a text of one line")
WHOLE = Field(is_whole, "a whole number of at least 0")
NUMBER = Field(or_null(is_number), "a number or null")
REASON = Field(or_null(is_text), "a text or null", required=False)
OBJECT = Field(is_object, "an object")


def optional(declared: Field) -> Field:
    return declared._replace(required=False)
