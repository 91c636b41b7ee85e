"""Whose tasks these are: EnvPool's against Gymnasium's, the paper's variants, dm_control's parts, and extras."""

from __future__ import annotations

import builtins

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms import ALGORITHMS
from detent.cli import main
from detent.environments import Wanted
from detent.environments.pool import sizes
from detent.environments.spaces import action_space
from detent.errors import BadInput
from detent.runs.run import Run
from detent.runs.training import train
from detent.tasks import TASKS, find_task
from detent.tasks.dm_control import SUITE, WITHOUT, envpool_id
from updates import BOX_HEADS

FULL = {"exclude_current_positions_from_observation": False}


def whole(obs, model):
    return obs[: model.nq], obs[model.nq : model.nq + model.nv]


def double_pendulum(obs, model):
    angles = np.arctan2(obs[1:3], obs[3:5])
    return np.array([obs[0], *angles]), obs[5:8]


def reacher(obs, model):
    # The target's joints are slides that do not move.
    return np.concatenate([np.arctan2(obs[2:4], obs[0:2]), obs[4:6]]), np.array([*obs[6:8], 0.0, 0.0])


# Of each task: options with which the observation tells the whole state, and how to read it there.
STATES = {
    "Ant-v5": (FULL, whole),
    "HalfCheetah-v5": (FULL, whole),
    "Hopper-v5": (FULL, whole),
    "Humanoid-v5": (FULL, whole),
    "HumanoidStandup-v5": (FULL, whole),
    "InvertedDoublePendulum-v5": ({}, double_pendulum),
    "InvertedPendulum-v5": ({}, whole),
    "Reacher-v5": ({}, reacher),
    "Swimmer-v5": (FULL, whole),
    "Walker2d-v5": (FULL, whole),
}


def stepper(env):
    state, observation = env.reset()
    step = jax.jit(env.step)

    def one(action):
        nonlocal state
        with jax.enable_x64(True):
            state, taken = step(state, jnp.asarray(action, jnp.float32)[None])
        return jax.device_get(taken)

    return np.asarray(observation)[0], one


@pytest.mark.parametrize("name", STATES)
def test_envpool_agrees_with_gymnasium_from_the_same_state(name):
    """Observations, rewards and ends of the first steps. Detent's MuJoCo is newer than EnvPool's."""
    options, read = STATES[name]
    theirs = gymnasium.make(name, **options).unwrapped
    theirs.reset(seed=0)
    pool = TASKS.get(name).make(Wanted(seed=0, num_envs=1, options=options))
    observation, step = stepper(pool)
    theirs.set_state(*map(np.float64, read(observation, theirs.model)))
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(12):
        action = rng.uniform(pool.space.low, pool.space.high)
        expected, reward, terminated, _, _ = theirs.step(action)
        taken = step(action)
        near = {"rtol": 1e-3, "atol": 2e-3 * max(1.0, np.abs(expected[: theirs.model.nq + theirs.model.nv]).max())}
        # Contact forces amplify what the start state lost as float32; they follow the state in an observation.
        state = slice(0, theirs.model.nq + theirs.model.nv if read is whole else None)
        np.testing.assert_allclose(taken.observation[0][state], expected[state], **near)
        np.testing.assert_allclose(taken.reward[0], reward, rtol=5e-3, atol=5e-3)
        assert taken.terminated[0] == terminated
        compared += 1
        if terminated:
            break
    assert compared >= 3
    pool.close(), theirs.close()


def played_alike(first, second, steps=60):
    """Rewards of two tasks under the same seed and actions until the first episode ends, and how it ended."""
    rows = []
    envs = [TASKS.get(name).make(Wanted(seed=1, num_envs=1)) for name in (first, second)]
    both = [stepper(env)[1] for env in envs]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = rng.uniform(envs[0].space.low, envs[0].space.high)
        taken = [step(action) for step in both]
        rows.append([(row.reward[0], row.terminated[0]) for row in taken])
        if taken[0].terminated[0]:
            break
    [env.close() for env in envs]
    return np.array([[row[0] for row in pair] for pair in rows]), rows[-1]


@pytest.mark.parametrize(("name", "bonus"), [("Hopper", 1.0), ("InvertedDoublePendulum", 10.0), ("Humanoid", 5.0)])
def test_the_paper_pays_the_alive_bonus_to_the_end(name, bonus):
    rewards, last = played_alike(f"paper/{name}", f"{name}-v5")
    assert last[0][1], "the random policy falls"
    np.testing.assert_allclose(rewards[:-1, 0], rewards[:-1, 1], atol=1e-3)
    np.testing.assert_allclose(rewards[-1, 0] - rewards[-1, 1], bonus, atol=1e-3)


def test_the_paper_sees_and_pays_for_contacts():
    """376 and 111 observations whose contact forces are not zero, unlike those of the ids of that time."""
    for name, old in (("paper/Humanoid", "Humanoid-v3"), ("paper/Ant", "Ant-v3")):
        assert TASKS.get(name).size() == TASKS.get(old).size()
        rewards, _ = played_alike(name, old)
        assert (rewards[:, 0] <= rewards[:, 1] + 1e-5).all()
        assert (rewards[:, 0] < rewards[:, 1] - 1e-4).any()
    assert TASKS.get("paper/Humanoid").size()[:2] == (376, 17)
    assert TASKS.get("paper/Ant").size()[:2] == (111, 8)
    assert TASKS.get("paper/Reacher").size() == (11, 2, 50)


def test_dm_control_has_every_task_of_envpool_and_only_dm_controls_parts():
    import envpool

    pool = "envpool.mujoco.dmc"
    listed = {i for i in envpool.list_all_envs() if envpool.registration.registry.specs[i][0].startswith(pool)}
    assert {envpool_id(domain, task) for domain, tasks in SUITE.items() for task in tasks} == listed
    known = {"humanoid-walk": 67, "dog-run": 223, "quadruped-walk": 78, "finger-spin": 9, "fish-upright": 21}
    for name, size in known.items():
        assert TASKS.get(f"dm_control/{name}").size().observation == size
    for name, parts in WITHOUT.items():
        domain, _, task = name.partition("-")
        whole_size, *_ = sizes(envpool_id(domain, task))
        without, *_ = sizes(envpool_id(domain, task), parts)
        assert without < whole_size


@pytest.mark.parametrize("name", [name for name in TASKS.names() if TASKS.get(name).suite == "classic"])
def test_classic_control_says_its_choices(name):
    """EnvPool's actions are Gymnasium's, and are known before anything is made."""
    space = TASKS.get(name).space({})
    theirs = action_space(name, gymnasium.make(name).action_space, bounded=True)
    assert space == theirs
    assert space == TASKS.get(name).make(Wanted(seed=0, num_envs=1)).space


def test_a_missing_extra_gives_the_exact_command(monkeypatch, capsys, tmp_path):
    real = builtins.__import__

    def without_pybullet(name, *rest, **more):
        if name.startswith("pybullet"):
            raise ImportError(name)
        return real(name, *rest, **more)

    import importlib

    real_import_module = importlib.import_module
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda name, *rest: without_pybullet(name) if name.startswith("pybullet") else real_import_module(name, *rest),
    )
    monkeypatch.setattr(builtins, "__import__", without_pybullet)
    assert main(["train", "roboschool/Reacher", "--steps", "10", "--quiet", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error == "detent: This needs the package pybullet: pip install 'detent-rl[roboschool]'.\n"


def test_the_list_of_tasks_fits_a_terminal(capsys):
    assert main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert listed == set(TASKS.names())
    assert main(["tasks", "rllab"]) == 0
    shown = capsys.readouterr().out
    assert "rllab/Humanoid" in shown
    assert "Hopper" not in shown
    assert all(len(line) <= 80 for line in lines)
    assert main(["tasks", "rlab"]) == 2
    assert "Did you mean rllab?" in capsys.readouterr().err


ONE_OF_EACH = [
    "BipedalWalker-v3",
    "Hopper-v5",
    "MountainCarContinuous-v0",
    "dm_control/cartpole-swingup",
    "gymnasium/Pendulum-v1",
    "paper/InvertedDoublePendulum",
    "rllab/SimpleHumanoid",
    "roboschool/Reacher",
]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS.names())
@pytest.mark.parametrize("head", BOX_HEADS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_head_and_algorithm_trains_on_every_suite(name, head, algo):
    run = Run(name, head, algo, steps=257, envs=4, batch_size=256, hidden_sizes=(8,))
    records = list(train(run))
    assert len(records) == 2
    assert all(record.finite for record in records)


def test_one_of_each_is_one_of_each():
    suites = {find_task(name).suite for name in ONE_OF_EACH}
    assert suites == {TASKS.get(name).suite for name in TASKS.names()} - {"probe", "user"} | {"gymnasium"}


def test_a_bad_task_names_near_ones():
    with pytest.raises(BadInput, match="Did you mean rllab/Humanoid"):
        find_task("rlab/Humanoid")
    with pytest.raises(BadInput, match="Did you mean paper/Humanoid"):
        find_task("paper/humanoid")
