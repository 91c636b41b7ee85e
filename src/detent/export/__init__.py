"""Policies for other programs: one file that acts without Detent.

Every target interprets the same short list of ops (`Head.deploy`), each by its own table from the name of an op to
what it becomes there. docs/deploy.md has the formulas.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from detent.errors import BadInput
from detent.files import write_whole
from detent.policy import Choose, Op, Policy
from detent.registry import nearest

TARGETS = {"onnx": "policy.onnx", "numpy": "policy.py", "c": "policy.c"}
"""Each with its file's name; the module of the same name makes the file's bytes."""

T = TypeVar("T")


def export(policy: Policy, to: str, path: Path, choose: Choose = "mode") -> None:
    """Write a file that maps observations to the policy's `mode` or `mean` action."""
    write_whole(path, file_bytes(policy, to, choose))


def file_bytes(policy: Policy, to: str, choose: Choose = "mode") -> bytes:
    """What `export` writes: the same policy always gives the same bytes."""
    file_name(to)
    if choose not in ("mode", "mean"):
        raise BadInput(f"An exported policy gives the mode or the mean, not {choose!r}.")
    made: bytes = importlib.import_module(f"{__name__}.{to}").file_bytes(policy, choose)
    return made


def file_name(to: str) -> str:
    """What an export's file is called unless the user names it."""
    if to not in TARGETS:
        raise BadInput(f"There is no export to {to!r}.{nearest(to, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[to]


def interpreted(policy: Policy, table: Mapping[str, T], target: str) -> Iterator[tuple[T, Op]]:
    """Each op of the policy with its entry in a target's table."""
    for op in policy.ops:
        if op["op"] not in table:
            raise BadInput(
                f"The head {policy.head!r} uses the op {op['op']!r}, which the export to {target} does not know; it "
                f"knows {', '.join(table)}."
            )
        yield table[op["op"]], op


def provenance(policy: Policy, choose: Choose) -> dict[str, str]:
    """Where a policy comes from, in characters that end no comment and no string."""
    configuration = policy.meta.get("configuration", {})
    told = {
        "task": configuration.get("task", "unknown"),
        "head": policy.head,
        "algorithm": configuration.get("algo", "unknown"),
        "steps": policy.meta.get("steps", "unknown"),
        "action": choose,
        "detent": metadata.version("detent"),
    }
    return {name: re.sub(r"[^\w ./:+-]", "_", str(value), flags=re.ASCII) for name, value in told.items()}
