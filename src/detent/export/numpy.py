"""NumPy: one Python file with the weights inside, which needs NumPy and nothing else."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.export import interpreted, provenance
from detent.policy import Choose, Op, Policy, counts_of

CHECKS = 8
"""Observations with known actions that the file tests itself with."""

FRAME = '''"""A policy for {task}: from an observation to the {action} action.

Exported by Detent {detent} (head {head}, algorithm {algorithm}, after {steps} steps). It needs NumPy only. From Python
call `act` with one observation [{size}] or a batch [n, {size}]; run as a program, the file tests itself.
"""

import base64
import sys

import numpy as np


def _array(dtype, shape, text):
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def outputs(observation):
    """What the last layer of the network gives."""
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
{head_lines}
    return x


def test():
    """How many of the observations below do not give the outputs and actions that they gave in Detent."""
    wrong = 0
    for observation, output, action in zip(OBSERVATIONS, OUTPUTS, ACTIONS):
        same = np.allclose(outputs(observation), output, rtol=1e-4, atol=1e-4)
        wrong += not (same and np.allclose(act(observation), action, rtol=1e-3, atol=1e-3))
    return wrong


{arrays}

if __name__ == "__main__":
    failures = test()
    print(f"{{len(OBSERVATIONS) - failures}} of {{len(OBSERVATIONS)}} observations give the action they should.")
    sys.exit(1 if failures else 0)
'''


def file_bytes(policy: Policy, choose: Choose) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    network = _network(policy, arrays)
    head = [line for lines, op in interpreted(policy, OPS, "numpy") for line in lines(op, choose)]
    head += _bounds(policy, arrays)
    arrays |= _checks(policy, choose)
    text = FRAME.format(
        **provenance(policy, choose),
        size=policy.observation_size,
        shape=policy.shape,
        network=textwrap.indent("\n".join(network), "    "),
        head_lines=textwrap.indent("\n".join(head), "    "),
        arrays="\n".join(_written(name, array) for name, array in arrays.items()),
    )
    return text.encode()


def _network(policy: Policy, arrays: dict[str, NDArray[Any]]) -> list[str]:
    lines = []
    if policy.normalizer:
        arrays |= {"MEAN": policy.normalizer.mean, "SCALE": policy.normalizer.scale}
        clip = f"np.float32({float(policy.normalizer.clip)!r})"
        lines.append(f"x = np.clip((x - MEAN) * SCALE, -{clip}, {clip})")
    for i, (w, b) in enumerate(policy.layers):
        arrays |= {f"W{i}": w, f"B{i}": b}
        linear = f"x @ W{i} + B{i}"
        lines.append(f"x = {linear}" if i == len(policy.layers) - 1 else f"x = np.tanh({linear})")
    return lines


def _bounds(policy: Policy, arrays: dict[str, NDArray[Any]]) -> list[str]:
    low, high = policy.tensors["space/low"], policy.tensors["space/high"]
    arrays |= {"LOW": low, "HIGH": high}
    lines = []
    if policy.meta["actions"] == "scale":
        arrays |= {"HALF": np.float32(0.5) * (high - low)}
        lines.append("x = np.where(x < 0, LOW + (x + 1) * HALF, HIGH - (1 - x) * HALF)")
    if np.issubdtype(low.dtype, np.integer):
        lines.append("x = np.rint(x)")
    lines.append("x = np.clip(x, LOW, HIGH).astype(LOW.dtype)")
    if policy.shape != low.shape:
        lines.append(f"x = x.reshape((*x.shape[:-1], *{policy.shape}))[()]")
    return lines


def _checks(policy: Policy, choose: Choose) -> dict[str, NDArray[Any]]:
    """Observations whose action does not hang on the last digits, which another machine may compute otherwise."""
    drawn: NDArray[Any] = np.random.default_rng(0).standard_normal((4 * CHECKS, policy.observation_size), np.float32)
    if policy.normalizer:
        drawn = drawn / policy.normalizer.scale + policy.normalizer.mean
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


# --- What each op of `Head.deploy` becomes: lines that change x. ---


def _by_bins(op: Op) -> str:
    return f"x.reshape(*x.shape[:-1], x.shape[-1] // {int(op['bins'])}, {int(op['bins'])})"


def _running_sum(op: Op, _: Choose) -> list[str]:
    return [f"x = np.cumsum({_by_bins(op)}, axis=-1).reshape(x.shape)"]


def _released_ladder(op: Op, _: Choose) -> list[str]:
    return [
        f"logits, i = {_by_bins(op)}, np.arange({int(op['bins'])}, dtype=np.float32)",
        f"x = ((i - {int(op['bins'])}) * np.logaddexp(-logits, np.float32(0)) "
        "- i * np.logaddexp(logits, np.float32(0))).reshape(x.shape)",
    ]


def _categorical(op: Op, choose: Choose) -> list[str]:
    grid = f"grid = np.linspace(-1, 1, {int(op['bins'])}, dtype=np.float32)"
    logits = f"logits = {_by_bins(op)}"
    if choose == "mode":
        return [grid, logits, "x = grid[logits.argmax(-1)]"]
    return [
        grid,
        logits,
        "weight = np.exp(logits - logits.max(-1, keepdims=True))",
        "x = (weight @ grid) / weight.sum(-1)",
    ]


def _choices(op: Op, _: Choose) -> list[str]:
    counts = counts_of(op)
    return [
        f"parts = np.split(x, {np.cumsum(counts)[:-1].tolist()}, axis=-1)",
        f"x = np.stack([part.argmax(-1) for part in parts], axis=-1) * (2 / np.maximum(1, np.array({counts}) - 1)) - 1",
    ]


def _beta(op: Op, choose: Choose) -> list[str]:
    position = "(1 + a) / (2 + a + b)"
    if choose == "mode":
        position = "np.where(a + b > 0, a / np.where(a + b > 0, a + b, 1), np.float32(0.5))"
    return ["a, b = np.split(x, 2, axis=-1)", f"x = 2 * {position} - 1"]


OPS: dict[str, Callable[[Op, Choose], list[str]]] = {
    "tanh": lambda *_: ["x = np.tanh(x)"],
    "softplus": lambda *_: ["x = np.logaddexp(x, np.float32(0))"],
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": lambda *_: [],
    "beta": _beta,
}
