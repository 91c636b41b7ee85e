"""`--initial-std`: the same start for every head, which each realises in its own terms.

The standard deviation of the first policy is that of the action in units where the bounds are -1 and 1, before it is
clipped. A head sets it by the initial values of its own parameters or by those of the network's last biases, so a
trained policy is deployed and exported as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from detent.draws import log_uniform
from detent.errors import BadInput
from detent.options import option

Logits = Float[NDArray[np.float64], " k"]


@dataclass(frozen=True, kw_only=True)
class InitialStd:
    """The option, for heads to inherit."""

    initial_std: float | None = option(
        None,
        "standard deviation of the first policy, in units where the bounds are -1 and 1 (default: the head's own)",
        above=0,
        search=log_uniform(0.1, 1.0),
    )

    def initial_stds(self) -> tuple[float, float]:
        """The least and the greatest standard deviation that the first policy can have."""
        raise NotImplementedError

    def bounds(self) -> dict[str, tuple[float, float]]:
        """What `detent tune` may try, given the other options."""
        return {"initial_std": self.initial_stds()}

    def check_initial_std(self, of: str) -> None:
        """Raise `BadInput` if the first policy of such a head cannot have this standard deviation."""
        least, most = self.initial_stds()
        if self.initial_std is None or least <= self.initial_std <= most:
            return
        least, most = _rounded(least, math.ceil), _rounded(most, math.floor)
        possible = f"between {least:g} and {most:g}" if least < most else f"{most:g}"
        raise BadInput(f"With {of}, --initial-std must be {possible}, not {self.initial_std:g}.")


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    """To three digits, up or down."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return to_whole(value * scale) / scale


# --- K positions ---


def bell_stds(bins: int) -> tuple[float, float]:
    """The least and the greatest standard deviation of `bell`: that of its steepest t, and the uniform one."""
    return _std(bins, _steepest(bins)), _std(bins, 0.0)


def bell(bins: int, std: float) -> Logits:
    """-t x_j^2 at the positions x_j = 2 j / (K - 1) - 1, where t = 1 / (2 s^2) is such that softmax has this std."""
    t = bisect(lambda t: np.asarray(_std(bins, float(t)) - std), 0.0, _steepest(bins))
    return _logits(bins, float(t))


def _logits(bins: int, t: float) -> Logits:
    return -t * np.linspace(-1.0, 1.0, bins) ** 2


def _std(bins: int, t: float) -> float:
    logits = _logits(bins, t)
    p = np.exp(logits - logits.max())
    return float(np.sqrt(p @ np.linspace(-1.0, 1.0, bins) ** 2 / p.sum()))


def _steepest(bins: int) -> float:
    """Where s is a third of the distance between positions, so only the middle one (or two, if K is even) is likely.

    On a fine grid, where s = 0.01: float32 cannot add up the steps of much steeper bells, as the ordinal head does.
    """
    return min(9.0 / 8.0 * (bins - 1) ** 2, 0.5 / 0.01**2)


def bisect(
    decreasing: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    low: NDArray[np.float64] | float,
    high: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """Where a decreasing function is 0 between `low` and `high`, element by element, to the precision of float64."""
    ends = np.array([low, high], np.float64)
    for _ in range(100):
        middle = ends.mean(axis=0)
        ends = np.where(decreasing(middle) > 0, [middle, ends[1]], [ends[0], middle])
    return np.asarray(ends.mean(axis=0))
