"""Gymnasium environments stepped by worker processes that share memory with this one."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import select
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from mmap import mmap
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.environments import Wanted
from detent.environments.serial import Interface, Make, Serial, make_all
from detent.errors import BadInput, DetentError, EnvironmentFailed, Refused, one_line

# A command is one byte, and so is its answer; only replays and failures send more.
RESET, STEP, REPLAY = b"r", b"s", b"p"
DONE, RESTARTED, FAILED = b".", b"~", b"!"

START_SECONDS = 120.0
"""Time limit for a worker to import and make its environments."""
END_SECONDS = 5.0
"""Time limit for a worker to close its environments before it is killed, by its caller or, without one, by itself."""
SPIN_SECONDS = 300e-6
"""How long to poll for a byte before sleeping until it arrives: waking up costs as much as a step of physics."""


def pickled(make: Make, name: str) -> bytes:
    """The pickled factory, for this process's own children; nothing in a file is ever unpickled."""
    try:
        return pickle.dumps(make)
    except Exception as error:
        raise importable_only(name) from error


def importable_only(name: str) -> BadInput:
    """The error for an environment whose factory cannot be sent to another process."""
    return BadInput(
        f"{name} cannot be made in worker processes: with --workers, its factory must be a function at the top level "
        "of an importable module, not a lambda or a nested function."
    )


class Share(NamedTuple):
    """What a worker process is started with."""

    interface: Interface
    wanted: Wanted
    pickled: bytes
    """The pickled factory."""
    indices: range
    """The numbers of its environments."""
    safe_path: str | None
    """The caller's PYTHONSAFEPATH."""


class Worker(NamedTuple):
    """The caller's end of one worker process."""

    process: BaseProcess
    pipe: Connection
    indices: range
    """The numbers of its environments."""
    readable: select.poll
    """Polls the pipe for something to read."""


class Workers:
    """All environments, stepped by worker processes, each of which has a range of them.

    Actions and results are in shared memory; a step costs each worker one byte in each direction. The memory has no
    name, so it goes with the last process that has it, and it needs no /dev/shm.
    """

    def __init__(self, interface: Interface, wanted: Wanted, make: Make) -> None:
        self._pickled = pickled(make, interface.name)
        self.failures: list[str] = []
        self._interface, self._wanted = interface, wanted
        self._ready = False
        self._workers: list[Worker] = []
        total, count = wanted.num_envs, min(wanted.workers, wanted.num_envs)
        self._memory = os.memfd_create("detent")
        try:
            self.rows = interface.rows(total, _allocated(self._memory, total * interface.row_type.itemsize))
            for k in range(count):
                indices = range(total * k // count, total * (k + 1) // count)
                self._workers.append(self._started(indices))
            for worker in self._workers:
                self._await(worker, START_SECONDS)
            self._ready = True
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        self._all(RESET, self._wanted.timeout)

    def step(self) -> None:
        # A worker may die after some of its environments have started new episodes.
        episodes = self.rows.episode.copy()
        began = time.monotonic()
        for worker in self._workers:
            _send(worker, STEP)
        for k, worker in enumerate(self._workers):
            try:
                self._await(worker, self._wanted.timeout, began)
            except EnvironmentFailed as failure:
                if not self._wanted.restarts:
                    raise
                self._workers[k] = self._replaced(worker, episodes + 1)
                self.failures.append(str(failure))

    def replay(self, resets: NDArray[np.int64], actions: Sequence[NDArray[np.float32]]) -> None:
        self._all(REPLAY, self._wanted.timeout * (1 + max(map(len, actions))), (resets, actions))

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()  # tells the worker to end
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            _end(worker, deadline - time.monotonic())
        self.rows = None  # type: ignore[assignment]
        os.close(self._memory)

    def _all(self, command: bytes, seconds: float, details: object = None) -> None:
        began = time.monotonic()
        for worker in self._workers:
            _send(worker, command, details)
        for worker in self._workers:
            self._await(worker, seconds, began)

    def _await(self, worker: Worker, seconds: float, began: float | None = None) -> None:
        """Wait for a worker's answer until `seconds` after `began` (default: now)."""
        now = time.monotonic()
        if not _wait(worker.readable, seconds - (now - (now if began is None else began))):
            worker.process.kill()
            raise EnvironmentFailed(f"{self._whereabouts(worker)} gave no answer within {seconds:g} s.")
        try:
            answer = os.read(worker.pipe.fileno(), 1)
            more: Any = worker.pipe.recv() if answer in (FAILED, RESTARTED) else None
        except (OSError, EOFError):
            answer = b""
        if answer == FAILED:
            raise more
        if answer == RESTARTED:
            self.failures += more
        elif not answer:
            raise self._died(worker)

    def _started(self, indices: range) -> Worker:
        safe_path = os.environ.get("PYTHONSAFEPATH")
        return _start(Share(self._interface, self._wanted, self._pickled, indices, safe_path), self._memory)

    def _replaced(self, worker: Worker, episodes: NDArray[np.int64]) -> Worker:
        """A new worker process to replace one that failed; its environments start these episodes."""
        _end(worker, 0.0)
        self.rows.busy[worker.indices] = False
        new = self._started(worker.indices)
        try:
            self._await(new, START_SECONDS)
            nothing = np.zeros((0, 0), np.float32)
            _send(new, REPLAY, (episodes + 1, [nothing] * self._wanted.num_envs))
            self._await(new, self._wanted.timeout)
        except BaseException:
            _end(new, 0.0)
            raise
        return new

    def _died(self, worker: Worker) -> EnvironmentFailed:
        worker.process.join(END_SECONDS)
        code = worker.process.exitcode
        if not self._ready:
            return EnvironmentFailed(
                f"{self._interface.name}: a worker process ended with exit code {code} before it was ready; a script "
                'that uses workers must do so under `if __name__ == "__main__":`, because workers import it.'
            )
        return EnvironmentFailed(f"{self._whereabouts(worker)} lost its worker process (exit code {code}).")

    def _whereabouts(self, worker: Worker) -> str:
        for index in worker.indices:
            if self.rows.busy[index]:
                return self._interface.whereabouts(self._wanted.seed, self.rows, index)
        return f"{self._interface.name}: each of the environments {worker.indices[0]} to {worker.indices[-1]}"


def _allocated(descriptor: int, size: int) -> mmap:
    """Memory of this size that is really there: what is only promised ends the process when it is first used."""
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap(descriptor, size)
    except OSError as error:
        raise Refused(
            f"Cannot share {size / 1e6:.3g} MB of memory with worker processes: {error.strerror}; fewer --envs need "
            "less, and --workers 0 needs none."
        ) from error


def _send(worker: Worker, command: bytes, details: object = None) -> None:
    # A dead worker is noticed when its answer is awaited.
    with contextlib.suppress(OSError):
        os.write(worker.pipe.fileno(), command)
        if details is not None:
            worker.pipe.send(details)


def _end(worker: Worker, seconds: float) -> None:
    """Let a worker close its environments within this time, or kill it; calling this again does nothing."""
    worker.pipe.close()  # tells the worker to end
    with contextlib.suppress(ValueError):  # closed already
        worker.process.join(max(0.0, seconds))
        worker.process.kill()
        worker.process.join()
        worker.process.close()


def _start(share: Share, memory: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(share, theirs), daemon=True)
    # Ctrl-C reaches every process of a terminal, but the caller decides what it means. A process started while the
    # signal is blocked has it blocked from its first instruction on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _nothing_from_here():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is awaited
        send_handle(ours, memory, process.pid)
    return Worker(process, ours, share.indices, _readable(ours))


@contextlib.contextmanager
def _nothing_from_here() -> Iterator[None]:
    """Python processes that are started take no module from the current directory before they have our import path."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        _set_safe_path(before)


def _set_safe_path(value: str | None) -> None:
    if value is None:
        os.environ.pop("PYTHONSAFEPATH", None)
    else:
        os.environ["PYTHONSAFEPATH"] = value


def _readable(pipe: Connection) -> select.poll:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    return poll


def _wait(readable: select.poll, seconds: float = math.inf) -> bool:
    """Wait until there is something to read; False if nothing came in time."""
    asleep = time.monotonic() + SPIN_SECONDS
    while not readable.poll(0):
        if time.monotonic() > asleep:
            milliseconds = 1000.0 * max(0.0, seconds)
            return bool(readable.poll(min(milliseconds, 2**31 - 1)))
        os.sched_yield()  # let others run first
    return True


def _serve(share: Share, pipe: Connection) -> None:
    """The main function of a worker process."""
    threading.Thread(target=_end_after_caller, daemon=True).start()
    _set_safe_path(share.safe_path)
    try:
        _answer(share, pipe)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the caller is gone
    except (Exception, SystemExit) as error:
        known = isinstance(error, DetentError)
        failure = error if known else EnvironmentFailed(f"{share.interface.name} raised {one_line(error)}")
        failure.add_note("".join(traceback.format_exception(error)))  # pickling loses the traceback itself
        with contextlib.suppress(OSError):
            os.write(pipe.fileno(), FAILED)
            pipe.send(failure)


def _end_after_caller() -> None:
    """End this process after the one that started it, even if an environment hangs."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    multiprocessing.connection.wait([caller.sentinel])
    time.sleep(END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(share: Share, pipe: Connection) -> None:
    """Carry out commands until the caller closes the pipe."""
    interface, wanted, pickled, indices, _ = share
    memory = recv_handle(pipe)
    try:
        make = pickle.loads(pickled)
    except (AttributeError, ImportError) as error:
        raise importable_only(interface.name) from error
    envs = make_all(make, interface.name, len(indices))
    rows = interface.rows(wanted.num_envs, mmap(memory, wanted.num_envs * interface.row_type.itemsize))
    os.close(memory)
    serial = Serial(interface, wanted.seed, envs, indices[0], rows, make if wanted.restarts else None)
    readable = _readable(pipe)
    try:
        os.write(pipe.fileno(), DONE)
        while _wait(readable) and (command := os.read(pipe.fileno(), 1)):
            if command == STEP:
                serial.step()
            elif command == RESET:
                serial.reset()
            else:
                serial.replay(*pipe.recv())
            os.write(pipe.fileno(), RESTARTED if serial.failures else DONE)
            if serial.failures:
                pipe.send(serial.failures)
                serial.failures.clear()
    finally:
        serial.close()
