"""Model cards: what they say is true, and what they tell to do works."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from gymnasium.spaces import Box

import detent
from detent.cli import main
from detent.report.card import card
from detent.runs.directory import RunDirectory
from detent.runs.execution import evaluate_run
from detent.runs.identity import without_free
from detent.runs.run import Run
from policies import random_policy

RESULT = {"episodes": 2.0, "mean_reward": -1.5, "std_reward": 0.25, "mean_ep_length": 1.0, "success_rate": 0.5}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("card") / "run"
    flags = ["--steps", "512", "--batch-size", "256", "--envs", "8", "--quiet", "--out", str(out)]
    assert main(["train", "Pendulum-v1", *flags]) == 0
    assert main(["card", str(out), "--episodes", "2", "--seed", "4"]) == 0
    return out


def parts(text):
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_metadata_is_hugging_faces(written):
    front, body = parts((written / "README.md").read_text())
    assert front["library_name"] == "detent"
    assert {"Pendulum-v1", "reinforcement-learning", "deep-reinforcement-learning"} <= set(front["tags"])
    [model] = front["model-index"]
    [result] = model["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["name"] == "Pendulum-v1"
    [metric] = result["metrics"]
    true = evaluate_run(RunDirectory(written).run(), detent.load(written), 2, 4)
    assert metric["type"] == "mean_reward"
    assert metric["value"] == f"{true['mean_reward']:.2f} +/- {true['std_reward']:.2f}"
    assert metric["verified"] is False
    assert f"{true['mean_reward']:,.2f} ± {true['std_reward']:,.2f}" in body


def test_the_body_tells_what_was_done(written):
    text = (written / "README.md").read_text()
    described = json.loads((written / "run.json").read_text())
    for option, value in described["options"].items():
        assert f"| `{option}` | `{json.dumps(value)}` |" in text
    assert f"| `jax` | `{described['versions']['jax']}` |" in text
    picture = re.search(r"!\[Learning curve\]\((.+)\)", text).group(1)
    assert (written / picture).read_bytes().startswith(b"\x89PNG")


def run_code(text, cwd):
    code = re.search(r"```python\n(.+?)```", text, re.DOTALL).group(1)
    result = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_code_works(written):
    assert float(run_code((written / "README.md").read_text(), written)) < 0


def test_the_code_works_without_an_environment_too(tmp_path):
    run = Run("probe/action", head="gaussian")
    directory = RunDirectory(tmp_path)
    directory.create(run, None)
    policy = random_policy(run.head, Box(-1, 1, (1,)), 1, configuration=without_free(run.configuration))
    policy.save(tmp_path / "best_policy.safetensors")
    text = card(
        directory, directory.run(), "best_policy.safetensors", policy, {"most probable": RESULT, "sampled": RESULT}
    )
    run_code(text, tmp_path)
    assert "success rate" in text


def test_names_cannot_break_the_metadata(tmp_path):
    name = 'my: "odd" | task\\ #1 <b> ✓'
    detent.register_task(name, lambda **_: None)
    run = Run(name, head="gaussian")
    directory = RunDirectory(tmp_path)
    directory.create(run, None)
    policy = random_policy(run.head, Box(-1, 1, (1,)), 1, configuration=without_free(run.configuration))
    front, body = parts(
        card(directory, directory.run(), "p.safetensors", policy, {"most probable": RESULT, "sampled": RESULT})
    )
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == name
    assert "<b>" not in body


def test_the_same_run_gives_the_same_card(written, tmp_path):
    assert main(["card", str(written), "--episodes", "2", "--seed", "4", "--out", str(tmp_path / "card.md")]) == 0
    assert (tmp_path / "card.md").read_bytes() == (written / "README.md").read_bytes()
    assert (tmp_path / "learning_curve.png").read_bytes() == (written / "learning_curve.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--best"], "--eval-every"), (["--out", "."], "is a directory"), (["--episodes", "x"], "--episodes")],
)
def test_bad_input_gets_a_sentence(words, sentence, written, capsys):
    assert main(["card", str(written), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_card_is_of_a_run(tmp_path, capsys):
    assert main(["card", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
