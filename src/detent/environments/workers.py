"""Environments stepped one after the other, in this process or in worker processes that share memory with it.

A worker process imports this module and what the environments need, nothing else of Detent.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from detent.errors import BadInput, DetentError, EnvironmentFailed

Env = gymnasium.Env[Any, Any]
Make = Callable[[], Env]

# One byte tells a worker what to do, one byte answers; only a replay and a failure have more to say.
RESET, STEP, REPLAY = b"r", b"s", b"p"
DONE, RESTARTED, FAILED = b".", b"~", b"!"

START_SECONDS = 120.0
"""How long a worker may take to import and make its environments."""
END_SECONDS = 5.0
"""How long a worker may take to close its environments before it is killed."""
SPIN_SECONDS = 300e-6
"""How long to keep looking for a byte before sleeping until it comes: waking up costs as much as a step of physics."""


class Rows(NamedTuple):
    """What n environments and their caller share, one row each."""

    episode: NDArray[np.int64]
    """Number of the current episode, from 0."""
    step: NDArray[np.int64]
    """Number of the current step in it, from 1; 0 from the reset until the first step."""
    action: NDArray[np.float32]
    observation: NDArray[np.float32]
    reward: NDArray[np.float32]
    success: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    busy: NDArray[np.bool_]
    """Whether the environment's own code is running: whom to name when its process dies."""


@dataclass(frozen=True)
class Setup:
    """What n environments have in common."""

    name: str
    seed: int
    num_envs: int
    observation_size: int
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    def native_action(self, row: NDArray[np.float32]) -> Any:
        """An action as the environment wants it: of its type, shape, and with whole numbers rounded."""
        if np.issubdtype(self.action_dtype, np.integer):
            row = np.rint(row)
        # `astype` copies: an environment may keep the action it got, and the row is about to be overwritten. And [()]
        # makes a number of an array without axes, which is what a Discrete space has.
        return row.astype(self.action_dtype).reshape(self.action_shape)[()]

    def episode_seed(self, index: int, episode: int) -> int:
        """The seed of one episode of one environment, a function of nothing else."""
        words = np.random.SeedSequence((self.seed, index, episode)).generate_state(1)
        return int(words[0]) >> 1  # environments commonly want a seed that fits a signed 32-bit integer

    @property
    def row_type(self) -> np.dtype[np.void]:
        """One environment's row of `Rows` as it lies in memory."""
        return np.dtype(
            [
                ("episode", np.int64),
                ("step", np.int64),
                ("action", np.float32, (math.prod(self.action_shape),)),
                ("observation", np.float32, (self.observation_size,)),
                ("reward", np.float32),
                ("success", np.float32),
                ("terminated", np.bool_),
                ("truncated", np.bool_),
                ("valid", np.bool_),
                ("busy", np.bool_),
            ],
            align=True,
        )

    @property
    def num_bytes(self) -> int:
        return self.num_envs * self.row_type.itemsize

    def rows(self, buffer: bytearray | memoryview | None) -> Rows:
        """The rows that lie in a buffer of `num_bytes`."""
        assert buffer is not None, "shared memory has none once it is closed, and NumPy would make one"
        table: NDArray[np.void] = np.ndarray(self.num_envs, self.row_type, buffer)
        return Rows(*(table[field] for field in Rows._fields))

    def whereabouts(self, rows: Rows, index: int) -> str:
        """Where an environment stands, as the beginning of a sentence about its failure."""
        episode, step = int(rows.episode[index]), int(rows.step[index])
        action = ", ".join(str(value) for value in rows.action[index])
        doing = f"at step {step} with action [{action}]" if step else "in its reset"
        seed = self.episode_seed(index, episode)
        return f"{self.name}: environment {index}, in its episode {episode} (seed {seed}), {doing},"


class Serial:
    """Some of the environments, stepped one after the other; an episode's end is followed by a step that resets.

    Every reset is seeded, so that number of episode and actions since bring back any environment that honours its
    seed, even one that draws random numbers in `step`. With `remake`, a step in which an environment fails becomes one
    that only resets, of a new environment; `failures` says what happened.
    """

    def __init__(self, setup: Setup, envs: Sequence[Env], first: int, rows: Rows, remake: Make | None = None) -> None:
        self.rows = rows
        self.failures: list[str] = []
        self._setup = setup
        self._envs = dict(enumerate(envs, first))
        self._observations = rows.observation[first : first + len(envs)]
        self._rewards = rows.reward[first : first + len(envs)]
        self._remake = remake

    def reset(self) -> None:
        for index in self._envs:
            self._begin(index, 0)
        self._refuse_nonfinite()

    def step(self) -> None:
        for index in self._envs:
            following = int(self.rows.episode[index]) + 1
            try:
                if self.rows.terminated[index] or self.rows.truncated[index]:
                    self._begin(index, following)
                else:
                    self._advance(index)
            except EnvironmentFailed as failure:
                self._restart(index, following, failure)
        self._refuse_nonfinite()

    def replay(self, resets: NDArray[np.int64], actions: Sequence[NDArray[np.float32]]) -> None:
        """Begin each environment's latest episode again and repeat its actions."""
        for index in self._envs:
            self._begin(index, int(resets[index]) - 1)
            for action in actions[index]:
                self.rows.action[index] = action
                self._advance(index)

    def close(self) -> None:
        close_all(self._envs.values())

    def _restart(self, index: int, episode: int, failure: EnvironmentFailed) -> None:
        """Begin an episode in a new environment, or raise `failure` if that is not wanted."""
        if self._remake is None:
            raise failure
        close_all([self._envs[index]])
        [self._envs[index]] = make_all(self._remake, self._setup.name, 1)
        self._begin(index, episode)
        self.failures.append(str(failure))

    def _refuse_nonfinite(self) -> None:
        """Treat an environment whose values are not finite as one that failed."""
        if np.isfinite(self._observations).all() and np.isfinite(self._rewards).all():
            return
        for index in self._envs:
            values = np.append(self.rows.observation[index], self.rows.reward[index])
            bad = values[~np.isfinite(values)]
            if len(bad):
                where = self._setup.whereabouts(self.rows, index)
                failure = EnvironmentFailed(f"{where} returned {bad[0]:g} in its observation or reward.")
                # A step leads to the next episode; a reset is tried once more.
                self._restart(index, int(self.rows.episode[index] + self.rows.valid[index]), failure)
        if not (np.isfinite(self._observations).all() and np.isfinite(self._rewards).all()):
            raise EnvironmentFailed(f"{self._setup.name} returned values that are not finite, in its reset too.")

    def _begin(self, index: int, episode: int) -> None:
        rows = self.rows
        rows.episode[index] = episode
        rows.step[index] = 0
        rows.busy[index] = True
        try:
            observation, _ = self._envs[index].reset(seed=self._setup.episode_seed(index, episode))
            rows.observation[index] = observation
        except Exception as error:
            raise self._failed(index, error) from error
        rows.busy[index] = False
        rows.reward[index] = 0.0
        rows.success[index] = np.nan
        rows.terminated[index] = rows.truncated[index] = rows.valid[index] = False

    def _advance(self, index: int) -> None:
        rows = self.rows
        rows.step[index] += 1
        action = self._setup.native_action(rows.action[index])
        rows.busy[index] = True
        try:
            observation, reward, terminated, truncated, info = self._envs[index].step(action)
            rows.observation[index] = observation
            rows.reward[index] = reward
            rows.success[index] = info.get("is_success", np.nan)
        except Exception as error:
            raise self._failed(index, error) from error
        rows.busy[index] = False
        rows.terminated[index] = terminated
        rows.truncated[index] = truncated
        rows.valid[index] = True

    def _failed(self, index: int, error: Exception) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._setup.whereabouts(self.rows, index)} raised {said(error)}")


def make_all(make: Make, name: str, count: int) -> list[Env]:
    """Make `count` environments or none."""
    envs: list[Env] = []
    try:
        for _ in range(count):
            envs.append(make())
    except DetentError:
        close_all(envs)
        raise
    except Exception as error:
        close_all(envs)
        raise BadInput(f"{name} could not be made: it raised {said(error)}") from error
    return envs


def close_all(envs: Iterable[Env]) -> None:
    """Close every environment, also those after one that fails to."""
    for env in envs:
        with contextlib.suppress(Exception):
            env.close()


def said(error: Exception) -> str:
    """An exception's type and text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def pickled(make: Make, name: str) -> bytes:
    """What makes environments, for this process's own children; nothing in a file is ever unpickled."""
    try:
        return pickle.dumps(make)
    except Exception as error:
        raise importable_only(name) from error


def importable_only(name: str) -> BadInput:
    """What to tell whoever made an environment with something that does not reach another process."""
    return BadInput(
        f"{name} cannot be made in worker processes: with --workers, what makes it must be a function at the top level "
        "of an importable module, not a lambda or a function inside another."
    )


class Worker(NamedTuple):
    """The caller's end of one worker process."""

    process: BaseProcess
    pipe: Connection
    indices: range
    """Its environments."""
    readable: select.poll
    """Tells when the pipe has something to read."""


class Workers:
    """Every environment, stepped by worker processes that own a run of consecutive ones each.

    Actions and results lie in shared memory; a step costs each worker one byte each way.
    """

    def __init__(self, setup: Setup, make: Make, count: int, timeout: float, restart: bool = False) -> None:
        self._pickled = pickled(make, setup.name)
        self.failures: list[str] = []
        self._setup = setup
        self._timeout = timeout
        self._restart = restart
        self._ready = False
        self._workers: list[Worker] = []
        self._memory = SharedMemory(create=True, size=setup.num_bytes)
        self.rows = setup.rows(self._memory.buf)
        try:
            for k in range(count):
                indices = range(setup.num_envs * k // count, setup.num_envs * (k + 1) // count)
                self._workers.append(self._started(indices))
            for worker in self._workers:
                self._await(worker, START_SECONDS)
            self._ready = True
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        self._all(RESET, self._timeout)

    def step(self) -> None:
        # A worker may die after some of its environments have begun new episodes.
        episodes = self.rows.episode.copy()
        began = time.monotonic()
        for worker in self._workers:
            _tell(worker, STEP)
        for k, worker in enumerate(self._workers):
            try:
                self._await(worker, self._timeout, began)
            except EnvironmentFailed as failure:
                if not self._restart:
                    raise
                self._workers[k] = self._replaced(worker, episodes + 1)
                self.failures.append(str(failure))

    def replay(self, resets: NDArray[np.int64], actions: Sequence[NDArray[np.float32]]) -> None:
        self._all(REPLAY, self._timeout * (1 + max(map(len, actions))), (resets, actions))

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()  # which a worker takes as the end
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            _end(worker, deadline - time.monotonic())
        del self.rows
        self._memory.unlink()
        _release(self._memory)

    def _all(self, command: bytes, seconds: float, details: object = None) -> None:
        began = time.monotonic()
        for worker in self._workers:
            _tell(worker, command, details)
        for worker in self._workers:
            self._await(worker, seconds, began)

    def _await(self, worker: Worker, seconds: float, began: float | None = None) -> None:
        """Wait for a worker's answer, so long since it was told (default: since now)."""
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
        return _start(self._setup, self._pickled, indices, self._memory.name, self._restart)

    def _replaced(self, worker: Worker, episodes: NDArray[np.int64]) -> Worker:
        """A new worker process in the place of one that failed; its environments begin these episodes."""
        _end(worker, 0.0)
        self.rows.busy[worker.indices] = False
        new = self._started(worker.indices)
        try:
            self._await(new, START_SECONDS)
            nothing = np.zeros((0, 0), np.float32)
            _tell(new, REPLAY, (episodes + 1, [nothing] * self._setup.num_envs))
            self._await(new, self._timeout)
        except BaseException:
            _end(new, 0.0)
            raise
        return new

    def _died(self, worker: Worker) -> EnvironmentFailed:
        worker.process.join(END_SECONDS)
        code = worker.process.exitcode
        if not self._ready:
            return EnvironmentFailed(
                f"{self._setup.name}: a worker process ended with exit code {code} before it was ready; a script that "
                'uses workers must do so under `if __name__ == "__main__":`, because workers import it.'
            )
        return EnvironmentFailed(f"{self._whereabouts(worker)} lost its worker process (exit code {code}).")

    def _whereabouts(self, worker: Worker) -> str:
        for index in worker.indices:
            if self.rows.busy[index]:
                return self._setup.whereabouts(self.rows, index)
        return f"{self._setup.name}: each of the environments {worker.indices[0]} to {worker.indices[-1]}"


def _release(memory: SharedMemory) -> None:
    # The frames of an exception on its way up may still hold rows; then the memory goes when they do.
    with contextlib.suppress(BufferError):
        memory.close()


def _tell(worker: Worker, command: bytes, details: object = None) -> None:
    # Whether a worker is dead is found out when its answer is awaited.
    with contextlib.suppress(OSError):
        os.write(worker.pipe.fileno(), command)
        if details is not None:
            worker.pipe.send(details)


def _end(worker: Worker, seconds: float) -> None:
    """Let a worker close its environments within this time, or kill it; to do so again does nothing."""
    worker.pipe.close()  # which a worker takes as the end
    with contextlib.suppress(ValueError):  # closed already
        worker.process.join(max(0.0, seconds))
        worker.process.kill()
        worker.process.join()
        worker.process.close()


def _start(setup: Setup, pickled: bytes, indices: range, block: str, restart: bool) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(setup, pickled, indices, block, restart, theirs), daemon=True)
    # Ctrl-C reaches every process of a terminal; the caller decides what it means. A blocked signal stays blocked in a
    # process started meanwhile, from its first instruction on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return Worker(process, ours, indices, _readable(ours))


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
        os.sched_yield()  # whoever has work to do goes first
    return True


def _serve(setup: Setup, pickled: bytes, indices: range, block: str, restart: bool, pipe: Connection) -> None:
    """What a worker process does."""
    memory = SharedMemory(block)
    _answer_or_fail(setup, pickled, indices, memory, restart, pipe)
    _release(memory)


def _answer_or_fail(
    setup: Setup, pickled: bytes, indices: range, memory: SharedMemory, restart: bool, pipe: Connection
) -> None:
    try:
        _answer(setup, pickled, indices, memory, restart, pipe)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the caller is gone
    except Exception as error:
        failure = error if isinstance(error, DetentError) else EnvironmentFailed(f"{setup.name} raised {said(error)}")
        failure.add_note("".join(traceback.format_exception(error)))  # pickling loses the traceback itself
        with contextlib.suppress(OSError):
            os.write(pipe.fileno(), FAILED)
            pipe.send(failure)


def _answer(
    setup: Setup, pickled: bytes, indices: range, memory: SharedMemory, restart: bool, pipe: Connection
) -> None:
    """Do as told until the caller closes the pipe."""
    try:
        make = pickle.loads(pickled)
    except (AttributeError, ImportError) as error:
        raise importable_only(setup.name) from error
    envs = make_all(make, setup.name, len(indices))
    serial = Serial(setup, envs, indices[0], setup.rows(memory.buf), make if restart else None)
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
