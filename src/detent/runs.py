"""Carrying a run out in its directory, and evaluating what came of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from detent.configuration import Run
from detent.directory import RunDirectory
from detent.errors import BadInput, DetentError, Diverged
from detent.evaluation import evaluate
from detent.files import CannotWrite
from detent.policy import Policy
from detent.snapshot import Snapshot
from detent.training import Record, make_environment
from detent.training import train as records_of

EVALUATION_SEED = 1_000_003
"""Evaluations happen in environments that training never sees."""


@dataclass(frozen=True)
class Execution:
    """How a run is carried out; nothing here changes what it computes."""

    resume: bool = False
    max_minutes: float | None = None
    checkpoint_seconds: float = 60.0
    keep_all: bool = False
    init_from: str | None = None
    stop: Callable[[], str | None] = lambda: None
    """Asked after every record; a reason ends the run there, resumable."""


def train(run: Run, out: str | os.PathLike[str] | None = None, **how: Any) -> Iterator[Record]:
    """Train, yielding a record per iteration; with `out`, in a run directory. Nothing happens until you iterate.

    `how` are the fields of `Execution`: `resume`, `max_minutes`, `keep_all`, ...
    """
    return records_of(run) if out is None else execute(run, out, Execution(**how))


def execute(run: Run, out: str | os.PathLike[str], how: Execution) -> Iterator[Record]:
    """Train in a run directory: every record is written before it is yielded."""
    directory = RunDirectory(out)
    directory.refuse_others(how.resume)
    with directory.locked():
        directory.refuse_others(how.resume)  # another process may have been quicker
        start = None
        if directory.exists:
            directory.check_same(run)
            if directory.status() == "finished" and directory.run().settings.steps == run.settings.steps:
                return
            start = directory.latest()
            directory.extend(run.settings.steps)
            iteration = int(start.meta["iteration"]) if start else 0
            directory.forget_after(iteration)
            directory.forget_links_after(iteration)
            directory.tidy()
        else:
            directory.create(run, _initial(how.init_from) if how.init_from else None)
        directory.write_status("running")
        yield from _watched(run, directory, how, start)


def _watched(run: Run, directory: RunDirectory, how: Execution, start: Snapshot | None) -> Iterator[Record]:
    """Records, with the directory kept true to them whatever happens."""
    began = time.monotonic()
    saved = began if start else -math.inf  # the first record is followed by a checkpoint, which is always kept
    iteration, steps = (int(start.meta["iteration"]), int(start.meta["steps"])) if start else (0, 0)
    best = max(
        (r["eval/mean_reward"] or -math.inf for r in directory.records() if "eval/mean_reward" in r), default=-math.inf
    )
    record: Record | None = None

    def checkpoint() -> None:
        if record and record.finite:
            directory.checkpoint(record, iteration, how.keep_all)

    try:
        for record in records_of(run, start, directory.initial()):
            record, best = _evaluated(run, directory, record, steps, best)
            steps = int(record["time/total_timesteps"] or 0)
            directory.append(record)
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
        checkpoint()
        directory.write_status("stopped", "the caller stopped asking for records")
        raise
    except CannotWrite:
        raise
    except DetentError as error:
        directory.write_status("diverged" if isinstance(error, Diverged) else "failed", str(error))
        raise
    except KeyboardInterrupt:
        directory.write_status("stopped", "interrupted")
        raise


def _evaluated(
    run: Run, directory: RunDirectory, record: Record, steps_before: int, best: float
) -> tuple[Record, float]:
    """Evaluate whenever a multiple of --eval-every steps has been passed; keep the best policy beside the last."""
    every = run.settings.eval_every
    if not every or not record.finite or int(record["time/total_timesteps"] or 0) // every == steps_before // every:
        return record, best
    policy = record.policy()
    summary = evaluate_run(run, policy, run.settings.eval_episodes, seed=int(record["time/iterations"] or 0))
    if summary["mean_reward"] > best:
        best = summary["mean_reward"]
        policy.save(directory.path / "best_policy.safetensors")
    extra = {f"eval/{key}": value for key, value in summary.items() if key != "episodes"}
    return replace(record, metrics={**record.metrics, **extra}), best


def evaluate_run(
    run: Run, policy: Policy, episodes: int, seed: int, rng: np.random.Generator | None = None
) -> dict[str, float]:
    """Mean and spread of the return of a policy on the run's task; stochastic when given a generator."""
    env_seed = int(np.random.SeedSequence((EVALUATION_SEED, run.settings.seed, seed)).generate_state(1)[0])
    act = policy if rng is None else partial(policy.sample, rng=rng)
    return evaluate(act, partial(make_environment, run, env_seed), episodes).summary()


def _initial(source: str) -> Snapshot:
    """What `--init-from` starts from; copied, so that the run does not depend on the other's directory."""
    directory = RunDirectory(source)
    snapshot = directory.latest() if directory.exists else None
    if snapshot is None:
        raise BadInput(f"--init-from {source}: there is no run with a checkpoint.")
    kept = ("algorithm/parameters/", "memory/observation_moments/", "memory/return_moments/")
    return Snapshot({name: t for name, t in snapshot.tensors.items() if name.startswith(kept)}, {"steps": 0})
