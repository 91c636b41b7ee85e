"""Errors whose text is a sentence for the user. Each has the exit code of the command line."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class DetentError(Exception):
    """Base class of all errors that Detent raises."""

    exit_code = 2


class BadInput(DetentError):
    """The user asked for something that cannot be done. The text says what was wrong and what would be right."""


class NeedsImport(BadInput):
    """A file names something in a module that only the user may import."""

    def __init__(self, text: str, module: str) -> None:
        super().__init__(text)
        self.module = module


class EnvironmentFailed(DetentError):
    """An environment raised an exception, hung or returned values that are not finite."""


class Refused(DetentError):
    """The machine did not give what was needed: memory, a file, a process."""


class ClusterLost(DetentError):
    """The cluster that a sweep was on is gone; its runs can be continued, there or elsewhere."""

    exit_code = 3


class Defect(DetentError):
    """Nobody foresaw this. The text names the file that says where it happened."""

    exit_code = 70


class Diverged(DetentError):
    """Training produced a loss or parameters that are not finite. This is a result, not a crash."""

    exit_code = 3


@contextmanager
def in_file(file: str | None) -> Iterator[None]:
    """Make errors in a TOML file name the file, and its keys instead of flags."""
    try:
        yield
    except NeedsImport:
        raise
    except BadInput as error:
        if file is None:
            raise
        text = re.sub(r"(?<!\w)--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), str(error))
        raise BadInput(f"{file}: {text}") from error


LONGEST = 120
"""Characters of a value that an error shows."""


def quoted(value: Any) -> str:
    """A value as an error shows it: as Python writes it, shortened if that is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with too many digits, a list in too many lists
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"


def one_line(error: BaseException) -> str:
    """An exception's type and text and where in the user's code it arose, on one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    where = users_frame(error)
    return f"{text} ({where})" if where else text


OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def users_frame(error: BaseException) -> str | None:
    """`quad.py:38 in step`: the innermost frame of the user's own code, or of what is installed; None if there is none.

    An exception raised inside NumPy is of most use with the line that called NumPy.
    """
    import sysconfig  # here, because policies act without it

    installed = tuple(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((OURS, "<frozen "))
    ]
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}" if own else None


def refused(error: BaseException) -> Refused | None:
    """A sentence for an error of the machine's, such as a lack of memory; None for any other."""
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return Refused("There is not enough memory for this; fewer --envs or a smaller --batch-size need less.")
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return Refused(f"The system refused{where}: {error.strerror or error}.")
    return None


def _out_of_memory(error: BaseException) -> bool:
    """Whether it is one of JAX's ways to say so; recognised by name, because errors need no JAX."""
    ways = "RESOURCE_EXHAUSTED", "INTERNAL: YNNPACK operation failed"  # what a matrix product needs beside its factors
    return type(error).__name__ == "JaxRuntimeError" and str(error).startswith(ways)
