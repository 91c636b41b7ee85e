"""A sweep on a Ray cluster (Ray Core): one task per run, one processor per task. Imported only with `--ray`.

A task looks for a token that the driver has written into the sweep's directory. If it is there, driver and task share
storage, and the run is carried out in its place. If not, it is carried out in a temporary directory: the task fetches
what there is of the run, and sends the run directory back at every checkpoint and with its result.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from detent.errors import BadInput
from detent.files import Corrupt, remove, write_whole
from detent.package import import_optional
from detent.runs.directory import CHECKPOINT, RunDirectory
from detent.sweeps.job import Event, Job, carry_out, record_failure

Files = dict[str, bytes]
"""A run directory as data: path in it -> content."""
IN_ORDER = ("run.json", "records.jsonl", "checkpoints", "policy.safetensors", "checkpoints.jsonl", "status.json")
"""The order in which a run writes its files: a copy that ends early is a run that was killed."""


def on_ray(
    jobs: list[Job], out: Path, address: str, cpus: int | None, retries: int, stop: Callable[[], str | None]
) -> Iterator[Event]:
    """Carry the jobs out on the cluster at `address`; "local" is a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_optional("ray", "ray")
    token = out / f".token-{secrets.token_hex(8)}"
    with _connected(ray, address, cpus), _written(token):
        board = _board(ray)
        task = ray.remote(num_cpus=1, max_calls=1, max_retries=retries)(_run_job)
        waiting = deque(jobs)
        pending: dict[Any, Job] = {}
        latest = {job.name: Event(job.name, "running", job.steps) for job in jobs}
        started: set[str] = set()
        why = None
        while waiting or pending:
            if why is None and (why := stop()):
                waiting.clear()
                board.stop.remote(why)
                for reference, job in pending.items():
                    if job.name not in started:
                        ray.cancel(reference)
            # Some more than there are processors, so that none waits for the driver.
            while waiting and len(pending) < 2 + 1.5 * ray.cluster_resources().get("CPU", 0):
                job = waiting.popleft()
                if files := packed(out / job.name):
                    ray.get(board.keep.remote(job.name, files))
                pending[task.remote(job.as_dict(), str(out), token.name, board)] = job
            done, _ = ray.wait(list(pending), timeout=0.5)
            for latest_event, files in ray.get(board.news.remote([job.name for job in pending.values()])):
                event = Event(**latest_event)
                started.add(event.name)
                latest[event.name] = event
                if files is not None:
                    unpack(files, out / event.name)
                yield event
            for reference in done:
                job = pending.pop(reference)
                yield _ended(ray, reference, out, latest[job.name], why, retries)


def _ended(ray: Any, reference: Any, out: Path, latest: Event, why: str | None, retries: int) -> Event:
    """The last event of a task's run; the files that it returned are written."""
    directory = out / latest.name
    try:
        event, files = ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return replace(latest, status="stopped", why=why)
    except ray.exceptions.RayError as error:
        if why is not None:
            return replace(latest, status="stopped", why=why)
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        sentence = f"Ray gave up the run after {retries} retries: {first}"
        record_failure(RunDirectory(directory), sentence)
        return replace(latest, status="failed", why=sentence)
    if files is not None:
        unpack(files, directory)
    return Event(**event)


# --- the connection ---


@contextmanager
def _connected(ray: Any, address: str, cpus: int | None) -> Iterator[None]:
    """Join the cluster, or start one; a program that has already joined one stays in it."""
    if ray.is_initialized():
        yield
        return
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _knock(address)
    size = {"num_cpus": cpus} if address == "local" else {}
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=address, **quiet, **size)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        hint = "if it asks for a token, see Authentication in docs/sweeps.md."
        raise BadInput(f"Cannot join the Ray cluster at {address}: {first.rstrip('.')}; {hint}") from error
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Ray replaces them with its own
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Fail early if nothing listens at the address; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise BadInput(f"There is no Ray cluster at {address}: {error}.") from error


@contextmanager
def _written(token: Path) -> Iterator[None]:
    for old in token.parent.glob(".token-*"):  # of a driver that was killed
        old.unlink()
    write_whole(token, b"")
    try:
        yield
    finally:
        token.unlink(missing_ok=True)


class Board:
    """An actor beside the driver: tasks report events and run directories to it, and learn whether to stop."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, Files] = {}
        self._fresh: set[str] = set()
        self._why: str | None = None

    def keep(self, name: str, files: Files) -> None:
        """Store a run directory, for the task that continues the run."""
        self._kept[name] = files

    def kept(self, name: str) -> Files:
        """The latest directory of a run."""
        return self._kept.get(name, {})

    def report(self, event: dict[str, Any], files: Files | None) -> str | None:
        """Take an event of a run, with its directory if that is new and the driver cannot see it.

        Returns a reason to stop, or None.
        """
        name = event["name"]
        self._news[name] = event
        if files is not None:
            self.keep(name, files)
            self._fresh.add(name)
        return self._why

    def news(self, under_way: list[str]) -> list[tuple[dict[str, Any], Files | None]]:
        """The latest event of each of these runs that has reported since the last call, with its directory if that is
        new. The directories of other runs are dropped."""
        latest = [(self._news[n], self._kept[n] if n in self._fresh else None) for n in under_way if n in self._news]
        self._kept = {name: files for name, files in self._kept.items() if name in under_way}
        self._news, self._fresh = {}, set()
        return latest

    def stop(self, why: str) -> None:
        self._why = why


def _board(ray: Any) -> Any:
    beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    return ray.remote(num_cpus=0, scheduling_strategy=beside)(Board).remote()


# --- in a task ---


def _run_job(asked: dict[str, Any], out: str, token: str, board: Any) -> tuple[dict[str, Any], Files | None]:
    """The last event, and the run directory if the driver cannot see it."""
    os.environ["NPROC"] = "1"  # one thread for XLA, before it starts
    job = Job(**asked)
    if (Path(out) / token).exists():
        listener = _Listener(board)
        return asdict(carry_out(job, Path(out) / job.name, listener.report, listener.why)), None
    place = Path(tempfile.mkdtemp(prefix="detent-"))
    try:
        directory = place / job.name
        unpack(import_optional("ray", "ray").get(board.kept.remote(job.name)), directory)
        listener = _Listener(board, RunDirectory(directory))
        event = carry_out(job, directory, listener.report, listener.why)
        return asdict(event), packed(directory)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Listener:
    """Reports to the board and reads its answer once it has arrived, without ever waiting.

    If the driver cannot see the run's directory, it is sent along whenever there is a new checkpoint.
    """

    def __init__(self, board: Any, directory: RunDirectory | None = None) -> None:
        self._board, self._answer, self._why = board, None, None
        self._directory = directory
        self._sent: str | None = None

    def report(self, event: Event) -> None:
        self.why()
        self._answer = self._board.report.remote(asdict(event), self._unsent())

    def _unsent(self) -> Files | None:
        links = self._directory.links() if self._directory and self._directory.exists else []
        if not self._directory or not links or links[-1]["chain"] == self._sent:
            return None
        self._sent = links[-1]["chain"]
        return packed(self._directory.path)

    def why(self) -> str | None:
        ray = import_optional("ray", "ray")
        if self._why is None and self._answer is not None and ray.wait([self._answer], timeout=0)[0]:
            try:
                self._why = ray.get(self._answer)
            except ray.exceptions.RayError:
                self._why = "the driver of the sweep is gone"
            self._answer = None
        return self._why


# --- sending run directories ---


def packed(directory: Path) -> Files:
    """Every file of a run directory that matters."""
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            with suppress(FileNotFoundError):  # a checkpoint that was just replaced by another
                files[path.relative_to(directory).as_posix()] = path.read_bytes()
    return files


def unpack(files: Mapping[str, bytes], directory: Path) -> None:
    """Write a run directory, in the order in which a run writes it, and drop the checkpoints it no longer has.

    A new directory appears when it is complete: with some of its files only, it would look like a damaged one.
    """
    place = directory if directory.exists() else directory.with_name(f".{directory.name}.arriving")
    for name in sorted(files, key=_order):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise Corrupt(f"A node sent a file named {name!r}, which is no part of a run directory.")
        write_whole(place / path, files[name])
    kept = {PurePosixPath(name).name for name in files if name.startswith("checkpoints/")}
    remove(place.resolve() / "checkpoints", re.compile(CHECKPOINT), kept)
    if files and place != directory:
        place.rename(directory)


def _order(name: str) -> tuple[int, str]:
    first = name.split("/")[0]
    return (IN_ORDER.index(first) if first in IN_ORDER else 0, name)
