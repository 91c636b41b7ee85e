"""Pytrees as named arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from detent.runs.books import stored

T = TypeVar("T")


def flatten(prefix: str, tree: Any) -> dict[str, NDArray[Any]]:
    """Every array of a pytree, named by its path: `algorithm/parameters/policy/0/w`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))
    return {_name(prefix, path): np.asarray(leaf) for path, leaf in leaves}


def restore(prefix: str, like: T, tensors: Mapping[str, NDArray[Any]]) -> T:
    """A pytree with the structure of `like` and the arrays in `tensors`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for path, leaf in leaves:
        found = stored(tensors, _name(prefix, path), leaf.dtype, *leaf.shape)
        restored.append(jnp.asarray(found))
    tree: T = jax.tree_util.tree_unflatten(structure, restored)
    return tree


def _name(prefix: str, path: Any) -> str:
    return "/".join([prefix, *(jax.tree_util.keystr((part,), simple=True) for part in path)])
