"""Running contestants: every measurement is a fresh process that prints one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

READY = "ready"
"""What a contestant prints when it has warmed up and waits for a line on its standard input."""
TIME_LIMIT = 900.0
"""Seconds after which a contestant is given up."""


class ContestantError(RuntimeError):
    """A contestant ended without a result."""


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, time_limit: float = TIME_LIMIT
) -> dict[str, Any]:
    """Run one contestant to its end and return what it measured."""
    with tempfile.TemporaryDirectory() as scratch:
        return _result(_start(command, scratch, environment), command, time_limit)


def run_together(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Run contestants at the same time; all begin to measure only when the last of them has warmed up.

    They must have been given `--barrier`.
    """
    scratch = tempfile.TemporaryDirectory()
    processes = [_start(command, scratch.name) for command in commands]
    try:
        for process, command in zip(processes, commands, strict=True):
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                _result(process, command)
                raise ContestantError(f"{_name(command)} did not wait for the others")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_result(process, command) for process, command in zip(processes, commands, strict=True)]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        scratch.cleanup()


class Waiting:
    """A contestant that was given `--rounds`: it has warmed up, and measures when it is asked to.

    Use it in a `with` statement, which ends it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command, self._scratch = command, tempfile.TemporaryDirectory()
        self._process = _start(command, self._scratch.name, environment)
        self._expect_ready()

    def measure(self) -> dict[str, Any]:
        """One round."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            _result(self._process, self._command)
        result: dict[str, Any] = json.loads(line)
        self._expect_ready()
        return result

    def _expect_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            _result(self._process, self._command)
            raise ContestantError(f"{_name(self._command)} did not wait to be asked")

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._scratch.cleanup()


def _start(command: Sequence[str], scratch: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """In a scratch directory, because MuJoCo writes its warnings into the current one."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=scratch,
        env=os.environ | dict(environment or {}),
    )


def _result(process: subprocess.Popen[str], command: Sequence[str], time_limit: float = TIME_LIMIT) -> dict[str, Any]:
    try:
        output, errors = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ContestantError(f"{_name(command)} took longer than {time_limit:.0f} s") from None
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        last_words = " | ".join(errors.strip().splitlines()[-3:])
        raise ContestantError(f"{_name(command)} ended with {process.returncode}: {last_words}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _name(command: Sequence[str]) -> str:
    """The command without the interpreter and without directories."""
    return " ".join(os.path.basename(word) for word in command[1:])
