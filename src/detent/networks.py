"""Networks as programs: lists of named ops, and their interpreter in JAX.

A trunk is such a program. Its ops transform one running value x in turn:

    linear      x w + b
    layer_norm  (x - mean(x)) / sqrt(var(x) + epsilon) scale + shift
    tanh, relu, elu, silu
    keep        x; also stores x for the matching `add`, as brackets match
    add         x + the stored value

The same list is stored with a trained policy, where `detent.policy` and the exporters interpret it without JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from detent.errors import BadInput

Op = dict[str, str | int | float]
"""One step of a program: `{"op": name, ...constants}`."""
Layer = dict[str, Float[Array, "..."]]
"""The parameters of one op, by their names in `parameter_shapes`."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}
EPSILON = 1e-5
"""Of layer norms; it prevents a division by 0 when x is constant."""


def linear(inputs: int, outputs: int) -> Op:
    return {"op": "linear", "inputs": inputs, "outputs": outputs}


def layer_norm(size: int) -> Op:
    return {"op": "layer_norm", "size": size, "epsilon": EPSILON}


def parameter_shapes(op: Op) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an op's parameters; most ops have none."""
    if op["op"] == "linear":
        return {"w": (int(op["inputs"]), int(op["outputs"])), "b": (int(op["outputs"]),)}
    if op["op"] == "layer_norm":
        return {"scale": (int(op["size"]),), "shift": (int(op["size"]),)}
    return {}


def parameter_count(program: Sequence[Op]) -> int:
    """The number of parameters of a network."""
    return sum(math.prod(shape) for op in program for shape in parameter_shapes(op).values())


def deployed(program: Sequence[Op], folder: str) -> list[Op]:
    """The program as stored in a policy file: instead of its sizes, an op names its tensors, `<folder>/<i>`.

    As in the list of parameters, i counts only the ops that have parameters.
    """
    numbers = iter(range(len(program)))
    sizes = {"inputs", "outputs", "size"}
    return [
        {k: v for k, v in op.items() if k not in sizes} | {"parameters": f"{folder}/{next(numbers)}"}
        if parameter_shapes(op)
        else op
        for op in program
    ]


def checked(program: Sequence[Op], inputs: int, outputs: int) -> list[Op]:
    """The program, if it maps `inputs` numbers to `outputs` and ends with a linear op; otherwise raise `BadInput`."""
    width, kept = inputs, []
    for number, op in enumerate(program):
        takes, gives = width, width
        match op["op"]:
            case "linear":
                takes, gives = int(op["inputs"]), int(op["outputs"])
            case "layer_norm":
                takes = int(op["size"])
            case "keep":
                kept.append(width)
            case "add":
                takes = kept.pop() if kept else 0
            case name if name not in ACTIVATIONS:
                known = ("linear", "layer_norm", *ACTIVATIONS, "keep", "add")
                raise BadInput(f"A trunk cannot use the op {name!r}; it can use {', '.join(known)}.")
        if takes != width:
            raise BadInput(f"Op {number} of the trunk ({op['op']}) takes {takes} numbers but gets {width}.")
        width = gives
    if kept or width != outputs or not program or program[-1]["op"] != "linear":
        raise BadInput(
            f"A trunk must have an `add` for every `keep`, and end with a linear op that has {outputs} outputs."
        )
    return list(program)


def init_network(
    rng: np.random.Generator,
    program: Sequence[Op],
    last_gain: float,
    last_bias: Float[NDArray[Any], " o"] | float = 0.0,
) -> list[Layer]:
    """Orthogonal weights with a gain of sqrt(2), or `last_gain` in the last layer; biases and shifts 0, scales 1.

    The last layer's biases are `last_bias`. In NumPy, because compiling a QR decomposition for every shape would take
    seconds.
    """
    parametric = [op for op in program if parameter_shapes(op)]
    gains = [*[2.0**0.5] * (len(parametric) - 1), last_gain]
    layers = [_init(rng, parameter_shapes(op), gain) for op, gain in zip(parametric, gains, strict=True)]
    layers[-1]["b"] = jnp.full_like(layers[-1]["b"], last_bias)
    return layers


def _init(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], gain: float) -> Layer:
    def start(name: str, shape: tuple[int, ...]) -> Float[Array, "..."]:
        if name == "w":
            return jnp.asarray(gain * _orthogonal(rng, *shape), jnp.float32)
        return jnp.ones(shape, jnp.float32) if name == "scale" else jnp.zeros(shape, jnp.float32)

    return {name: start(name, shape) for name, shape in shapes.items()}


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A random matrix whose columns (or rows, if there are fewer) are orthonormal (Saxe et al. 2013)."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # makes the distribution independent of the decomposition's sign convention
    return q if rows >= columns else q.T


def network(program: Sequence[Op], layers: Sequence[Layer], x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
    """The outputs of the network."""
    return tapped_network(program, layers, x)[0]


def tapped_network(
    program: Sequence[Op],
    layers: Sequence[Layer],
    x: Float[Array, "*b i"],
    taps: Sequence[Float[Array, "*b _"]] | None = None,
) -> tuple[Float[Array, "*b o"], list[Float[Array, "*b _"]]]:
    """The outputs of the network, and the input of every op that has parameters.

    `taps` are added to the result x w + b of a linear op, and to (scale, shift) of a layer norm, which count as the
    outputs of a layer without inputs. Taps of 0 change nothing, and the gradient with respect to `taps[l]` holds each
    example's gradient with respect to the outputs of layer l.
    """
    inputs: list[Float[Array, "*b _"]] = []
    kept: list[Float[Array, "*b _"]] = []
    for op in program:
        name, number = op["op"], len(inputs)
        if name == "linear":
            inputs.append(x)
            x = x @ layers[number]["w"] + layers[number]["b"]
            x = x if taps is None else x + taps[number]
        elif name == "layer_norm":
            inputs.append(x[..., :0])
            scale, shift = layers[number]["scale"], layers[number]["shift"]
            if taps is not None:
                scale, shift = scale + taps[number][..., : scale.size], shift + taps[number][..., scale.size :]
            x = _standardized(x, float(op["epsilon"])) * scale + shift
        elif name == "keep":
            kept.append(x)
        elif name == "add":
            x = x + kept.pop()
        else:
            x = ACTIVATIONS[str(name)](x)
    return x, inputs


def _standardized(x: Float[Array, "*b n"], epsilon: float) -> Float[Array, "*b n"]:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
