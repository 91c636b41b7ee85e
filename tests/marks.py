"""Which of many cases `make test` tries; the others wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(quick: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters; those that are not quick are slow tests."""
    whole = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if quick(*case) else pytest.mark.slow) for case in whole]
