"""The training loop: determinism, resuming, bookkeeping, and what a fault leaves behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box

from detent.algorithms import ALGORITHMS
from detent.distributions import key_of
from detent.environments import Replay
from detent.errors import Diverged, EnvironmentFailed
from detent.options import FREE_OPTIONS, options_of
from detent.runs.books import History
from detent.runs.run import Names, Run, Settings
from detent.runs.snapshot import Snapshot
from detent.runs.training import CLOCK_KEYS, make_environment, train
from killing import QUICK, quick
from marks import crossed, slow_unless
from updates import BOX_HEADS


def told(records):
    """Records without their clock."""
    return [{k: v for k, v in r.items() if k not in CLOCK_KEYS} for r in records]


def finite_or_none(record):
    return all(v is None or np.isfinite(v) for v in record.values())


@pytest.mark.parametrize(
    ("head", "algo"),
    slow_unless(
        lambda *case: case in {("discrete", "ppo"), ("ordinal", "acktr")},
        crossed(BOX_HEADS, ALGORITHMS.names(), "ordinal", "ppo"),
    ),
)
def test_every_head_trains_on_mujoco(head, algo):
    records = list(train(Run("Hopper-v5", head, steps=384, **quick(algo))))
    assert len(records) >= 3
    assert all(map(finite_or_none, records))
    assert records[-1]["time/total_timesteps"] >= 384


@pytest.mark.parametrize("seed", [5, 2**31 + 5, 2**32 + 5, 2**62 + 5])
def test_all_of_the_seed_counts(seed):
    """probe/value has no chance in it: whatever differs between two runs comes from the run's own keys."""
    weights = [
        next(train(Run("probe/value", steps=128, seed=s, **QUICK))).policy().tensors["policy/0/w"] for s in (5, seed)
    ]
    assert np.array_equal(*weights) == (seed == 5)


def test_small_seeds_have_the_keys_they_always_had():
    for seed in (0, 5, 2**31 + 7, 2**32 - 1):
        assert key_of(seed) == jax.random.key(seed)


def test_same_seed_same_records():
    first, second = (told(train(Run("Hopper-v5", steps=512, seed=3, **QUICK))) for _ in range(2))
    assert first == second


def test_another_seed_other_records():
    first, second = (told(train(Run("Hopper-v5", steps=256, seed=seed, **QUICK))) for seed in (0, 1))
    assert first != second


SCRIPT = """
import json, os, sys
os.sched_setaffinity(0, map(int, sys.argv[3:]))
from detent.runs.run import Run
from detent.runs.training import CLOCK_KEYS, train
run = Run("Walker2d-v5", "ordinal", sys.argv[1], steps=1024, envs=16, batch_size=256, threads=int(sys.argv[2]))
for record in train(run):
    print(json.dumps({k: v for k, v in record.items() if k not in CLOCK_KEYS}))
import hashlib
print(hashlib.sha256(b"".join(v.tobytes() for _, v in sorted(record.snapshot().tensors.items()))).hexdigest())
"""


@pytest.mark.parametrize("algo", slow_unless(lambda algo: algo == "ppo", ALGORITHMS.names()))
def test_same_bits_on_one_core_and_on_all(algo):
    """Neither the threads of the pool nor the cores XLA sees change a bit of records or state."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "this test needs two cores"

    def run(threads, affinity):
        arguments = [sys.executable, "-c", SCRIPT, algo, str(threads), *map(str, affinity)]
        return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout

    one, all_ = run(1, cores[:1]), run(len(cores), cores)
    assert len(one.splitlines()) > 4
    assert one == all_


@pytest.mark.parametrize(
    ("task", "head", "algo"),
    slow_unless(
        lambda task, head, algo: task in ("HalfCheetah-v5", "gymnasium/Pendulum-v1"),
        [("Hopper-v5", "ordinal", "ppo"), ("HalfCheetah-v5", "gaussian", "ppo"), ("BipedalWalker-v3", "beta", "ppo"),
         ("probe/follow", "discrete", "ppo"), ("gymnasium/Pendulum-v1", "gaussian_tanh", "ppo"),
         ("Hopper-v5", "ordinal", "trpo"), ("Hopper-v5", "gaussian", "acktr"), ("probe/follow", "beta", "acktr")],
    ),
)  # fmt: skip
def test_resuming_from_a_snapshot_gives_the_same_bits(task, head, algo):
    """Hopper's episodes are short, HalfCheetah's long, Pendulum goes through Gymnasium."""
    run = Run(task, head, steps=1280, **quick(algo))
    snapshot = None
    whole = []
    for record in train(run):
        whole.append(record)
        if len(whole) == 4:
            snapshot = record.snapshot()
    end = whole[-1].snapshot()

    assert snapshot is not None
    rest = list(train(run, Snapshot(dict(snapshot.tensors), dict(snapshot.meta))))
    assert told(rest) == told(whole[4:])
    again = rest[-1].snapshot()
    assert again.meta == end.meta
    assert again.tensors.keys() == end.tensors.keys()
    for name, tensor in end.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor, err_msg=name, strict=True)


def test_a_task_with_hidden_randomness_resumes_with_new_episodes():
    run = Run("LunarLanderContinuous-v3", steps=512, **QUICK)
    records = train(run)
    next(records)
    snapshot = next(records).snapshot()
    records.close()
    rest = list(train(run, snapshot))
    assert rest[0]["time/iterations"] == 3
    assert rest[-1]["time/total_timesteps"] >= 512


def test_snapshots_do_not_influence_training():
    run = Run("Hopper-v5", steps=384, **QUICK)
    undisturbed = told(train(run))
    disturbed = []
    for record in train(run):
        record.snapshot(), record.policy()
        disturbed.append({k: v for k, v in record.items() if k not in CLOCK_KEYS})
    assert disturbed == undisturbed


def test_history_replays_ragged_episodes():
    """Against keeping every action since the last reset in plain lists; also after a restart at any time."""
    rng = np.random.default_rng(0)
    space = Box(-9, 9, (2,))
    histories, plain, resets = [History(3)], [[], [], []], [1, 1, 1]
    for rollout in range(1, 7):
        actions = rng.normal(size=(5, 3, 2)).astype(np.float32)
        valid = rng.random((5, 3)) > 0.15
        for history in histories:
            history.add(actions, valid, np.zeros_like(valid))
        for t, i in itertools.product(range(5), range(3)):
            if valid[t, i]:
                plain[i].append(actions[t, i])
            else:
                plain[i], resets[i] = [], resets[i] + 1
        histories.append(History.restored(histories[0].tensors(), space, 3, 5 * rollout))
        for history in histories:
            replay = history.replay()
            assert isinstance(replay, Replay)
            assert replay.resets.tolist() == resets
            for i in range(3):
                np.testing.assert_array_equal(replay.actions[i], np.array(plain[i]).reshape(-1, 2))


def test_invalid_steps_are_not_counted():
    """Steps are those an environment took: episodes' lengths add up to them."""
    run = Run("probe/value", "gaussian", steps=300, **QUICK)
    records = list(train(run))
    # Every second step of a one-step episode only resets.
    assert records[0]["time/total_timesteps"] == QUICK["batch_size"] // 2
    assert records[-1]["rollout/episodes"] == records[-1]["time/total_timesteps"]


def test_pool_agrees_with_gymnasium_from_the_same_state():
    """EnvPool carries another MuJoCo, so 1e-4 over ten steps."""
    import gymnasium

    for task in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5"):
        pool = make_environment(Run(task, envs=1, steps=1), 0, 1)
        state, first = pool.reset()
        env = gymnasium.make(task, exclude_current_positions_from_observation=False)
        env.reset(seed=0)
        u = env.unwrapped
        # The observation is (positions, velocities), the first positions left out: they start where noise put them,
        # and shift nothing that is observed.
        missing = u.model.nq + u.model.nv - first.shape[1]
        flat = np.concatenate([np.zeros(missing), np.asarray(first[0], float)])
        u.set_state(flat[: u.model.nq], flat[u.model.nq :])
        step = jax.jit(pool.step)
        rng = np.random.default_rng(1)
        for _ in range(10):
            action = rng.uniform(pool.space.low, pool.space.high).astype(np.float32)
            with jax.enable_x64(True):
                state, theirs = step(state, action[None])
            observation, reward, terminated, *_ = env.step(action)
            np.testing.assert_allclose(theirs.observation[0], observation[missing:], atol=1e-4, err_msg=task)
            assert abs(float(theirs.reward[0]) - reward) < 1e-4, task
            assert bool(theirs.terminated[0]) == terminated
        pool.close()


def test_no_float64_reaches_rollout_or_learner():
    for record in itertools.islice(train(Run("Hopper-v5", "ordinal", steps=256, **QUICK)), 1):
        wide = [name for name, t in record.snapshot().tensors.items() if t.dtype == np.float64]
        assert not wide


class NotFinite:
    """Pendulum whose reward or observation is not finite from step 40 on."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self):
        import gymnasium

        where = self.where

        class Broken(gymnasium.Wrapper):
            steps = 0

            def step(self, action):
                observation, reward, *rest = self.env.step(action)
                self.steps += 1
                if self.steps >= 40 and where == "reward":
                    reward = float("inf")
                if self.steps >= 40 and where == "observation":
                    observation = observation * np.nan
                return observation, reward, *rest

        return Broken(gymnasium.make("Pendulum-v1"))


@pytest.mark.parametrize(("where", "value"), [("reward", "inf"), ("observation", "nan")])
def test_values_that_are_not_finite_stop_training_and_teach_nothing(where, value):
    records = train(Run(NotFinite(where), "gaussian", steps=10_000, **QUICK))
    last = None
    with pytest.raises(EnvironmentFailed, match=f"environment 0, .*at step 40 .*returned {value} "):
        for record in records:
            last = record.snapshot()
    assert last is not None
    assert last.meta["iteration"] == 2  # 16 steps an iteration: the third rollout is thrown away
    assert all(np.isfinite(t).all() for name, t in last.tensors.items() if name.startswith(("algorithm", "memory")))


def test_divergence_is_a_result():
    with pytest.raises(Diverged, match="diverged at step"):
        for record in train(Run("probe/action", "gaussian", steps=100_000, learning_rate=1e30, **QUICK)):
            last = record
    assert last["time/iterations"] >= 1


def test_option_names_are_disjoint():
    for head, algo in itertools.product(BOX_HEADS, ALGORITHMS.names()):
        names = [f.name for part in Names("", head, algo).option_parts for f in options_of(part)]
        assert len(names) == len(set(names))


CHANGED = {
    "steps": 512, "seed": 1, "envs": 16, "env_kwargs": {"forward_reward_weight": 2.0}, "actions": "clip",
    "normalize_observations": False, "normalize_rewards": False, "normalization_clip": 0.5, "least_variance": 1.0,
    "returns_across_episodes": True, "policy_gain": 1.0, "anneal_steps": 10_000,
}  # fmt: skip
NO_EFFECT_ON_RESULTS = set(FREE_OPTIONS)
TESTED_WITH_RUNS = {"eval_every", "eval_episodes"}


@pytest.mark.slow
def test_every_setting_is_read():
    """Changing it changes the records (and the names here are all there are)."""
    names = {f.name for f in dataclasses.fields(Settings)}
    assert names == set(CHANGED) | NO_EFFECT_ON_RESULTS | TESTED_WITH_RUNS
    usual = {"task": "Hopper-v5", "head": "gaussian", "steps": 384, "initial_log_std": 1.0, **QUICK}
    usual_records = told(train(Run(**usual)))
    for name, value in CHANGED.items():
        if name == "actions":  # Hopper's bounds are -1 and 1, where scaling and clipping agree
            base = {**usual, "task": "Humanoid-v5"}
            assert told(train(Run(**base))) != told(train(Run(**{**base, name: value})))
            continue
        assert told(train(Run(**{**usual, name: value}))) != usual_records, name


def test_records_are_json_with_sb3_names():
    record = next(iter(train(Run("Hopper-v5", steps=1, **QUICK))))
    json.dumps(dict(record), allow_nan=False)
    assert {
        "time/total_timesteps", "time/iterations", "time/fps", "time/time_elapsed", "rollout/ep_rew_mean",
        "rollout/ep_len_mean", "train/approx_kl", "train/clip_fraction", "train/entropy_loss",
        "train/explained_variance", "train/learning_rate", "train/loss", "train/policy_gradient_loss",
        "train/value_loss",
    } <= set(record)  # fmt: skip
