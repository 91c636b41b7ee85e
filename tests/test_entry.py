"""Getting in: what people meet in their first hour, and after their first mistake."""

from __future__ import annotations

import io
import sys

import pytest

from detent.cli import main
from detent.errors import BadInput
from detent.runs.directory import RunDirectory
from detent.runs.run import Run

QUICK = ["--batch-size", "64", "--minibatch-size", "32", "--epochs", "1", "--envs", "8", "--steps", "64", "--quiet"]
ACTION = ["train", "probe/action", *QUICK]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty current directory, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


CART = """
import gymnasium
import numpy as np


class Cart(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    limit = 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.place = 0, self.np_random.normal(size=2)
        return self.place, {}

    def step(self, action):
        self.taken += 1
        return self.place, -float(action[0] ** 2), False, self.taken == self.limit, {}


class Broken(Cart):
    def step(self, action):
        return np.linalg.inv(np.zeros((2, 2)))


def forgetful():
    Cart()
"""


@pytest.fixture
def cart(place):
    (place / "cart.py").write_text(CART)
    return place


def files(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- a failed first try ---


def test_a_run_without_a_step_starts_over_with_the_corrected_command(cart):
    broken, corrected = (["train", f"cart:{name}", *QUICK, "--out", "run"] for name in ("Broken", "Cart"))
    assert main(broken) == 2
    assert RunDirectory("run").status() == "failed"
    assert main(corrected) == 0
    assert RunDirectory("run").configuration()["task"] == "cart:Cart"
    assert RunDirectory("run").status() == "finished"
    assert not (cart / "run" / "error.txt").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run; to be copied."""
    out = tmp_path_factory.mktemp("entry") / "run"
    assert main([*ACTION, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished, place):
    import shutil

    shutil.copytree(finished, place / "run")
    return place / "run"


def test_a_run_is_overwritten_only_if_the_user_agrees(run, capsys, monkeypatch):
    before = files(run)
    assert main([*ACTION, "--out", "run", "--seed", "1"]) == 2
    assert "holds a run already; choose another --out, or add --resume or --overwrite." in capsys.readouterr().err
    overwrite = [*ACTION, "--out", "run", "--seed", "1", "--overwrite"]
    assert main(overwrite) == 2
    assert "holds a run of 64 steps, which --overwrite deletes. If that is what you want, add --yes." in (
        capsys.readouterr().err
    )

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(overwrite) == 2
    assert "Nothing was deleted." in capsys.readouterr().err
    assert main([*overwrite, "--resume", "--yes"]) == 2
    assert "give only one of them" in capsys.readouterr().err
    assert files(run) == before
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(overwrite) == 0
    assert RunDirectory(run).configuration()["options"]["seed"] == 1


def test_overwriting_deletes_only_what_detent_writes(run, tmp_path):
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints" / "mine.safetensors").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.out.tfevents.1").write_text("mine")
    (run / "tensorboard").symlink_to(elsewhere)
    assert main([*ACTION, "--out", "run", "--overwrite", "--yes"]) == 2
    (run / "tensorboard").unlink()
    assert main([*ACTION, "--out", "run", "--overwrite", "--yes"]) == 0
    assert {"notes.txt", "mine.safetensors"} <= files(run).keys()
    assert (elsewhere / "events.out.tfevents.1").exists()
    assert main([*ACTION, "--out", "elsewhere", "--overwrite", "--yes"]) == 2


# --- an environment that raises ---


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_an_environment_raises_is_said_with_its_line(cart, capsys, workers):
    line = 1 + CART.splitlines().index("        return np.linalg.inv(np.zeros((2, 2)))")
    assert main(["train", "cart:Broken", *QUICK, "--out", "run", "--workers", workers]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"raised LinAlgError: Singular matrix (cart.py:{line} in step)\n")
    assert len(said.splitlines()) == 1
    assert "in inv" in (cart / "run" / "error.txt").read_text()


def test_debug_prints_the_traceback(cart, capsys):
    assert main(["check", "cart:nothing"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["train", "cart:Broken", *QUICK, "--out", "run", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and "in inv" in said
    assert said.splitlines()[-1].startswith("detent: cart:Broken: environment 0")


# --- names of flags ---


def test_underscores_are_accepted_in_flags(place, capsys):
    words = ["--batch_size", "64", "--minibatch_size=32", "--epochs=1", "--envs=8", "--no_normalize_rewards"]
    assert main(["train", "probe/action", *words, "--steps=64", "--quiet", "--out=my_run"]) == 0
    options = RunDirectory("my_run").configuration()["options"]
    assert (options["batch_size"], options["minibatch_size"], options["normalize_rewards"]) == (64, 32, False)
    assert main(["sweep", "--task", "probe/action", "--learning_rate", "1e-3", "--out", "s", "--dry_run"]) == 0


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--lr", "--learning-rate."),
        ("--total-timesteps", "--steps."),
        ("--num_envs", "--envs."),
        ("--n-steps", "--batch-size, the steps of all --envs together."),
        ("--ent-coef", "--entropy-coef."),
        ("--vf-coef", "--value-coef."),
        ("--update-epochs", "--epochs."),
        ("--num-minibatches", "--minibatch-size, which is --batch-size divided by their number."),
    ],
)
def test_names_of_other_libraries_are_recognised(place, capsys, theirs, ours):
    for command in (["train", "probe/action"], ["sweep", "--task", "probe/action", "--out", "s"]):
        assert main([*command, theirs, "3"]) == 2
        said = capsys.readouterr().err
        assert said == f"detent: There is no option {theirs.replace('_', '-')}; what comes nearest is {ours}\n"
    with pytest.raises(BadInput, match=f"what comes nearest is {ours}"):
        Run("probe/action", **{theirs[2:].replace("-", "_"): 3})


def test_a_name_of_another_library_may_be_that_of_another_algorithm(place, capsys):
    assert main(["train", "probe/action", "--algo", "trpo", "--ent-coef", "0.1"]) == 2
    assert "is --entropy-coef. The algorithm 'trpo' has no --entropy-coef; it is an option of ppo." in (
        capsys.readouterr().err
    )


def test_every_name_of_another_library_stands_for_a_flag():
    from detent.options import ELSEWHERE
    from detent.sweeps.plan import option_kinds

    ours = {name.split(",")[0] for name in ELSEWHERE.values()}
    assert ours - set(option_kinds()) == {"checkpoint_minutes", "tensorboard", "wandb", "out", "import"}
    assert not ELSEWHERE.keys() & option_kinds().keys()


def test_a_mistyped_flag_is_recognised_by_every_verb(place, capsys):
    assert main(["eval", "run", "--episode", "3"]) == 2
    assert capsys.readouterr().err.startswith("detent: Unrecognized argument: '--episode'. Did you mean --episodes")
