"""Sweeps: what a grid is, what is refused, and that every run ends as if it had been alone."""

from __future__ import annotations

import functools
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest

import host_tasks
from detent.cli import main
from detent.errors import BadInput, DetentError
from detent.heads import HEADS
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.sweeps import cores as scheduling
from detent.sweeps.cores import sweep
from detent.sweeps.job import Event
from detent.sweeps.plan import by_name, plan_from_file, plan_from_flags, read_plan, run_name
from detent.sweeps.progress import follow_sweep

QUICK = {"batch_size": 128, "minibatch_size": 32, "epochs": 2, "envs": 8}
FLAGS = ["--batch-size", "128", "--minibatch-size", "32", "--epochs", "2", "--envs", "8"]


def told(runs, *keys):
    return [tuple(run.options[key] for key in keys) for run in runs]


# --- which runs ---


def test_several_values_make_a_grid():
    plan = plan_from_flags({"task": ["Hopper-v5", "Ant-v5"], "head": ["beta"], "seed": ["0-2"], "envs": ["8", "16"]})
    runs = plan.runs()
    assert plan.count() == len(runs) == 2 * 3 * 2
    # Seed by seed: a third of the sweep is one seed of everything.
    assert [run.settings.seed for run in runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert {(run.names[0], run.settings.envs) for run in runs[:4]} == {
        (task, envs) for task in ("Hopper-v5", "Ant-v5") for envs in (8, 16)
    }


def test_an_option_is_applied_only_where_it_exists():
    """The Gaussian once, the ordinal head once for each number of bins; and TRPO has no clip range."""
    flags = {
        "task": ["Hopper-v5"],
        "head": ["gaussian", "ordinal"],
        "algo": ["ppo", "trpo"],
        "bins": ["7", "11"],
        "clip_range": ["0.1", "0.2", "0.3"],
    }
    plan = plan_from_flags(flags)
    runs = plan.runs()
    counts = {pair: sum(run.names[1:3] == pair for run in runs) for pair in {run.names[1:3] for run in runs}}
    assert counts == {("gaussian", "ppo"): 3, ("ordinal", "ppo"): 6, ("gaussian", "trpo"): 1, ("ordinal", "trpo"): 2}
    assert plan.count() == len(runs)


def test_the_head_fits_the_task_unless_it_is_named():
    runs = plan_from_flags({"task": ["Hopper-v5", "gymnasium/CartPole-v1"], "bins": ["7", "11"]}).runs()
    assert [run.names[:2] for run in runs] == [
        ("Hopper-v5", "ordinal"), ("Hopper-v5", "ordinal"), ("gymnasium/CartPole-v1", "categorical"),
    ]  # fmt: skip


made = []


def make_counted(choices=False):
    """An environment whose actions are real or choices, and which is counted."""
    made.append(choices)
    return gymnasium.make("CartPole-v1" if choices else "Pendulum-v1")


def test_planning_makes_an_environment_once_for_each_task_and_its_arguments(tmp_path):
    made.clear()
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"""
        task = "{__name__}:make_counted"
        seeds = 3
        learning_rate = [1e-3, 1e-4]
        env_kwargs = [{{choices = true}}, {{choices = false}}]
        bins = [7, 11]
        [[grid]]
        steps = 1000
        [[grid]]
        steps = 2000
        """
    )
    plan = plan_from_file(file, imports=[__name__])
    runs = plan.runs()
    assert len(runs) == plan.count() == 2 * 3 * 2 * (1 + 2)
    assert made == [True, False]
    # The head fits the arguments, not only the task.
    fitting = {"categorical": {"choices": True}, "ordinal": {"choices": False}}
    assert all(run.settings.env_kwargs == fitting[run.names[1]] for run in runs)
    # Nothing needs to be made where the head is named and asks for nothing.
    plan_from_flags({"task": [f"{__name__}:make_counted"], "head": ["beta", "ordinal"], "seeds": "2"}).runs()
    assert len(made) == 2


def test_duplicates_are_dropped(tmp_path):
    flags = {"task": ["Hopper-v5", "Hopper-v5"], "seed": ["0", "0-1", "1"], "steps": ["1e6", "1000000"]}
    assert told(plan_from_flags(flags).runs(), "seed", "steps") == [(0, 1_000_000), (1, 1_000_000)]
    file = tmp_path / "twice.toml"
    file.write_text('task = "Hopper-v5"\n[[grid]]\nseed = [0, 1]\n[[grid]]\nseed = [1, 2]\n')
    plan = plan_from_file(file)
    assert (plan.count(), told(plan.runs(), "seed")) == (4, [(0,), (1,), (2,)])


def test_a_file_says_what_flags_say(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        """
        task = ["Hopper-v5", "Ant-v5"]
        head = "gaussian"
        seeds = 2
        steps = 1e5
        hidden_sizes = [[64, 64], [32]]
        normalize_rewards = [true, false]
        """
    )
    flags = {
        "task": ["Hopper-v5", "Ant-v5"],
        "head": ["gaussian"],
        "seeds": "2",
        "steps": ["1e5"],
        "hidden_sizes": ["64,64", "32"],
        "normalize_rewards": ["true", "false"],
    }
    assert list(map(run_name, plan_from_file(file).runs())) == list(map(run_name, plan_from_flags(flags).runs()))
    shorter = plan_from_file(file, {"steps": ["1000"], "seed": ["7"]}).runs()
    assert set(told(shorter, "steps", "seed")) == {(1000, 7)}
    assert len(shorter) == 8


def test_a_list_of_numbers_is_one_list_of_widths(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text('task = "Hopper-v5"\nhidden_sizes = [32, 16]\nenv_kwargs = {reset_noise_scale = 0.1}\n')
    (run,) = plan_from_file(file).runs()
    assert run.trunk.hidden_sizes == (32, 16)
    assert run.settings.env_kwargs == {"reset_noise_scale": 0.1}


def test_a_union_of_grids(tmp_path):
    file = tmp_path / "union.toml"
    file.write_text(
        """
        task = "Hopper-v5"
        steps = 1000
        bins = [7, 11]
        [[grid]]
        head = ["gaussian", "ordinal"]
        [[grid]]
        head = "beta"
        algo = "trpo"
        steps = 2000
        max_kl = [0.01, 0.02]
        """
    )
    plan = plan_from_file(file)
    runs = plan.runs()
    assert [(*run.names[1:3], run.settings.steps) for run in runs] == [
        ("gaussian", "ppo", 1000), ("ordinal", "ppo", 1000), ("ordinal", "ppo", 1000),
        ("beta", "trpo", 2000), ("beta", "trpo", 2000),
    ]  # fmt: skip
    assert plan.count() == 5


DRAWN = {"task": ["Hopper-v5"], "head": ["gaussian", "ordinal"], "learning_rate": ["log-uniform:1e-5,1e-2"]}


def test_draws_depend_on_their_seed_alone():
    runs = plan_from_flags({**DRAWN, "draws": "30"}).runs()
    rates = [run.algorithm.learning_rate for run in runs]
    assert len(runs) == 60
    assert rates[::2] == rates[1::2], "both heads get the same draws"
    assert len(set(rates)) == 30
    more = plan_from_flags({**DRAWN, "draws": "40", "seed": ["0"], "batch_size": ["2048"]}).runs()
    assert [run.algorithm.learning_rate for run in more][:60] == rates
    other = plan_from_flags({**DRAWN, "draws": "30", "draw_seed": "1"}).runs()
    assert not {run.algorithm.learning_rate for run in other} & set(rates)
    # What the names of published runs rest on.
    assert rates[0] == 7.80933e-05


def test_draws_have_their_distribution():
    flags = {
        "task": ["probe/action"],
        "head": ["ordinal"],
        "draws": "400",
        "learning_rate": ["log-uniform:1e-5,1e-2"],
        "gamma": ["uniform:0.9,1"],
        "bins": ["uniform:2,4"],
        "batch_size": ["choice:128,256"],
    }
    runs = plan_from_flags(flags).runs()
    rates = sorted(run.algorithm.learning_rate for run in runs)
    assert 1e-5 <= rates[0] < 2e-5 < 5e-3 < rates[-1] <= 1e-2
    assert 7e-5 < rates[133] < 1.4e-4  # a third of the way, in the exponent
    gammas = sorted(run.algorithm.gamma for run in runs)
    assert 0.9 <= gammas[0] < gammas[-1] <= 1.0
    assert 0.94 < gammas[200] < 0.96
    for values, wanted in (({2, 3, 4}, 3), ({128, 256}, 2)):
        drawn = [run.head.bins if wanted == 3 else run.algorithm.batch_size for run in runs]
        assert set(drawn) == values
        assert min(drawn.count(value) for value in values) > 400 / wanted / 1.5


def test_what_cannot_be_drawn_for_a_head_is_not():
    """The ordinal head has no standard deviation: one run of it, not five."""
    flags = {"task": ["Hopper-v5"], "head": ["gaussian", "ordinal"], "draws": "5"}
    plan = plan_from_flags({**flags, "initial_log_std": ["uniform:-1,0"]})
    assert plan.count() == len(plan.runs()) == 6


def test_a_million_runs_are_counted_not_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    flags = ["--task", "Hopper-v5", "Ant-v5", "--seed", "0-999999999", "--out", str(tmp_path / "out")]
    assert main(["sweep", *flags]) == 2
    assert "2,000,000,000 runs. If that is what you want, add --yes." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_names(tmp_path):
    """Equal results, equal names; and what changes no result changes no name."""
    name = run_name(Run("Hopper-v5", seed=3))
    assert name.startswith("Hopper-v5-ppo-ordinal-3-")
    assert len(name) == len("Hopper-v5-ppo-ordinal-3-") + 12
    assert run_name(Run("Hopper-v5", seed=3, threads=7, workers=2)) == name
    assert run_name(Run("Hopper-v5", seed=3, learning_rate=1e-3)) != name
    assert "/" not in run_name(Run("probe/action"))


# --- what is refused ---

BAD_FILES = {
    "no TOML": ("task = [", "not valid TOML"),
    "no task": ('head = "beta"', "no task; name at least one with task"),
    "an unknown task": ('task = "Hoper-v5"', "Did you mean Hopper-v5"),
    "an unknown head": ('task = "Hopper-v5"\nhead = "cauchy"', "no head named 'cauchy'"),
    "an unknown algorithm": ('task = "Hopper-v5"\nalgo = "dqn"', "no algorithm named 'dqn'"),
    "an unknown preset": ('task = "Hopper-v5"\npreset = "old"', "no preset named 'old'"),
    "an unknown key": ('task = "Hopper-v5"\nlearning_rat = 1', "Did you mean learning_rate"),
    "a number for a name": ("task = 3", "task must be a name or a list of names, not 3"),
    "no value": ('task = "Hopper-v5"\nseed = []', "seed has no value"),
    "a word for a number": ('task = "Hopper-v5"\nsteps = "many"', "steps must be a whole number, not 'many'"),
    "a date for a number": ('task = "Hopper-v5"\nseed = 2020-01-01', "seed must be a whole number"),
    "out of range": ('task = "Hopper-v5"\nlearning_rate = -1.0', "learning_rate must be greater than 0, not -1.0"),
    "sizes that do not fit": ('task = "Hopper-v5"\nenvs = 7', "envs 8 would do"),
    "bins for no head": ('task = "Hopper-v5"\nhead = "beta"\nbins = 3', "has no bins; it is an option of"),
    "a distribution that does not exist": (
        'task = "Hopper-v5"\ndraws = 2\nlearning_rate = {normal = [0, 1]}',
        "no distribution 'normal'; there are uniform, log_uniform, choice",
    ),
    "one bound": ('task = "Hopper-v5"\ndraws = 2\nlearning_rate = {uniform = 1}', "uniform needs two numbers"),
    "bounds the wrong way round": (
        'task = "Hopper-v5"\ndraws = 2\nlearning_rate = {uniform = [2, 1]}',
        "the lower one first",
    ),
    "a logarithm of 0": (
        'task = "Hopper-v5"\ndraws = 2\nlearning_rate = {log_uniform = [0, 1]}',
        "both greater than 0",
    ),
    "half an environment": ('task = "Hopper-v5"\ndraws = 2\nenvs = {uniform = [0.5, 2]}', "must be too"),
    "a word drawn by a range": ('task = "Hopper-v5"\ndraws = 2\nactions = {uniform = [0, 1]}', "drawn by choice"),
    "nothing to draw": ('task = "Hopper-v5"\ndraws = 3', "draws needs an option to draw"),
    "no number of draws": (
        'task = "Hopper-v5"\nlearning_rate = {uniform = [0.1, 1]}',
        "learning_rate is drawn at random; set the number of draws with draws",
    ),
    "draws that are no number": (
        'task = "Hopper-v5"\ndraws = 0\nlearning_rate = {uniform = [0.1, 1]}',
        "draws must be a whole number of at least 1, not 0",
    ),
    "seeds twice": ('task = "Hopper-v5"\nseed = 1\nseeds = 2', "seeds and seed both set the seeds"),
    "a range the wrong way round": ('task = "Hopper-v5"\nseed = "4-0"', "a range must start with its smallest number"),
    "a single table": ('task = "Hopper-v5"\n[grid]\nseed = 1', "headed by [[grid]]"),
    "a key of one grid that fits only another": (
        'task = "Hopper-v5"\n[[grid]]\nhead = "ordinal"\n[[grid]]\nhead = "beta"\nbins = 3',
        "'beta' has no bins",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_one_sentence(tmp_path, capsys, what):
    text, wanted = BAD_FILES[what]
    file = tmp_path / "bad.toml"
    file.write_text(text)
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert f"detent: {file}: " in error
    assert error.count("\n") == 1
    assert "--" not in error
    assert not (tmp_path / "out").exists()


BAD_FLAGS = {
    "no task": ([], "name at least one with --task"),
    "no place": (["--task", "Hopper-v5"], "--out sweeps/first"),
    "no such file": (["nothing.toml", "--out", "x"], "cannot be read: No such file"),
    "no such option": (["--task", "Hopper-v5", "--learning", "1"], "ee `detent sweep --help`"),
    "bins for no head": (["--task", "Hopper-v5", "--head", "beta", "--bins", "3", "--out", "x"], "has no --bins"),
    "drawn and given": (
        ["--task", "Hopper-v5", "--draws", "2", "--gamma", "0.9", "uniform:0.9,1", "--out", "x"],
        "--gamma can be drawn or have several values",
    ),
    "no jobs": (["--task", "Hopper-v5", "--out", "x", "--jobs", "0"], "--jobs must be a whole number of at least 1"),
    "the file after --ray": (["--task", "Hopper-v5", "--out", "x", "--ray", "a.toml"], "detent sweep a.toml --ray"),
}


@pytest.mark.parametrize("what", BAD_FLAGS)
def test_bad_flags_are_one_sentence(tmp_path, monkeypatch, capsys, what):
    monkeypatch.chdir(tmp_path)
    words, wanted = BAD_FLAGS[what]
    assert main(["sweep", *words]) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_a_file_imports_nothing(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text('task = "evil_module:fly"')
    assert main(["sweep", str(file)]) == 2
    assert f"detent sweep {file} --import evil_module" in capsys.readouterr().err
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize("task", [lambda: host_tasks.Drift(), functools.partial(host_tasks.Drift)])
def test_what_other_processes_cannot_import_is_refused(tmp_path, task):
    with pytest.raises(BadInput, match="must be able to import the task"):
        next(sweep([Run(task)], tmp_path))


# --- carried out ---


def finished(out, run):
    """Train alone, undisturbed."""
    for _ in execute(run, out, Execution()):
        pass
    return (out / "policy.safetensors").read_bytes()


def last_events(events):
    return {event.name: event for event in events}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A finished sweep of two runs; read only."""
    out = tmp_path_factory.mktemp("sweeps") / "small"
    runs = [Run("probe/action", seed=seed, steps=640, **QUICK) for seed in (0, 1)]
    events = list(sweep(runs, out, jobs=2))
    return out, runs, events


def test_every_run_ends_as_if_it_had_been_alone(small, tmp_path):
    out, runs, events = small
    assert {event.name: event.status for event in events} == {run_name(run): "finished" for run in runs}
    for number, run in enumerate(runs):
        assert (out / run_name(run) / "policy.safetensors").read_bytes() == finished(tmp_path / str(number), run)
    assert {name: Run.from_configuration(described) for name, described in read_plan(out).items()} == by_name(runs)
    assert events[-1].steps >= 640
    assert events[-1].value is not None
    assert not list(out.glob("logs/*"))


def test_what_is_finished_is_skipped(small):
    out, runs, _ = small
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    events = list(sweep(runs, out))
    assert [(event.status, event.before) for event in events] == [("finished", True)] * 2
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before


def test_the_command_line_says_how_far_each_run_is(small, capsys):
    out, _, _ = small
    words = ["--task", "probe/action", "--seed", "0-2", "--steps", "640", *FLAGS, "--out", str(out)]
    assert main(["sweep", *words, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert (printed.count("finished  probe"), printed.count("new       probe")) == (2, 1)
    assert "3 runs, 1,920 steps" in printed
    assert main(["sweep", *words[:2], "--seed", "0", "1", *words[4:]]) == 0
    assert "2 finished" in capsys.readouterr().out


def test_failed_and_diverged_runs_are_recorded_and_stop_nothing(tmp_path):
    """The diverged is a result and is left alone the next time; the failed is tried again."""
    bad = Run("probe/action", "gaussian", steps=100_000, learning_rate=1e30, **QUICK)
    raising = Run(host_tasks.Raises, steps=4096, **QUICK)
    good = Run("probe/action", steps=256, **QUICK)
    last = last_events(sweep([bad, raising, good], tmp_path, jobs=2))
    assert [last[run_name(run)].status for run in (bad, raising, good)] == ["diverged", "failed", "finished"]
    assert "at step 3 with action [" in last[run_name(raising)].why
    for run, status in ((bad, "diverged"), (raising, "failed"), (good, "finished")):
        assert RunDirectory(tmp_path / run_name(run)).status() == status
    again = last_events(sweep([bad, raising, good], tmp_path, jobs=1))
    assert [again[run_name(run)].before for run in (bad, raising, good)] == [True, False, True]
    assert "diverged" in again[run_name(bad)].why


def test_a_module_that_cannot_be_imported_is_a_failure(tmp_path, monkeypatch):
    (tmp_path / "broken_for_a_sweep.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Run("probe/action", steps=128, **QUICK)
    (event,) = sweep([run], tmp_path / "out", imports=["broken_for_a_sweep"])
    assert event.status == "failed"
    assert "'broken_for_a_sweep': ZeroDivisionError: division by zero (" in event.why


def test_only_one_sweep_at_a_time(small, tmp_path):
    out, runs, _ = small
    first = sweep(runs, out)
    next(first)
    with pytest.raises(DetentError, match="Another process is carrying out a sweep in"):
        next(sweep(runs, out))
    first.close()


def test_another_version_is_one_sentence(small, tmp_path, capsys):
    words = ["--task", "probe/action", "--steps", "640", *FLAGS]
    (tmp_path / "sweep.json").write_text('{"schema": 0, "detent": "0.0.9", "runs": []}')
    assert main(["sweep", *words, "--out", str(tmp_path)]) == 2
    assert "sweep.json is not of version 1" in capsys.readouterr().err
    (tmp_path / "sweep.json").unlink()
    name = run_name(Run("probe/action", steps=640, **QUICK))
    (tmp_path / name).mkdir()
    (tmp_path / name / "run.json").write_text('{"schema": 0}')
    assert main(["sweep", *words, "--out", str(tmp_path)]) == 3
    assert "run.json is not of version 1 or 2" in capsys.readouterr().err
    out, runs, _ = small
    assert main(["sweep", *words, "--out", str(out / run_name(runs[0]))]) == 2
    assert "holds a single run" in capsys.readouterr().err


# --- disturbed ---

LONG = {"steps": 30_000, "threads": 1, **QUICK}


def wait_for(condition, process=None):
    deadline = time.monotonic() + 180
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(pid):
    """Process ids of the workers that a process has started."""
    text = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in text.splitlines() if "detent.sweeps.worker" in line]


def records(directory):
    path = directory / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(out, *words, seeds="0-1"):
    flags = ["--task", "Hopper-v5", "--seed", seeds, "--steps", str(LONG["steps"]), *FLAGS, "--out", str(out)]
    command = [sys.executable, "-m", "detent.cli", "sweep", *flags, "--checkpoint-minutes", "0.001", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Policies by name."""
    out = tmp_path_factory.mktemp("undisturbed")
    return {
        run_name(run): finished(out / run_name(run), run) for run in (Run("Hopper-v5", seed=s, **LONG) for s in (0, 1))
    }


def assert_undisturbed(out, undisturbed, names=None):
    for name in names or undisturbed:
        assert RunDirectory(out / name).status() == "finished"
        assert (out / name / "policy.safetensors").read_bytes() == undisturbed[name]


@pytest.mark.slow
def test_a_worker_killed_mid_run(tmp_path, undisturbed):
    """It is taken up again, in the same sweep, as often as it may; the policy has the same bytes."""
    name = next(iter(undisturbed))
    process = start(tmp_path, seeds="0")
    for _ in range(scheduling.RETRIES):
        seen = records(tmp_path / name)
        wait_for(lambda seen=seen: records(tmp_path / name) > seen + 3, process)
        (worker,) = workers_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda worker=worker: worker not in workers_of(process.pid), process)
    printed, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "1 finished" in printed
    assert_undisturbed(tmp_path, undisturbed, [name])


@pytest.mark.slow
def test_a_run_that_dies_again_and_again_is_given_up(tmp_path):
    run = Run("Hopper-v5", steps=10**7, **QUICK)
    name = run_name(run)
    deaths = 0
    for event in sweep([run], tmp_path, jobs=1):
        found = workers_of(os.getpid())
        if event.steps and found:
            os.kill(found[0], signal.SIGKILL)
            deaths += 1
    assert deaths == scheduling.RETRIES + 1
    assert (event.status, RunDirectory(tmp_path / name).status()) == ("failed", "failed")
    assert "died 4 times, the last time killed by SIGKILL" in event.why


@pytest.mark.slow
def test_the_driver_killed_and_restarted(tmp_path, undisturbed):
    """Its workers notice and end; the same command takes up what they left."""
    process = start(tmp_path)
    wait_for(lambda: all(records(tmp_path / name) > 5 for name in undisturbed), process)
    workers = workers_of(process.pid)
    assert workers  # on a busy machine, one may have finished
    process.kill()
    process.communicate()
    again = start(tmp_path)
    printed, errors = again.communicate(timeout=240)
    assert again.returncode == 0, errors
    assert "2 finished" in printed
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert_undisturbed(tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_run_with_a_checkpoint(tmp_path, undisturbed, number):
    process = start(tmp_path)
    wait_for(lambda: all(records(tmp_path / name) > 5 for name in undisturbed), process)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "Continue with the same command: detent sweep --task Hopper-v5" in printed
    # On a busy machine, one may have finished before the other was far enough.
    stopped = [d for name in undisturbed if (d := RunDirectory(tmp_path / name)).status() != "finished"]
    assert f"{len(stopped)} stopped" in printed
    for directory in stopped:
        assert directory.outcome() == ("stopped", f"received {number.name}")
        assert directory.links()[-1]["iteration"] == len(directory.records())
    again = start(tmp_path)
    assert again.wait(timeout=240) == 0
    again.communicate()
    assert_undisturbed(tmp_path, undisturbed)


def test_closing_the_iterator_stops_the_runs(tmp_path):
    """And until then the worker is alone on a core, and gives way."""
    run = Run("probe/action", steps=10**8, **QUICK)
    events = sweep([run], tmp_path, nice=7)
    for event in events:
        if event.steps:
            break
    (worker,) = workers_of(os.getpid())
    assert len(os.sched_getaffinity(worker)) == 1
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    events.close()
    assert RunDirectory(tmp_path / run_name(run)).status() == "stopped"
    assert not workers_of(os.getpid())


@pytest.mark.slow
def test_heads_of_ones_own_reach_the_workers(tmp_path, monkeypatch):
    """The module that defines them is found by itself."""
    (tmp_path / "own_head.py").write_text(
        "from dataclasses import dataclass\n"
        "from detent.heads import register_head\n"
        "from detent.heads.ordinal import Ordinal\n"
        "@dataclass(frozen=True)\n"
        "class Own(Ordinal):\n    '''As ordinal.'''\n"
        "register_head('own_for_a_sweep', Own)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_head  # noqa: F401

    try:
        run = Run("probe/action", "own_for_a_sweep", steps=128, **QUICK)
        assert last_events(sweep([run], tmp_path / "out"))[run_name(run)].status == "finished"
    finally:
        HEADS._entries.pop("own_for_a_sweep")


# --- what is shown ---


def some_events():
    yield Event("a", "finished", 1000, 1000, before=True)
    yield Event("b", "running", 1000, 0)
    yield Event("c", "running", 1000, 500)
    yield Event("b", "running", 1000, 400, -3.5)
    yield Event("c", "diverged", 1000, 600, None, "a loss is [not] finite")
    yield Event("b", "finished", 1000, 1024, 12.25)


def test_without_a_terminal_a_line_per_run_that_has_ended(capsys):
    assert list(follow_sweep(some_events(), 3, 3000)) == list(some_events())
    assert capsys.readouterr().err.splitlines() == [
        "[2/3] c: diverged, 600/1k steps  return - (a loss is [not] finite)",
        "[3/3] b: finished, 1.02k/1k steps  return 12.2",
    ]


def test_in_a_terminal_one_display_for_all(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    shown = follow_sweep(some_events(), 3, 3000)
    for event in shown:
        time.sleep(0.15)  # the display refreshes ten times a second
        if event.name == "b" and event.steps == 400:
            time.sleep(0.3)
    printed = capsys.readouterr().err
    assert "c: diverged, 600/1k steps  return - (a loss is [not] finite)" in printed
    assert "400/1k steps  return -3.500" in printed
    assert "2 finished, 1 diverged of 3" in printed
    assert "left" in printed
