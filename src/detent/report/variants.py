"""Which runs are the same experiment with different seeds, and what to call it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detent.report.completion import complete
from detent.report.summaries import RunSummary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's, which people with any colour vision can distinguish. Yellow and black are left out, because one of
them would be invisible on a light page and the other on a dark one."""
HEAD_COLOURS = {
    "gaussian": 0, "ordinal": 1, "discrete": 2, "beta": 3, "gaussian_tanh": 5, "ordinal_released": 4, "categorical": 2,
}  # fmt: skip
DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3))


@dataclass(frozen=True)
class Variant:
    """Runs that agree in all of this, whatever their task and seed, are repetitions of one experiment."""

    algo: str
    head: str
    preset: str
    options: tuple[tuple[str, str], ...]
    """Names and values (JSON) of the options in which runs of one task, algorithm, head and preset differ."""

    @property
    def aspects(self) -> dict[str, str]:
        """All in which variants differ: head, algorithm, preset and options, with their values as they are shown."""
        options = {name: shown(value) for name, value in self.options}
        return {"head": self.head, "algo": self.algo, "preset": self.preset, **options}


@dataclass(frozen=True)
class Variants:
    """The variant of each run, and how variants are named and drawn."""

    of: tuple[Variant, ...]
    """One per run, in the order of the runs."""
    all: tuple[Variant, ...]
    labels: Mapping[Variant, str]
    styles: Mapping[Variant, tuple[str, tuple[int, ...]]]
    """Colour and dashes."""


def find_variants(runs: Sequence[RunSummary]) -> Variants:
    runs = complete(runs)
    varied = _varied(runs)
    of = tuple(
        Variant(
            run.algo,
            run.head,
            run.preset,
            tuple((k, json.dumps(v)) for k, v in sorted(run.compared.items()) if k in varied),
        )
        for run in runs
    )
    every = tuple(sorted(set(of), key=lambda v: (v.algo, v.preset, v.head, _sizes(v))))
    several = {part: len({getattr(v, part) for v in every} - {"?"}) > 1 for part in ("algo", "preset")}
    labels = {
        v: " · ".join(
            [
                *([v.algo] if several["algo"] else []),
                v.head,
                *([v.preset] if several["preset"] else []),
                *(f"{name}={shown(value)}" for name, value in v.options if _distinguishes(every, v, name)),
            ]
        )
        for v in every
    }
    return Variants(of, every, labels, _styles(every))


def _varied(runs: Sequence[RunSummary]) -> set[str]:
    """Options that take several values among runs of one task, algorithm, head and preset."""
    values: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for run in runs:
        for name, value in run.compared.items():
            values[run.task, run.algo, run.head, run.preset, name].add(json.dumps(value))
    return {key[-1] for key, found in values.items() if len(found) > 1}


def _distinguishes(every: Sequence[Variant], v: Variant, name: str) -> bool:
    """Whether an option distinguishes a variant from others of the same algorithm, head and preset."""
    kin = [other for other in every if (other.algo, other.head, other.preset) == (v.algo, v.head, v.preset)]
    return len({dict(other.options).get(name) for other in kin}) > 1


def _sizes(v: Variant) -> list[tuple[str, float, str]]:
    """A sort key by which bins=7 comes before bins=11."""
    found = []
    for name, text in v.options:
        value = json.loads(text)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        found.append((name, float(value) if number else float("-inf"), text))
    return found


def shown(text: str) -> str:
    value = json.loads(text)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else text


def _styles(every: Sequence[Variant]) -> dict[Variant, tuple[str, tuple[int, ...]]]:
    """The head's own colour if it is free, then other free colours, then dashes."""
    taken: set[tuple[int, int]] = set()
    styles: dict[Variant, tuple[str, tuple[int, ...]]] = {}
    cells = [(c, d) for d in range(len(DASHES)) for c in range(len(COLOURS))]
    for index, v in enumerate(every):
        wanted = (HEAD_COLOURS.get(v.head, index % len(COLOURS)), 0)
        cell = next((c for c in (wanted, *cells) if c not in taken), cells[index % len(cells)])
        taken.add(cell)
        styles[v] = (COLOURS[cell[0]], DASHES[cell[1]])
    return styles


def groups(runs: Sequence[RunSummary], variants: Variants) -> dict[tuple[str, Variant], list[RunSummary]]:
    """Runs by task and variant, sorted by task, then as the variants are, then by seed."""
    members: dict[tuple[str, Variant], list[RunSummary]] = defaultdict(list)
    for run, variant in zip(runs, variants.of, strict=True):
        members[run.task, variant].append(run)
    order: dict[Any, int] = {v: i for i, v in enumerate(variants.all)}
    keys = sorted(members, key=lambda key: (key[0], order[key[1]]))
    return {key: sorted(members[key], key=lambda run: (run.seed, run.name)) for key in keys}
