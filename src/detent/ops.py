"""The ops that policies consist of, by name, and how each becomes a NumPy function.

A policy is a list of ops, each `{"op": name, ...constants}`, that transform one running value x from the observation
to the action. Before anything is computed, each op is *placed*: it is checked against the tensors of the policy and
the width of its input, so that a list from a file is either consistent or refused. docs/deploy.md has the formulas.
`detent.networks` interprets the ops of networks in training, and `detent.export` translates all ops for other programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.schemas import MOST_AXES

EPSILON = 1e-8

Floats = NDArray[Any]
"""float32 for inputs and outputs; in between, whatever precision NumPy chooses."""
Choose = str
"""How an action is chosen from a distribution: `mode`, `mean` or `sample`."""
Op = Mapping[str, Any]
Tensors = Mapping[str, Floats]


class Acting(NamedTuple):
    """What steps may use besides x while computing one action."""

    choose: Choose
    rng: np.random.Generator | None
    kept: list[Floats]
    """Values stored by `keep` until the matching `add`."""


Step = Callable[[Floats, Acting], Floats]
"""One op with its constants in place: maps the running value x [..., a] to the next one [..., b]."""


@dataclass
class Place:
    """The place of an op in the list: its input, which the op updates for the next one."""

    tensors: Tensors
    width: int
    """The width of the running value x."""
    kept: list[int] = field(default_factory=list)
    """Widths of the values kept and not yet added."""

    def tensor(self, name: str, *shape: int | None) -> Floats:
        """The floating-point tensor of this name and shape; None stands for any size but 0."""
        found = self.tensors[name]
        fits = len(found.shape) == len(shape) and all(
            has == wants or (wants is None and has > 0) for has, wants in zip(found.shape, shape, strict=True)
        )
        if not fits or found.dtype.kind != "f":
            wanted = " x ".join("any" if size is None else str(size) for size in shape)
            raise ValueError(f"{name} is {found.dtype}{list(found.shape)} instead of {wanted} real numbers")
        return found


def _positive(op: Op, name: str) -> np.float32:
    value = np.float32(float(op[name]))
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {op[name]!r} instead of a positive number")
    return value


class Normalizer(NamedTuple):
    """clip((x - mean) scale, -clip, clip), with scale = 1 / sqrt(var + 1e-8)."""

    mean: Floats
    scale: Floats
    clip: np.float32


def normalizer_of(op: Op, place: Place) -> Normalizer:
    mean, var = (place.tensor(f"observation/{name}", place.width) for name in ("mean", "var"))
    scale = 1 / np.sqrt(var + np.float32(EPSILON))
    if not np.isfinite(scale).all():
        raise ValueError("a variance is negative")
    return Normalizer(mean, scale, _positive(op, "clip"))


def _normalize(op: Op, place: Place) -> Step:
    mean, scale, clip = normalizer_of(op, place)

    def normalize(x: Floats, _: Acting) -> Floats:
        # The mean is subtracted first, as in training: folding it into a shift would lose precision.
        x = (x - mean) * scale
        return np.minimum(np.maximum(x, -clip, out=x), clip, out=x)

    return normalize


def linear_of(op: Op, place: Place) -> tuple[Floats, Floats]:
    """w [in, out] and b [out]."""
    w = place.tensor(f"{op['parameters']}/w", place.width, None)
    return w, place.tensor(f"{op['parameters']}/b", w.shape[1])


def _linear(op: Op, place: Place) -> Step:
    w, b = linear_of(op, place)
    place.width = int(b.size)

    def linear(x: Floats, _: Acting) -> Floats:
        x = x @ w
        x += b
        return x

    return linear


def layer_norm_of(op: Op, place: Place) -> tuple[Floats, Floats, np.float32]:
    """scale [n], shift [n] and epsilon."""
    scale, shift = (place.tensor(f"{op['parameters']}/{name}", place.width) for name in ("scale", "shift"))
    return scale, shift, _positive(op, "epsilon")


def _layer_norm(op: Op, place: Place) -> Step:
    scale, shift, epsilon = layer_norm_of(op, place)
    share = np.float32(1 / place.width)

    def layer_norm(x: Floats, _: Acting) -> Floats:
        x = x - share * np.add.reduce(x, -1, keepdims=True)
        x /= np.sqrt(share * np.add.reduce(x * x, -1, keepdims=True) + epsilon)
        x *= scale
        x += shift
        return x

    return layer_norm


def _keep(_: Op, place: Place) -> Step:
    place.kept.append(place.width)

    def keep(x: Floats, acting: Acting) -> Floats:
        acting.kept.append(x)
        return x

    return keep


def _add(_: Op, place: Place) -> Step:
    if not place.kept or place.kept.pop() != place.width:
        raise ValueError("nothing of this size was kept")
    return lambda x, acting: x + acting.kept.pop()


def _each(function: Callable[[Floats], Floats]) -> Callable[[Op, Place], Step]:
    """An op that applies the same function to every number of x."""
    return lambda *_: lambda x, _: function(x)


def _elu(x: Floats) -> Floats:
    elu: Floats = np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0.0))))
    return elu


def _silu(x: Floats) -> Floats:
    small = np.exp(-np.abs(x))  # never overflows
    silu: Floats = x * np.where(x > 0, np.float32(1.0), small) / (1 + small)
    return silu


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(x, np.float32(0.0))


def _by_bins(x: Floats, bins: int) -> Floats:
    """[..., m K] -> [..., m, K]."""
    by_bins: Floats = x.reshape(*x.shape[:-1], x.shape[-1] // bins, bins)
    return by_bins


def bins_of(op: Op, place: Place) -> int:
    """K, if x consists of dimensions of K numbers each."""
    bins = op["bins"]
    if not isinstance(bins, int) or bins < 2 or place.width % bins:
        raise ValueError(f"{place.width} numbers cannot be split into dimensions of {bins!r} bins")
    return bins


def _running_sum(op: Op, place: Place) -> Step:
    bins = bins_of(op, place)

    def running_sum(x: Floats, _: Acting) -> Floats:
        summed: Floats = _by_bins(x, bins).cumsum(-1)
        return summed.reshape(x.shape)

    return running_sum


def _released_ladder(op: Op, place: Place) -> Step:
    bins = bins_of(op, place)
    i = np.arange(bins, dtype=np.float32)

    def ladder(x: Floats, _: Acting) -> Floats:
        logits = _by_bins(x, bins)
        rungs: Floats = (i - bins) * _softplus(-logits) - i * _softplus(logits)
        return rungs.reshape(x.shape)

    return ladder


def positions(bins: int) -> NDArray[np.float32]:
    """[K] The positions of the bins, in units where the bounds are -1 and 1."""
    return np.linspace(-1.0, 1.0, bins, dtype=np.float32)


def _categorical(op: Op, place: Place) -> Step:
    bins = bins_of(op, place)
    grid = positions(bins)
    place.width //= bins

    def categorical(x: Floats, acting: Acting) -> Floats:
        logits = _by_bins(x, bins)
        if acting.choose == "mode":
            chosen: Floats = grid[logits.argmax(-1)]
            return chosen
        weight = np.exp(logits - logits.max(-1, keepdims=True))
        if acting.choose == "mean":
            mean: Floats = (weight @ grid) / weight.sum(-1)
            return mean
        assert acting.rng is not None
        cumulative = weight.cumsum(-1)
        threshold = (1.0 - acting.rng.random((*logits.shape[:-1], 1))) * cumulative[..., -1:]
        drawn: Floats = grid[np.sum(cumulative < threshold, axis=-1)]
        return drawn

    return categorical


def counts_of(op: Op) -> list[int]:
    """The number of choices in each dimension of the op `choices`."""
    return [int(count) for count in op["counts"].split(",")]


def _choices(op: Op, place: Place) -> Step:
    """The mean of choices makes no sense, so the mode stands in for it."""
    counts = counts_of(op)
    if sum(counts) != place.width or min(counts) < 1:
        raise ValueError(f"{place.width} numbers are not {op['counts']} choices")
    place.width = len(counts)
    borders = np.cumsum(counts)[:-1]
    spacing = 2 / np.maximum(1, np.array(counts) - 1)

    def choices(x: Floats, acting: Acting) -> Floats:
        if acting.choose == "sample":
            assert acting.rng is not None
            x = x + acting.rng.gumbel(size=x.shape)
        chosen = [logits.argmax(-1) for logits in np.split(x, borders, axis=-1)]
        unit: Floats = np.stack(chosen, axis=-1) * spacing - 1
        return unit

    return choices


def _normal(op: Op, place: Place) -> Step:
    std = np.exp(np.broadcast_to(place.tensors[f"head/{op['log_std']}"], place.width))
    if not np.isfinite(std).all():
        raise ValueError("a standard deviation is not finite")

    def normal(x: Floats, acting: Acting) -> Floats:
        if acting.choose != "sample":
            return x
        assert acting.rng is not None
        drawn: Floats = x + std * acting.rng.standard_normal(x.shape, np.float32)
        return drawn

    return normal


def _beta(_: Op, place: Place) -> Step:
    if place.width % 2:
        raise ValueError(f"{place.width} numbers cannot be split in half")
    place.width //= 2

    def beta(x: Floats, acting: Acting) -> Floats:
        a, b = np.split(x, 2, axis=-1)
        if acting.choose == "mode":
            total = a + b
            position = np.where(total > 0, a / np.where(total > 0, total, 1), np.float32(0.5))
        elif acting.choose == "mean":
            position = (1 + a) / (2 + a + b)
        else:
            assert acting.rng is not None
            position = acting.rng.beta(1 + a, 1 + b).astype(np.float32)
        return 2 * position - 1

    return beta


def _bounds(op: Op, place: Place) -> Step:
    low, high = place.tensors["space/low"], place.tensors["space/high"]
    wanted, scale = tuple(op["shape"]), bool(op["scale"])
    whole = len(wanted) <= MOST_AXES and all(isinstance(size, int) and size > 0 for size in wanted)
    if not whole or math.prod(wanted) != place.width:
        raise ValueError(f"{place.width} numbers are not an action of shape {list(wanted)}")
    if not low.shape == high.shape == (place.width,) or low.dtype.kind not in "fi":
        raise ValueError(f"space/low and space/high are not {place.width} numbers each")
    if not (low <= high).all() or low.dtype != high.dtype or (scale and not np.isfinite([low, high]).all()):
        raise ValueError("space/low and space/high are not bounds")
    half = np.float32(0.5) * (high - low)
    rounded = low.dtype.kind == "i"
    shape = None if wanted == low.shape else wanted

    def bounded(x: Floats, _: Acting) -> Floats:
        if scale:
            # Computed from the nearer end, so that -1 and 1 give the bounds exactly.
            x = np.where(x < 0, low + (x + 1) * half, high - (1 - x) * half)
        if rounded:
            x = np.rint(x)
        action = np.minimum(np.maximum(x, low), high).astype(low.dtype, copy=False)
        # [()] turns an array without axes into a number, as a Discrete space has it.
        return action if shape is None else action.reshape((*x.shape[:-1], *shape))[()]

    return bounded


OPS: dict[str, Callable[[Op, Place], Step]] = {
    "normalize": _normalize,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "tanh": _each(np.tanh),
    "relu": _each(lambda x: np.maximum(x, np.float32(0.0))),
    "elu": _each(_elu),
    "silu": _each(_silu),
    "softplus": _each(_softplus),
    "keep": _keep,
    "add": _add,
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": _normal,
    "beta": _beta,
    "bounds": _bounds,
}
"""`categorical`, `choices`, `normal` and `beta` choose the action from the distribution, in units where the bounds are
-1 and 1; `bounds` is the last op of every list."""
