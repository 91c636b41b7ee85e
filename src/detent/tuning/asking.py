"""Optuna's part: what to try next, the journal, and what mattered.

Its trials are numbered from 0, ours from 1: our number 0 is the default settings, which are not drawn from the space.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.draws import Draw, readable
from detent.files import Corrupt, cannot_write, opened
from detent.package import import_optional
from detent.tuning.space import Space

STARTUP = 10
"""Trials at random before the sampler learns from those before, and before any is pruned."""
SAMPLERS = ("tpe", "random")


def load() -> Any:
    """Optuna, or a sentence that says how to install it."""
    optuna = import_optional("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def ask(space: Space, sampler: str, seed: int, before: Sequence[Any], stop: int) -> list[Any]:
    """Trials up to number `stop`, given those before; each has a sampler with a seed of its own."""
    optuna = load()
    memory = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP))
    memory.add_trials(before)
    asked = []
    for number in range(len(before), stop):
        own = int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
        memory.sampler = (
            optuna.samplers.RandomSampler(seed=own)
            if sampler == "random"
            else optuna.samplers.TPESampler(seed=own, multivariate=True, n_startup_trials=STARTUP)
        )
        asked.append(memory.ask({name: _distribution(draw) for name, draw in space.items()}))
    return asked


def _distribution(draw: Draw) -> Any:
    """A range as Optuna has it. Choices are their indices, in order if they are numbers: nearby ones are alike."""
    kinds = load().distributions
    if draw.kind == "choice":
        indices = range(len(draw.values))
        ordered = all(isinstance(value, int | float) for value in draw.values)
        return kinds.IntDistribution(0, indices[-1]) if ordered else kinds.CategoricalDistribution(indices)
    kind = kinds.IntDistribution if draw.whole else kinds.FloatDistribution
    return kind(*draw.values, log=draw.kind == "log_uniform")


def values_of(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """What Optuna chose, as values of options."""
    return {name: _value(space[name], params[name]) for name in space}


def _value(draw: Draw, chosen: Any) -> Any:
    if draw.kind == "choice":
        return draw.values[chosen]
    return int(chosen) if draw.whole else min(max(readable(chosen), draw.values[0]), draw.values[1])


def importances(journal: Any) -> dict[str, float] | None:
    """The share of each option in what sets the best quarter of the trials apart (PED-ANOVA); None for too few."""
    optuna = load()
    if sum(trial.state.name == "COMPLETE" for trial in journal.trials) < 2 * STARTUP:
        return None
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
    found = optuna.importance.get_param_importances(journal, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def open_journal(path: Path) -> Any:
    """The study in the journal, whose directory this process has to itself."""
    optuna = load()
    try:
        with open(opened(path, os.O_RDWR | os.O_CREAT), "rb+") as file:
            whole = file.read()
            file.truncate(whole.rfind(b"\n") + 1)  # a line that a crash cut short
        lock = optuna.storages.journal.JournalFileOpenLock(str(path))
        path.with_name(path.name + ".lock").unlink(missing_ok=True)  # of a process that was killed
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path), lock))
        return optuna.create_study(storage=storage, study_name="tune", direction="maximize", load_if_exists=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    except (ValueError, LookupError, TypeError, AssertionError) as error:
        raise Corrupt(f"{path} is damaged ({type(error).__name__}); use another copy of it.") from error
