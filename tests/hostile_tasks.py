"""Environments and an algorithm that do what they should not, for `test_hardening.py`. Worker processes import this."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from host_tasks import Drift, Hangs, Task

__all__ = ["Drift", "Hangs"]


class Exits(Task):
    """Ends the program, in whichever way a program ends, wherever it is asked to."""

    def __init__(self, where: str, how: str = "sys.exit(0)") -> None:
        super().__init__()
        self.where, self.how = where, how
        self._exit("make")

    def _exit(self, here: str) -> None:
        if here == self.where:
            if self.how == "GeneratorExit":
                raise GeneratorExit
            sys.exit(0 if self.how == "sys.exit(0)" else self.how)

    def reset(self, **given: Any) -> Any:
        self._exit("reset")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        if self.taken == 2:
            self._exit("step")
        return super().step(action)

    def close(self) -> None:
        self._exit("close")


class Unreadable:
    """An object that NumPy takes as it is."""


WRONG: dict[str, tuple[int, Any]] = {
    "a batch of one": (0, np.zeros((1, 3))),
    "a batch of batches of one": (0, np.zeros((1, 1, 3))),
    "a batch": (0, np.zeros((2, 3))),
    "one number for three": (0, np.zeros(1)),
    "a number for three": (0, 0.0),
    "a column": (0, np.zeros((3, 1))),
    "texts": (0, np.array(["1", "2", "3"])),
    "texts in a list": (0, ["1", "2", "3"]),
    "bytes": (0, np.array([b"1", b"2", b"3"])),
    "complex numbers": (0, np.zeros(3, np.complex128)),
    "complex numbers in a list": (0, [1j, 0j, 0j]),
    "objects": (0, np.array([1.0, 2.0, None], object)),
    "numbers as objects": (0, np.array([1.0, 2.0, 3.0], object)),
    "an object": (0, Unreadable()),
    "times": (0, np.zeros(3, "datetime64[s]")),
    "nothing": (0, None),
    "a dictionary": (0, {"place": np.zeros(3)}),
    "rows of unequal length": (0, [[1.0], [2.0, 3.0]]),
    "a reward that is a text": (1, "1.5"),
    "a reward that is a text in an array": (1, np.array("1.5")),
    "a reward that is complex": (1, np.complex128(1.0)),
    "a reward that is an array of two": (1, np.zeros(2)),
    "a reward that is empty": (1, np.zeros(0)),
    "a reward that is an object": (1, np.array(1.0, object)),
    "a reward that is missing": (1, None),
    "a reward that is a time": (1, np.timedelta64(1, "s")),
    "terminated that is a text": (2, "False"),
    "terminated that is an empty text": (2, ""),
    "terminated that is an array of two": (2, np.array([False, False])),
    "terminated that is an empty list": (2, []),
    "terminated that is missing": (2, None),
    "terminated that is 2": (2, 2),
    "terminated that is NaN": (2, float("nan")),
    "terminated that is an object": (2, Unreadable()),
    "terminated that is complex": (2, 0j),
    "truncated that is a text": (3, "no"),
    "truncated that is a list": (3, [True, False]),
    "truncated that is a dictionary": (3, {"TimeLimit.truncated": False}),
    "truncated that is a text in an array": (3, np.array("False")),
    "success that is a text": (4, {"is_success": "False"}),
    "success that is an array": (4, {"is_success": np.array([True, False])}),
    "no information": (4, None),
}
"""Name -> which of the five results of a step is wrong, and how."""


class Wrong(Task):
    """Returns something wrong at its third step, and something wrong at its reset if that is `early`."""

    def __init__(self, what: str, early: bool = False) -> None:
        super().__init__()
        self.place, self.value = WRONG[what]
        self.early = early

    def reset(self, **given: Any) -> Any:
        answer = super().reset(**given)
        return (self.value, {}) if self.early else answer

    def step(self, action: Any) -> Any:
        answer: list[Any] = list(super().step(action))
        if self.taken == 3:
            answer[self.place] = self.value
        return tuple(answer)


RIGHT: dict[str, list[Any]] = {
    "Python's types": [[1.0, 2.0, 3.0], 1, False, True, {}],
    "NumPy's": [np.ones(3, np.float32), np.float32(1.0), np.bool_(False), np.bool_(True), {"is_success": np.bool_(1)}],
    "arrays without axes": [np.ones(3), np.array(1.0), np.array(False), np.array(True), {"is_success": np.array(1)}],
    "arrays of one": [np.ones(3, np.int64), np.ones(1), np.zeros(1, bool), np.ones(1, bool), {}],
    "0 and 1": [np.ones(3, np.uint8), np.int64(1), 0, 1, {"is_success": 1}],
    "0. and 1.": [(1, 2, 3), True, 0.0, np.float64(1.0), {"is_success": 0.5}],
    "half precision": [np.ones(3, np.float16), np.float16(1.0), False, True, {}],
}


class Right(Task):
    """Returns what real environments return; every episode is one step."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.answer = RIGHT[what]

    def step(self, action: Any) -> Any:
        return tuple(self.answer)


class Moves(Drift):
    """Changes the current directory as soon as it is made, and again while it is used."""

    def __init__(self, to: str, render_mode: str | None = None) -> None:
        super().__init__()
        self.to = to
        os.chdir(to)

    def step(self, action: Any) -> Any:
        os.chdir("/" if self.taken % 2 else self.to)
        return super().step(action)
