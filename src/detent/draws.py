"""Values to choose from: a draw of a sweep, and the range in which `detent tune` searches an option."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

KINDS = ("uniform", "log_uniform", "choice")


@dataclass(frozen=True)
class Draw:
    """A random variable: `uniform` or `log_uniform` between two bounds, or a `choice` among values.

    The ith value of an option depends only on the seed of the draws, the option's name and i. So all heads and tasks of
    a sweep get the same draws, and more draws leave the first ones unchanged.
    """

    kind: str
    values: tuple[Any, ...]
    whole: bool = False
    """Whether the option is a whole number; both bounds are then possible."""

    def value(self, seed: int, name: str, index: int) -> Any:
        digest = hashlib.sha256(f"{seed}/{name}/{index}".encode()).digest()
        u = (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # in [0, 1)
        if self.kind == "choice":
            return self.values[int(u * len(self.values))]
        low, high = (float(value) for value in self.values)
        if self.kind == "log_uniform":
            drawn = math.exp(math.log(low) + u * (math.log(high + self.whole) - math.log(low)))
        else:
            drawn = low + u * (high + self.whole - low)
        return min(int(drawn), int(high)) if self.whole else readable(drawn)


def readable(value: float) -> float:
    """Six digits of it: a run's name must not depend on the last bit of a machine's logarithm."""
    return float(f"{value:.6g}")


def uniform(low: float, high: float) -> Draw:
    """Any value between two bounds; if the option is a whole number, both bounds are possible."""
    return Draw("uniform", (low, high))


def log_uniform(low: float, high: float) -> Draw:
    """The same with a uniform logarithm, for values that may differ by orders of magnitude."""
    return Draw("log_uniform", (low, high))


def choice(*values: Any) -> Draw:
    """One of some values."""
    return Draw("choice", values)
