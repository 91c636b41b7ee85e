"""One run of a sweep, wherever it is carried out, and its events."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detent.errors import BadInput, DetentError, Diverged
from detent.files import Locked
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.training import Record
from detent.tasks import MAIN, TASKS, find_task, import_module

REPORT_SECONDS = 0.5
"""Minimum time between two events of a run."""
PATIENCE = 120.0
"""Seconds to wait for a process that still has the run's directory; after its sweep was killed, it ends soon."""


@dataclass(frozen=True)
class Event:
    """An event of one run of a sweep."""

    name: str
    status: str
    """running, finished, stopped (it can be continued), diverged or failed; all but the first are its last event."""
    total: int
    """The number of steps that the run should reach."""
    steps: int = 0
    value: float | None = None
    """Mean return of its last 100 episodes."""
    why: str | None = None
    before: bool = False
    """Whether it had ended before this sweep started."""

    @property
    def ended(self) -> bool:
        return self.status != "running"


@dataclass(frozen=True)
class Job:
    """A run as data: what another process needs to carry it out."""

    name: str
    configuration: dict[str, Any]
    imports: list[str]
    """Modules that register what the configuration names."""
    checkpoint_seconds: float
    until: int | None = None
    """Stop, resumable, after this many steps; None for all of them."""

    @property
    def steps(self) -> int:
        return int(self.configuration["options"]["steps"])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def job_of(name: str, run: Run, imports: Sequence[str], checkpoint_seconds: float, until: int | None = None) -> Job:
    """A run as a job, with one thread for its environments and with the modules that it needs."""
    modules = dict.fromkeys([*imports, *_modules(run)])
    configuration = run.configuration
    configuration["options"]["threads"] = configuration["options"]["threads"] or 1
    return Job(name, configuration, list(modules), checkpoint_seconds, until)


def _modules(run: Run) -> Iterator[str]:
    """The modules that define the run's parts and task, if they are the user's own."""
    task = run.names.task
    if run.task.suite == "user" and run.task.factory and task not in TASKS.names():
        module = task.partition(":")[0]
        try:
            mine = getattr(run.task.factory({}), "__module__", None) == MAIN  # of a script, which is not run again
            found = None if mine else find_task(task).factory({})  # type: ignore[misc]
        except BadInput:
            found = None
        if found is not run.task.factory({}):
            raise BadInput(
                f"A sweep runs in other processes, which must be able to import the task: {task} is not a callable of "
                "that name in a module; register it, or define it at the top of a module."
            )
        yield module
    for part in (run.head, run.algorithm):
        module = type(part).__module__
        if module == "__main__":
            raise BadInput(
                f"A sweep runs in other processes, which must be able to import {type(part).__name__}: define it in a "
                "module, not in the program itself."
            )
        if not module.startswith("detent."):
            yield module


def carry_out(job: Job, out: Path, report: Callable[[Event], None], stop: Callable[[], str | None]) -> Event:
    """Start or continue the run in `out` and report its events; the last one is returned. Raises nothing."""
    directory = RunDirectory(out)
    latest = Event(job.name, "running", job.steps)

    def ended(status: str, why: str | None) -> Event:
        return Event(job.name, status, job.steps, latest.steps, latest.value, why)

    def far_enough() -> str | None:
        return f"{job.until:,} steps are enough for now" if job.until and latest.steps >= job.until else None

    try:
        for module in job.imports:
            import_module(module)
        run = Run.from_configuration(job.configuration, imports=None)  # from the sweep, not from a file
        links = directory.links() if directory.exists else []
        latest = Event(job.name, "running", job.steps, links[-1]["steps"] if links else 0)
        if why := far_enough():
            return ended("stopped", why)
        report(latest)
        reported = time.monotonic()
        how = Execution(resume=True, checkpoint_seconds=job.checkpoint_seconds, stop=lambda: stop() or far_enough())
        for record in _records(run, out, how):
            latest = _event(job, record)
            if time.monotonic() - reported > REPORT_SECONDS:
                report(latest)
                reported = time.monotonic()
        return ended(directory.status(), directory.why())
    except Diverged as error:
        return ended("diverged", str(error))
    except Locked as error:
        return ended("failed", str(error))  # the directory is another's: nothing is written there
    except Exception as error:
        if not isinstance(error, DetentError):
            traceback.print_exc(file=sys.stderr)
        why = str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}"
        record_failure(directory, why)
        return ended("failed", why)


def record_failure(directory: RunDirectory, why: str) -> None:
    """Record that the run failed, unless its directory cannot be read or written."""
    try:
        if directory.exists:
            directory.write_status("failed", why)
    except (DetentError, OSError):
        return


def _records(run: Run, out: Path, how: Execution) -> Iterator[Record]:
    began = time.monotonic()
    while True:
        try:
            yield from execute(run, out, how)
            return
        except Locked:
            if how.stop() or time.monotonic() - began > PATIENCE:
                raise
            time.sleep(0.2)


def _event(job: Job, record: Record) -> Event:
    steps, value = int(record["time/total_timesteps"] or 0), record["rollout/ep_rew_mean"]
    return Event(job.name, "running", job.steps, steps, value)
