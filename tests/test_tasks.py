"""Every task: it can be made, its steps make sense, and repeating actions brings it back."""

from __future__ import annotations

import itertools
import re

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.environments import Replay, Wanted
from detent.errors import BadInput
from detent.runs.run import Run
from detent.runs.training import make_environment, train
from detent.tasks import TASKS, find_task
from updates import BOX_HEADS


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [("Hopper-v5", {"batch_size": 1}, "^batch_size is no option of Hopper-v5"),
     ("Hopper-v5", {"env_seed": [1]}, "^env_seed is no option of Hopper-v5"),
     ("Hopper-v5", {"base_path": "/tmp"}, "^base_path is no option of Hopper-v5"),
     ("Hopper-v5", {"xml_file": "no.xml"}, "^EnvPool could not make Hopper-v5 with {'xml_file': 'no.xml'}: ParseXML"),
     ("CartPole-v1", {"max_num_players": 5}, "^max_num_players is no option of CartPole-v1"),
     ("gymnasium/Pendulum-v1", {"render_mode": "human"}, "would open a window")],
)  # fmt: skip
def test_options_that_are_not_the_tasks_are_refused(name, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        find_task(name).make(Wanted(0, 2, options))


def played(env, steps, seed=0):
    """Observations and flags of `steps` steps of random actions, and the actions."""
    state, observation = env.reset()
    step = jax.jit(env.step) if env.traceable else env.step
    rng = np.random.default_rng(seed)
    rows, actions = [], []
    for _ in range(steps):
        action = rng.uniform(env.space.low, env.space.high, (env.num_envs, *env.space.shape)).astype(np.float32)
        with jax.enable_x64(True):
            state, taken = step(state, jnp.asarray(action))
        rows.append(jax.device_get(taken))
        actions.append(action)
    return np.asarray(observation), rows, actions


@pytest.mark.parametrize("name", ["Hopper-v5", "dm_control/reacher-easy", "CartPole-v1"])
def test_the_same_steps_in_a_program_and_without_one(name):
    """Evaluations step EnvPool from Python, and must stay what they were when a program did."""
    task = TASKS.get(name)
    traced, stepped = (played(task.make(Wanted(5, 3, traced=traced)), 60) for traced in (True, False))
    np.testing.assert_array_equal(traced[0], stepped[0])
    assert any(row.terminated.any() for row in stepped[1]) or name.startswith("dm_control")
    for one, other in zip(traced[1], stepped[1], strict=True):
        for field, value in one._asdict().items():
            np.testing.assert_array_equal(value, getattr(other, field), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS.names())
def test_every_task_plays_a_thousand_steps_alike(name):
    """Sizes as told, finite values, the same bits under the same seed, and episodes cut at the horizon."""
    task = TASKS.get(name)
    size = task.size()
    first, second = (task.make(Wanted(seed=3, num_envs=2)) for _ in range(2))
    assert (first.observation_layout.size, first.space.shape) == (size.observation, (size.action,))
    assert task.space({}) == first.space
    (start, rows, _), (start_again, rows_again, _) = played(first, 1_000), played(second, 1_000)
    np.testing.assert_array_equal(start, start_again)
    length = np.zeros(2, int)
    for row, again in zip(rows, rows_again, strict=True):
        jax.tree.map(np.testing.assert_array_equal, row, again)
        assert row.observation.shape == (2, first.observation_layout.size)
        assert row.observation.dtype == row.reward.dtype == np.float32
        assert np.isfinite(row.observation).all()
        assert np.isfinite(row.reward).all()
        length = np.where(row.valid, length + 1, 0)
        if size.horizon is not None:
            assert (row.truncated | row.terminated)[length == size.horizon].all()
            assert (length[row.truncated] == size.horizon).all()
        else:
            assert not row.truncated.any()
    first.close(), second.close()


@pytest.mark.parametrize("name", ["Hopper-v5", "probe/discount"])
def test_the_step_after_an_end_only_resets(name):
    env = TASKS.get(name).make(Wanted(seed=0, num_envs=4))
    _, rows, _ = played(env, 60)
    assert rows[0].valid.all()
    for before, after in itertools.pairwise(rows):
        np.testing.assert_array_equal(after.valid, ~(before.terminated | before.truncated))
        assert (after.reward[~after.valid] == 0).all()
    assert not all(row.valid.all() for row in rows)
    env.close()


@pytest.mark.parametrize("name", ["Hopper-v5", "BipedalWalker-v3", "probe/follow", "roboschool/HumanoidFlagrun"])
def test_replay_brings_environments_back(name):
    task = TASKS.get(name)
    env = task.make(Wanted(seed=1, num_envs=3))
    _, rows, actions = played(env, 70)
    resets = 1 + sum((~row.valid).astype(int) for row in rows)
    current = []
    for i in range(3):
        began = max((t + 1 for t, row in enumerate(rows) if not row.valid[i]), default=0)
        current.append(np.array([a[i] for a in actions[began:]]).reshape(-1, *env.space.shape))
    fresh = task.make(Wanted(seed=1, num_envs=3))
    _, observation = fresh.replay(Replay(resets, current))
    np.testing.assert_array_equal(observation, rows[-1].observation)
    env.close(), fresh.close()


def test_truncation_is_told_from_termination():
    """HalfCheetah never terminates; its time limit truncates, and the final observation is not a reset's."""
    env = TASKS.get("HalfCheetah-v5").make(Wanted(seed=0, num_envs=2, options={"max_episode_steps": 20}))
    _, rows, _ = played(env, 22)
    assert rows[19].truncated.all()
    assert not rows[19].terminated.any()
    assert np.abs(rows[19].observation).max() > 1  # moving
    assert not rows[20].valid.any()
    assert np.abs(rows[20].observation[:, :8]).max() < 0.5  # at rest again
    env.close()


def test_neighbouring_seeds_share_no_environment():
    """EnvPool numbers the seeds of its environments upwards, so runs must not sit side by side."""
    starts = [np.asarray(TASKS.get("Hopper-v5").make(Wanted(seed=seed, num_envs=8)).reset()[1]) for seed in (0, 1)]
    both = np.concatenate(starts)
    assert len(np.unique(both, axis=0)) == 16


def test_gymnasium_and_envpool_ids():
    assert find_task("HalfCheetah-v5").backend == "envpool"
    assert find_task("gymnasium/HalfCheetah-v5").backend == "gymnasium"
    assert find_task("CarRacing-v3").backend == "gymnasium"
    with pytest.raises(BadInput, match="Did you mean"):
        find_task("HalfCheeta-v5")


def test_bad_options_of_an_environment_are_a_sentence():
    with pytest.raises(BadInput, match="no_such_option"):
        make_environment(Run("Hopper-v5", env_kwargs={"no_such_option": 1}), 0, 2)


class Succeeds(gymnasium.Wrapper):
    """Pendulum that ends after five steps and succeeds when its action was positive."""

    steps = 0

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        observation, reward, *_ = self.env.step(action)
        self.steps += 1
        return observation, reward, self.steps == 5, False, {"is_success": bool(action[0] > 0)}


def test_the_success_rate_is_recorded():
    run = Run(lambda: Succeeds(gymnasium.make("Pendulum-v1")), "gaussian", steps=512, envs=8, batch_size=256)
    rate = list(train(run))[-1]["rollout/success_rate"]
    assert 0.2 < rate < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("head", BOX_HEADS)
def test_every_head_learns_to_hop(head):
    """Far above a random policy's return of about 20, with the defaults."""
    *_, record = train(Run("Hopper-v5", head, steps=120_000, seed=0))
    assert record["rollout/ep_rew_mean"] > 200


def test_task_names_are_the_usual_ones():
    ours = [name for name in TASKS.names() if TASKS.get(name).suite != "user"]
    usual = r"[A-Za-z0-9]+-v\d|probe/[a-z]+|(paper|rllab|roboschool)/[A-Za-z0-9]+|dm_control/[A-Za-z_]+-[a-z0-9_]+"
    assert all(re.fullmatch(usual, name) for name in ours)
