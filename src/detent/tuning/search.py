"""The search: trials are asked for in batches, trained by a sweep, scored, and written to a journal.

    for found in search(study, 40, Path("tunes/first"), carry_out):
        print(found.best)

One process decides everything, with Optuna. What a batch tries is a function of the seed of the search and of the
trials before the batch, so it does not matter how many runs go on at a time or in which order they end. And nothing
about an unfinished trial has to be remembered: after `kill -9`, the same command asks for the same batch, finds its
runs, and continues them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from detent.errors import BadInput
from detent.runs.run import Run
from detent.sweeps.plan import by_name
from detent.tasks import Task
from detent.tuning.asking import ask, importances, load, open_journal, values_of
from detent.tuning.scoring import Failed, Returns, Yardstick, final_returns, score, yardsticks
from detent.tuning.space import Space

HALFWAY = 0.5
"""The share of its steps after which a trial may be pruned."""
RUNS, JOURNAL = "runs", "journal.log"
Yardsticks = Mapping[str, Yardstick]
Train = Callable[[Sequence[Run], int | None], None]
"""Carry out some runs, or as many of their steps as the number says."""
TrainUnder = Callable[[Sequence[Run], int | None, str], None]
"""The same, with a title for the progress."""


@dataclass(frozen=True)
class Study:
    """What is searched for: everything that decides which trials there are and what they score."""

    tasks: tuple[Task, ...]
    names: Mapping[str, str]
    """Head, algorithm, preset, trunk and critic."""
    fixed: Mapping[str, Any]
    """Options that every run has, besides the preset's."""
    space: Space
    steps: int
    seeds: int
    """Each trial trains with the seeds from 0 to this."""
    batch: int = 4
    """Trials that are asked for at a time."""
    sampler: str = "tpe"
    search_seed: int = 0
    prune: bool = False

    @property
    def halfway(self) -> int:
        return int(HALFWAY * self.steps)

    def runs(self, values: Mapping[str, Any], seeds: Sequence[int] | None = None) -> list[Run]:
        """The runs with these values: seed by seed, so that an interrupted trial has some of every task."""
        options = {**self.fixed, **values, "steps": self.steps}
        wanted = range(self.seeds) if seeds is None else seeds
        return [Run(task, **self.names, **options, seed=seed) for seed in wanted for task in self.tasks]


@dataclass(frozen=True)
class Trial:
    """One point of the space; number 0 is the default settings."""

    number: int
    state: str
    """finished, pruned or failed."""
    values: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    halfway: float | None = None
    """Its score after half of the steps, if the study prunes."""
    returns: Returns = field(default_factory=dict)
    why: str | None = None


class Found(NamedTuple):
    """What a search has found so far."""

    trials: list[Trial]
    yardsticks: Yardsticks
    importances: Mapping[str, float] | None

    @property
    def best(self) -> Trial:
        """The finished trial with the highest score; of equal ones, the first."""
        return max((t for t in self.trials if t.score is not None), key=lambda t: (t.score, -t.number))


def search(study: Study, trials: int, out: Path, carry_out: TrainUnder) -> Iterator[Found]:
    """Search until there are so many trials besides the default settings; yield after these and after every batch."""
    journal, place = open_journal(out / JOURNAL), out / RUNS
    default = by_name(study.runs({}), place)
    carry_out(list(default.values()), None, "default settings")
    measures = yardsticks(default, place)
    first = Trial(0, "finished", score=0.0, returns=final_returns(default, place))

    def found() -> Found:
        return Found([first, *(_read(one, study.space) for one in journal.trials)], measures, importances(journal))

    yield found()
    while (told := len(journal.trials)) < trials:
        start = told // study.batch * study.batch
        stop = min(start + study.batch, trials)
        title = f"trials {start + 1}-{stop} of {trials}, best {found().best.score:+.2f}"
        asked = ask(study.space, study.sampler, study.search_seed, journal.trials[:start], stop)
        batch = _trained(study, asked, place, measures, lambda runs, until: carry_out(runs, until, title))  # noqa: B023
        for trial in batch[told - start :]:  # the others were written before an interruption
            journal.add_trial(trial)
        yield found()


def _trained(study: Study, asked: Sequence[Any], place: Path, measures: Yardsticks, carry_out: Train) -> list[Any]:
    """The batch as the journal has it, trained: without the second half of hopeless trials."""
    states = load().trial.TrialState
    found: list[dict[str, Any]] = [{"state": states.COMPLETE} for _ in asked]
    runs: list[dict[str, Run]] = [{} for _ in asked]

    def of_each(act: Callable[[int], None]) -> None:
        """Do this for every trial that goes on; one of which it makes no sense has failed."""
        for index, known in enumerate(found):
            try:
                if known["state"] == states.COMPLETE:
                    act(index)
            except (Failed, BadInput) as failure:
                known |= {"state": states.FAIL, "user_attrs": {"why": str(failure)}}

    def make(index: int) -> None:
        runs[index] = by_name(study.runs(values_of(asked[index].params, study.space)), place)

    def train(until: int | None = None) -> None:
        going = [named for named, known in zip(runs, found, strict=True) if known["state"] == states.COMPLETE]
        carry_out([run for named in going for run in named.values()], until)

    def look(index: int) -> None:
        value = score(final_returns(runs[index], place, study.halfway), measures)
        found[index]["intermediate_values"] = {study.halfway: value}
        asked[index].report(value, study.halfway)
        if asked[index].should_prune():
            found[index]["state"] = states.PRUNED

    def finish(index: int) -> None:
        returns = final_returns(runs[index], place)
        found[index] |= {"value": score(returns, measures), "user_attrs": {"returns": returns}}

    of_each(make)
    if study.prune:
        train(study.halfway)
        of_each(look)
    train()
    of_each(finish)
    described = load().trial.create_trial
    pairs = zip(asked, found, strict=True)
    return [described(params=one.params, distributions=one.distributions, **known) for one, known in pairs]


def _read(trial: Any, space: Space) -> Trial:
    """A trial of the journal; Optuna counts from 0, which is the default settings here."""
    state = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}[trial.state.name]
    known = trial.user_attrs
    halfway = next(iter(trial.intermediate_values.values()), None)
    value = trial.value if state == "finished" else None
    values = values_of(trial.params, space)
    return Trial(trial.number + 1, state, values, value, halfway, known.get("returns", {}), known.get("why"))
