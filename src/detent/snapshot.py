"""Snapshots: pytrees as named arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from detent.files import Corrupt

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """All that training needs to go on as if it had never stopped."""

    tensors: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]
    """`iteration` and `steps`."""


def flatten(prefix: str, tree: Any) -> dict[str, NDArray[Any]]:
    """Every array of a pytree under a name that says where it is: `algorithm/parameters/policy/0/w`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))
    return {_name(prefix, path): np.asarray(leaf) for path, leaf in leaves}


def restore(prefix: str, like: T, tensors: Mapping[str, NDArray[Any]]) -> T:
    """The pytree of the shape of `like` whose arrays are in `tensors`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for path, leaf in leaves:
        name = _name(prefix, path)
        found = tensors.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            have = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise Corrupt(
                f"The checkpoint does not fit the run: {name} should be {leaf.dtype}{list(leaf.shape)}, "
                f"and it holds {have}."
            )
        restored.append(jnp.asarray(found))
    tree: T = jax.tree_util.tree_unflatten(structure, restored)
    return tree


def _name(prefix: str, path: Any) -> str:
    return "/".join([prefix, *(jax.tree_util.keystr((part,), simple=True) for part in path)])
