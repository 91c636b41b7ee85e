"""A tanh multi-layer perceptron as a plain pytree."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Layer = dict[str, Float[Array, "..."]]
"""`{"w": [inputs, outputs], "b": [outputs]}`."""


def init_mlp(key: Array, sizes: Sequence[int], gains: Sequence[float]) -> list[Layer]:
    """Orthogonal weights, one gain per layer, and zero biases."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "w": jax.nn.initializers.orthogonal(gain)(k, (inputs, outputs), jnp.float32),
            "b": jnp.zeros(outputs, jnp.float32),
        }
        for k, inputs, outputs, gain in zip(keys, sizes[:-1], sizes[1:], gains, strict=True)
    ]


def mlp(layers: Sequence[Layer], x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
    """tanh after every layer but the last."""
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]
