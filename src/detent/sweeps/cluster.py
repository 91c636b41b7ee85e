"""A sweep on a Ray cluster (Ray Core): one task per run, one processor per task. Imported only with `--ray`.

A task looks for a token that the driver has written into the sweep's directory. If it is there, driver and task share
storage, and the run is carried out in its place. If not, it is carried out in a temporary directory: the task fetches
what there is of the run, and sends the run directory back at every checkpoint and with its result.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from detent.errors import BadInput, ClusterLost
from detent.files import Corrupt, remove, write_whole
from detent.package import import_optional
from detent.runs.directory import CHECKPOINT, RunDirectory
from detent.sweeps.job import Event, Job, carry_out, record_failure

Files = dict[str, bytes]
"""A run directory as data: path in it -> content."""
IN_ORDER = ("run.json", "records.jsonl", "checkpoints", "policy.safetensors", "checkpoints.jsonl", "status.json")
"""The order in which a run writes its files: a copy that ends early is a run that was killed."""
HEAD_PATIENCE = 20.0
"""Seconds for which the head of the cluster may be away, to be restarted; Ray itself gives up after 60."""
SETTLING = 2.0
"""Seconds within which processes notice that their node is gone."""


def on_ray(
    jobs: list[Job], out: Path, address: str, cpus: int | None, retries: int, stop: Callable[[], str | None]
) -> Iterator[Event]:
    """Carry the jobs out on the cluster at `address`; "local" is a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_optional("ray", "ray")
    token = out / f".token-{secrets.token_hex(8)}"
    with _connected(ray, address, cpus), _written(token):
        contact = _Contact(ray, out)
        task = ray.remote(num_cpus=1, max_calls=1, max_retries=retries)(_run_job)
        waiting = deque(jobs)
        pending: dict[Any, Job] = {}
        latest = {job.name: Event(job.name, "running", job.steps) for job in jobs}
        started: set[str] = set()
        why = None
        while waiting or pending:
            if why is None and (why := stop()):
                waiting.clear()
                contact.stop(why)
                for reference, job in pending.items():
                    if job.name not in started:
                        ray.cancel(reference)
            # Some more than there are processors, so that none waits for the driver.
            while waiting and len(pending) < 2 + 1.5 * contact.processors():
                job = waiting.popleft()
                contact.keep(job.name)
                pending[task.remote(job.as_dict(), str(out), token.name, contact.board)] = job
            done, _ = ray.wait(list(pending), timeout=0.5)
            for latest_event, files in contact.news([job.name for job in pending.values()]):
                event = Event(**latest_event)
                started.add(event.name)
                latest[event.name] = event
                if files is not None:
                    unpack(files, out / event.name)
                yield event
            for reference in done:
                job = pending.pop(reference)
                yield _ended(ray, contact, reference, out / job.name, latest[job.name], why, retries)


def _ended(
    ray: Any, contact: _Contact, reference: Any, directory: Path, latest: Event, why: str | None, retries: int
) -> Event:
    """The last event of a task's run; the files that it returned are written."""
    try:
        event, files = ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return replace(latest, status="stopped", why=why)
    except ray.exceptions.RayError as error:
        if why is not None:
            return replace(latest, status="stopped", why=why)
        contact.refuse_if_lost()  # then the run has not failed
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
        self._identity = secrets.token_hex(8)
        """Of this process: if it dies, another takes its place, and knows nothing."""
        self._news: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, Files] = {}
        self._fresh: set[str] = set()
        self._why: str | None = None

    def identity(self) -> str:
        return self._identity

    def keep(self, name: str, files: Files) -> None:
        """Store a run directory, for the task that continues the run, unless a task has sent a later one."""
        self._kept.setdefault(name, files)

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
            self._kept[name] = files
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
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=beside)(Board).remote()


class _Contact:
    """The driver's line to the board.

    If the board's process dies, Ray starts another, which is told again what it should know. If the driver's node or
    the head of the cluster dies, nothing is left to talk to, and `ClusterLost` is raised.
    """

    def __init__(self, ray: Any, out: Path) -> None:
        self._ray, self._out = ray, out
        self.board = _board(ray)
        self._identity: str | None = None
        self._why: str | None = None
        self._head = str(ray.get_runtime_context().gcs_address)
        self._head_seen = time.monotonic()

    def keep(self, name: str) -> None:
        """Send what there is of a run."""
        if files := packed(self._out / name):
            self._answer(self.board.keep.remote(name, files))

    def stop(self, why: str) -> None:
        self._why = why
        self.board.stop.remote(why)

    def news(self, under_way: list[str]) -> list[tuple[dict[str, Any], Files | None]]:
        """See `Board.news`; what a board has heard that dies before it is asked is lost, which the next events mend."""
        identity = self._answer(self.board.identity.remote())
        if identity is not None and identity != self._identity:
            if self._identity is not None:
                self._tell_again(under_way)
            self._identity = identity
        return self._answer(self.board.news.remote(under_way)) or []

    def _tell_again(self, under_way: list[str]) -> None:
        if self._why is not None:
            self.stop(self._why)
        for name in under_way:
            self.keep(name)

    def refuse_if_lost(self) -> None:
        """Raise `ClusterLost` if the cluster is gone; a board needs a moment to notice that its node is."""
        time.sleep(SETTLING)
        self._answer(self.board.identity.remote())

    def processors(self) -> float:
        """Those of the cluster; without its head, the question would never be answered, and none can be counted on."""
        return float(self._ray.cluster_resources().get("CPU", 0)) if self._head_answers() else -math.inf

    def _answer(self, call: Any) -> Any:
        """What the board answers; None if it is just being restarted."""
        while True:
            self._head_answers()
            try:
                return self._ray.get(call, timeout=HEAD_PATIENCE / 4)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.ActorUnavailableError:
                return None
            except self._ray.exceptions.RayError as error:
                raise ClusterLost("The part of the Ray cluster that runs on this machine is gone.") from error

    def _head_answers(self) -> bool:
        """Whether there is a head; without one for long, Ray would end this process, and say nothing that helps."""
        try:
            _knock(self._head)
            self._head_seen = time.monotonic()
            return True
        except BadInput as error:
            if time.monotonic() - self._head_seen > HEAD_PATIENCE:
                raise ClusterLost(f"The head of the Ray cluster, at {self._head}, is gone.") from error
            return False


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
        unpack(_kept(board, job.name), directory)
        listener = _Listener(board, RunDirectory(directory))
        event = carry_out(job, directory, listener.report, listener.why)
        return asdict(event), packed(directory)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _kept(board: Any, name: str) -> Files:
    """What the board has of a run; asked again while the board is being restarted."""
    ray = import_optional("ray", "ray")
    while True:
        try:
            files: Files = ray.get(board.kept.remote(name))
            return files
        except ray.exceptions.ActorUnavailableError:
            time.sleep(0.5)


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
            except ray.exceptions.ActorUnavailableError:  # it is being restarted, and has forgotten what it was sent
                self._sent = None
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
