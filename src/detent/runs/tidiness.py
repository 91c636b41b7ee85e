"""Giving memory back to the system, so that a long run needs no more than a short one."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

M_ARENA_MAX = -8
"""Of mallopt(3)."""


def share_one_arena() -> None:
    """Let threads that start from now on share the pools of memory that there are (glibc; elsewhere, do nothing).

    By default every thread gets one of its own. Environments made and closed again and again, with threads of their
    own, leave holes in each, and the process grows by megabytes although nothing is lost.
    """
    _call("mallopt", M_ARENA_MAX, 1)


def give_back() -> None:
    """Collect garbage, and return to the system what is free between what is used (glibc; elsewhere, only collect)."""
    gc.collect()
    _call("malloc_trim", 0)


def _call(name: str, *arguments: Any) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
