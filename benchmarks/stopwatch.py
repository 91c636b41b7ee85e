"""The one way in which every contestant is timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

from launch import READY

WARM_UP = 3
"""Iterations before the clock starts; all compilation happens in them."""
LEAST = 3
"""Iterations timed at least, however long they take."""


def measure(progress: Iterable[int], seconds: float, barrier: bool = False) -> dict[str, float]:
    """Steps per second of an endless iteration.

    `progress` gives the number of steps done so far after every iteration. The clock starts when `WARM_UP` iterations
    are over and stops at the end of the first iteration after `seconds`, so only whole iterations are timed. With a
    barrier, the contestant says that it has warmed up and waits for a line of input first.
    """
    iterations = iter(progress)
    done = _warmed_up(iterations)
    if barrier:
        _go()
    return _timed(iterations, done, seconds)


def measure_rounds(progress: Iterable[int], seconds: float) -> Iterator[dict[str, float]]:
    """A measurement for each line of input, until there is no more; between them, the contestant waits."""
    iterations = iter(progress)
    done = _warmed_up(iterations)
    while _go():
        result = _timed(iterations, done, seconds)
        done += int(result["steps"])
        yield result


def _warmed_up(iterations: Iterator[int]) -> int:
    """The number of steps done when it is over."""
    return [next(iterations) for _ in range(WARM_UP)][-1]


def _go() -> bool:
    """Say that all is ready and wait for a line of input; False when there are no more."""
    print(READY, flush=True)
    return bool(sys.stdin.readline())


def _timed(iterations: Iterator[int], done: int, seconds: float) -> dict[str, float]:
    start = time.perf_counter()
    for iteration, steps in enumerate(iterations, 1):
        elapsed = time.perf_counter() - start
        if iteration >= LEAST and elapsed >= seconds:
            return {
                "steps_per_second": (steps - done) / elapsed,
                "steps": steps - done,
                "seconds": elapsed,
                "iterations": iteration,
            }
    raise RuntimeError("the contestant ended before it was measured")
