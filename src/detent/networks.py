"""A tanh multi-layer perceptron as a plain pytree."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

Layer = dict[str, Float[Array, "..."]]
"""`{"w": [inputs, outputs], "b": [outputs]}`."""


def init_mlp(rng: np.random.Generator, sizes: Sequence[int], gains: Sequence[float]) -> list[Layer]:
    """Orthogonal weights, one gain per layer, and zero biases.

    In NumPy, because compiling a QR decomposition for every shape would take seconds.
    """
    return [
        {"w": jnp.asarray(gain * _orthogonal(rng, inputs, outputs), jnp.float32), "b": jnp.zeros(outputs, jnp.float32)}
        for inputs, outputs, gain in zip(sizes[:-1], sizes[1:], gains, strict=True)
    ]


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A random matrix whose columns (or rows, if there are fewer) are orthonormal (Saxe et al. 2013)."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # without it the decomposition's convention would show
    return q if rows >= columns else q.T


def mlp(layers: Sequence[Layer], x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
    """tanh after every layer but the last."""
    return tapped_mlp(layers, x)[0]


def tapped_mlp(
    layers: Sequence[Layer], x: Float[Array, "*b i"], taps: Sequence[Float[Array, "*b _"]] | None = None
) -> tuple[Float[Array, "*b o"], list[Float[Array, "*b _"]]]:
    """`mlp`, and the input of every layer.

    `taps` are added to what the layers put out: with taps of 0 nothing changes, and the gradient with respect to
    `taps[l]` holds every example's own gradient with respect to the outputs of layer l.
    """
    inputs = []
    for number, layer in enumerate(layers):
        x = jnp.tanh(x) if number else x
        inputs.append(x)
        x = x @ layer["w"] + layer["b"]
        x = x if taps is None else x + taps[number]
    return x, inputs
