"""A seeded mutator: files as accidents and attackers leave them.

`damaged` knows nothing of what it changes. `changed` and `changed_tensors` know JSON and arrays, so that what they make
can be given correct checksums: a forgery.
"""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import safetensors.numpy

from detent import files


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


ODD = (
    None, True, False, 0, -1, 1, 2, 7, 2**15, 2**31, 2**40, 2**63 - 1, 2**63, 10**18, -(2**62), 10**309, 10**400,
    0.5, -0.0, 1e-320, 1e30, 1e39, 1e308, -1e308, math.nan, math.inf, -math.inf, 1.5e9,
    "", " ", "x", "0", "-1", "1e5", "NaN", "²", "Infinity", "null", "a\nb", "\x1b[2J", "\0", "\ud800", "\u202e",
    "é" * 50,
    "../../../etc/passwd", "/dev/zero", "os:system", "subprocess:getoutput", "<script>alert(1)</script>", "{}", "%s%n",
    "|`](x)", "x" * 5000, [], {}, [None], [[]], [0], [-1], [2**40], [1] * 300, ["x", 1, {}], {"": ""}, {"a": {"b": []}},
    {"numbers": [3]}, nested(20), nested(40), nested(400),
)  # fmt: skip
"""Values in the place of others."""


def damaged(data, rng):
    """Bytes with a bit flipped, a piece lost, doubled, moved or overwritten, or the end missing."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        first, last = sorted(int(rng.integers(len(data) + 1)) for _ in range(2))
        last = min(last, first + int(rng.choice((1, 4, 40, 4000))))
        piece = data[first:last]
        match rng.integers(8):
            case 0 | 1 if first < len(data):
                data[first] ^= 1 << int(rng.integers(8))
            case 2:
                del data[first:]
            case 3:
                del data[first:last]
            case 4:
                data[first:first] = piece * int(rng.choice((1, 2, 50)))
            case 5:
                del data[first:last]
                there = int(rng.integers(len(data) + 1))
                data[there:there] = piece
            case 6:
                data[first:last] = rng.bytes(len(piece))
            case _:
                data[first:last] = rng.choice((b"\0", b"\xff", b"\n", b"{", b'"', b"9", b"\r", b"[")) * len(piece)
    return bytes(data)


def changed(value, rng):
    """A JSON value with some of its parts exchanged, lost, doubled, renamed or nested, or with additional ones."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed_somewhere(value, rng)
    return value


def _odd(rng):
    return copy.deepcopy(ODD[rng.integers(len(ODD))])


def _changed_somewhere(value, rng):
    if rng.random() < 0.02 or not isinstance(value, dict | list) or not value:
        return _odd(rng)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[rng.integers(len(keys))]
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
        value[key] = _changed_somewhere(value[key], rng)
        return value
    other = keys[rng.integers(len(keys))]
    match rng.integers(10):
        case 0:
            del value[key]
        case 1:
            value[key], value[other] = value[other], value[key]
        case 2 if isinstance(value, dict):
            value[str(_odd(rng))] = value.pop(key)
        case 2 | 3 if isinstance(value, list):
            value.insert(0, _odd(rng))
        case 3:
            value[str(rng.choice(("__class__", "x", "seed", "steps", "task", "op", "\ud800", "a\nb")))] = _odd(rng)
        case 4:
            value[key] = [value[key]]
        case 5:
            value[key] = str(value[key])
        case 6 if isinstance(value[key], int | float):
            value[key] = -value[key] if rng.random() < 0.5 else value[key] * 10 ** int(rng.integers(40))
        case _:
            value[key] = _odd(rng)
    return value


SHAPES = ((0,), (), (2**29, 0), (0, 2**60), (1,), (3, 3), (2, 0, 5), (1,) * 70, (10_000,))


def changed_tensors(tensors, meta, rng):
    """Tensors and metadata, one or two of them changed in value, type, shape or name, lost or additional."""
    tensors = {name: tensor.copy() for name, tensor in tensors.items()}
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.4:
            meta = changed(meta, rng)
            meta = meta if isinstance(meta, dict) else {"detent": meta}
            continue
        name = str(rng.choice(sorted(tensors)))
        tensors[name] = _changed_tensor(tensors[name], rng)
        match rng.integers(12):
            case 0:
                del tensors[name]
            case 1:
                names = ("x", "../x", "a\nb", "policy/9/w", "history/resets", f"{name}/x")
                tensors[str(rng.choice(names))] = tensors.pop(name)
            case 2:
                other = str(rng.choice(sorted(tensors)))
                tensors[name], tensors[other] = tensors[other], tensors[name]
        if not tensors:
            tensors["x"] = np.zeros(3)
    return tensors, meta


def _changed_tensor(tensor, rng):
    flat = tensor.reshape(-1)
    match rng.integers(9):
        case 0 | 1:
            shape = SHAPES[rng.integers(len(SHAPES))]
            kept = min(len(shape), 60)  # NumPy makes no more axes than this
            return np.zeros(shape[:kept], tensor.dtype)
        case 2:
            return tensor.astype(rng.choice(("float16", "float64", "int8", "int32", "int64", "uint64", "bool")))
        case 3:
            return np.concatenate([flat, flat])
        case 4:
            return tensor[None]
        case 5:
            return tensor.T.copy()
        case 6 if flat.size:
            return flat[: int(rng.integers(flat.size))]
        case _:
            values = (-1, 0, 1, 2**40, -(2**62), 2**62, 1e30, 3e38, -3e38, math.nan, math.inf, -math.inf, 1e-40)
            with np.errstate(all="ignore"):
                odd = np.array(values[rng.integers(len(values))], np.float64).astype(tensor.dtype)
            if flat.size:
                some = slice(None) if rng.random() < 0.5 else int(rng.integers(flat.size))
                flat = flat.copy()
                flat[some] = odd
            return flat.reshape(tensor.shape)


def packed(tensors, meta):
    """A file of tensors whose checksum is right, whatever it holds."""
    tensors = {name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in sorted(tensors)}
    described = {**meta, "sha256": files._checksum(tensors, {k: v for k, v in meta.items() if k != "sha256"})}
    return safetensors.numpy.save(tensors, {"detent": json.dumps(described, sort_keys=True)})
