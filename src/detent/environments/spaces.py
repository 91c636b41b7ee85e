"""Gymnasium's spaces in Detent's form: observations are vectors, and actions have one axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from detent.environments import ActionSpace
from detent.errors import BadInput
from detent.observations import Choices, Layout, Numbers, Parts


def observation_layout(name: str, space: spaces.Space[Any]) -> Layout:
    """The layout of observations of this space; raises `BadInput` if the task cannot be trained on them."""
    layout = _layout(name, space)
    if layout.size == 0:
        raise BadInput(f"{name} has empty observations; a policy needs at least one number.")
    return layout


def _layout(name: str, space: spaces.Space[Any]) -> Layout:
    match space:
        case spaces.Box() if space.dtype == np.uint8 and len(space.shape) >= 3:
            raise BadInput(
                f"{name} has images in its observations (uint8, of shape {space.shape}). Images are not supported, "
                "because Detent has no convolutional network. To leave out parts of a Dict, use "
                "gymnasium.wrappers.FilterObservation."
            )
        case spaces.Box() | spaces.MultiBinary():
            return Numbers(tuple(space.shape))
        case spaces.Discrete():
            return Choices((int(space.n),), (int(space.start),), ())
        case spaces.MultiDiscrete():
            counts, first = (tuple(values.ravel().tolist()) for values in (space.nvec, space.start))
            return Choices(counts, first, space.nvec.shape)
        case spaces.Tuple():
            return Parts(tuple(_layout(name, part) for part in space.spaces))
        case spaces.Dict() if all(isinstance(key, str) for key in space.spaces):
            return Parts(tuple(_layout(name, part) for part in space.spaces.values()), tuple(space.spaces))
    raise BadInput(
        f"{name} has {type(space).__name__} observations; Detent supports Box, Discrete, MultiDiscrete and "
        "MultiBinary, and Dict and Tuple of these."
    )


def action_space(name: str, space: spaces.Space[Any], bounded: bool) -> ActionSpace:
    """The actions of an environment in Detent's form: one axis, real numbers or choices."""
    choices = choices_of(space)
    if choices is not None:
        first = np.broadcast_to(np.asarray(space.start, np.int64).ravel(), len(choices))  # type: ignore[attr-defined]
        return spaces.Box(first, first + np.array(choices) - 1, dtype=np.int64)
    if not isinstance(space, spaces.Box):
        raise BadInput(
            f"{name} has {type(space).__name__} actions; Detent supports Box, Discrete and MultiDiscrete actions, so "
            "wrap it in a gymnasium.ActionWrapper that converts them to one of these."
        )
    if space.shape == () or 0 in space.shape:
        raise BadInput(
            f"{name} has Box actions of shape {space.shape}; Detent needs at least one axis and no empty ones."
        )
    return _flat_box(name, space, bounded)


def choices_of(space: spaces.Space[Any]) -> tuple[int, ...] | None:
    """The number of choices in each dimension of a Discrete or MultiDiscrete space; None for other spaces."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    return None


def _flat_box(name: str, space: spaces.Box, bounded: bool) -> ActionSpace:
    """A Box of float32 actions with one axis that lies within the given one."""
    low, high = _rounded(space.low.ravel(), np.inf), _rounded(space.high.ravel(), -np.inf)
    if not np.all(low < high):
        raise BadInput(f"{name} has empty action bounds; every `low` must be below its `high`.")
    if bounded and not np.all(np.isfinite([low, high])):
        raise BadInput(f"{name} has actions without finite bounds; give its Box finite bounds or use --actions raw.")
    return spaces.Box(low, high, dtype=np.float32)


def _rounded(bound: NDArray[Any], inward: float) -> NDArray[np.float32]:
    """A bound in float32, rounded inward: an environment may refuse an action that is outside by a rounding error."""
    with np.errstate(over="ignore"):
        near = bound.astype(np.float32)
    outside = near < bound if inward > 0 else near > bound
    return np.where(outside, np.nextafter(near, np.float32(inward)), near)
