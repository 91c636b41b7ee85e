"""Options that an old file lacks, or has under an old name.

An option that is added later has a *baseline*, the value that reproduces runs from before it. A file has the options
that its version knew, the baselines of those that differ from them, and their earlier names. So newer files supply
what older ones lack, and files can be compared without the code of heads or algorithms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from detent.report.summaries import RunSummary

Kind = tuple[str, str, str, str]
"""Runs of one kind have the same options, except for those added since."""


def complete(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs, in order, each with the options that other runs of its kind have and its own file lacks."""
    names = {old: new for run in runs for old, new in run.formerly.items()}
    runs = [replace(run, options={names.get(k, k): v for k, v in run.options.items()}) for run in runs]
    known: dict[Kind, dict[str, Any]] = defaultdict(dict)
    for run in runs:
        if run.baselines is not None:
            known[_kind(run)] |= {**run.options, **run.baselines}
    return [replace(run, completed=_lacking(run, known[_kind(run)])) for run in runs]


def _lacking(run: RunSummary, baselines: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in baselines.items() if name not in run.options}


def _kind(run: RunSummary) -> Kind:
    return run.algo, run.head, run.trunk, run.critic
