"""Errors whose text is a sentence for the user. Each has the exit code of the command line."""

from __future__ import annotations

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


LONGEST = 120
"""Characters of a value that an error shows."""


def quoted(value: Any) -> str:
    """A value as an error shows it: as Python writes it, shortened if that is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with too many digits, a list in too many lists
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"


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
