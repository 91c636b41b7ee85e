"""Files that are whole or absent, and that execute nothing when they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from detent.errors import DetentError

_META = "detent"


class Corrupt(DetentError):
    """A file is damaged, foreign or of another version."""


class CannotWrite(DetentError):
    """The disk is full or the directory cannot be written."""


def write_whole(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush to the disk, rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"Cannot write {path}: {error.strerror}.")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise Corrupt(f"{path} is damaged: it is not valid JSON.") from error
    if not isinstance(value, dict):
        raise Corrupt(f"{path} is damaged: it should hold a JSON object.")
    return value


def tensor_bytes(tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """safetensors bytes; the same content always gives the same bytes."""
    # One metadata entry: with several, safetensors writes them in a random order.
    packed = {_META: json.dumps(meta, sort_keys=True, allow_nan=False)}
    contiguous = {name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in sorted(tensors)}
    return safetensors.numpy.save(contiguous, packed)


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    write_whole(path, tensor_bytes(tensors, meta))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            packed = (file.metadata() or {}).get(_META)
            if packed is None:
                raise Corrupt(f"{path} was not written by Detent.")
            meta = json.loads(packed)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror or error}.") from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise Corrupt(f"{path} is damaged ({error}); use another copy of it.") from error
    return tensors, meta
