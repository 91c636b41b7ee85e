"""Which of many cases `make test` tries; the others wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def crossed(rows: Sequence[str], columns: Sequence[str], row: str, column: str) -> list[tuple[str, str]]:
    """Every row under one column and one row under every column: each of them, without all of their pairs."""
    return [(r, c) for r in rows for c in columns if r == row or c == column]


def slow_unless(quick: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters; those that are not quick are slow tests."""
    whole = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if quick(*case) else pytest.mark.slow) for case in whole]
