"""The one way in which every contestant is timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from launch import READY

WARM_UP = 3
"""Iterations before the clock starts; they hold all compilation."""
LEAST = 3
"""Iterations timed at least, however long they take."""


def measure(progress: Iterable[int], seconds: float, barrier: bool = False) -> dict[str, float]:
    """Steps per second of an endless iteration.

    `progress` gives the steps done so far after every iteration. The clock starts when `WARM_UP` iterations are
    over and stops at the end of the first iteration after `seconds`, so only whole iterations are timed.
    """
    start = begin = 0.0
    for iteration, steps in enumerate(progress, 1 - WARM_UP):
        now = time.perf_counter()
        if iteration == 0:
            if barrier:
                print(READY, flush=True)
                sys.stdin.readline()
            start, begin = time.perf_counter(), steps
        elif iteration >= LEAST and now - start >= seconds:
            return {
                "steps_per_second": (steps - begin) / (now - start),
                "steps": steps - begin,
                "seconds": now - start,
                "iterations": iteration,
            }
    raise RuntimeError("the contestant ended before it was measured")
