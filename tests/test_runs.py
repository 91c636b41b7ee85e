"""Run directories and the command line: what is written, what survives, and what bad input gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import detent
from detent.cli import VERBS, main
from detent.errors import BadInput, DetentError
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.training import CLOCK_KEYS

QUICK = {"batch_size": 128, "minibatch_size": 32, "epochs": 2, "envs": 8}
FLAGS = ["--batch-size", "128", "--minibatch-size", "32", "--epochs", "2", "--envs", "8", "--quiet"]


def told(directory):
    """The records without their clock."""
    return [{k: v for k, v in r.items() if k not in CLOCK_KEYS} for r in RunDirectory(directory).records()]


def train_whole(out, task="Hopper-v5", **options):
    """Train in `out` from beginning to end."""
    return list(execute(Run(task, **{"steps": 640, **QUICK, **options}), out, Execution()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run that nothing disturbed; read only."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train_whole(out)
    return out


def test_what_a_run_leaves_behind(whole):
    described = json.loads((whole / "run.json").read_text())
    assert described["options"]["bins"] == 11
    assert {"jax", "envpool", "detent"} <= described["versions"].keys()
    assert json.loads((whole / "status.json").read_text())["status"] == "finished"
    records = RunDirectory(whole).records()
    assert records[-1]["time/total_timesteps"] >= 640
    assert [r["time/iterations"] for r in records] == list(range(1, len(records) + 1))
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == [
        "000000001.safetensors",
        f"{len(records):09d}.safetensors",
    ]
    assert detent.load(whole)(np.zeros(11)).shape == (3,)


def test_the_configuration_comes_back_from_its_file(whole):
    run = RunDirectory(whole).run()
    assert run == Run(run.task, steps=640, **QUICK)


def test_a_finished_run_has_nothing_left_to_do(whole, capsys):
    before = (whole / "records.jsonl").read_bytes()
    assert main(["resume", str(whole)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (whole / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_stopped_and_resumed_run_ends_in_the_same_bytes(whole, tmp_path, stop_after):
    out = tmp_path / "run"
    records = execute(Run("Hopper-v5", steps=640, **QUICK), out, Execution())
    for _ in range(stop_after):
        next(records)
    records.close()
    assert RunDirectory(out).status() == "stopped"
    assert main(["resume", str(out), "--quiet"]) == 0
    assert told(out) == told(whole)
    assert (out / "policy.safetensors").read_bytes() == (whole / "policy.safetensors").read_bytes()


def start(out, *flags):
    command = [
        sys.executable,
        "-m",
        "detent.cli",
        "train",
        "Hopper-v5",
        "--steps",
        "640",
        "--out",
        str(out),
        *FLAGS,
        *flags,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_records(out, count, process):
    for _ in range(1200):
        if process.poll() is not None or len(RunDirectory(out).records()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no records came")


def test_killed_and_resumed_ends_in_the_same_bytes(whole, tmp_path):
    out = tmp_path / "run"
    process = start(out, "--checkpoint-minutes", "0.00001")
    wait_for_records(out, 2, process)
    process.kill()
    process.communicate()
    assert main(["train", "Hopper-v5", "--steps", "640", "--out", str(out), *FLAGS, "--resume"]) == 0
    assert told(out) == told(whole)
    assert (out / "policy.safetensors").read_bytes() == (whole / "policy.safetensors").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_cleanly(tmp_path, number, code):
    out = tmp_path / "run"
    process = start(out, "--steps", "10000000")
    wait_for_records(out, 1, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert f"detent resume {out}" in output
    status = json.loads((out / "status.json").read_text())
    assert status == {"status": "stopped", "why": f"received {number.name}"}
    assert RunDirectory(out).latest().meta["iteration"] == len(RunDirectory(out).records())


def test_a_crash_in_the_middle_of_a_line_loses_only_that_line(tmp_path):
    out = tmp_path / "run"
    train_whole(out, "probe/action", steps=256)
    with open(out / "records.jsonl", "a") as file:
        file.write('{"time/iterations": 9, "time/tot')
    assert len(RunDirectory(out).records()) == 4


def test_a_damaged_checkpoint_is_passed_over(whole, tmp_path):
    out = tmp_path / "run"
    records = execute(Run("Hopper-v5", steps=640, **QUICK), out, Execution(checkpoint_seconds=0, keep_all=True))
    for _ in range(4):
        next(records)
    records.close()
    newest = sorted((out / "checkpoints").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert RunDirectory(out).latest().meta["iteration"] == 3
    assert main(["resume", str(out), "--quiet"]) == 0
    assert told(out) == told(whole)
    assert (out / "policy.safetensors").read_bytes() == (whole / "policy.safetensors").read_bytes()


def test_only_one_process_may_train_in_a_directory(tmp_path):
    out = tmp_path / "run"
    records = execute(Run("probe/action", steps=10_000, **QUICK), out, Execution())
    next(records)
    other = execute(Run("probe/action", steps=10_000, **QUICK), out, Execution(resume=True))
    with pytest.raises(BadInput, match="Another process is training"):
        next(other)
    records.close()


def test_max_minutes_stops_with_code_3(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", "probe/action", "--steps", "1e8", "--max-minutes", "0.01", "--out", out, *FLAGS]) == 3
    assert "stopped after" in capsys.readouterr().out
    assert RunDirectory(out).status() == "stopped"


def test_divergence_exits_with_code_3_and_is_a_status(tmp_path, capsys):
    out = str(tmp_path / "run")
    flags = ["--head", "gaussian", "--learning-rate", "1e30", "--checkpoint-minutes", "0.000001"]
    assert main(["train", "probe/action", "--steps", "1e6", "--out", out, *FLAGS, *flags]) == 3
    assert "diverged at step" in capsys.readouterr().err
    assert RunDirectory(out).status() == "diverged"


def test_evaluation_keeps_the_best_policy_and_changes_nothing(whole, tmp_path):
    out = tmp_path / "run"
    train_whole(out, eval_every=200, eval_episodes=3)
    evaluated = [r for r in RunDirectory(out).records() if "eval/mean_reward" in r]
    assert len(evaluated) == 3
    trained = [{k: v for k, v in r.items() if not k.startswith("eval/")} for r in told(out)]
    assert trained == told(whole)
    best = detent.load(out / "best_policy.safetensors")
    assert best.meta["steps"] == max(evaluated, key=lambda r: r["eval/mean_reward"])["time/total_timesteps"]


def test_eval_tells_of_mode_and_samples(whole, capsys):
    assert main(["eval", str(whole), "--episodes", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["mode"]["episodes"] == first["stochastic"]["episodes"] == 3
    assert main(["eval", str(whole), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(["eval", str(whole), "--episodes", "2"]) == 0
    assert "±" in capsys.readouterr().out


def test_init_from_starts_from_the_other_parameters(whole, tmp_path):
    out = tmp_path / "run"
    next(
        execute(Run("Hopper-v5", steps=640, seed=5, learning_rate=1e-9, **QUICK), out, Execution(init_from=str(whole)))
    )
    old, new = (RunDirectory(path).latest().tensors for path in (whole, out))
    name = "algorithm/parameters/policy/0/w"
    np.testing.assert_allclose(new[name], old[name], atol=1e-6)
    other = Run("Hopper-v5", "gaussian", steps=640, **QUICK)
    with pytest.raises(DetentError, match="does not match the run"):
        next(execute(other, tmp_path / "other", Execution(init_from=str(whole))))


def test_workers_change_nothing(tmp_path):
    results = []
    for workers in (0, 2):
        out = tmp_path / str(workers)
        train_whole(out, "gymnasium/Pendulum-v1", steps=256, workers=workers)
        results.append((told(out), (out / "policy.safetensors").read_bytes()))
    assert results[0] == results[1]


# --- bad input: one sentence, exit code 2, nothing lost ---

BAD = {
    "unknown task": (["train", "Humanoid-v55"], "Did you mean Humanoid-v5"),
    "unknown head": (["train", "Hopper-v5", "--head", "ordnal"], "Did you mean .*ordinal"),
    "unknown algorithm": (["train", "Hopper-v5", "--algo", "pp0"], "Did you mean ppo"),
    "unknown preset": (["train", "Hopper-v5", "--preset", "new"], "Known: modern, paper"),
    "unknown verb": (["trian"], "Did you mean train"),
    "unknown flag": (["train", "Hopper-v5", "--learnig-rate", "1"], "Did you mean learning_rate"),
    "one bin": (["train", "Hopper-v5", "--bins", "1"], "--bins must be at least 2"),
    "bins for a Gaussian": (["train", "Hopper-v5", "--head", "gaussian", "--bins", "5"], "has no --bins"),
    "epochs for ACKTR": (
        ["train", "Hopper-v5", "--algo", "acktr", "--epochs", "5"],
        "algorithm 'acktr' has no --epochs; it is an option of ppo, trpo",
    ),
    "minibatches of TRPO that do not divide": (
        ["train", "Hopper-v5", "--algo", "trpo", "--minibatch-size", "60"],
        "1020 would be",
    ),
    "a trust region of 0": (
        ["train", "Hopper-v5", "--algo", "trpo", "--max-kl", "0"],
        "--max-kl must be greater than 0",
    ),
    "no steps": (["train", "Hopper-v5", "--steps", "0"], "--steps must be at least 1"),
    "negative steps": (["train", "Hopper-v5", "--steps", "-5"], "--steps must be at least 1"),
    "steps that are no number": (["train", "Hopper-v5", "--steps", "many"], "--steps must be a whole number"),
    "half a step": (["train", "Hopper-v5", "--steps", "1.5"], "--steps must be a whole number"),
    "envs that do not divide": (["train", "Hopper-v5", "--envs", "60"], "--envs 64 would do"),
    "minibatches that do not divide": (["train", "Hopper-v5", "--minibatch-size", "60"], "2040 would be"),
    "learning rate 0": (["train", "Hopper-v5", "--learning-rate", "0"], "greater than 0"),
    "learning rate nan": (["train", "Hopper-v5", "--learning-rate", "nan"], "finite"),
    "no task": (["train"], "TASK"),
    "module that is not there": (["train", "no_such_module:make"], "Cannot import the module 'no_such_module'"),
    "factory that is not there": (["train", "json:make"], "has no callable 'make'"),
    "import that fails": (["heads", "--import", "no_such_module"], "Cannot import"),
    "a head for other actions": (["train", "CartPole-v1", "--head", "gaussian"], "whose actions are choices"),
    "observations that are images": (["train", "host_tasks:Camera"], "Images are not supported"),
    "wrong env kwargs": (["train", "Hopper-v5", "--env-kwargs", "[1]"], "JSON object"),
    "unknown env kwargs": (["train", "gymnasium/Pendulum-v1", "--env-kwargs", '{"no": 1}'], "no"),
    "max minutes": (["train", "Hopper-v5", "--max-minutes", "-1"], "greater than 0"),
    "init from nothing": (["train", "probe/action", "--init-from", "nowhere"], "there is no run"),
    "resume nothing": (["resume", "nowhere"], "not a run directory"),
    "eval nothing": (["eval", "nowhere"], "There is no policy"),
    "eval no episodes": (["eval", "nowhere", "--episodes", "0"], "at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv, sentence = BAD[case]
    assert main(argv) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("detent: ")
    assert len(errors.strip().splitlines()) == 1
    import re

    assert re.search(sentence, errors), errors


def test_a_directory_that_holds_another_run_is_left_alone(whole, capsys):
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    command = ["train", "Hopper-v5", "--steps", "640", "--out", str(whole), *FLAGS]
    assert main(command) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main([*command, "--resume", "--seed", "1"]) == 2
    assert "holds another run: seed is 0 there, not 1" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


def test_a_directory_with_other_files_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["train", "probe/action", "--steps", "128", "--out", str(tmp_path), *FLAGS]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert main(["train", "probe/action", "--steps", "128", "--out", str(file / "run"), *FLAGS]) == 2
    assert "Cannot write" in capsys.readouterr().err


FULL = """
import resource, sys
from detent.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # as a full disk: writes beyond fail
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path):
    out = tmp_path / "run"
    command = ["train", "probe/action", "--steps", "1e6", "--checkpoint-minutes", "0.0001", "--out", str(out), *FLAGS]
    result = subprocess.run([sys.executable, "-c", FULL, *command], capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "Cannot write" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(out.rglob("*.tmp"))
    assert json.loads((out / "run.json").read_text())["task"] == "probe/action"


def test_help_is_quick_and_imports_no_jax():
    code = "import sys; from detent.cli import main; main(['--help']); assert not {'jax', 'numpy'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize("verb", [*VERBS, "paper run", "paper show"])
def test_help_of_every_verb_fits_a_terminal(verb, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([*verb.split(), "--help"])
    assert leaving.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: detent {verb}")
    assert all(len(line) <= 80 for line in lines)


def test_help_of_train_lists_the_options_of_the_chosen_head(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["train", "--help", "--head", "gaussian", "--preset", "paper"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert "--initial-log-std" in text
    assert "--bins" not in text
    assert "(default: raw)" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


def test_heads_and_tasks_are_listed(capsys):
    assert main(["heads"]) == 0
    assert main(["tasks"]) == 0
    text = capsys.readouterr().out
    assert "ordinal_released" in text
    assert "BipedalWalker-v3" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_head_and_a_task_of_the_users_own(tmp_path, monkeypatch, capsys):
    """One module, named by --import; everything else finds them."""
    (tmp_path / "robotics_lab.py").write_text(
        """
import gymnasium, detent
from detent.heads.discrete import Discrete

class Coarse(Discrete):
    "Discrete with a coarse idea of the world."

detent.register_head("coarse", Coarse)
detent.register_task("lab/Pendulum", lambda: gymnasium.make("Pendulum-v1"))

def make(g=9.8):
    return gymnasium.make("Pendulum-v1", g=g)
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    imported = ["--import", "robotics_lab"]
    assert main(["heads", *imported]) == 0
    assert "coarse idea" in capsys.readouterr().out
    assert main(["train", "lab/Pendulum", "--head", "coarse", "--steps", "128", "--out", "a", *imported, *FLAGS]) == 0
    assert (
        main(["train", "robotics_lab:make", "--env-kwargs", '{"g": 1.0}', "--steps", "128", "--out", "b", *FLAGS]) == 0
    )
    assert main(["eval", "b", "--episodes", "1", *imported]) == 0


def test_quiet_and_plain_progress(tmp_path, capsys):
    command = ["train", "probe/action", "--steps", "256", *FLAGS[:-1]]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert "steps" in capsys.readouterr().err
    assert main([*command, "--quiet", "--out", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().err == ""


def test_tensorboard(tmp_path):
    assert main(["train", "probe/action", "--steps", "256", "--tensorboard", "--out", str(tmp_path / "a"), *FLAGS]) == 0
    assert list((tmp_path / "a" / "tensorboard").glob("events*"))


def test_weights_and_biases(tmp_path):
    """Offline: what would be sent lies in the run directory, with every record in it."""
    words = ["train", "probe/action", "--steps", "256", "--wandb", "--out", str(tmp_path / "a"), *FLAGS]
    # A process of its own: W&B writes the end when the process ends.
    offline = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-m", "detent.cli", *words], env=offline, check=True)
    [sent] = (tmp_path / "a" / "wandb").glob("offline-run-*/run-*.wandb")
    assert sent.read_bytes().count(b"rollout/ep_rew_mean") >= len(list(RunDirectory(tmp_path / "a").records()))


def test_files_are_where_the_documentation_says(whole):
    documented = (Path(__file__).parent.parent / "docs" / "run-directory.md").read_text()
    for path in whole.iterdir():
        if not path.name.startswith("."):
            assert f"`{path.name}" in documented


assert os.environ.get("JAX_COMPILATION_CACHE_DIR"), "conftest.py sets it"
