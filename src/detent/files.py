"""Files that are whole or absent, and that execute nothing when they are read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from detent.errors import BadInput, DetentError

_META, _CHECKSUM = "detent", "sha256"
LARGEST_TEXT = 2**26
LARGEST_TENSORS = 2**32
"""Bytes; larger files are refused unread. What Detent writes is far smaller."""


class Corrupt(DetentError):
    """A file is damaged, foreign or of another version."""


class CannotWrite(DetentError):
    """The disk is full or the directory cannot be written."""


class Locked(BadInput):
    """Another process is at work in a directory."""


@contextmanager
def locked(directory: Path, doing: str) -> Iterator[None]:
    """Only one process at a time; the lock goes with the process, however it ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise cannot_write(directory, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Locked(f"Another process is {doing} in {directory}; wait for it or choose another --out.") from None
    try:
        yield
    finally:
        os.close(descriptor)


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
        flush(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise cannot_write(path, error) from error


def flush(path: Path) -> None:
    """See that what was written to a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"Cannot write {path}: {error.strerror}.")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    return _object(path, _read_text(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """One JSON object per line."""
    return [_object(path, line) for line in _read_text(path).splitlines()]


def _read_text(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise Corrupt(f"{path} is damaged or foreign: it is larger than any that Detent writes.")
        return path.read_bytes()
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror}.") from error


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path} is damaged: it is not valid JSON.") from error
    if not isinstance(value, dict):
        raise Corrupt(f"{path} is damaged: it should hold a JSON object.")
    return value


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, read in pieces."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror}.") from error


def tensor_bytes(tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """safetensors bytes with a checksum inside; the same content always gives the same bytes."""
    contiguous = {name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in sorted(tensors)}
    checked = {**meta, _CHECKSUM: _checksum(contiguous, meta)}
    # One metadata entry: with several, safetensors writes them in a random order.
    return safetensors.numpy.save(contiguous, {_META: json.dumps(checked, sort_keys=True, allow_nan=False)})


def _checksum(tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> str:
    """Over metadata, names, types, shapes and values."""
    shapes = [[name, tensor.dtype.str, list(tensor.shape)] for name, tensor in tensors.items()]
    digest = hashlib.sha256(json.dumps([meta, shapes], sort_keys=True).encode())
    for tensor in tensors.values():
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    write_whole(path, tensor_bytes(tensors, meta))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        if path.stat().st_size > LARGEST_TENSORS:
            raise Corrupt(f"{path} is damaged or foreign: it is larger than any that Detent writes.")
        with safetensors.safe_open(path, framework="numpy") as file:
            packed = (file.metadata() or {}).get(_META)
            if packed is None:
                raise Corrupt(f"{path} was not written by Detent.")
            meta = json.loads(packed)
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror or error}.") from error
    # TypeError: a type that NumPy does not have.
    except (safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} is damaged ({' '.join(str(error).split())}); use another copy of it.") from error
    if not isinstance(meta, dict) or meta.pop(_CHECKSUM, None) != _checksum(tensors, meta):
        raise Corrupt(f"{path} is damaged: its checksum is wrong; use another copy of it.")
    return tensors, meta
