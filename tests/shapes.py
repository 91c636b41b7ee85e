"""The shapes in Detent's annotations, checked whenever a test calls one of its functions (`conftest.py`).

Only annotations with a shape are checked: mypy checks the others, and tests of bad input violate them on purpose.
"""

import types
from collections.abc import Callable
from functools import wraps
from typing import Any, Union, get_args, get_origin

import jax
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

Function = Callable[..., Any]
ARRAYS = jax.Array | np.ndarray


def checked(function: Function) -> Function:
    """The function, or the constructor of a dataclass, which refuses arguments and results of another shape."""
    hints = function.__annotations__.items()
    function.__annotations__ = {name: either(hint) for name, hint in hints if "jaxtyping." in repr(hint)}
    if not function.__annotations__:
        return function
    strict = beartype(function, conf=BeartypeConf(is_pep484_tower=True))
    if function.__name__ != "__init__":
        return strict

    @wraps(function)
    def unless_placeholders(self: Any, *fields: Any, **named: Any) -> Any:
        # To describe a pytree, JAX also makes it of objects that are no arrays, None among them.
        leaves = jax.tree.leaves((fields, named), is_leaf=lambda leaf: leaf is None)
        return strict(self, *fields, **named) if all(isinstance(leaf, ARRAYS) for leaf in leaves) else None

    return unless_placeholders


def either(hint: Any) -> Any:
    """The annotation with NumPy's arrays as good as JAX's: JAX takes both."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return hint.dtype[ARRAYS, hint.dim_str] if hint.array_type is jax.Array else hint
    origin = Union if isinstance(hint, types.UnionType) else get_origin(hint)
    return hint if origin in (None, Callable) else origin[tuple(either(part) for part in get_args(hint))]
