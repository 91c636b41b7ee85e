"""A wrapper for any library that uses Gymnasium: real-valued actions as K positions per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space
from numpy.typing import ArrayLike, DTypeLike, NDArray

from detent.errors import BadInput


class DiscretizeActions(
    gymnasium.ActionWrapper[Any, NDArray[np.int64], NDArray[np.floating[Any]]], gymnasium.utils.RecordConstructorArgs
):
    """An environment with every action dimension reduced to K equally spaced positions, including `low` and `high`.

    The action space becomes MultiDiscrete; index j of dimension i stands for low_i + (high_i - low_i) j / (K_i - 1).
    `bins` is K, or one K for each dimension. A Box with several axes is flattened in C order.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], bins: int | Sequence[int]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, bins=bins)
        gymnasium.ActionWrapper.__init__(self, env)
        low, high = bounds(env.action_space)
        counts = _counts(bins, low.size)
        self._space: Box = env.action_space  # type: ignore[assignment]  # `bounds` has refused any other
        self.positions = tuple(
            grid(start, end, count, self._space.dtype) for start, end, count in zip(low, high, counts, strict=True)
        )
        """[m][K] The action that each index of each dimension stands for, in the Box's own dtype."""
        self._all = np.concatenate(self.positions)
        self._first = np.cumsum([0, *counts[:-1]])
        self.action_space = MultiDiscrete(counts)

    def action(self, action: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Indices -> the action of the wrapped environment."""
        index, counts = np.asarray(action), self._counts
        if index.shape != counts.shape or index.dtype.kind not in "iu":
            raise BadInput(f"An action must be {counts.size} whole numbers, one for each dimension, not {action!r}.")
        if (index < 0).any() or (index >= counts).any():
            raise BadInput(f"An action's numbers must be from 0 to {_listed(counts - 1)}, not {_listed(index)}.")
        chosen: NDArray[np.floating[Any]] = self._all[self._first + index].reshape(self._space.shape)
        return chosen

    @property
    def _counts(self) -> NDArray[np.int64]:
        return np.array([len(p) for p in self.positions])


def bounds(space: Space[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The bounds of every dimension of a Box, flattened; raises `BadInput` for a space without finite bounds."""
    if not isinstance(space, Box) or space.dtype is None or not np.issubdtype(space.dtype, np.floating):
        raise BadInput(f"The action space must be a Box of real numbers, not {space}.")
    low, high = (np.asarray(end, np.float64).reshape(-1) for end in (space.low, space.high))
    with np.errstate(over="ignore"):
        width = high - low
    if not np.isfinite(width).all():
        raise BadInput(f"A grid needs bounds, and dimension {_first(~np.isfinite(width))} of {space} has none.")
    if not (width > 0).all():
        raise BadInput(f"In dimension {_first(~(width > 0))} of {space}, high is not above low.")
    return low, high


def grid(low: float, high: float, count: int, dtype: DTypeLike) -> NDArray[np.floating[Any]]:
    """[count] Equally spaced positions from `low` to `high`, exact at both ends.

    Raises `BadInput` if rounding makes two of them equal.
    """
    positions: NDArray[np.floating[Any]] = np.linspace(low, high, count).astype(dtype)
    if not (positions[1:] > positions[:-1]).all():
        raise BadInput(f"{count} positions between {low:g} and {high:g} are not all distinct in {np.dtype(dtype)}.")
    return positions


def checked_bins(bins: Any) -> int:
    """The number of positions of a dimension; raises `BadInput` unless it is an integer of at least 2."""
    if isinstance(bins, bool | np.bool_) or not isinstance(bins, int | np.integer) or bins < 2:
        raise BadInput(f"bins must be whole numbers of at least 2, not {bins!r}.")
    return int(bins)


def _counts(bins: int | Sequence[int], dimensions: int) -> list[int]:
    each = [bins] * dimensions if np.ndim(bins) == 0 else list(bins)  # type: ignore[arg-type]
    if len(each) != dimensions:
        raise BadInput(f"bins has {len(each)} numbers, but an action has {dimensions} dimensions.")
    return [checked_bins(count) for count in each]


def _first(where: NDArray[np.bool_]) -> int:
    return int(np.argmax(where))


def _listed(numbers: ArrayLike) -> str:
    return ", ".join(map(str, np.asarray(numbers)))
