"""Files that are whole or absent, and that execute nothing when they are read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from detent.errors import BadInput, DetentError
from detent.schemas import ANY, Schema

_META, _CHECKSUM = "detent", "sha256"
LARGEST_OBJECT = 2**20
"""Bytes of a JSON object, be it a file or a line of one; parsed, it takes up to 25 times the memory."""
LARGEST_HEADER = 2**22
"""Bytes of the header of a file of tensors: their names and shapes, and JSON. A tensor takes about 100."""
LARGEST_TENSORS = 2**32
"""Bytes of a file of tensors. Larger ones are refused unread; what Detent writes is far smaller."""


class Corrupt(DetentError):
    """A file is damaged, foreign or of another version."""


class CannotWrite(DetentError):
    """The disk is full or the directory cannot be written."""


class Locked(BadInput):
    """Another process is at work in a directory."""


TEMPORARY = r"\.({})\.\w+\.tmp"
"""What `write_whole` calls a file until it is whole."""
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Follow no link, and do not wait for whoever might be at the other end of a fifo."""


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file. What is a link or anything else is refused, before it is read or waited for."""
    refuse_odd(path)
    descriptor = os.open(path, flags | _NO_LINK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was exchanged just now
        os.close(descriptor)
        raise Corrupt(f"Cannot read {path}: it is not a regular file.")
    return descriptor


def refuse_odd(path: Path, directory: bool = False) -> None:
    """Refuse what is there but is not a regular file, or not a directory: a link, a fifo, a device."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror}.") from error
    if not (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)):
        found, wanted = "a link" if stat.S_ISLNK(mode) else "not one", "directory" if directory else "regular file"
        raise Corrupt(f"Cannot read {path}: it should be a {wanted} and is {found}; Detent leaves it alone.")


def remove(directory: Path, written: re.Pattern[str], keep: Container[str] = ()) -> None:
    """Delete the regular files in a directory with names that Detent writes, except `keep`; not through a link."""
    try:
        place = os.open(directory, os.O_DIRECTORY | _NO_LINK)
    except FileNotFoundError:
        return
    try:
        with os.scandir(place) as entries:
            found = [e.name for e in entries if written.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
        for name in found:
            if name not in keep:
                os.unlink(name, dir_fd=place)
    finally:
        os.close(place)


@contextmanager
def locked(directory: Path, doing: str) -> Iterator[None]:
    """Only one process at a time; the lock goes with the process, however it ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = opened(directory / ".lock", os.O_CREAT | os.O_RDWR)
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
    if not path.name:
        raise CannotWrite(f"Cannot write {path}: it is not a regular file.")
    temporary = temporary_name(path)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # as /dev/null, which would become a file
            raise CannotWrite(f"Cannot write {path}: it is not a regular file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise cannot_write(path, error) from error


def temporary_name(path: Path) -> Path:
    """Where a file can grow beside its place: a name that nobody can guess and put something there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def append_line(path: Path, line: str) -> None:
    try:
        with open(opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def flush(path: Path) -> None:
    """See that what was written to a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"Cannot write {path}: {error.strerror}.")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, schema: Schema = ANY, largest: int = LARGEST_OBJECT) -> dict[str, Any]:
    """The JSON object in a file, if it is what it should be."""
    with _readable(path, largest) as file:
        return parsed(path, file.read(largest), schema)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file that a user wrote; a path that cannot be read is the user's mistake (`errors.in_file`)."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_OBJECT + 1)  # not by its size: a pipe or a device has none
        if len(data) > LARGEST_OBJECT:
            raise BadInput(f"{what} must be smaller than 1 MB.")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this is not valid TOML: {error}.") from error


def read_lines(path: Path, schema: Schema) -> Iterator[dict[str, Any]]:
    """One JSON object per line, each as it should be; memory is needed for one at a time."""
    for number, line in enumerate(lines(path), 1):
        yield parsed(path, line, schema, number)


def lines(path: Path, cut: bool = False) -> Iterator[bytes]:
    """The lines of a regular file (no link: a path that the user named is resolved first).

    If the last one may have been `cut` short by a crash, it is left out unless it ends like the others.
    """
    with _readable(path) as file:
        for line in iter(partial(file.readline, LARGEST_OBJECT + 1), b""):
            if len(line) > LARGEST_OBJECT:
                raise Corrupt(f"{path} is damaged or foreign: a line of it is longer than any that Detent writes.")
            if line.endswith(b"\n") or not cut:
                yield line


def beginning(path: Path, size: int = 1024) -> bytes:
    """The first bytes of a regular file, however large it is."""
    with _readable(path) as file:
        return file.read(size)


@contextmanager
def _readable(path: Path, largest: float = math.inf) -> Iterator[io.BufferedReader]:
    """A regular file of at most this many bytes; whatever cannot be read is a sentence."""
    try:
        with open(opened(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > largest:
                raise Corrupt(f"{path} is damaged or foreign: it is larger than any that Detent writes.")
            yield file
    except OSError as error:
        raise Corrupt(f"Cannot read {path}: {error.strerror or error}.") from error


def parsed(path: Path, text: bytes, schema: Schema, line: int | None = None) -> dict[str, Any]:
    """JSON text from a file (or from this line of it) as an object, if it is what it should be."""
    try:
        value = json.loads(text)
        fault = schema.fault(value)
    except (ValueError, RecursionError):
        value, fault = {}, "it is not valid JSON"
    if fault:
        where = f"line {line} is not {schema.what}: " if line else ""
        raise Corrupt(f"{path} is damaged: {where}{fault}; use another copy of it.")
    made: dict[str, Any] = value
    return made


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, read in pieces."""
    with _readable(path, LARGEST_TENSORS) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def read_tensors(path: Path, schema: Schema = ANY) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Tensors and metadata; the metadata and the shapes are checked before any tensor is read."""
    try:
        with _readable(path, LARGEST_TENSORS) as raw:
            size = os.fstat(raw.fileno()).st_size
            if int.from_bytes(raw.read(8), "little") > LARGEST_HEADER:
                raise Corrupt(f"{path} is damaged or foreign: its header is larger than any that Detent writes.")
            with safetensors.safe_open(path, framework="numpy") as file:
                packed = (file.metadata() or {}).get(_META)
                if packed is None:
                    raise Corrupt(f"{path} was not written by Detent.")
                meta = parsed(path, packed.encode(), schema)
                shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
                # An array without elements takes no room, and so could claim any shape.
                odd = next((name for name, shape in shapes.items() if max(shape, default=0) > size), None)
                if odd is not None:
                    raise Corrupt(f"{path} is damaged: the shape of {odd} is impossible; use another copy of it.")
                tensors = {name: file.get_tensor(name) for name in shapes}
    # TypeError: a type that NumPy does not have.
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise Corrupt(f"{path} is damaged ({' '.join(str(error).split())}); use another copy of it.") from error
    if meta.pop(_CHECKSUM, None) != _checksum(tensors, meta):
        raise Corrupt(f"{path} is damaged: its checksum is wrong; use another copy of it.")
    return tensors, meta
