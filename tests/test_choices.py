"""Discrete and MultiDiscrete actions: the categorical head, and what becomes of its choices."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from detent import environments
from detent.algorithms import ALGORITHMS
from detent.cli import main
from detent.environments.host import Host
from detent.errors import BadInput
from detent.heads import HEADS, accepts, defaults, output_blocks
from detent.heads.categorical import Choices
from detent.ops import OPS, Acting, Place
from detent.options import option
from detent.policy import load
from detent.runs.execution import train
from detent.runs.run import Run
from marks import slow_unless

RAGGED = (3, 1, 4)


class Wanted(gymnasium.Env):
    """Reward 1 for each dimension in which the choice is that of the observation; episodes of 8 steps."""

    def __init__(self, action_space=None):
        self.action_space = action_space or spaces.MultiDiscrete([3, 2], start=[-1, 5])
        self.observation_space = spaces.Box(-10, 10, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        wanted = np.array([-1, 5]) if self.sign < 0 else np.array([1, 6])
        reward = float(np.mean(np.asarray(action) == wanted))
        self.time += 1
        return self._observation(), reward, False, self.time == 8, {}

    def _observation(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign], np.float32)


class Numbered(Wanted):
    """Three actions, the first of which is 2; reward 1 for the last."""

    def __init__(self):
        super().__init__(spaces.Discrete(3, start=2))

    def step(self, action):
        assert self.action_space.contains(action)
        assert hash(action) == hash(int(action))  # a number, fit to index and to look up with
        self.time += 1
        return self._observation(), float(action == 4), False, self.time == 8, {}


def head_of(choices):
    return Choices(choices=choices)


def test_probabilities_are_one_softmax_per_dimension():
    rng = np.random.default_rng(0)
    out = rng.normal(size=(5, sum(RAGGED))).astype(np.float32)
    distribution = head_of(RAGGED).distribution(jnp.asarray(out), {})
    parts = np.split(out.astype(np.float64), np.cumsum(RAGGED)[:-1], axis=-1)
    expected = [np.exp(p) / np.exp(p).sum(-1, keepdims=True) for p in parts]
    for i, p in enumerate(expected):
        np.testing.assert_allclose(np.exp(distribution.log_probs)[:, i, : RAGGED[i]], p, rtol=1e-5)
        assert (np.exp(distribution.log_probs)[:, i, RAGGED[i] :] == 0).all()
    action = jnp.asarray([[2, 0, 3]] * 5, jnp.int32)
    log_prob = sum(np.log(p[:, a]) for p, a in zip(expected, [2, 0, 3], strict=True))
    np.testing.assert_allclose(distribution.log_prob(action), log_prob, rtol=1e-4)
    np.testing.assert_allclose(distribution.entropy(), sum(stats.entropy(p, axis=-1) for p in expected), rtol=1e-4)
    other = head_of(RAGGED).distribution(jnp.asarray(out[::-1]), {})
    kl = sum(stats.entropy(p, p[::-1], axis=-1) for p in expected)
    np.testing.assert_allclose(distribution.kl(other), kl, rtol=1e-3, atol=1e-5)


def test_gradients_are_finite_and_samples_exist():
    head, out = head_of(RAGGED), jnp.zeros((4000, sum(RAGGED)), jnp.float32)
    drawn = np.asarray(head.distribution(out, {}).sample(jax.random.key(0)))
    for i, count in enumerate(RAGGED):
        assert drawn[:, i].max() == count - 1
        assert count == 1 or stats.chisquare(np.bincount(drawn[:, i])).pvalue > 1e-4
    gradient = jax.grad(lambda o: head.distribution(o, {}).entropy().sum() + head.distribution(o, {}).kl(
        head.distribution(0.5 * o + 1.0, {})).sum())(out[:4])  # fmt: skip
    assert np.isfinite(gradient).all()


def test_outputs_are_grouped_by_dimension_where_they_can_be():
    even = spaces.Box(0, np.array([2, 2]), dtype=np.int64)
    assert output_blocks(head_of((3, 3)), even).tolist() == [[0, 1, 2], [3, 4, 5]]
    ragged = spaces.Box(0, np.array(RAGGED) - 1, dtype=np.int64)
    assert output_blocks(head_of(RAGGED), ragged).shape == (1, sum(RAGGED))
    with pytest.raises(BadInput, match="3, 1, 4 choices per action dimension, not 2"):
        head_of((2,)).outputs(ragged)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_every_choice_survives_the_bounds(count):
    """-1 to 1, scaled to the bounds and rounded, is the choice again."""
    from detent.rollout import Edge

    space = spaces.Box(np.array([5]), np.array([5 + count - 1]), dtype=np.int64)
    unit = head_of((count,)).to_unit(jnp.arange(count)[:, None])
    native = Edge("scale", True, True, 10.0, 0.99).action(unit, space)
    np.testing.assert_array_equal(np.rint(native)[:, 0], 5 + np.arange(count))


@pytest.mark.parametrize("workers", [0, 2])
def test_environments_get_their_own_kind_of_action(workers):
    for env_type, action in ((Wanted, [1, 6]), (Numbered, [4])):
        env = Host(env_type, "own", environments.Wanted(0, 2, workers=workers))
        env.reset()
        _, step = env.step(None, np.array([action, action], np.float32))
        if env_type is Numbered:
            np.testing.assert_array_equal(step.reward, 1.0)
        env.close()


@pytest.mark.parametrize(
    ("make", "algo"),
    slow_unless(lambda _, algo: algo == "ppo", [(Numbered, "ppo"), *((Wanted, algo) for algo in ALGORITHMS.names())]),
)
def test_choices_are_learned(make, algo, tmp_path):
    run = Run(make, algo=algo, steps=15_000, envs=8, batch_size=256, seed=1)
    assert run.names.head == "categorical"
    *_, last = train(run, tmp_path / "run")
    assert last["rollout/ep_rew_mean"] > 0.9 * 8
    policy = load(tmp_path / "run")
    actions = policy(np.array([[-1.0], [1.0]]))
    assert actions.dtype == np.int64
    assert actions.tolist() == ([[-1, 5], [1, 6]] if make is Wanted else [4, 4])
    samples = policy.sample(np.ones((200, 1)), np.random.default_rng(0))
    assert (samples == actions[1]).mean() > 0.8
    assert (samples >= run_low(make)).all()


def run_low(make):
    return [-1, 5] if make is Wanted else [2]


@dataclasses.dataclass(frozen=True)
class Counted:
    """A head for choices by another name, with another option, and without what is optional but for `accepts`."""

    counts: tuple[int, ...] = option((), "choices per dimension")

    @staticmethod
    def accepts(space):
        return np.issubdtype(space.dtype, np.integer)

    @staticmethod
    def defaults(space):
        return {"counts": Choices.defaults(space)["choices"]}

    def __getattr__(self, name):
        if name not in ("outputs", "parameters", "distribution", "to_unit", "diagnostics"):
            raise AttributeError(name)
        return getattr(Choices(self.counts), name)


@pytest.fixture
def counted(monkeypatch):
    HEADS.names()
    monkeypatch.setitem(HEADS._entries, "counted", Counted)


def test_a_head_of_ones_own_is_for_the_actions_that_it_accepts(counted, tmp_path):
    run = Run(Wanted, head="counted", steps=64, envs=8, batch_size=64)
    assert run.options["counts"] == (3, 2)
    [record] = train(run, tmp_path / "run")
    assert np.isfinite(record["train/loss"])
    with pytest.raises(BadInput, match="'counted' has no method `deploy`"):
        load(tmp_path / "run")(np.zeros(record.policy().observation_size))
    with pytest.raises(BadInput, match="does not fit Pendulum-v1, whose actions are real numbers"):
        next(train(Run("Pendulum-v1", head="counted", counts=(3,), steps=64)))
    with pytest.raises(BadInput, match="whose actions are choices; --head can be categorical, counted"):
        next(train(Run("CartPole-v1", head="beta", steps=64)))
    assert Run("CartPole-v1").names[1] == "categorical"


def test_a_head_that_does_not_say_is_for_real_actions():
    class Old:
        """Written before `accepts`."""

    assert accepts(Old, spaces.Box(-1.0, 1.0, (2,), np.float32))
    assert not accepts(Old, spaces.Box(0, np.array([2]), dtype=np.int64))
    assert defaults(Old, spaces.Box(-1.0, 1.0, (2,), np.float32)) == {}


def test_numpy_draws_the_probabilities_that_jax_has():
    out = np.random.default_rng(1).normal(size=sum(RAGGED)).astype(np.float32)
    [op] = head_of(RAGGED).deploy()
    act = OPS["choices"](op, Place({}, sum(RAGGED)))
    unit = act(np.tile(out, (20_000, 1)), Acting("sample", np.random.default_rng(2), []))
    drawn = np.rint((unit + 1) / 2 * np.maximum(1, np.array(RAGGED) - 1)).astype(int)
    probabilities = np.exp(np.asarray(head_of(RAGGED).distribution(jnp.asarray(out), {}).log_probs, np.float64))
    for i, count in enumerate(RAGGED):
        counts = np.bincount(drawn[:, i], minlength=count)
        assert (
            count == 1
            or stats.chisquare(counts, 20_000 * probabilities[i, :count] / probabilities[i, :count].sum()).pvalue > 1e-4
        )


def test_cartpole_balances():
    *_, last = train(Run("CartPole-v1", steps=60_000, envs=16, batch_size=1024, seed=0))
    assert last["rollout/ep_rew_mean"] > 150  # a random policy: 22


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["CartPole-v1", "--head", "ordinal"],
            "The head 'ordinal' does not fit CartPole-v1, whose actions are choices",
        ),
        (
            ["Hopper-v5", "--head", "categorical", "--choices", "3"],
            "does not fit Hopper-v5, whose actions are real numbers; --head can be beta, ",
        ),
        (["CartPole-v1", "--bins", "3"], "The head 'categorical' has no --bins"),
        (["CartPole-v1", "--choices", "3"], "The task has 2 choices per action dimension, not 3"),
        (["CartPole-v1", "--actions", "clip"], "--actions must be scale, not clip"),
        (["gymnasium/CartPole-v1", "--env-kwargs", "{"], "--env-kwargs must be a JSON object"),
    ],
)
def test_what_does_not_fit_is_refused(words, sentence, tmp_path, capsys):
    assert main(["train", *words, "--steps", "100", "--quiet", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_other_action_spaces_are_refused_with_what_to_do():
    factory = functools.partial(Wanted, spaces.MultiBinary(3))
    with pytest.raises(BadInput, match="MultiBinary actions; Detent supports Box, Discrete and MultiDiscrete"):
        Host(factory, "own", environments.Wanted(0, 1))
