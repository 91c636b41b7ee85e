"""Getting in: what people meet in their first hour, and after their first mistake."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import detent
from detent.cli import main
from detent.environments import checking
from detent.environments.serial import make_all
from detent.errors import BadInput
from detent.policy import Policy
from detent.runs import progress
from detent.runs.acting import acting
from detent.runs.directory import RunDirectory
from detent.runs.run import Run
from detent.tasks import gymnasium_task

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
    error = capsys.readouterr().err  # other tests may have registered algorithms of their own
    assert "is --entropy-coef. The algorithm 'trpo' has no --entropy-coef; it is an option of " in error
    assert "ppo" in error


def test_every_name_of_another_library_stands_for_a_flag():
    from detent.options import ELSEWHERE
    from detent.sweeps.plan import option_kinds

    ours = {name.split(",")[0] for name in ELSEWHERE.values()}
    assert ours - set(option_kinds()) == {"checkpoint_minutes", "tensorboard", "wandb", "out", "import"}
    assert not ELSEWHERE.keys() & option_kinds().keys()


def test_a_mistyped_flag_is_recognised_by_every_verb(place, capsys):
    assert main(["eval", "run", "--episode", "3"]) == 2
    assert capsys.readouterr().err.startswith("detent: Unrecognized argument: '--episode'. Did you mean --episodes")


# --- a task that a script defines, and one that is found under another name ---

SCRIPT = """
import sys
import detent
from cart import Cart

def make_cart():
    return Cart()

if __name__ == "__main__":
    run = detent.Run(make_cart, steps=64, batch_size=64, minibatch_size=32, envs=8, epochs=1, seed=3)
    for record in detent.train(run, out="scripted", resume=True):
        pass
"""


@pytest.mark.slow
def test_what_a_script_defines_is_found_again_by_its_file(cart, capsys):
    (cart / "scripted_task.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "scripted_task.py"], check=True, cwd=cart)
    assert main(["eval", "scripted", "--episodes", "2"]) == 2
    said = capsys.readouterr().err
    assert "scripted_task:make_cart" in said and "detent eval scripted --episodes 2 --import scripted_task" in said
    assert main(["eval", "scripted", "--episodes", "2", "--import", "scripted_task"]) == 0
    # Under another name it has the same episodes, for every verb that has use for it.
    other = ["--task", "cart:Cart"]
    expected = capsys.readouterr().out
    assert main(["eval", "scripted", "--episodes", "2", *other]) == 0
    assert main(["eval", "scripted/policy.safetensors", "--episodes", "2", *other]) == 0
    assert capsys.readouterr().out == 2 * expected
    assert main(["verify", "scripted", *other]) == 0
    assert main(["resume", "scripted", "--quiet", *other]) == 0


def test_a_task_of_an_unnamed_program_needs_to_be_named(cart, capsys):
    """As in a notebook, and in runs of 0.1.0."""
    from cart import Cart

    task = gymnasium_task("__main__:make_cart", Cart, suite="user")
    list(detent.train(Run(task, steps=64, batch_size=64, minibatch_size=32, envs=8, epochs=1), out="run"))
    assert main(["eval", "run", "--import", "__main__"]) == 2
    assert "say where it is now with --task module:factory" in capsys.readouterr().err
    assert main(["eval", "run", "--episodes", "1", "--task", "cart:Cart"]) == 0
    assert main(["eval", "run", "--task", "probe/action"]) == 2
    assert "not the same task" in capsys.readouterr().err


# --- the same flags everywhere ---


def test_the_expected_action_can_be_evaluated(run, capsys):
    assert main(["eval", "run", "--episodes", "2", "--mean"]) == 0
    assert capsys.readouterr().out.startswith("mean ")
    assert main(["eval", "run", "--episodes", "2", "--mean", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() >= {"mean", "stochastic"}
    assert main(["play", "run", "--mean", "--sample"]) == 2
    assert "not allowed with" in capsys.readouterr().err


# --- a head that no file can describe ---


def test_a_head_without_ops_acts_through_its_distribution(finished):
    """Its actions are those that the ops of the same head give."""
    run, policy = RunDirectory(finished).run(), detent.load(finished)
    mute = Policy(policy.tensors, {**policy.meta, "ops": None})
    mute.refuse_misfits()
    rows = np.random.default_rng(0).normal(size=(5, policy.observation_size)).astype(np.float32)
    np.testing.assert_allclose(acting(run, policy)(rows), acting(run, mute)(rows), rtol=1e-5, atol=1e-6)
    sampled = acting(run, mute, "sample", np.random.default_rng(0))(rows)
    assert sampled.shape == policy(rows).shape and (np.abs(sampled) <= 1).all()
    with pytest.raises(BadInput, match="leave out --mean"):
        acting(run, mute, "mean")


# --- `check` and `train` say the same ---

WRONG = {
    "forgetful": "cart:forgetful returned NoneType 'None', and should return a gymnasium.Env",
    "Longer": "returned an observation that the observation space does not allow: its shape is (3,) and should be",
    "OldStep": "returned a tuple of 4; `step` must return (observation, reward, terminated, truncated, info). Env",
    "OldReset": "returned ndarray '[0. 0.]'; `reset` must return (observation, info), where info is a dictionary.",
}


@pytest.mark.parametrize("name", WRONG)
def test_check_and_train_say_the_same(cart, capsys, name):
    (cart / "cart.py").write_text(f"""{CART}
class Longer(Cart):
    def step(self, action):
        return np.zeros(3), *super().step(action)[1:]

class OldStep(Cart):
    def step(self, action):
        return super().step(action)[:4]

class OldReset(Cart):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2)
""")
    assert main(["check", f"cart:{name}"]) == 1
    checked = capsys.readouterr().out
    assert main(["train", f"cart:{name}", *QUICK, "--out", "run"]) == 2
    for said in (" ".join(checked.split()), capsys.readouterr().err):
        assert WRONG[name] in said


# --- an environment that a module registers ---

PARKING = """
import gymnasium
gymnasium.register("entry/parking-v0", entry_point="cart:Cart")
"""


def test_an_id_that_a_module_registers_is_a_task(cart, capsys):
    (cart / "parking.py").write_text(PARKING)
    assert main(["train", "entry/parking-v0", *QUICK]) == 2
    assert "by its id and --import MODULE" in capsys.readouterr().err
    try:
        assert main(["train", "parking:entry/parking-v0", *QUICK, "--out", "run"]) == 0
        assert main(["eval", "run", "--episodes", "1"]) == 2
        assert "--import parking" in capsys.readouterr().err
        assert main(["eval", "run", "--episodes", "1", "--import", "parking"]) == 0
        assert main(["check", "parking:entry/nothing-v0"]) == 2
        assert "registers no such environment" in capsys.readouterr().err
    finally:
        gymnasium.registry.pop("entry/parking-v0", None)


# --- small things ---


def test_a_policy_is_shown_in_one_line(finished):
    shown = repr(detent.load(finished))
    assert shown.startswith("<Policy for probe/action, head ordinal, after 64 steps: ") and len(shown) < 120


def test_one_minute_is_not_several():
    assert [checking._duration(minutes) for minutes in (1.1, 2.0, 60.0, 180.0)] == [
        "1 minute", "2 minutes", "60 minutes", "3 hours",
    ]  # fmt: skip


def test_check_keeps_the_flags_in_the_command_that_it_suggests(cart, capsys):
    (cart / "other.py").write_text("")
    assert (
        main(["check", "gymnasium/Pendulum-v1", "--steps", "50", "--import", "other", "--env-kwargs", '{"g": 9.8}'])
        == 0
    )
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith("""detent train gymnasium/Pendulum-v1 --env-kwargs '{"g": 9.8}' --import other""")
    )


# --- starting ---


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path, monkeypatch):
    program = """
import os, sys
from detent.runs.compilation import keep_programs
keep_programs()
import jax
print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
"""

    def told(**environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        asked = [sys.executable, "-c", program]
        done = subprocess.run(asked, env={**kept, **environment}, capture_output=True, text=True, check=True)
        assert not done.stderr
        return done.stdout.split()

    place, size = told(XDG_CACHE_HOME=str(tmp_path))
    assert place.startswith(f"{tmp_path}/detent/") and int(size) > 0
    assert told(XDG_CACHE_HOME=str(tmp_path), DETENT_COMPILATION_CACHE="off")[0] == "None"
    assert told(XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR="/else")[0] == "/else"
    (tmp_path / "file").write_text("")
    assert told(XDG_CACHE_HOME=str(tmp_path / "file"))[0] == "None"


def test_the_time_left_is_told_from_the_second_iteration_on():
    rate = progress._Rate()
    record = {"time/total_timesteps": 64, "time/fps": 1.0, "rollout/ep_rew_mean": None}
    assert progress._text(record, rate, 6464) == "64/6.46k steps  return -"
    assert progress._text({**record, "time/fps": 100.0}, rate, 6464) == "64/6.46k steps  return -  100/s  1:04 left"


# --- sweeps ---


@pytest.mark.slow
def test_a_sweep_ends_with_a_table_and_a_hung_run_is_killed(cart, capsys):
    (cart / "cart.py").write_text(f"""{CART}
import time

class Hangs(Cart):
    def step(self, action):
        time.sleep(1000)
""")
    tasks = ["--task", "cart:Cart", "cart:Hangs", "--import", "cart"]
    flags = ["--seeds", "2", "--out", "s", "--jobs", "4", "--max-minutes", "0.4", *QUICK, "--steps", "256"]
    assert main(["sweep", *tasks, *flags]) == 3
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["group", "runs", "mean", "95%", "interval"]
    assert shown[1].startswith("cart:Cart · ordinal") and " to " in shown[1]
    assert shown[2].startswith("cart:Hangs · ordinal") and shown[2].endswith("2 failed")
    assert shown[-1].startswith("For curves and comparisons: detent report ")
    hung = next(path for path in (cart / "s").iterdir() if "Hangs" in path.name)
    assert RunDirectory(hung).outcome() == ("failed", "it took longer than --max-minutes 0.4 and was killed")
    assert main(["ls", "s"]) == 0
    assert capsys.readouterr().out.splitlines() == shown[:3]


def test_a_run_whose_return_never_moved_says_so(cart, capsys):
    (cart / "cart.py").write_text(f"""{CART}
class Same(Cart):
    def step(self, action):
        return *super().step(action)[:1], 1.0, *super().step(action)[2:]
""")
    assert main(["train", "cart:Same", *QUICK, "--steps", "1000", "--out", "same"]) == 0
    assert "The return was the same from beginning to end" in capsys.readouterr().out
    assert main(["train", "cart:Cart", *QUICK, "--steps", "1000", "--out", "other"]) == 0
    assert "The return was the same" not in capsys.readouterr().out


def test_a_long_name_leaves_room_on_the_line():
    short = progress.fitted("my_long_module_make_environment-ppo-ordinal_released-12")
    assert len(short) <= 24 and short.endswith("...eleased-12")
    assert progress.fitted("Ant-v5-ppo-beta-0") == "Ant-v5-ppo-beta-0"


def test_a_missing_package_is_answered_with_the_extra(cart):
    def make():
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, you can install it by run ...")

    with pytest.raises(BadInput, match=r"own needs .* install it with pip install 'detent-rl\[box2d\]'\.$"):
        make_all(make, "own", 1)
