"""The numbers that the paper prints and its names for the tasks: two TOML files, read without JAX."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

Printed = str | tuple[float, float]
"""What the paper prints: a text, or mean and standard deviation."""


@cache
def read(file: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads((resources.files("detent.paper") / file).read_text(encoding="utf-8"))


def todays(task: str) -> tuple[str, ...]:
    """Our names for a task of the paper, the usual one first."""
    return tuple(read("experiments.toml")["tasks"][task])


def papers(task: str) -> str | None:
    """The paper's name for a task of ours."""
    tasks = read("experiments.toml")["tasks"]
    return next((name for name, ours in tasks.items() if task in ours), None)


def printed(experiment: str, algo: str) -> dict[str, dict[str, Printed]]:
    """Task (the paper's name) -> column -> what the paper prints."""
    tables = read("reference.toml").get(experiment, {}).get(algo, {})
    return {
        task: {column: value if isinstance(value, str) else (value[0], value[1]) for column, value in row.items()}
        for task, row in tables.items()
    }


def reference() -> dict[tuple[str, str, str], tuple[float, float]]:
    """The paper's main table for `detent report`: (task, algorithm, head) -> mean and standard deviation."""
    return {
        (today, algo, head): value
        for algo in read("reference.toml")["table2"]
        for task, row in printed("table2", algo).items()
        for head, value in row.items()
        if not isinstance(value, str)
        for today in todays(task)
    }
