"""Detent as a package that is installed: its name in the package index, its version and its extras."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from detent.errors import BadInput

NAME = "detent-rl"
"""What `pip install` takes; the index has a `detent` that is another project."""


def version() -> str:
    """The installed version."""
    return metadata.version(NAME)


def install_extra(extra: str) -> str:
    """The command that installs an extra, such as `play`."""
    return f"pip install '{NAME}[{extra}]'"


def import_optional(module: str, extra: str) -> Any:
    """Import `module`, or raise `BadInput` with the command that installs the extra which contains it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"This needs the package {module}: {install_extra(extra)}.") from error
