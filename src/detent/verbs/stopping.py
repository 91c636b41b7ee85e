"""Signals that end a command."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Stop:
    """SIGINT and SIGTERM end the run after the current iteration; a second signal ends it immediately."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def why(self) -> str | None:
        return None if self.signal is None else f"received {signal.Signals(self.signal).name}"

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._caught)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
