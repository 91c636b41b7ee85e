"""NumPy: one Python file that contains the weights and needs only NumPy."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.export import interpreted, provenance
from detent.ops import Choose, Op, Place, bins_of, counts_of, layer_norm_of, linear_of, normalizer_of
from detent.policy import Policy

CHECKS = 8
"""Number of observations with known actions with which the file tests itself."""

FRAME = '''"""A policy for {task}: from an observation to the {action} action.

Exported by Detent {detent} (head {head}, algorithm {algorithm}, after {steps} steps). It needs only NumPy. From Python,
call `act` with one observation [{size}] or a batch [n, {size}]. Run as a program, the file tests itself.
"""

import base64
import sys

import numpy as np


def _array(dtype, shape, text):
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def outputs(observation):
    """The outputs of the last layer of the network."""
    x = np.asarray(observation, np.float32)
    if x.ndim == 0 or x.shape[-1] != {size}:
        raise ValueError(f"The policy takes observations of {size} numbers, not of shape {{x.shape}}.")
    if not np.isfinite(x).all():
        raise ValueError("The observation has a value that is not finite.")
{network}
    return x


def act(observation):
    """The action, of shape {shape} for one observation, within the bounds."""
    x = outputs(observation)
{head_and_bounds}
    return x


def test():
    """The number of observations below whose outputs or actions differ from those in Detent."""
    wrong = 0
    for observation, output, action in zip(OBSERVATIONS, OUTPUTS, ACTIONS):
        same = np.allclose(outputs(observation), output, rtol=1e-4, atol=1e-4)
        wrong += not (same and np.allclose(act(observation), action, rtol=1e-3, atol=1e-3))
    return wrong


{arrays}

if __name__ == "__main__":
    failures = test()
    print(f"{{len(OBSERVATIONS) - failures}} of {{len(OBSERVATIONS)}} observations give the expected action.")
    sys.exit(1 if failures else 0)
'''


Arrays = dict[str, NDArray[Any]]
"""Arrays by their names in the file."""


def file_bytes(policy: Policy, choose: Choose) -> bytes:
    arrays: Arrays = {}
    lines = [emit(op, place, choose, arrays) for emit, op, place in interpreted(policy, OPS)]
    arrays |= _checks(policy, choose)
    text = FRAME.format(
        **provenance(policy, choose),
        size=policy.observation_size,
        shape=policy.shape,
        network=_indented(lines[: policy.network_end]),
        head_and_bounds=_indented(lines[policy.network_end :]),
        arrays="\n".join(_written(name, array) for name, array in arrays.items()),
    )
    return text.encode()


def _indented(ops: list[list[str]]) -> str:
    lines = [line for of_one in ops for line in of_one]
    start = ["kept = []"] if any("kept" in line for line in lines) else []
    return textwrap.indent("\n".join(start + lines), "    ")


def _checks(policy: Policy, choose: Choose) -> dict[str, NDArray[Any]]:
    """Observations whose action does not depend on the last digits, which may differ on another machine."""
    drawn: NDArray[Any] = np.random.default_rng(0).standard_normal((4 * CHECKS, policy.observation_size), np.float32)
    if policy.ops[0]["op"] == "normalize":
        mean, scale, _ = normalizer_of(policy.ops[0], Place(policy.tensors, policy.observation_size))
        drawn = drawn / scale + mean
    act = policy if choose == "mode" else policy.mean
    nearby = act(drawn * np.float32(1 + 1e-4))
    steady = np.isclose(act(drawn), nearby, rtol=1e-3, atol=1e-3).reshape(len(drawn), -1).all(axis=1)
    chosen = np.argsort(~steady, kind="stable")[:CHECKS]
    observations = drawn[chosen].astype(np.float32)
    return {"OBSERVATIONS": observations, "OUTPUTS": policy.outputs(observations), "ACTIONS": act(observations)}


def _written(name: str, array: NDArray[Any]) -> str:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    text = base64.b64encode(little.tobytes()).decode()
    lines = "\n".join(text[i : i + 116] for i in range(0, len(text), 116))
    return f'{name} = _array("{little.dtype.str}", {array.shape}, """\n{lines}\n""")'


# --- The translation of each op: lines that change x. ---

Emit = Callable[[Op, Place, Choose, Arrays], list[str]]


def _normalize(op: Op, place: Place, _: Choose, arrays: Arrays) -> list[str]:
    mean, scale, clip = normalizer_of(op, place)
    arrays |= {"MEAN": mean, "SCALE": scale}
    clip_text = f"np.float32({float(clip)!r})"
    return [f"x = np.clip((x - MEAN) * SCALE, -{clip_text}, {clip_text})"]


def _numbered(arrays: Arrays, **added: NDArray[Any]) -> list[str]:
    """Add arrays to the file and return their names."""
    names = [f"{name}{sum(other.startswith(name) for other in arrays)}" for name in added]
    arrays |= dict(zip(names, added.values(), strict=True))
    return names


def _linear(op: Op, place: Place, _: Choose, arrays: Arrays) -> list[str]:
    w, b = linear_of(op, place)
    return ["x = x @ {} + {}".format(*_numbered(arrays, W=w, B=b))]


def _layer_norm(op: Op, place: Place, _: Choose, arrays: Arrays) -> list[str]:
    scale, shift, epsilon = layer_norm_of(op, place)
    return [
        "x = x - x.mean(-1, keepdims=True)",
        f"x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32({float(epsilon)!r}))",
        "x = x * {} + {}".format(*_numbered(arrays, NORM_SCALE=scale, NORM_SHIFT=shift)),
    ]


def _by_bins(op: Op, place: Place) -> str:
    bins = bins_of(op, place)
    return f"x.reshape(*x.shape[:-1], {place.width // bins}, {bins})"


def _running_sum(op: Op, place: Place, *_: Any) -> list[str]:
    return [f"x = np.cumsum({_by_bins(op, place)}, axis=-1).reshape(x.shape)"]


def _released_ladder(op: Op, place: Place, *_: Any) -> list[str]:
    bins = bins_of(op, place)
    return [
        f"logits, i = {_by_bins(op, place)}, np.arange({bins}, dtype=np.float32)",
        f"x = ((i - {bins}) * np.logaddexp(-logits, np.float32(0)) "
        "- i * np.logaddexp(logits, np.float32(0))).reshape(x.shape)",
    ]


def _categorical(op: Op, place: Place, choose: Choose, _: Arrays) -> list[str]:
    grid = f"grid = np.linspace(-1, 1, {bins_of(op, place)}, dtype=np.float32)"
    logits = f"logits = {_by_bins(op, place)}"
    if choose == "mode":
        return [grid, logits, "x = grid[logits.argmax(-1)]"]
    return [
        grid,
        logits,
        "weight = np.exp(logits - logits.max(-1, keepdims=True))",
        "x = (weight @ grid) / weight.sum(-1)",
    ]


def _choices(op: Op, *_: Any) -> list[str]:
    counts = counts_of(op)
    return [
        f"parts = np.split(x, {np.cumsum(counts)[:-1].tolist()}, axis=-1)",
        f"x = np.stack([part.argmax(-1) for part in parts], axis=-1) * (2 / np.maximum(1, np.array({counts}) - 1)) - 1",
    ]


def _beta(op: Op, place: Place, choose: Choose, _: Arrays) -> list[str]:
    position = "(1 + a) / (2 + a + b)"
    if choose == "mode":
        position = "np.where(a + b > 0, a / np.where(a + b > 0, a + b, 1), np.float32(0.5))"
    return ["a, b = np.split(x, 2, axis=-1)", f"x = 2 * {position} - 1"]


def _bounds(op: Op, place: Place, _: Choose, arrays: Arrays) -> list[str]:
    low, high = place.tensors["space/low"], place.tensors["space/high"]
    arrays |= {"LOW": low, "HIGH": high}
    lines = []
    if op["scale"]:
        arrays |= {"HALF": np.float32(0.5) * (high - low)}
        lines.append("x = np.where(x < 0, LOW + (x + 1) * HALF, HIGH - (1 - x) * HALF)")
    if low.dtype.kind == "i":
        lines.append("x = np.rint(x)")
    lines.append("x = np.clip(x, LOW, HIGH).astype(LOW.dtype)")
    if tuple(op["shape"]) != low.shape:
        lines.append(f"x = x.reshape((*x.shape[:-1], *{tuple(op['shape'])}))[()]")
    return lines


OPS: dict[str, Emit] = {
    "normalize": _normalize,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "tanh": lambda *_: ["x = np.tanh(x)"],
    "relu": lambda *_: ["x = np.maximum(x, np.float32(0))"],
    "elu": lambda *_: ["x = np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0))))"],
    "silu": lambda *_: ["e = np.exp(-np.abs(x))", "x = x * np.where(x > 0, np.float32(1), e) / (1 + e)"],
    "softplus": lambda *_: ["x = np.logaddexp(x, np.float32(0))"],
    "keep": lambda *_: ["kept.append(x)"],
    "add": lambda *_: ["x = x + kept.pop()"],
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": lambda *_: [],
    "beta": _beta,
    "bounds": _bounds,
}
