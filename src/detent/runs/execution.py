"""Carrying out a run in its directory, and evaluating its policy."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from detent.environments import Environment
from detent.errors import BadInput, Defect, DetentError, Diverged, refused
from detent.ops import Choose
from detent.policy import Policy
from detent.runs.acting import acting
from detent.runs.directory import RunDirectory
from detent.runs.evaluation import evaluate
from detent.runs.run import Run
from detent.runs.snapshot import Snapshot
from detent.runs.tidiness import give_back, share_one_arena
from detent.runs.training import Record, make_environment
from detent.runs.training import train as records_of

EVALUATION_SEED = 1_000_003
"""Evaluations happen in environments that training never sees."""


@dataclass(frozen=True)
class Execution:
    """How a run is carried out; nothing here changes what it computes."""

    resume: bool = False
    overwrite: bool = False
    """Delete the run that is there, and start over."""
    max_minutes: float | None = None
    checkpoint_seconds: float = 60.0
    keep_all: bool = False
    init_from: str | None = None
    stop: Callable[[], str | None] = lambda: None
    """Called after every record; if it returns a reason, the run stops there, resumable."""

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise BadInput("--resume continues a run and --overwrite deletes it; give only one of them.")


class Records(Iterator[Record]):
    """The records of a training, one per iteration.

    If you may leave the loop early, use a `with` statement, so that the run directory has a checkpoint and the status
    `stopped` right away:

        with detent.train(run, out="runs/hopper") as records:
            for record in records: ...

    Otherwise that happens when the object is garbage collected, or at the latest when the program ends.
    """

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._at_exit: Callable[[], None] | None = None

    def __next__(self) -> Record:
        record = next(self._records)
        if self._at_exit is None:
            # Only now, after JAX has registered its own exit handler: the last one registered runs first.
            self._at_exit = partial(_close_at_exit, weakref.ref(self))
            atexit.register(self._at_exit)
        return record

    def close(self) -> None:
        """Stop training after the last record, if it has not ended; further calls do nothing."""
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
            self._at_exit = None
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _close_at_exit(reference: weakref.ref[Records]) -> None:
    """Runs while JAX can still compute: later during shutdown, a checkpoint would hang."""
    records = reference()
    try:
        if records is not None:
            records.close()
    except DetentError as error:
        print(f"detent: {error}", file=sys.stderr)
    except ValueError:  # a daemon thread is in the middle of an iteration
        return


def train(run: Run, out: str | os.PathLike[str] | None = None, **how: Any) -> Records:
    """Train, yielding a record per iteration; with `out`, in a run directory. Nothing happens until you iterate.

    `how` are the fields of `Execution`: `resume`, `max_minutes`, `keep_all`, ...
    """
    if out is None:
        return Records(records_of(run))
    return Records(execute(run, os.path.abspath(out), Execution(**how)))  # now: the directory may be another later


def execute(run: Run, out: str | os.PathLike[str], how: Execution) -> Generator[Record, None, None]:
    """Train in a run directory: every record is written before it is yielded.

    A run there that has not made a step is started over, with the options of this one.
    """
    share_one_arena()
    directory = RunDirectory(out)
    directory.refuse_others(how.resume, how.overwrite)
    with directory.locked():
        directory.refuse_others(how.resume, how.overwrite)  # another process may have been quicker
        start = None
        if how.resume and directory.exists:
            directory.check_same(run)
            if directory.status() == "finished" and directory.configuration()["options"]["steps"] == run.settings.steps:
                return
            start = _last_state(directory, run)
        else:
            initial = _initial(how.init_from) if how.init_from else None
            directory.clear()
            directory.create(run, initial)
        directory.tidy()
        directory.write_status("running")
        yield from _watched(run, directory, how, start)


def _last_state(directory: RunDirectory, run: Run) -> Snapshot | None:
    """The state from which a run continues, with the directory brought back to it; None for the beginning."""
    directory.refuse_lost_links()
    start = directory.latest()
    iteration = int(start.meta["iteration"]) if start else 0
    directory.refuse_lost_records(iteration)
    directory.extend(run.settings.steps)
    directory.forget_after(iteration)
    directory.forget_links_after(iteration)
    directory.restore_best(int(start.meta["steps"]) if start else 0)
    return start


def _watched(
    run: Run, directory: RunDirectory, how: Execution, start: Snapshot | None
) -> Generator[Record, None, None]:
    """The records, with the directory kept consistent with them whatever happens: this is the boundary of a run."""
    began, owner = time.monotonic(), os.getpid()
    saved = began if start else -math.inf  # the first record is followed by a checkpoint, which is always kept
    iteration, steps = (int(start.meta["iteration"]), int(start.meta["steps"])) if start else (0, 0)
    best = max(
        (r["eval/mean_reward"] or -math.inf for r in directory.each_record() if "eval/mean_reward" in r),
        default=-math.inf,
    )
    record: Record | None = None

    def checkpoint(is_best: bool = False) -> None:
        if record and record.finite:
            directory.checkpoint(record, iteration, how.keep_all, is_best)

    try:
        for record in records_of(run, start, directory.initial()):
            record = evaluated(run, record, steps)
            steps = int(record["time/total_timesteps"] or 0)
            directory.append(record)
            value = record.get("eval/mean_reward")
            if value is not None and value > best:
                best = value
                checkpoint(is_best=True)
            yield record
            why = how.stop()
            if how.max_minutes and time.monotonic() - began > 60 * how.max_minutes:
                why = f"--max-minutes {how.max_minutes:g} have passed"
            if why and record.finite and steps < run.settings.steps:
                checkpoint()
                directory.write_status("stopped", why)
                return
            if time.monotonic() - saved > how.checkpoint_seconds:
                checkpoint()
                saved = time.monotonic()
        checkpoint()
        directory.write_status("finished")
    except GeneratorExit:
        if os.getpid() == owner:  # in a copy of the process (`os.fork`), JAX would hang, and the run is not its own
            checkpoint()
            directory.write_status("stopped", "the caller stopped asking for records")
        raise
    except KeyboardInterrupt:
        directory.write_status("stopped", "interrupted")
        raise
    except (Exception, SystemExit) as error:  # exiting is the caller's business, not that of what a run calls
        where = None if isinstance(error, Diverged) else _traceback(directory, error)
        sentence = error if isinstance(error, DetentError) else refused(error) or _defect(error, where)
        with suppress(DetentError):  # the disk may be full, which is perhaps what the sentence says
            directory.write_status("diverged" if isinstance(error, Diverged) else "failed", str(sentence))
        if sentence is error:
            raise
        raise sentence from error


def _traceback(directory: RunDirectory, error: BaseException) -> Path | None:
    """The file with the traceback of what made a run fail, if it could be written."""
    try:
        return directory.write_error(error)
    except DetentError:
        return None


def _defect(error: BaseException, where: Path | None) -> Defect:
    """One sentence for what nobody foresaw."""
    told = f"the traceback is in {where}" if where else "its traceback could not be written"
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return Defect(
        f"Training failed ({text}); {told}. Unless it comes from code of your own, this is a defect of Detent's: "
        "please report it with the traceback."
    )


def evaluated(run: Run, record: Record, steps_before: int) -> Record:
    """The record, with an evaluation of its policy whenever a multiple of --eval-every steps has been passed."""
    every = run.settings.eval_every
    if not every or not record.finite or int(record["time/total_timesteps"] or 0) // every == steps_before // every:
        return record
    summary = evaluate_run(run, record.policy(), run.settings.eval_episodes, seed=int(record["time/iterations"] or 0))
    give_back()
    extra = {f"eval/{key}": value for key, value in summary.items() if key != "episodes"}
    return replace(record, metrics={**record.metrics, **extra})


def evaluate_run(
    run: Run,
    policy: Policy,
    episodes: int,
    seed: int,
    rng: np.random.Generator | None = None,
    choose: Choose | None = None,
) -> dict[str, float]:
    """Mean and standard deviation of a policy's return on the run's task; it samples actions if given a generator."""
    env_seed = int(np.random.SeedSequence((EVALUATION_SEED, run.settings.seed, seed)).generate_state(1)[0])
    act = acting(run, policy, choose or ("mode" if rng is None else "sample"), rng)

    def make(num_envs: int) -> Environment:
        env = make_environment(run, env_seed, num_envs, traced=False)
        try:
            policy.refuse_other_task(run.names.task, env.observation_layout.size, env.space.low, env.space.high)
        except BadInput:
            env.close()
            raise
        return env

    with np.errstate(all="ignore"):  # what is not finite is refused
        return evaluate(act, make, episodes).summary()


def _initial(source: str) -> Snapshot:
    """The start of a run with `--init-from`; copied, so that the run does not depend on the other's directory."""
    directory = RunDirectory(source)
    snapshot = directory.latest() if directory.exists else None
    if snapshot is None:
        raise BadInput(f"--init-from {source}: there is no run with a checkpoint.")
    kept = ("algorithm/parameters/", "memory/observation_moments/", "memory/return_moments/")
    return Snapshot({name: t for name, t in snapshot.tensors.items() if name.startswith(kept)}, {"steps": 0})
