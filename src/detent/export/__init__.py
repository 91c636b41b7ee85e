"""Exporting policies for other programs: one file that acts without Detent.

Every target has a table of ops with which it translates the policy's list. docs/deploy.md has the formulas.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from detent import package
from detent.errors import BadInput
from detent.files import write_whole
from detent.ops import Choose, Op, Place
from detent.policy import Policy
from detent.registry import nearest

TARGETS = {"onnx": "policy.onnx", "numpy": "policy.py", "c": "policy.c"}
"""Targets and their file names; the module `to_<target>` makes the file's bytes."""

T = TypeVar("T")


def export(policy: Policy, to: str, path: Path, choose: Choose = "mode") -> None:
    """Write a file that maps observations to the policy's `mode` or `mean` action."""
    write_whole(path, file_bytes(policy, to, choose))


def file_bytes(policy: Policy, to: str, choose: Choose = "mode") -> bytes:
    """What `export` writes: the same policy always gives the same bytes."""
    file_name(to)
    if choose not in ("mode", "mean"):
        raise BadInput(f"An exported policy returns the mode or the mean, not {choose!r}.")
    made: bytes = importlib.import_module(f"{__name__}.to_{to}").file_bytes(policy, choose)
    return made


def file_name(to: str) -> str:
    """The default name of an exported file."""
    if to not in TARGETS:
        raise BadInput(f"There is no export to {to!r}.{nearest(to, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[to]


def interpreted(policy: Policy, table: Mapping[str, T]) -> Iterator[tuple[T, Op, Place]]:
    """Each op of the policy with its entry in a target's table and its place."""
    for op, width in zip(policy.ops, policy.widths, strict=True):
        yield table[op["op"]], op, Place(policy.tensors, width)


def provenance(policy: Policy, choose: Choose) -> dict[str, str]:
    """The origin of a policy, in characters that cannot end a comment or a string."""
    configuration = policy.meta.get("configuration", {})
    origin = {
        "task": configuration.get("task", "unknown"),
        "head": policy.head,
        "algorithm": configuration.get("algo", "unknown"),
        "steps": policy.meta.get("steps", "unknown"),
        "action": choose,
        "detent": package.version(),
    }
    return {name: re.sub(r"[^\w ./:+-]", "_", str(value), flags=re.ASCII) for name, value in origin.items()}
