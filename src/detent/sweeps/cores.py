"""Carrying a sweep out: one single-threaded run per core of this machine, or on a Ray cluster.

    for event in sweep(runs, "sweeps/first"):
        print(event.name, event.status, event.steps)

Each run has a process and a run directory of its own, so that what happens to one does not affect the others, and
runs from before are skipped or continued.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from detent.errors import BadInput
from detent.files import Corrupt, cannot_write, locked, opened, refuse_odd
from detent.runs.directory import ENDED, RunDirectory
from detent.runs.run import Run
from detent.sweeps.job import Event, Job, job_of, record_failure
from detent.sweeps.plan import by_name, check_version, write_plan

RETRIES = 3
"""How many times a run is retried after its process has died."""
Stop = Callable[[], str | None]


def sweep(
    runs: Sequence[Run],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    ray: str | None = None,
    nice: int = 0,
    imports: Sequence[str] = (),
    checkpoint_seconds: float = 60.0,
    until: int | None = None,
    max_minutes: float | None = None,
    stop: Stop = lambda: None,
) -> Iterator[Event]:
    """Carry out the runs that have not ended, each in `<out>/<its name>`, and yield their events.

    `jobs` run at a time (default: one per core) or, with `ray`, the address of a cluster ("local" for a temporary one),
    as many as it has processors. Finished and diverged runs are skipped, others resumed. A run that fails does not end
    the sweep; nor does one that takes longer than `max_minutes`, which is killed. One whose process dies is retried up
    to `RETRIES` times. `imports` are modules that register tasks. With `until`, runs stop after that many steps, and
    another call without it continues them.
    When `stop` returns a reason, or the iterator is closed, the runs stop after their current iteration, resumable.
    Nothing is checked or started until you iterate.
    """
    if ray is not None and max_minutes is not None:
        raise BadInput("--max-minutes limits runs on this machine; leave it out with --ray.")
    place = Path(out).absolute()
    named = by_name(runs, place)
    todo = {name: job_of(name, run, imports, checkpoint_seconds, until) for name, run in named.items()}
    _refuse_others(place)
    with locked(place, "carrying out a sweep"):
        before = {name: event for name in named if (event := event_before(place, todo[name]))}
        write_plan(place, named)
        for name, event in before.items():
            del todo[name]
            yield event
        if not todo:
            return
        jobs = jobs and min(jobs, len(todo))
        if ray is None:
            cores = jobs or len(os.sched_getaffinity(0))
            yield from _on_cores(list(todo.values()), place, cores, nice, max_minutes, stop)
        else:
            from detent.sweeps.cluster import on_ray

            yield from on_ray(list(todo.values()), place, ray, jobs, RETRIES, stop)


def _refuse_others(out: Path) -> None:
    if (out / "run.json").exists():
        raise BadInput(f"{out} holds a single run; choose another --out.")
    if (out / "sweep.json").exists():
        check_version(out)


def event_before(out: Path, job: Job) -> Event | None:
    """The last event of a run that is complete, or that cannot be read and is left alone; None for all others."""
    directory = RunDirectory(out / job.name)
    if not directory.exists:
        return None
    try:
        directory.configuration()
        status, why = directory.outcome()
    except Corrupt as error:
        return Event(job.name, "failed", job.steps, why=str(error))
    return Event(job.name, status, job.steps, job.steps, why=why, before=True) if status in ENDED else None


# --- on the cores of this machine ---


class _Worker:
    """A process with one run, on one core."""

    def __init__(self, job: Job, out: Path, core: int, nice: int) -> None:
        self.job, self.core = job, core
        self.began = time.monotonic()
        self.latest = Event(job.name, "running", job.steps)
        self._rest = b""
        self._log = log = out / "logs" / f"{job.name}.log"
        # One thread for libraries with thread pools of their own; and the same import path as here.
        alone = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {**os.environ, **alone, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        try:
            refuse_odd(log.parent, directory=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(opened(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "detent.sweeps.worker"],  # -P: nothing from the current directory
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment,
                    start_new_session=True,  # a Ctrl-C is the sweep's to pass on
                )  # fmt: skip
        except OSError as error:
            raise cannot_write(log, error) from error
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        # It waits for its job, so nothing has run on another core before.
        _unless_gone(lambda: os.sched_setaffinity(self.process.pid, {core}))
        if nice:
            lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice)
            _unless_gone(lambda: os.setpriority(os.PRIO_PROCESS, self.process.pid, lower))
            # Where the kernel shares processors out by session, a process's own priority counts only within its own.
            _unless_gone(lambda: Path(f"/proc/{self.process.pid}/autogroup").write_text(str(lower)))
        self._write(json.dumps({"job": job.as_dict(), "out": str(out / job.name)}))

    def events(self) -> Iterator[Event]:
        """The events since the last call."""
        *lines, self._rest = (self._rest + (self.stdout.read() or b"")).split(b"\n")
        for line in lines:
            self.latest = Event(**json.loads(line))
            yield self.latest

    def stop(self, why: str) -> None:
        """Ask it to end after its current iteration."""
        self._write(why)

    def kill(self) -> None:
        """End it immediately; what it has written stays valid."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.process.wait()
        self.stdout.close()
        if self.process.stdin:
            _unless_gone(self.process.stdin.close)
        if not self._log.stat().st_size:
            self._log.unlink()

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        _unless_gone(self.process.stdin.flush)


def _unless_gone(act: Callable[[], object]) -> None:
    """Ignore failures: the process may have ended, or the machine may not allow it; neither should end a sweep."""
    try:
        act()
    except OSError:
        return


def _on_cores(
    jobs: list[Job], out: Path, at_once: int, nice: int, max_minutes: float | None, stop: Stop
) -> Iterator[Event]:
    waiting = deque(jobs)
    deaths: Counter[str] = Counter()
    cores = sorted(os.sched_getaffinity(0))
    free = deque(cores[slot % len(cores)] for slot in range(at_once))
    running: list[_Worker] = []
    why = None
    try:
        while waiting or running:
            if why is None and (why := stop()):
                waiting.clear()
                for worker in running:
                    worker.stop(why)
            while waiting and free:
                running.append(_Worker(waiting.popleft(), out, free.popleft(), nice))
            _wait(running)
            for worker in list(running):
                gone = worker.process.poll() is not None  # before reading events, so that none is missed
                yield from worker.events()
                late = max_minutes is not None and time.monotonic() - worker.began > 60 * max_minutes
                if not gone and not (late and not worker.latest.ended):
                    continue
                if not gone:
                    worker.process.kill()
                worker.close()
                running.remove(worker)
                free.append(worker.core)
                if worker.latest.ended:
                    continue
                if not gone:
                    yield _late(worker, out, max_minutes)
                    continue
                deaths[worker.job.name] += 1
                if why is None and deaths[worker.job.name] <= RETRIES:
                    waiting.appendleft(worker.job)
                else:
                    yield _died(worker, out, why, deaths[worker.job.name])
    except GeneratorExit:
        for worker in running:
            worker.stop("the caller stopped asking for events")
        for worker in running:
            worker.close()
        running.clear()
        raise
    finally:
        for worker in running:
            worker.kill()


def _wait(running: list[_Worker]) -> None:
    """Wait until one of them has an event, or for a moment."""
    with selectors.DefaultSelector() as selector:
        for worker in running:
            selector.register(worker.stdout, selectors.EVENT_READ)
        selector.select(timeout=0.3)


def _late(worker: _Worker, out: Path, max_minutes: float | None) -> Event:
    sentence = f"it took longer than --max-minutes {max_minutes:g} and was killed"
    record_failure(RunDirectory(out / worker.job.name), sentence)
    return replace(worker.latest, status="failed", why=sentence)


def _died(worker: _Worker, out: Path, why: str | None, times: int) -> Event:
    if why is not None:  # it was being stopped anyway
        return replace(worker.latest, status="stopped", why=why)
    code = worker.process.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    sentence = f"its process died {times} times, the last time {how}; see {out / 'logs' / worker.job.name}.log"
    record_failure(RunDirectory(out / worker.job.name), sentence)
    return replace(worker.latest, status="failed", why=sentence)
