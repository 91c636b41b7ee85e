"""What a search ends with: the best settings, checked on seeds that it has not seen, as flags and as a preset."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detent.options import flag
from detent.report.statistics import Interval
from detent.report.studies import fresh_score, fresh_tasks
from detent.runs.progress import rounded
from detent.runs.run import DEFAULT_CRITIC, DEFAULT_PRESET, DEFAULT_TRUNK
from detent.sweeps.plan import by_name
from detent.tuning.files import Fresh
from detent.tuning.scoring import final_returns
from detent.tuning.search import RUNS, Study, TrainUnder, Trial

FIRST_FRESH = 100
"""The first of the fresh seeds, unless the search itself came so far."""


def check(study: Study, winner: Trial, number: int, out: Path, carry_out: TrainUnder) -> Fresh:
    """The winner and the default settings on so many seeds that the search has not used."""
    first = max(FIRST_FRESH, study.seeds)
    seeds = list(range(first, first + number))
    runs = {who: by_name(study.runs(v, seeds), out / RUNS) for who, v in (("default", {}), ("best", winner.values))}
    carry_out([run for named in runs.values() for run in named.values()], None, "fresh seeds")
    returns = {who: final_returns(named, out / RUNS) for who, named in runs.items()}
    return {"trial": winner.number, "seeds": seeds, **returns}


def flags(study: Study, winner: Trial) -> str:
    """The settings as flags of `detent train`, without the task."""
    usual = {"preset": DEFAULT_PRESET, "trunk": DEFAULT_TRUNK, "critic": DEFAULT_CRITIC}
    named = [word for kind, name in study.names.items() if name != usual.get(kind) for word in (flag(kind), name)]
    options = {**study.fixed, **winner.values}
    given = [word for name, value in options.items() if value is not None for word in _words(name, value)]
    return shlex.join([*named, *given])


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(name) if value else f"--no-{flag(name)[2:]}"]
    return [flag(name), ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]


def told(study: Mapping[str, Any], winner: Trial) -> Iterator[str]:
    """How the winner did on fresh seeds, in lines of at most 80 characters; `study` as in study.json."""
    fresh = study["fresh"]
    if not winner.number:
        yield "No trial scored higher than the default settings, so these stay the best."
    seeds = f"{len(fresh['seeds'])} fresh seed{'s' * (len(fresh['seeds']) != 1)}"
    yield f"On {seeds} (IQM and 95% interval; difference of means):"
    width = max(7, *(min(28, len(task)) for task in fresh["default"]))
    for one in fresh_tasks(fresh):
        yield f"  {one.task[:width]:<{width}}  default {_shown(one.default)}"
        if winner.number:
            yield f"  {'':<{width}}  best    {_shown(one.best)}"
            yield f"  {'':<{width}}  gain    {_shown(one.difference)}: {one.difference.verdict}"
    if not winner.number:
        return
    across = fresh_score(study)
    yield f"The winner's own score, {winner.score:+.3f}, flatters: it won because it was the highest."
    yield f"On fresh seeds it is {across.value:+.3f}{_ends(across, '+.3f')}."


def _shown(interval: Interval) -> str:
    if interval.why:
        return f"{rounded(interval.value)} (an interval {interval.why})"
    return f"{rounded(interval.value)} [{rounded(interval.low)}, {rounded(interval.high)}]"


def _ends(interval: Interval, form: str) -> str:
    return f" (an interval {interval.why})" if interval.why else f" [{interval.low:{form}}, {interval.high:{form}}]"
