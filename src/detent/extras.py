"""Packages that only some users need."""

from __future__ import annotations

import importlib
from typing import Any

from detent.errors import BadInput


def needed(module: str, extra: str) -> Any:
    """The module, or a sentence with the command that installs the extra of this package it belongs to."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"This needs the package {module}: pip install 'detent[{extra}]'.") from error
