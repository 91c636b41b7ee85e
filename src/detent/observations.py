"""The layout of observations, and the vectors that the networks see. NumPy only.

The vector is that of Gymnasium's `flatten`: the elements of an array in C order, a choice as a one-hot vector, and
parts one after the other. `flat` takes one observation or a batch, that is, arrays with additional leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from detent.schemas import MOST_AXES

Array = Any
"""A NumPy or JAX array."""
DEEPEST = 16
"""How deeply parts may be nested."""


class DoesNotFit(ValueError):
    """An observation does not have the expected layout. The text is a clause that gives the reason."""


@dataclass(frozen=True)
class Numbers:
    """An array of this shape; `()` is a single number."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return math.prod(self.shape)

    def flat(self, observation: Any) -> Array:
        """[..., size] The vector."""
        x, batch = _array(observation, self.shape)
        return x.reshape(*batch, self.size)

    def fits(self, observation: Any) -> bool:
        """Whether this may be such an observation, rather than the vector made from it."""
        shape = np.shape(observation)
        return bool(shape[max(0, len(shape) - len(self.shape)) :] == self.shape)

    def described(self) -> dict[str, Any]:
        """The layout as JSON; `layout_of` is the inverse."""
        return {"numbers": list(self.shape)}


@dataclass(frozen=True)
class Choices:
    """Integers in an array of this shape; element i is one of `counts[i]` numbers, starting with `first[i]`."""

    counts: tuple[int, ...]
    first: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def flat(self, observation: Any) -> Array:
        x, batch = _array(observation, self.shape)
        x = x.reshape(*batch, len(self.counts))
        every = zip(self.first, self.counts, strict=True)
        hot = [x[..., i, None] == np.arange(first, first + count) for i, (first, count) in enumerate(every)]
        if isinstance(x, np.ndarray):
            for i, one in enumerate(hot):
                if not one.any(-1).all():
                    last = self.first[i] + self.counts[i] - 1
                    raise DoesNotFit(f"{x[..., i]} is not among the choices from {self.first[i]} to {last}")
        return x.__array_namespace__().concat(hot, axis=-1).astype(np.float32)

    def fits(self, observation: Any) -> bool:
        whole = np.issubdtype(np.asarray(observation).dtype, np.integer)
        return whole and Numbers(self.shape).fits(observation)

    def described(self) -> dict[str, Any]:
        return {"choices": list(self.counts), "first": list(self.first), "shape": list(self.shape)}


@dataclass(frozen=True)
class Parts:
    """Several observations, in a mapping by name or in a tuple."""

    parts: tuple[Layout, ...]
    names: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def flat(self, observation: Any) -> Array:
        """Parts with other names are ignored."""
        vectors = []
        for name, part, given in zip(
            self.names or range(len(self.parts)), self.parts, self._of(observation), strict=True
        ):
            try:
                vectors.append(part.flat(given))
            except DoesNotFit as error:
                raise DoesNotFit(f"of its part {name!r}, {error}") from error
        if len({vector.shape[:-1] for vector in vectors}) > 1:
            raise DoesNotFit("its parts are not batches of one size")
        return vectors[0].__array_namespace__().concat(vectors, axis=-1)

    def fits(self, observation: Any) -> bool:
        return isinstance(observation, Mapping if self.names is not None else tuple)

    def described(self) -> dict[str, Any]:
        parts = {"parts": [part.described() for part in self.parts]}
        return parts if self.names is None else parts | {"names": list(self.names)}

    def _of(self, observation: Any) -> Sequence[Any]:
        if self.names is None:
            if not isinstance(observation, tuple | list) or len(observation) != len(self.parts):
                raise DoesNotFit(f"it is not a tuple of {len(self.parts)} parts")
            return observation
        if not isinstance(observation, Mapping):
            raise DoesNotFit(f"it is not a dictionary with the parts {', '.join(self.names)}")
        missing = [name for name in self.names if name not in observation]
        if missing:
            raise DoesNotFit(f"it has no part {missing[0]!r}")
        return [observation[name] for name in self.names]


Layout: TypeAlias = "Numbers | Choices | Parts"


def one(layout: Layout, observation: Any) -> Array:
    """[size] The vector of one observation; a batch of them does not fit, be it a batch of one."""
    vector = layout.flat(observation)
    if vector.ndim != 1:
        raise DoesNotFit(f"it has {vector.ndim - 1} axes too many")
    return vector


def layout_of(described: Any, depth: int = 0) -> Layout:
    """The layout that JSON describes; anything else raises a LookupError, TypeError or ValueError."""
    if depth > DEEPEST:
        raise ValueError("parts are nested too deeply")
    if "numbers" in described:
        return Numbers(_shape(described["numbers"]))
    if "choices" in described:
        counts, first = _wholes(described["choices"], least=1), _wholes(described["first"])
        shape = _shape(described["shape"])
        if not len(counts) == len(first) == math.prod(shape):
            raise ValueError("the number of choices does not match their shape")
        return Choices(counts, first, shape)
    names = described.get("names")
    parts = tuple(layout_of(part, depth + 1) for part in described["parts"])
    if names is not None and len(names) != len(parts):
        raise ValueError("the number of names does not match the number of parts")
    return Parts(parts, None if names is None else tuple(str(name) for name in names))


def _wholes(values: Any, least: int = -(2**63)) -> tuple[int, ...]:
    if not all(type(value) is int and value >= least for value in values):
        raise ValueError(f"{values} are not whole numbers of at least {least}")
    return tuple(values)


def _shape(values: Any) -> tuple[int, ...]:
    if len(values) > MOST_AXES:
        raise ValueError(f"an array has at most {MOST_AXES} axes")
    return _wholes(values, least=0)


def _array(observation: Any, shape: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    """The observation as an array, and its leading batch axes."""
    x = observation if hasattr(observation, "__array_namespace__") else _numpy(observation)
    own = x.ndim - len(shape)
    if own < 0 or x.shape[own:] != shape:
        raise DoesNotFit(f"its shape is {x.shape} and should be {shape}")
    if getattr(x.dtype, "kind", "f") not in "fiub":  # other libraries' types have no kind
        raise DoesNotFit(f"its type, {x.dtype}, is not numeric")
    return x, x.shape[:own]


def _numpy(observation: Any) -> Array:
    try:
        return np.asarray(observation)
    except ValueError as error:
        raise DoesNotFit("it has rows of different lengths") from error
