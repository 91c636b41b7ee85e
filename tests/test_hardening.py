"""What comes from a file is never executed, and what is in the wrong place is never deleted, followed or waited for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

import detent
import host_tasks
import hostile_tasks
from detent import report
from detent.cli import main
from detent.environments import Wanted
from detent.environments.host import Host
from detent.errors import BadInput, Defect, DetentError, EnvironmentFailed, NeedsImport, Refused
from detent.files import append_line, read_tensors, temporary_name, write_tensors, write_whole
from detent.heads.gaussian import Gaussian
from detent.paper import tables
from detent.play import Film, make_env
from detent.report.card import card
from detent.report.serving import Server, Watch
from detent.runs import memory
from detent.runs.books import Episodes, History
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.identity import hashed
from detent.runs.run import Run
from detent.runs.verification import published
from detent.sweeps.cores import sweep
from detent.sweeps.plan import run_name
from detent.tasks import find_task
from marks import slow_unless
from policies import random_policy
from test_reliability import TINY, carry_out, copied, relinked, rewritten
from written import write_run


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The smallest run; read only."""
    out = tmp_path_factory.mktemp("runs") / "small"
    carry_out(out, Run("probe/action", steps=8, **TINY), checkpoint_seconds=0)
    return out


# --- nothing executes ---


def called(trace):
    """Name of a callable -> arguments with which it would leave a trace. All of these modules are imported already."""
    program = trace.with_name("program.py")
    program.write_text(f"open({str(trace)!r}, 'w')")
    return {
        "os:system": {"command": f"touch {trace}"},
        "os:mkdir": {"path": str(trace)},
        "os:popen": {"cmd": f"touch {trace}"},
        "posix:mkdir": {"path": str(trace)},
        "builtins:open": {"file": str(trace), "mode": "w"},
        "io:open": {"file": str(trace), "mode": "w"},
        "subprocess:getoutput": {"cmd": f"touch {trace}"},
        "subprocess:Popen": {"args": ["touch", str(trace)]},
        "shutil:copyfile": {"src": str(program), "dst": str(trace)},
        "runpy:run_path": {"path_name": str(program)},
        "timeit:timeit": {"stmt": program.read_text(), "number": 1},
        "logging:FileHandler": {"filename": str(trace)},
        "numpy:memmap": {"filename": str(trace), "mode": "w+", "shape": 8},
        "gymnasium:make": {"id": "program:Env-v0"},
        "detent.files:locked": {"directory": str(trace), "doing": "harm"},
        "host_tasks:Task": {},
        "program:make": {},
        "__main__:main": {},
    }


@pytest.fixture
def forged(tmp_path, monkeypatch):
    """Callables that a file may name. If any was called, or a module imported, there is a trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = tmp_path / "trace"
    yield called(trace)
    assert not trace.exists()
    assert sys.modules.pop("program", None) is None


def refused(words, capfd):
    """The verb ends with one sentence, which does not invite anybody to trust the standard library."""
    assert main(words) == 2, words
    error = capfd.readouterr().err
    assert error.startswith("detent: ") and error.count("\n") == 1, error
    assert not any(f"--import {module}\n" in error for module in sys.stdlib_module_names), error
    return error


VERBS = ("eval", "verify", "resume", "card", "play")


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_calls_what_a_run_names(small, tmp_path, forged, capfd, verb):
    for number, (task, arguments) in enumerate(forged.items()):
        out = copied(small, tmp_path / str(number))
        (out / "status.json").unlink()
        rewritten(out, lambda d, task=task, arguments=arguments: d.update(
            task=task, options={**d["options"], "env_kwargs": arguments}
        ))  # fmt: skip
        tensors, meta = read_tensors(out / "policy.safetensors")
        meta["configuration"] = json.loads((out / "run.json").read_text())
        write_tensors(out / "policy.safetensors", tensors, meta)
        assert repr(task) in refused([verb, str(out)], capfd)


@pytest.mark.parametrize("flags", [["--dry-run"], [], ["--head", "gaussian", "--dry-run"]], ids=str)
def test_no_sweep_calls_what_its_file_names(tmp_path, forged, capfd, flags):
    for task, arguments in forged.items():
        given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in arguments.items())
        file = tmp_path / "sweep.toml"
        for text in (f'task = "{task}"\n', f'task = "Hopper-v5"\n[[grid]]\ntask = ["probe/action", "{task}"]\n'):
            file.write_text(f"{text}env_kwargs = {{{given}}}\n")
            assert repr(task) in refused(["sweep", str(file), *flags], capfd)
    assert not (tmp_path / "sweeps").exists()


def test_nothing_calls_what_a_compact_file_or_the_plan_of_a_sweep_names(small, tmp_path, forged):
    runs = report.load_runs([small])
    report.write_compact(runs, tmp_path / "one.jsonl")
    header, record = map(json.loads, (tmp_path / "one.jsonl").read_text().splitlines())
    for task, arguments in forged.items():
        changed = {**record, "task": task, "options": {**record["options"], "env_kwargs": arguments}}
        (tmp_path / "forged.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(changed) + "\n")
        assert main(["report", str(tmp_path / "forged.jsonl")]) == 0
        (summary,) = report.load_runs([tmp_path / "forged.jsonl"])
        with pytest.raises(BadInput):
            tables.parameters(Placed(summary))
        (tmp_path / "out").mkdir(exist_ok=True)
        plan = {"schema": 1, "runs": [{"name": "x", **{k: changed[k] for k in ("task", "head", "algo", "preset")}}]}
        (tmp_path / "out" / "sweep.json").write_text(json.dumps(plan))
        assert main(["sweep", "--task", "probe/action", "--out", str(tmp_path / "out"), "--dry-run"]) == 0


class Placed:
    """As `detent paper show` has a run."""

    def __init__(self, run):
        self.run = run


MINE = """\
import functools, os, subprocess
from os import system
from subprocess import getoutput as make_it
import gymnasium
from host_tasks import Task
from helper_of_mine import elsewhere

def make(): return Task()
class Own(Task): pass
bound = functools.partial(make)
system_bound = functools.partial(system)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_for_hardening.py").write_text(MINE)
    (tmp_path / "helper_of_mine.py").write_text("def elsewhere(): raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine_for_hardening"
    for name in ("mine_for_hardening", "helper_of_mine"):
        sys.modules.pop(name, None)


def test_what_the_user_imports_can_be_named_by_a_file(small, tmp_path, mine, capfd):
    out = copied(small, tmp_path / "run")
    rewritten(out, lambda d: d.update(task=f"{mine}:make", options={**d["options"], "env_kwargs": None}))
    assert f"detent eval {out} --import {mine}" in refused(["eval", str(out)], capfd)
    with pytest.raises(NeedsImport):
        Run.from_configuration(json.loads((out / "run.json").read_text()))
    assert mine not in sys.modules
    assert main(["verify", str(out), "--import", mine]) == 1  # executed: it is another task than the run's
    found = Run.from_configuration(json.loads((out / "run.json").read_text()), imports=[mine])
    assert found.names[0] == f"{mine}:make"
    for name in ("Own", "bound", "Task"):
        assert find_task(f"{mine}:{name}", imports=[mine]).factory({})


@pytest.mark.parametrize(
    "name",
    ["system", "make_it", "os.system", "os", "gymnasium.make", "system_bound", "elsewhere", "__import__", "", " "],
)
def test_only_what_is_the_modules_own(mine, name):
    """A module that is trusted may have imported things that are dangerous in others' hands."""
    with pytest.raises(BadInput):
        find_task(f"{mine}:{name}", imports=[mine])


def test_a_task_that_the_user_names_or_passes_is_the_users_own(tmp_path, mine):
    """No file is involved, so nothing has to be imported first; and what trained it in Python resumes it."""
    assert find_task(f"{mine}:elsewhere").factory({})
    run = Run(host_tasks.Drift, "gaussian", steps=8, **{k: v for k, v in TINY.items() if k != "bins"})
    assert len(list(detent.train(run, tmp_path / "run", max_minutes=1e-9))) == 1
    assert list(detent.train(run, tmp_path / "run", resume=True))
    assert not list(detent.train(run, tmp_path / "run", resume=True))


def test_a_sweep_of_registered_tasks_and_of_ones_own(tmp_path, mine, monkeypatch):
    """Workers resolve what the user named; a registered task needs no module of its name."""
    source = tmp_path / "registers_for_hardening.py"
    source.write_text("import detent, host_tasks\ndetent.register_task('hardening/drift', host_tasks.Drift)\n")
    plain = {k: v for k, v in TINY.items() if k != "bins"}
    find_task(f"{mine}:make")
    __import__(source.stem)
    runs = [Run(name, "gaussian", steps=8, **plain) for name in ("hardening/drift", f"{mine}:Own", f"{mine}:make")]
    events = list(sweep(runs, tmp_path / "out", jobs=1, imports=[source.stem]))
    assert [e.why for e in events if e.ended] == [None] * 3
    assert [e.status for e in events if e.ended] == ["finished"] * 3


def test_a_worker_takes_no_module_from_the_current_directory(tmp_path, monkeypatch):
    """A directory that somebody sent may hold a `random.py`."""
    (tmp_path / "random.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    (event,) = [e for e in sweep([Run("probe/action", steps=8, **TINY)], "out") if e.ended]
    assert (event.status, event.why) == ("finished", None)
    assert not (tmp_path / "trace").exists()


# --- nothing outside is touched, and nothing waits for ever ---


PARTS = (
    "run.json", "records.jsonl", "checkpoints.jsonl", "status.json", "policy.safetensors", "best_policy.safetensors",
    "init.safetensors", ".lock", "checkpoints", *(f"checkpoints/00000000{number}.safetensors" for number in (1, 2, 3)),
)  # fmt: skip


def linked(path, elsewhere):
    """A link to what was there, which is elsewhere now."""
    if path.exists():
        path.rename(elsewhere / "taken")
    path.symlink_to(elsewhere / "taken")


def dangling(path, elsewhere):
    gone(path)
    path.symlink_to(elsewhere / "made")


def fifo(path, elsewhere):
    gone(path)
    os.mkfifo(path)


def endless(path, elsewhere):
    gone(path)
    path.symlink_to("/dev/zero")


def socketed(path, elsewhere):
    gone(path)
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def swapped(path, elsewhere):
    """A directory for a file and a file for a directory."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("{}")
    else:
        gone(path)
        path.mkdir()


def gone(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


ODD = (linked, dangling, fifo, endless, socketed, swapped)


def seen(place):
    """Everything there, with content."""
    return {p: p.read_bytes() if p.is_file() and not p.is_symlink() else p.lstat().st_mode for p in place.rglob("*")}


@pytest.mark.parametrize(
    ("make", "part"),
    [(make, part) for make in ODD for part in PARTS if make is linked or part in ("run.json", "checkpoints", ".lock")],
)
def test_a_run_with_a_part_that_is_no_file_is_refused(small, tmp_path, capfd, monkeypatch, make, part):
    """By every verb, at once, and nothing is changed, made or deleted, here or elsewhere."""
    monkeypatch.chdir(tmp_path)
    out, elsewhere = copied(small, tmp_path / "run"), tmp_path / "elsewhere"
    (out / "status.json").unlink()
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    make(out / part, elsewhere)
    before = seen(tmp_path)
    began = time.process_time()
    for verb in (["resume"], ["verify", "--all"], ["eval", "--episodes", "1"], ["card"]):
        assert "Traceback" not in refused([*verb, str(out)], capfd)
    if "policy" in part:
        flags = ["--best"] if "best" in part else []
        refused(["export", str(out), "--to", "numpy", *flags], capfd)
        refused(["play", str(out), *flags], capfd)
    assert main(["report", str(out), "--out", str(tmp_path / "report.html")]) == (
        2 if part == "run.json" and make is swapped else 0
    )
    assert time.process_time() - began < 30
    (tmp_path / "report.html").unlink(missing_ok=True)
    assert seen(tmp_path) == before


@pytest.mark.parametrize("make", (linked, dangling, fifo, endless))
def test_a_lock_that_is_no_file(tmp_path, make, capfd):
    """Before there is a run, and in the directory of a sweep."""
    (tmp_path / "elsewhere").mkdir()
    for words in (["train", "probe/action"], ["sweep", "--task", "probe/action"]):
        out = tmp_path / words[0]
        out.mkdir()
        make(out / ".lock", tmp_path / "elsewhere")
        refused([*words, "--steps", "8", "--out", str(out)], capfd)
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("where", ["", "checkpoints"])
def test_only_what_detent_writes_is_deleted(small, tmp_path, where):
    """Whatever else a user keeps in a run directory stays, however much its name looks like ours."""
    out = copied(small, tmp_path / "run")
    (out / "status.json").write_text('{"status": "stopped", "why": null}')
    rewritten(out, lambda d: d["options"].update(steps=16, anneal_steps=16))
    own = [".status.json.123.tmp", ".policy.safetensors.0f0f.tmp"] if not where else [
        "000000007.safetensors", ".000000007.safetensors.99.tmp"
    ]  # fmt: skip
    names = [
        "notes.txt", "thesis.tex.tmp", ".thesis.tex.tmp", ".notes.12.tmp", "best.safetensors", "1.safetensors.bak",
        "x000000009.safetensors", "000000009.safetensors.txt", ".bashrc", "1.safetensors", ".run.json.1.tmp.old",
    ]  # fmt: skip
    for name in [*own, *names]:
        (out / where / name).write_text(name)
    (out / where / "kept").mkdir()
    (out / where / "kept" / "000000009.safetensors").write_text("mine")
    (tmp_path / "precious").write_text("mine")
    (out / where / ".status.json.77.tmp").symlink_to(tmp_path / "precious")
    (out / where / ".000000009.safetensors.77.tmp").symlink_to(tmp_path / "precious")
    assert main(["resume", str(out), "--quiet"]) == 0
    assert {name: (out / where / name).read_text() for name in names} == {name: name for name in names}
    assert (out / where / "kept" / "000000009.safetensors").exists()
    assert (tmp_path / "precious").read_text() == "mine"
    assert not any((out / where / name).exists() for name in own)


def test_a_run_directory_may_itself_be_reached_through_a_link(small, tmp_path):
    """It is the user who named it."""
    out = copied(small, tmp_path / "disk" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "latest").symlink_to(out)
    (tmp_path / "policy").symlink_to(out / "policy.safetensors")
    assert main(["eval", str(tmp_path / "link" / "run"), "--episodes", "1"]) == 0
    assert main(["resume", str(tmp_path / "latest")]) == 0
    assert detent.load(tmp_path / "policy").meta["steps"] == 8


def test_a_log_of_a_sweep_is_written_to_no_other_place(tmp_path):
    run = Run("probe/action", steps=8, **TINY)
    (tmp_path / "out" / "logs").mkdir(parents=True)
    (tmp_path / "out" / "logs" / f"{run_name(run)}.log").symlink_to(tmp_path / "precious")
    with pytest.raises(DetentError, match="a link"):
        list(sweep([run], tmp_path / "out"))
    assert not (tmp_path / "precious").exists()


def test_a_name_that_somebody_guessed_is_not_written_through(tmp_path):
    """A temporary file is a new one."""
    for number in (os.getpid(), os.getppid()):
        (tmp_path / f".policy.{number}.tmp").symlink_to(tmp_path / "precious")
    write_whole(tmp_path / "policy", b"policy")
    assert (tmp_path / "policy").read_bytes() == b"policy"
    assert not (tmp_path / "precious").exists()


# --- programs that end early ---

PROGRAM = """
import sys, threading
import detent

run = detent.Run("probe/action", steps=10**8, batch_size=8, minibatch_size=8, epochs=1, envs=1, hidden_sizes=(2,))
out = sys.argv[1]

{}
"""
QUICKLY_LEFT = ("an exception in a function", "a log on a full disk", "a copy of the process")
LEFT = {
    "an exception in a function": """
def main():
    records = detent.train(run, out)
    for number, record in enumerate(records):
        if number == 3:
            raise RuntimeError("mine")
main()""",
    "an exception at the top": """
records = detent.train(run, out)
for number, record in enumerate(records):
    if number == 3:
        1 / 0""",
    "an exception in a loop without a name": """
def main():
    for number, record in enumerate(detent.train(run, out)):
        assert number < 3
main()""",
    "a log on a full disk": """
def main():
    records, log = detent.train(run, out), open("/dev/full", "w", buffering=1)
    for number, record in enumerate(records):
        if number == 3:
            print(record["time/iterations"], file=log)
main()""",
    "a break, and the records kept": """
records = detent.train(run, out)
for number, record in enumerate(records):
    if number == 3:
        break""",
    "sys.exit": """
records = detent.train(run, out)
for number, record in enumerate(records):
    if number == 3:
        sys.exit(5)""",
    "next": """
records = detent.train(run, out)
for _ in range(4):
    next(records)""",
    "an object of one's own that keeps all": """
class Log:
    def __init__(self):
        self.records, self.me = detent.train(run, out), self
        self.seen = [next(self.records) for _ in range(4)]
log = Log()
raise KeyError""",
    "a thread": """
records = detent.train(run, out)
def train():
    for number, record in enumerate(records):
        if number == 3:
            raise RuntimeError("mine")
threading.Thread(target=train).start()""",
    "a copy of the process": """
import os
records = detent.train(run, out)
for _ in range(3):
    next(records)
copy = os.fork()
if copy == 0:
    sys.exit()  # which is not the end of the run
os.waitpid(copy, 0)  # JAX may crash there
assert '"running"' in open(out + "/status.json").read()
next(records)""",
}


@pytest.mark.parametrize("how", slow_unless(lambda how: how in QUICKLY_LEFT, LEFT))
def test_a_program_that_leaves_the_loop_exits(tmp_path, how):
    """At once, and the run directory says what happened and where to go on."""
    (tmp_path / "program.py").write_text(PROGRAM.format(LEFT[how]))
    out = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(out)], capture_output=True, text=True, timeout=100
    )
    assert "Exception ignored" not in ended.stderr
    assert ended.returncode == (5 if how == "sys.exit" else 1 if "Error" in ended.stderr and how != "a thread" else 0)
    directory = RunDirectory(out)
    assert directory.status() == "stopped"
    assert directory.latest().meta["iteration"] == 4
    assert len(directory.records()) == 4


@pytest.mark.parametrize("how", ["close", "with", "with an exception", "del"])
def test_records_can_be_closed(tmp_path, how):
    run = Run("probe/action", steps=10**6, **TINY)
    records = detent.train(run, tmp_path / "run")
    with contextlib.suppress(ZeroDivisionError):
        if how.startswith("with"):
            with records:
                next(records)
                if "exception" in how:
                    1 / 0  # noqa: B018
        else:
            next(records)
    if how == "close":
        records.close()
        records.close()
    if how == "del":
        del records
    else:
        assert list(records) == []
    assert RunDirectory(tmp_path / "run").status() == "stopped"
    assert RunDirectory(tmp_path / "run").latest().meta["iteration"] == 1
    assert next(iter(detent.train(run, tmp_path / "run", resume=True)))["time/iterations"] == 2


def test_a_closed_training_without_a_directory_leaves_no_environments(tmp_path):
    run = Run(host_tasks.Drift, "gaussian", steps=10**6, **{k: v for k, v in TINY.items() if k != "bins"})
    with detent.train(run) as records:
        assert next(records)["time/iterations"] == 1
    assert list(records) == []


# --- a chain that was cut ---


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A run of four checkpoints, all kept, that could go on; read only."""
    out = tmp_path_factory.mktemp("runs") / "longer"
    run = Run("probe/action", steps=10**6, **TINY)
    with contextlib.closing(execute(run, out, Execution(checkpoint_seconds=0, keep_all=True))) as records:
        for _ in range(4):
            next(records)
    return out


def lines_kept(out, name, kept):
    lines = (out / name).read_bytes().splitlines(keepends=True)
    (out / name).write_bytes(b"".join(lines[:kept]))


@pytest.mark.parametrize(
    ("links", "checkpoints"),
    [(0, 4), (1, 4), (2, 4), (None, 4), (0, 1), (None, 1), (0, 0), (None, 2)],
    ids=lambda number: "none" if number is None else str(number),
)
def test_checkpoints_without_their_links_are_not_thrown_away(longer, tmp_path, capfd, links, checkpoints):
    """Emptied, cut short or deleted: the run is refused, and all that is there stays."""
    out = copied(longer, tmp_path / "run")
    if links is None:
        (out / "checkpoints.jsonl").unlink()
    else:
        lines_kept(out, "checkpoints.jsonl", links)
    for path in sorted((out / "checkpoints").iterdir())[checkpoints:]:
        path.unlink()
    before = seen(out)
    assert "checkpoints.jsonl" in refused(["resume", str(out), "--quiet"], capfd)
    assert "checkpoints.jsonl" in refused(["train", "probe/action", "--out", str(out), "--resume", *FLAGS], capfd)
    assert seen(out) == before


FLAGS = ["--steps", "1e6", "--batch-size", "8", "--minibatch-size", "8", "--epochs", "1", "--envs", "1", "--quiet",
         "--hidden-sizes", "2", "--bins", "2"]  # fmt: skip


@pytest.mark.parametrize("links", [3, 0])
def test_a_checkpoint_whose_link_was_never_written_is_written_again(longer, tmp_path, links):
    """A process that was killed between the two leaves this."""
    out = copied(longer, tmp_path / "run")
    if links:
        lines_kept(out, "checkpoints.jsonl", links)
    else:
        (out / "checkpoints.jsonl").unlink()
        lines_kept(out, "records.jsonl", 1)
        for path in sorted((out / "checkpoints").iterdir())[1:]:
            path.unlink()
    with detent.train(RunDirectory(out).run(), out, resume=True) as records:
        assert next(records)["time/iterations"] == max(links, 0) + 1
    assert RunDirectory(out).links()[-1]["sha256"] == RunDirectory(longer).links()[links]["sha256"]


# --- all that is published is verified ---

EVALUATED = {"eval_every": 16, "eval_episodes": 2}


def trained(out, **options):
    """Eight iterations with two evaluations."""
    carry_out(out, Run("probe/action", steps=32, **TINY | EVALUATED | options), checkpoint_seconds=0)
    return out


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "evaluated")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """The same with another seed."""
    return trained(tmp_path_factory.mktemp("runs") / "stranger", seed=5)


def verified(out, *flags):
    return main(["verify", str(out), *(flags or ["--all"])])


def in_records(out, change):
    lines = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    (out / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def changed(number, **values):
    return lambda lines: [line | values if n == number else line for n, line in enumerate(lines)]


def test_evaluations_and_policies_of_a_true_run_are_verified(evaluated, stranger, capsys):
    links = RunDirectory(evaluated).links()
    for name in ("policy", "best_policy"):
        assert links[-1][name] == hashlib.sha256((evaluated / f"{name}.safetensors").read_bytes()).hexdigest()
    assert verified(evaluated) == 0
    assert capsys.readouterr().out.count(": identical") == 3


def test_the_best_policy_is_the_one_of_the_best_record(evaluated):
    rows = [r for r in RunDirectory(evaluated).records() if "eval/mean_reward" in r]
    best = max(rows, key=lambda r: r["eval/mean_reward"])
    assert len(rows) == 2
    assert read_tensors(evaluated / "best_policy.safetensors")[1]["steps"] == best["time/total_timesteps"]


WRONG_POLICIES = itertools.product(
    ("a run", "an iteration", "a weight", "the bounds", "the steps", "the ops"),
    ("policy", "best_policy"),
    (False, True),
)


@pytest.mark.parametrize(
    ("what", "name", "forge"), slow_unless(lambda what, name, forge: not forge or what == "a run", WRONG_POLICIES)
)
def test_a_policy_that_was_exchanged_is_found(evaluated, stranger, tmp_path, capsys, name, what, forge):
    out = copied(evaluated, tmp_path / "run")
    path = out / f"{name}.safetensors"
    tensors, meta = read_tensors(path)
    if what == "a run":
        path.write_bytes((stranger / f"{name}.safetensors").read_bytes())
    elif what == "an iteration":
        record = next(execute(RunDirectory(out).run(), tmp_path / "again", Execution()))
        record.policy().save(path)
    else:
        if what == "a weight":
            weight = next(n for n in tensors if n.startswith("policy/"))
            tensors[weight] = tensors[weight] + np.float32(1e-6)
        elif what == "the bounds":
            tensors["space/high"] = tensors["space/high"] * 2
        elif what == "the steps":
            meta["steps"] += 8
        else:
            meta["ops"] = meta["ops"][:-1]
        write_tensors(path, tensors, meta)
    if not forge:
        assert f"{name}.safetensors" in published(RunDirectory(out))[0]
        return
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest()}
    relinked(out, lambda links: [*links[:-1], {**links[-1], **hashes}])
    assert published(RunDirectory(out)) == []
    assert verified(out) == 1
    assert f"{name}.safetensors" in capsys.readouterr().out


EMBELLISHED = {
    "a better evaluation": changed(3, **{"eval/mean_reward": 1e6}),
    "another spread": changed(7, **{"eval/std_reward": 0.5}),
    "an evaluation that never was": changed(2, **{"eval/mean_reward": 0.0}),
    "an evaluation left out": lambda lines: [
        {k: v for k, v in line.items() if n != 3 or not k.startswith("eval/")} for n, line in enumerate(lines)
    ],
    "a key of one's own": changed(0, **{"train/awards": 1.0}),
    "a record left out": lambda lines: [*lines[:2], *lines[3:]],
    "the first left out": lambda lines: lines[1:],
    "the last left out": lambda lines: lines[:-1],
    "all left out": lambda lines: [],
    "a record twice": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "all of them twice": lambda lines: lines + lines,
    "a better one after the true one": lambda lines: [*lines, {**lines[-1], "rollout/ep_rew_mean": 1e6}],
    "two exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
}


@pytest.mark.parametrize("what", slow_unless(lambda what: "evaluation" in what or "twice" in what, EMBELLISHED))
def test_records_that_were_embellished_are_found(evaluated, tmp_path, what):
    out = copied(evaluated, tmp_path / "run")
    in_records(out, EMBELLISHED[what])
    assert verified(out) == 1


def as_in_version_01(out):
    """Without the hashes of policies in the chain."""
    relinked(out, lambda links: [{k: v for k, v in link.items() if "policy" not in k} for link in links])


def test_a_checkpoint_that_is_not_the_one_of_its_link_is_found(evaluated, stranger, tmp_path, capsys):
    """Even if nothing that is executed begins with it."""
    out = copied(evaluated, tmp_path / "run")
    (path, *_, last) = sorted((out / "checkpoints").iterdir())
    path.write_bytes(last.read_bytes())
    assert published(RunDirectory(out)) == [f"checkpoints/{path.name} is not the one of its link"]


@pytest.mark.parametrize("name", ["policy", "best_policy"])
def test_policies_of_runs_from_before_their_hashes(evaluated, stranger, tmp_path, name):
    out = copied(evaluated, tmp_path / "run")
    as_in_version_01(out)
    assert verified(out) == 0
    (out / f"{name}.safetensors").write_bytes((stranger / f"{name}.safetensors").read_bytes())
    assert verified(out) == 1


def test_a_run_that_was_made_longer_is_verified(tmp_path):
    """Its policy says how long the run was to be; older links know of another length."""
    out = trained(tmp_path / "run", anneal_steps=100)
    assert main(["resume", str(out), "--steps", "48", "--quiet"]) == 0
    assert verified(out) == 0
    assert main(["resume", str(out), "--steps", "64", "--quiet", "--max-minutes", "1e-9"]) == 3
    assert verified(out) == 0


@pytest.mark.parametrize(
    "forged", [{"machine": [1]}, {"versions": 5}, {"machine": None}, {"versions": {"jax": []}}], ids=str
)
def test_a_crash_is_not_a_difference(small, tmp_path, capfd, forged):
    """Exit code 1 says that a run was executed again and that something differs, nothing else."""
    out = copied(small, tmp_path / "run")
    rewritten(out, lambda described: described.update(forged))
    assert main(["verify", str(out)]) in (0, 2, 70)
    assert "Traceback" not in capfd.readouterr().err


# --- records that are not whole ---

NOT_WHOLE = ("record left", "first left", "last left", "all left", "twice", "exchanged")
DAMAGED = {what: change for what, change in EMBELLISHED.items() if any(word in what for word in NOT_WHOLE)}
DAMAGED["cut short"] = lambda lines: lines[:2]


@pytest.mark.parametrize("what", DAMAGED)
def test_a_run_with_gaps_in_its_records_is_not_continued(longer, tmp_path, capfd, what):
    """It would finish, and nobody would notice; so it says what is missing, and all that is there stays."""
    out = copied(longer, tmp_path / "run")
    in_records(out, DAMAGED[what])
    before = seen(out)
    assert "records.jsonl is damaged: line " in refused(["resume", str(out), "--quiet"], capfd)
    assert seen(out) == before


def test_records_that_no_checkpoint_needs_are_written_again(longer, tmp_path):
    """The end of the last line is lost, and so are the records after the checkpoint that is used."""
    out = copied(longer, tmp_path / "run")
    for path in sorted((out / "checkpoints").iterdir())[1:]:
        path.write_bytes(b"")
    (out / "records.jsonl").write_bytes((longer / "records.jsonl").read_bytes()[:-9])
    with detent.train(RunDirectory(out).run(), out, resume=True) as records:
        assert [next(records)["time/iterations"] for _ in range(3)] == [2, 3, 4]
    assert len(RunDirectory(out).records()) == 4


# --- the boundary of a run: whatever happens, one sentence, the right status and the right exit code ---


def faults():
    """What happens -> the code of the sentence, and its text."""

    def recursion():
        return recursion()

    def system():
        raise OSError(28, "No space left on device", "/somewhere")

    def product():  # as seen with --bins 20001 on Humanoid-v5, when 7 GB were left
        raise jax.errors.JaxRuntimeError("INTERNAL: YNNPACK operation failed: error")

    return {
        "no memory": (lambda: np.ones(10**15), Refused, "There is not enough memory"),
        "no memory for JAX": (lambda: jnp.ones(10**13), Refused, "There is not enough memory"),
        "no memory for a product": (product, Refused, "There is not enough memory"),
        "no file": (lambda: open("/nowhere/at/all"), Refused, "The system refused /nowhere/at/all: No such file"),
        "a full disk": (system, Refused, "The system refused /somewhere: No space left on device."),
        "no process": (lambda: subprocess.run(["/nothing"]), Refused, "The system refused /nothing"),
        "a division by zero": (lambda: 1 // 0, Defect, "Training failed (ZeroDivisionError: "),
        "an overflow": (lambda: 10.0**1000, Defect, "Training failed (OverflowError: "),
        "JAX's shapes": (lambda: jnp.ones(2) + jnp.ones(3), Defect, "Training failed (TypeError: "),
        "recursion": (recursion, Defect, "Training failed (RecursionError: "),
        "an exit": (sys.exit, Defect, "Training failed (SystemExit)"),
        "an error of several lines": (lambda: {}["a\nb"], Defect, "Training failed (KeyError: 'a\\nb')"),
        "no text that can be encoded": (lambda: {}["\udcff"], Defect, "Training failed (KeyError: "),
    }


@pytest.mark.parametrize("what", faults())
def test_whatever_happens_is_one_sentence_and_a_status(tmp_path, what):
    """In the third iteration; the run can go on from there."""
    happen, kind, text = faults()[what]
    run, out = Run("probe/action", steps=10**6, **TINY), tmp_path / "run"
    seen = itertools.count(1)
    with pytest.raises(kind) as raised:
        carry_out(out, run, checkpoint_seconds=0, stop=lambda: happen() if next(seen) == 3 else None)
    sentence, directory = str(raised.value), RunDirectory(out)
    assert sentence.startswith(text) and "\n" not in sentence
    assert (directory.status(), directory.why()) == ("failed", sentence)
    assert raised.value.exit_code == (2 if kind is Refused else 70)
    assert raised.value.__cause__ is not None
    assert (str(out / "error.txt") in sentence) == (kind is Defect)
    assert re.search("in (<lambda>|recursion|system|carry_out|_watched)", (out / "error.txt").read_text())
    with detent.train(run, out, resume=True) as records:
        assert next(records)["time/iterations"] == 3
    assert not (out / "error.txt").exists()


ALGORITHM_OF_MINE = """
import dataclasses, sys
import detent, numpy as np
from detent.algorithms.ppo import PPO

@dataclasses.dataclass(frozen=True)
class Mine(PPO):
    def update(self, *given):
        {}

detent.register_algorithm("mine_{}", Mine)
"""


@pytest.mark.parametrize(
    ("body", "code"), [("raise KeyError('mine')", 70), ("sys.exit(0)", 70), ("np.ones(10**15)", 2), ("1 // 0", 70)]
)
def test_a_run_that_fails_has_the_right_exit_code(tmp_path, monkeypatch, capfd, body, code):
    module = f"mine_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(ALGORITHM_OF_MINE.format(body, module))
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "run"
    words = ["train", "probe/action", "--import", module, "--algo", f"mine_{module}", "--out", str(out), *FLAGS]
    assert main(words) == code
    error = capfd.readouterr().err
    assert error.startswith("detent: ") and error.count("\n") == 1
    assert RunDirectory(out).status() == "failed"
    assert error == f"detent: {RunDirectory(out).why()}\n"


# --- an environment that ends the program, and output that nobody reads ---

HOSTILE = ["--steps", "64", "--batch-size", "8", "--minibatch-size", "8", "--epochs", "1", "--envs", "2", "--quiet",
           "--hidden-sizes", "2"]  # fmt: skip


@pytest.mark.parametrize("how", ["sys.exit(0)", "GeneratorExit", "bye"])
@pytest.mark.parametrize(
    ("where", "workers"),
    slow_unless(lambda where, workers: where == "step", itertools.product(("make", "reset", "step"), (0, 1))),
)
def test_an_environment_that_exits_has_failed(tmp_path, capfd, where, workers, how):
    out = tmp_path / "run"
    given = json.dumps({"where": where, "how": how})
    words = ["train", "hostile_tasks:Exits", "--env-kwargs", given, "--out", str(out), "--workers", str(workers)]
    error = refused([*words, *HOSTILE, "--head", "gaussian"], capfd)
    kind = "GeneratorExit" if how == "GeneratorExit" else "SystemExit"
    assert f"raised {kind}" in error
    assert f"detent: {RunDirectory(out).why()}\n" == error
    assert RunDirectory(out).status() == "failed"


def test_an_environment_that_exits_is_found_by_the_check_and_may_be_restarted(tmp_path, capfd):
    for where in ("make", "reset", "step"):
        assert main(["check", "hostile_tasks:Exits", "--env-kwargs", json.dumps({"where": where})]) == 1
        assert "SystemExit" in capfd.readouterr().out
    out = tmp_path / "run"
    words = ["train", "hostile_tasks:Exits", "--env-kwargs", '{"where": "step"}', "--head", "gaussian", *HOSTILE]
    assert main([*words, "--on-env-error", "restart", "--max-env-restarts", "100", "--out", str(out)]) == 0
    assert RunDirectory(out).records()[-1]["rollout/env_restarts"] > 5
    assert main([*words[:3], '{"where": "close"}', *words[4:], "--out", str(tmp_path / "closes")]) == 0


def test_a_module_that_exits_cannot_be_imported(tmp_path, monkeypatch, capfd):
    (tmp_path / "exits_for_hardening.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "'exits_for_hardening': SystemExit: 0 (" in refused(["train", "exits_for_hardening:make"], capfd)


UNREAD = {
    "head -1": "2>&1 | head -1",
    "true": "2>&1 | true",
    "a full disk": ">/dev/full 2>&1",
    "nothing to write to": ">&- 2>&-",
}


@pytest.mark.parametrize("where", slow_unless(lambda where: where == "head -1", UNREAD))
@pytest.mark.parametrize(("extra", "code"), [([], 0), (["--max-minutes", "1e-9"], 3)])
def test_output_that_nobody_reads_ends_no_run(tmp_path, where, extra, code):
    """It goes on, and its exit code says how it ended."""
    out = tmp_path / "run"
    loud = [word for word in FLAGS if word != "--quiet"]
    words = [sys.executable, "-m", "detent.cli", "train", "probe/action", "--out", str(out), *loud, "--steps", "64"]
    command = f"{shlex.join([*words, *extra])} {UNREAD[where]}; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ended.stdout.split()[-1] == str(code), ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert RunDirectory(out).status() == ("stopped" if code else "finished")
    assert len(RunDirectory(out).records()) == (1 if code else 16)


@pytest.mark.slow
def test_output_that_nobody_reads_ends_no_sweep(tmp_path):
    words = [sys.executable, "-m", "detent.cli", "sweep", "--task", "probe/action", "--seeds", "3", "--jobs", "1"]
    flags = [word for word in FLAGS if word != "--quiet"]
    command = shlex.join([*words, *flags, "--steps", "64", "--out", str(tmp_path / "out")])
    ended = subprocess.run(
        ["bash", "-c", f"{command} 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert ended.stdout.split()[-1] == "0", ended.stdout
    assert [RunDirectory(p.parent).status() for p in (tmp_path / "out").glob("*/run.json")] == ["finished"] * 3


# --- what an environment returns ---


def unequal(what, workers, early=False):
    make = functools.partial(hostile_tasks.Wrong, what=what, early=early)
    return Host(make, "Wrong", Wanted(3, 2, workers=workers))


@pytest.mark.parametrize("what", hostile_tasks.WRONG)
def test_what_is_not_of_its_kind_is_refused_at_that_step(what):
    with contextlib.closing(unequal(what, 0)) as env:
        env.reset()
        for _ in range(2):
            env.step(None, np.zeros((2, 2), np.float32))
        with pytest.raises(EnvironmentFailed) as failed:
            env.step(None, np.zeros((2, 2), np.float32))
    sentence = str(failed.value)
    assert sentence.startswith("Wrong: environment 0, in its episode 0 ") and "\n" not in sentence
    assert "at step 3 with action [0.0, 0.0]" in sentence
    names = {1: "reward", 2: "terminated", 3: "truncated"}
    assert names.get(hostile_tasks.WRONG[what][0], "") in sentence
    if hostile_tasks.WRONG[what][0]:
        return
    with (
        contextlib.closing(unequal(what, 0, early=True)) as env,
        pytest.raises(EnvironmentFailed, match="in its reset"),
    ):
        env.reset()


@pytest.mark.parametrize("what", ["a batch of one", "terminated that is a text", "a reward that is a text"])
def test_a_run_on_what_is_not_of_its_kind_fails(tmp_path, capfd, what):
    out = tmp_path / "run"
    given = ["--env-kwargs", json.dumps({"what": what}), "--workers", "1", "--head", "gaussian", "--out", str(out)]
    error = refused(["train", "hostile_tasks:Wrong", *given, *HOSTILE], capfd)
    assert "at step 3" in error
    assert RunDirectory(out).status() == "failed" and not RunDirectory(out).records()


@pytest.mark.parametrize("what", hostile_tasks.RIGHT)
def test_what_real_environments_return_is_accepted(what):
    with contextlib.closing(Host(lambda: hostile_tasks.Right(what), "Right", Wanted(3, 2))) as env:
        env.reset()
        _, step = env.step(None, np.zeros((2, 2), np.float32))
    assert step.observation.shape == (2, 3) and step.observation[0, 0] == 1.0
    assert (step.reward == 1.0).all()
    assert not step.terminated.any() and step.truncated.all()
    _, _, _, _, info = hostile_tasks.RIGHT[what]
    assert np.isnan(step.success).all() == ("is_success" not in info)


# --- memory ---

GIGANTIC = {
    "bins": ["Humanoid-v5", "--bins", "100001", "--batch-size", "262144"],
    "K-FAC": ["Humanoid-v5", "--bins", "100001", "--algo", "acktr"],
    "a batch": ["Humanoid-v5", "--batch-size", "16777216", "--bins", "10001", "--minibatch-size", "64"],
    "a batch of one's own environment": ["gymnasium/Pendulum-v1", "--batch-size", "16777216", "--bins", "100001",
                                         "--head", "ordinal"],
}  # fmt: skip


@pytest.mark.parametrize("what", GIGANTIC)
def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path, capfd, what):
    out = tmp_path / "run"
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refused(["train", *GIGANTIC[what], "--out", str(out), "--quiet"], capfd)
    assert "GB of memory, and " in error
    assert RunDirectory(out).status() == "failed" and not RunDirectory(out).records()
    assert time.process_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2e6  # KB


def test_what_the_compiler_needs_counts_too(tmp_path, monkeypatch):
    """The arrays alone would fit. What it says is what it is: a run with just as much is not refused."""
    run = Run("probe/follow", steps=2048, hidden_sizes=(256,), minibatch_size=2048, epochs=1)
    needed = []
    monkeypatch.setattr(memory, "_refuse", lambda size, there: needed.append(size))
    monkeypatch.setattr(memory, "available", lambda: 1.0)
    next(detent.train(run))
    least, whole = needed
    assert least < 0.7 * whole
    monkeypatch.undo()
    for there, fits in ((whole, True), (whole - 1, False), (least, False), (least - 1, False)):
        monkeypatch.setattr(memory, "available", lambda there=there: there)
        with contextlib.nullcontext() if fits else pytest.raises(Refused, match=r"needs at least 0\.\d GB"):
            next(detent.train(run))


def test_an_ordinary_run_is_not_compiled_to_know_its_size(monkeypatch):
    sizes = []
    monkeypatch.setattr(memory, "_refuse", lambda size, there: sizes.append(size))
    next(detent.train(Run("probe/action", steps=8, **TINY)))
    assert len(sizes) == 1 and sizes[0] < 10_000


def test_the_memory_of_a_control_group_is_all_there_is(tmp_path):
    """Of whichever version, of the group itself or of one around it."""

    def written(text, *parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert memory.available(tmp_path) == np.inf
    written("MemTotal: 9 kB\nMemAvailable:   4000000 kB\nSwapFree: 1000 kB\n", "proc", "meminfo")
    assert memory.available(tmp_path) == 4_001_000 * 1024
    written("3:memory:/a/b\n2:cpu:/a\n0::/c/d\n", "proc", "self", "cgroup")
    assert memory.available(tmp_path) == 4_001_000 * 1024
    written("2000000000\n", "sys/fs/cgroup/c", "memory.max")
    written("500000000\n", "sys/fs/cgroup/c", "memory.current")
    written("max\n", "sys/fs/cgroup/c/d", "memory.max")
    written("500000000\n", "sys/fs/cgroup/c/d", "memory.current")
    assert memory.available(tmp_path) == 1_500_000_000
    written("anon 1\ninactive_file 100000000\n", "sys/fs/cgroup/c", "memory.stat")
    assert memory.available(tmp_path) == 1_600_000_000
    written("1000\n", "sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes")
    written("1200\n", "sys/fs/cgroup/memory/a/b", "memory.usage_in_bytes")
    written("total_inactive_file 300\n", "sys/fs/cgroup/memory/a/b", "memory.stat")
    assert memory.available(tmp_path) == 100
    assert 1e8 < memory.available() < 1e13


# --- worker processes ---

PARENT = """
import os, signal, sys, multiprocessing
sys.path.insert(0, {tests!r})
if __name__ == "__main__":
    import hostile_tasks, numpy as np
    from detent.environments import Wanted
    from detent.environments.host import Host
    env = Host(hostile_tasks.{task}, "Task", Wanted(0, 2, workers=2, timeout=600.0))
    env.reset()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    for _ in range(3):
        env.step(None, np.zeros((2, 2), np.float32))
    {ending}
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("task", ["Hangs", "Drift"])
def test_workers_end_with_their_parent(tmp_path, task):
    """Killed, while they hang in an environment or wait for a command; nothing is left of them."""
    before = set(os.listdir("/dev/shm"))
    script = tmp_path / "parent.py"
    ending = "os.kill(os.getpid(), signal.SIGKILL)"
    script.write_text(PARENT.format(task=task, ending=ending, tests=str(Path(__file__).parent)))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    workers = process.stdout.readline().split()
    assert len(workers) == 2
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "psm" in name or "detent" in name}
    if task == "Hangs":
        time.sleep(1.0)
        process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def test_an_environment_worker_takes_no_module_from_the_current_directory(tmp_path, monkeypatch):
    """Nor do the processes that it starts forget what the user has set."""
    for name in ("random", "signal", "pickle", "socket", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    resource_tracker._resource_tracker._stop()  # so that it is started from here too
    with contextlib.closing(Host(host_tasks.Drift, "Drift", Wanted(0, 2, workers=1))) as env:
        env.reset()
    assert not (tmp_path / "trace").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_memory_that_cannot_be_shared_is_one_sentence(tmp_path):
    """Of a limit; and where /dev/shm is full or read-only, nothing happens, because it is not used."""
    program = PARENT.format(task="Drift", ending="env.close()", tests=str(Path(__file__).parent))
    (tmp_path / "parent.py").write_text(program)
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))\n"
    (tmp_path / "limited.py").write_text(program.replace("    env = Host", f"    {limited}    env = Host"))
    ended = subprocess.run([sys.executable, str(tmp_path / "limited.py")], capture_output=True, text=True)
    assert "Refused: Cannot share " in ended.stderr and "--workers 0 needs none." in ended.stderr


@pytest.mark.parametrize("options", ["ro", "size=4k"])
def test_workers_need_no_dev_shm(tmp_path, options):
    (tmp_path / "parent.py").write_text(
        PARENT.format(task="Drift", ending="env.close()", tests=str(Path(__file__).parent))
    )
    fill = "head -c 100000 /dev/zero > /dev/shm/x" if options != "ro" else "true"
    script = f"mount -t tmpfs -o {options} tmpfs /dev/shm || exit 99; {fill}; exec {sys.executable} parent.py"
    ended = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    if ended.returncode == 99 or "unshare" in ended.stderr:
        pytest.skip("this machine does not let root mount a file system")
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) == 2


# --- an environment that changes the directory ---


@pytest.mark.parametrize("workers", slow_unless(lambda workers: workers == 1, [0, 1]))
def test_a_directory_that_changes_does_no_harm(tmp_path, monkeypatch, capfd, workers):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    given = ["--env-kwargs", json.dumps({"to": str(away)}), "--workers", str(workers), "--eval-every", "16"]
    task = ["hostile_tasks:Moves", *given, *HOSTILE, "--checkpoint-minutes", "1e-9"]
    for words, code in (
        (["train", *task, "--out", "mine", "--max-minutes", "1e-9"], 3),
        (["resume", "mine", "--quiet", "--import", "hostile_tasks"], 0),
        (["train", *task, "--init-from", "mine"], 0),
        (["eval", "mine", "--episodes", "1", "--import", "hostile_tasks"], 0),
        (["verify", "mine", "--import", "hostile_tasks"], 0),
        (["sweep", "--task", *task[:-2], "--out", "many"], 0),
    ):
        monkeypatch.chdir(home)
        assert main(words) == code, capfd.readouterr()
    monkeypatch.chdir(home)
    small = {k: v for k, v in TINY.items() if k != "bins"}
    run = Run("hostile_tasks:Moves", "gaussian", env_kwargs={"to": str(away)}, steps=16, **small)
    os.chdir(home)  # which making the run has left
    for record in detent.train(run, "relative"):
        assert record
    assert not list(away.iterdir())
    assert {path.name for path in home.iterdir()} == {"mine", "runs", "many", "relative"}
    assert RunDirectory(home / "relative").status() == RunDirectory(home / "mine").status() == "finished"


# --- the best policy of a run that was killed ---


class Killed(BaseException):
    """As if the process had ended here: nobody catches it."""


IMPROVING = {"eval_every": 8, "eval_episodes": 2}


@pytest.fixture(scope="module")
def improving(tmp_path_factory):
    """A run with an evaluation in every iteration, some of them better than all before; read only."""
    out = tmp_path_factory.mktemp("runs") / "improving"
    carry_out(out, improving_run(), checkpoint_seconds=0, keep_all=True)
    assert len(bests(out)) > 2 and bests(out)[-1] > 4
    return out


def improving_run():
    return Run("probe/follow", "gaussian", steps=96, **{k: v for k, v in TINY.items() if k != "bins"} | IMPROVING)


def bests(out):
    """The iterations at which the best policy changed."""
    found, best = [], -np.inf
    for record in RunDirectory(out).records():
        if record.get("eval/mean_reward", -np.inf) > best:
            best = record["eval/mean_reward"]
            found.append(record["time/iterations"])
    return found


@pytest.mark.parametrize("seconds", slow_unless(lambda seconds: seconds == 0, [0, 1e9]))
@pytest.mark.parametrize("nth", slow_unless(lambda nth: nth == 19, range(5, 45, 14)))
def test_the_best_policy_of_a_run_that_was_killed_and_stopped(improving, tmp_path, monkeypatch, nth, seconds):
    """Killed at any write, resumed, and stopped soon: the best policy is of an iteration that the run has had."""
    out, run = tmp_path / "run", improving_run()
    replace, calls = os.replace, itertools.count()

    def dying(source, target):
        if next(calls) == nth:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(os, "replace", dying)
        carry_out(out, run, checkpoint_seconds=seconds)
    for more in (1, 2):
        seen = itertools.count(1)
        carry_out(out, run, resume=True, checkpoint_seconds=1e9, stop=lambda: next(seen) >= more and "enough")  # noqa: B023
        assert verified(out) == 0
        rows = bests(out)
        steps = {r["time/iterations"]: r["time/total_timesteps"] for r in RunDirectory(out).records()}
        assert read_tensors(out / "best_policy.safetensors")[1]["steps"] == steps[rows[-1]]
    carry_out(out, run, resume=True)
    for name in ("policy", "best_policy"):
        assert (out / f"{name}.safetensors").read_bytes() == (improving / f"{name}.safetensors").read_bytes()


def test_the_best_policy_of_a_forgotten_iteration_is_dropped(improving, tmp_path):
    """As versions that wrote it before its checkpoint left it, or where the last checkpoints are damaged."""
    out = copied(improving, tmp_path / "run")
    last = bests(improving)[-1]
    for path in sorted((out / "checkpoints").iterdir())[last - 2 :]:
        path.write_bytes(b"")
    (out / "status.json").unlink()
    carry_out(out, improving_run(), resume=True, stop=lambda: "enough", checkpoint_seconds=1e9)
    assert len(RunDirectory(out).records()) == last - 1
    assert not (out / "best_policy.safetensors").exists()
    assert verified(out) == 0
    carry_out(out, improving_run(), resume=True)
    assert (out / "best_policy.safetensors").read_bytes() == (improving / "best_policy.safetensors").read_bytes()


# --- files: whatever is in them, one sentence, little time and memory, and no harm to others ---


def test_a_run_of_many_records_is_read(tmp_path):
    """More than 101,000 records were once too large to be one run's (`benchmarks/report.py` measures the cost)."""
    out, count = write_run(tmp_path / "run", [1.0, 2.0]), 110_000
    record = json.loads((out / "records.jsonl").read_text().splitlines()[0])
    more = {f"train/number_{i}": 0.123456789012345 + i for i in range(14)}
    text = json.dumps(record | more).replace('"time/iterations": 1, "time/total_timesteps": 100', "%s")
    with open(out / "records.jsonl", "w") as file:
        for i in range(1, count + 1):
            file.write(text % f'"time/iterations": {i}, "time/total_timesteps": {2048 * i}' + "\n")
    (found,) = report.load_runs([out])
    assert (found.status, found.steps, found.curve.steps.size) == ("finished", 2048 * count, count)
    assert (out / "records.jsonl").stat().st_size > 2**26
    assert RunDirectory(out).odd_record(count) is None
    RunDirectory(out).forget_after(100_001)
    assert RunDirectory(out).odd_record(100_001) is None


def in_run(**values):
    return lambda out: rewritten(out, lambda d: d["options"].update(values))


def in_record(text):
    """The last record with this instead of its return."""

    def change(out):
        path = out / "records.jsonl"
        path.write_text(re.sub(r'("rollout/ep_rew_mean": )[^,]+(.*\n)\Z', rf"\g<1>{text}\g<2>", path.read_text()))

    return change


ONE_BAD = {
    **{f"seed {x!r:.9}": in_run(seed=x) for x in ("abc", None, 1.5, -1, math.nan, 10**400, [1], {"a": 1}, True)},
    **{f"steps {x!r:.9}": in_run(steps=x) for x in ("1e6", math.inf, 10**30, [])},
    "an option that is NaN": in_run(gamma=math.nan),
    "an option of 400 digits": in_run(bins=10**400),
    "versions": lambda out: rewritten(out, lambda d: d.update(versions=[1])),
    "old names": lambda out: rewritten(out, lambda d: d.update(formerly={"a": {}})),
    "no head": lambda out: rewritten(out, lambda d: d.update(head=None)),
    **{f"a return of {x:.9}": in_record(x) for x in ("NaN", "Infinity", "1e39", "-1e999", "9" * 400, '"5"', "[]")},
    "a record that is none": lambda out: append_line(out / "records.jsonl", "[]"),
    "a status": lambda out: (out / "status.json").write_text('{"status": ["finished"]}'),
    "a status in the wrong encoding": lambda out: (out / "status.json").write_bytes(b"\xff\xfe\x00"),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE_BAD)
def test_one_bad_run_does_not_end_a_report(tmp_path, capsys, what):
    for seed in range(3):
        out = write_run(tmp_path / "runs" / str(seed), [1.0, 2.0, 3.0], seed=seed)
    (out / "checkpoints.jsonl").touch()  # of which the forger takes care
    ONE_BAD[what](out)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(page), "--compact", str(tmp_path / "compact")]) == 0
    assert "1 of them cannot be read, for example: " in capsys.readouterr().err
    assert [run.status for run in report.load_runs([tmp_path / "runs"])] == ["finished", "finished", "damaged"]
    assert len(report.load_runs([tmp_path / "compact"])) == 2


def tensors_with(path, **values):
    """A file of tensors with other ones or others' metadata, and a right checksum."""
    tensors, meta = read_tensors(path)
    for name, value in values.items():
        if name in meta:
            meta[name] = value(meta[name])
        elif value is None:
            del tensors[name]
        else:
            tensors[name] = value(tensors.get(name))
    write_tensors(path, tensors, meta)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def policy_with(**values):
    return lambda out: tensors_with(out / "policy.safetensors", **values)


def checkpoint_with(**values):
    def change(out):
        path = out / "checkpoints" / "000000002.safetensors"
        found = tensors_with(path, **values)
        relinked(out, lambda links: [links[0], {**links[1], "sha256": found}])

    return change


def op_with(name, **constants):
    return policy_with(ops=lambda ops: [{**op, **constants} if op["op"] == name else op for op in ops])


LARGE = {
    "a policy without elements": policy_with(**{"observation/mean": lambda _: np.zeros((2**29, 0), np.float32)}),
    "a layer without elements": policy_with(**{"policy/0/w": lambda _: np.zeros((1, 0, 2**40), np.float32)}),
    "no bins": op_with("categorical", bins=0),
    "1e11 bins": op_with("categorical", bins=1e11),
    "10**11 bins": op_with("categorical", bins=10**11),
    "-3 bins": op_with("categorical", bins=-3),
    "a shape of many axes": op_with("bounds", shape=[10**18] * 20_000),
    "an observation of many axes": policy_with(observation=lambda _: {"numbers": [10**18] * 20_000}),
    "choices of negative number": policy_with(
        observation=lambda _: {"choices": [10**12, 1 - 10**12], "first": [0, 0], "shape": [2]}
    ),
    "a clip beyond float32": op_with("normalize", clip=1e300),
    "no mean": policy_with(**{"observation/mean": None}),
    "no bounds": policy_with(**{"space/low": None}),
    "bounds the wrong way round": policy_with(**{"space/low": lambda low: low + 9}),
    "bounds that are NaN": policy_with(**{"space/low": lambda low: low * np.float32(math.nan)}),
    "a weight that is infinite": policy_with(**{"policy/0/w": lambda w: w / 0.0}),
    "a negative variance": policy_with(**{"observation/var": lambda var: -1 - var}),
    "observations of another size": policy_with(observations=lambda o: np.zeros((3, 5), np.float32)),
    "steps that are a text": policy_with(steps=lambda _: "many"),
    "steps that are negative": policy_with(steps=lambda _: -1),
    "a configuration that is a list": policy_with(configuration=lambda _: [1]),
    "2**40 resets": checkpoint_with(**{"history/resets": lambda r: r * 0 + 2**40}),
    "no resets": checkpoint_with(**{"history/resets": lambda r: r * 0}),
    "negative lengths": checkpoint_with(**{"history/lengths": lambda n: n * 0 - 5}),
    "huge lengths": checkpoint_with(**{"history/lengths": lambda n: n * 0 + 2**62}),
    "lengths of other environments": checkpoint_with(**{"history/lengths": lambda n: np.zeros(4096, n.dtype)}),
    "actions that are NaN": checkpoint_with(
        **{"history/actions": lambda a: np.full((1, 1), math.nan, np.float32),
           "history/lengths": lambda n: n * 0 + 1}
    ),
    "actions of another width": checkpoint_with(**{"history/actions": lambda a: np.zeros((len(a), 2**20), a.dtype)}),
    "no actions": checkpoint_with(**{"history/actions": None}),
    "2**40 episodes": checkpoint_with(**{"episodes/last": lambda e: np.zeros((2**40, 0), np.float32)}),
    "more episodes than finished": checkpoint_with(**{"episodes/last": lambda e: np.zeros((99, 3), np.float32)}),
    "no parameters": checkpoint_with(**{"algorithm/parameters/policy/0/w": None}),
    "another iteration": checkpoint_with(iteration=lambda _: 10**15),
    "an iteration that is a text": checkpoint_with(iteration=lambda _: "2"),
    "a header of 40 MB": lambda out: (out / "policy.safetensors").write_bytes(
        (40 * 2**20).to_bytes(8, "little") + b" " * (40 * 2**20)
    ),
    "a line of 40 MB": lambda out: (out / "records.jsonl").write_bytes(b'{"time/iterations": [' + b"[]," * 13_000_000),
    "run.json of 40 MB": lambda out: (out / "run.json").write_bytes(b"[" + b"[]," * 13_000_000),
}  # fmt: skip
OF_CHECKPOINTS = {"resets", "lengths", "actions", "episodes", "parameters", "iteration"}


@pytest.mark.parametrize("what", LARGE)
def test_a_forged_file_costs_little_and_gets_a_sentence(small, tmp_path, capfd, what):
    """Its checksums are right, so that only what it says can give it away."""
    out = copied(small, tmp_path / "run")
    (out / "status.json").unlink()
    with np.errstate(all="ignore"):
        LARGE[what](out)
    directory, before = RunDirectory(out), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, refusals = time.process_time(), 0
    for read in (lambda: detent.load(out), directory.links, directory.records, lambda: loaded(directory)):
        with contextlib.suppress(DetentError):
            read()
            continue
        refusals += 1
    assert time.process_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KB
    assert refusals or "parameters" in what
    if OF_CHECKPOINTS & set(what.split()):  # a damaged checkpoint is passed over where there is a whole one
        assert main(["resume", str(out)]) in (0, 2)
        assert "Traceback" not in capfd.readouterr().err
    elif "MB" not in what:
        refused(["eval", str(out)], capfd)


def loaded(directory):
    """What `detent resume` restores, besides arrays whose shapes the run determines."""
    (link, found) = directory.links()[-1], None
    found = directory.read_checkpoint(link)
    Episodes.restored(found.tensors)
    History.restored(found.tensors, Box(-1, 1, (1,)), 1, 8 * link["iteration"])


def test_a_policy_of_another_task_is_refused(small, tmp_path, capfd):
    out = copied(small, tmp_path / "run")
    policy = detent.load(out)
    wide = random_policy(Gaussian(), Box(-1, 1, (3,)), policy.observation_size)
    wide.save(out / "policy.safetensors")
    assert "not the same task" in refused(["eval", str(out)], capfd)


def test_a_policy_whose_numbers_overflow_is_refused(small, tmp_path, capfd):
    """At an observation of zeros it gives finite ones."""
    out = copied(small, tmp_path / "run")
    policy_with(**{"policy/0/w": lambda w: w * 0 + np.float32(3e38), "policy/1/w": lambda w: w * 0 + np.float32(3e38)})(
        out
    )
    assert main(["eval", str(out)]) in (0, 2)
    error = capfd.readouterr().err
    assert "Warning" not in error and error.count("\n") <= 1


DAMAGED_STATUS = ("", "[]", '{"status": "splendid"}', '{"status": {}}', "\x00", '{"why": null}')


@pytest.mark.parametrize("text", DAMAGED_STATUS)
def test_one_damaged_status_does_not_end_a_sweep(tmp_path, capfd, text):
    runs = [Run("probe/action", steps=8, seed=seed, **TINY) for seed in range(2)]
    bad, good = (tmp_path / "out" / run_name(run) for run in runs)
    carry_out(bad, runs[0])
    (bad / "status.json").write_text(text)
    before = seen(bad)
    events = {e.name: e for e in sweep(runs, tmp_path / "out", jobs=1) if e.ended}
    assert (events[bad.name].status, events[good.name].status) == ("failed", "finished")
    assert "status.json" in events[bad.name].why
    assert seen(bad) == before
    words = ["--task", "probe/action", "--steps", "8", "--seeds", "2", *SMALL_FLAGS, "--out", str(tmp_path / "out")]
    assert main(["sweep", *words, "--dry-run"]) == 0
    assert f"damaged   {bad.name}" in capfd.readouterr().out
    assert main(["sweep", *words, "--quiet"]) == 3
    assert f"{bad.name}: failed ({bad / 'status.json'} is damaged" in capfd.readouterr().err


SMALL_FLAGS = ["--batch-size", "8", "--minibatch-size", "8", "--epochs", "1", "--envs", "1", "--hidden-sizes", "2",
               "--bins", "2"]  # fmt: skip

REQUESTS = {
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1234\r\n\r\n": 200,
    b"GET /data.json HTTP/1.1\r\nHost: LocalHost\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n": 403,
    b"GET / HTTP/1.1\r\nHost: localhost:evil.example\r\n\r\n": 403,
    b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n": 403,
    b"GET / HTTP/1.1\r\n\r\n": 403,
    b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n": (400, 404),
    b"GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET //\xe2\x84\x80@x HTTP/1.1\r\nHost: localhost\r\n\r\n": (400, 404),
    b"GET\r\n\r\n": 400,
    b"GET / HTTP/x.y\r\n\r\n": 400,
    b"GET / / / HTTP/1.1\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\xfc\r\n\r\n": 400,
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n": 414,
    b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n": 501,
}


def test_every_request_gets_an_answer_and_leaves_no_traceback(tmp_path, capfd):
    write_run(tmp_path / "run", [1.0])
    with Server(Watch([str(tmp_path)]), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for request, code in REQUESTS.items():
            with socket.create_connection(server.server_address[:2], timeout=20) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda client=client: client.recv(2**16), b""))
            wanted = code if isinstance(code, tuple) else (code,)
            found = re.search(rb"HTTP/1\.\d (\d+)|Error code: (\d+)", answer)
            assert found and int(found[1] or found[2]) in wanted, (request[:60], answer[:200])
        server.shutdown()
    assert capfd.readouterr().err == ""


INJECTED = (
    "[click](https://evil.example)", "<script>alert(1)</script>", "![](https://evil.example/x.png)", "`](x)",
    "\\|**x**",
    "\n\n# Not mine\n", "https://evil.example", "<img src=x onerror=alert(1)>", "||", "``` ```", "&lt;b&gt;",
    "\r| a | b |",
)  # fmt: skip


@pytest.mark.parametrize("text", INJECTED)
def test_a_card_quotes_what_a_file_says(tmp_path, text):
    """All of it stays in code spans, in which nothing is Markdown, and the card has the lines that it should have."""
    run, directory = Run("probe/action", head="gaussian"), RunDirectory(tmp_path)
    directory.create(run, None)
    policy = random_policy(run.head, Box(-1, 1, (1,)), 1)
    result = {"episodes": 2.0, "mean_reward": -1.5, "std_reward": 0.25, "mean_ep_length": 1.0}
    cards = []
    for said in ("1.0", text):
        described = directory.configuration()
        described["versions"] = {"jax": said, said: "1.0"} if said == "1.0" else {said: said, "1.0": "1.0"}
        described["preset"] = said
        (tmp_path / "run.json").write_text(json.dumps({**described, "checksum": hashed(described)}))
        directory.configuration = lambda described=described: described  # even if it were read
        forged_run = Run.from_configuration(described)
        cards.append(card(directory, forged_run, "p.safetensors", policy, {"most probable": result, "sampled": result}))
    outside = [re.sub(r"`[^`\n]*`", "", page.partition("---\n\n")[2]) for page in cards]
    assert outside[0] == outside[1]
    assert "<" not in cards[1].partition("---\n\n")[2] and "](http" not in cards[1]
    rows = [line.count("|") for line in cards[1].splitlines() if line.startswith("| `")]
    assert set(rows) == {3}


def test_films_and_figures_follow_no_link(small, tmp_path, monkeypatch):
    """Temporary names cannot be guessed, and a figure replaces a link instead of what it leads to."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    out = copied(small, tmp_path / "run")
    (out / "learning_curve.png").symlink_to(precious)
    (out / "README.md").symlink_to(precious)
    assert main(["card", str(out), "--episodes", "1"]) == 0
    names = {str(temporary_name(tmp_path / "play.mp4")) for _ in range(9)}
    assert len(names) == 9 and not any(str(os.getpid()) in Path(name).name.split(".") for name in names)
    env = make_env(Run("gymnasium/Pendulum-v1"))
    with Film(env, tmp_path / "play.mp4", None) as film:
        film._temporary.symlink_to(precious)
        with pytest.raises(DetentError, match="Cannot write"):
            film.add(np.zeros((64, 64, 3), np.uint8))
    env.close()
    assert precious.read_text() == "mine"
