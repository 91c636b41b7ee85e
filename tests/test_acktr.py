"""ACKTR: the rule of its step size, its trust region, and a critic that solves least squares."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from detent.heads import HEADS
from detent.heads.discrete import Discrete
from detent.heads.gaussian import Gaussian
from marks import slow_unless
from updates import BOX_HEADS, make_agent, random_rollout, small, update


@pytest.fixture(scope="module")
def agent():
    return make_agent(Gaussian())


@pytest.fixture(scope="module")
def rollout(agent):
    return random_rollout(agent, agent.init(jax.random.key(2)))


@pytest.mark.parametrize(
    ("target", "factor"), slow_unless(lambda _, factor: factor > 1, [(0.4, 1 / 1.5), (1.0, 1.0), (2.5, 1.5)])
)
def test_the_step_size_follows_the_kl(agent, rollout, target, factor):
    """Shorter when the KL is more than twice its target, longer when less than half of it."""
    kl = float(update(small("acktr"), agent, rollout)[1]["kl_divergence_loss"])
    assert kl > 0
    state, metrics = update(small("acktr", target_kl=target * kl), agent, rollout)
    assert metrics["learning_rate"] == pytest.approx(0.03)
    assert state.step_size == pytest.approx(0.03 * factor, rel=1e-5)


def test_the_step_size_stays_within_its_bounds(agent, rollout):
    state, _ = update(small("acktr", learning_rate=1.0, target_kl=100.0), agent, rollout, times=2)
    assert state.step_size == 1.0


@pytest.mark.parametrize("head", slow_unless(lambda head: head == "ordinal", BOX_HEADS))
def test_a_long_step_keeps_the_trust_region(head):
    """The KL that K-FAC predicts is not the true one, yet of its size."""
    agent = make_agent(HEADS.get(head)())
    start = agent.init(jax.random.key(2))
    rollout = random_rollout(agent, start)
    acktr = small("acktr", learning_rate=1.0, momentum=0.0, clip_kl=0.01)
    state, metrics = update(acktr, agent, rollout)
    observation = rollout.observation[:-1][rollout.valid]
    kl = agent.policy(start, observation).kl(agent.policy(state.parameters, observation)).mean()
    assert kl == pytest.approx(float(metrics["kl_divergence_loss"]), rel=1e-2, abs=1e-5)
    assert 1e-5 < kl < 0.05


@pytest.mark.slow
def test_the_critic_solves_least_squares():
    """A linear one, with whole Gauss-Newton steps and hardly any damping: the solution of the normal equations."""
    agent = make_agent(Gaussian(), hidden_sizes=())
    rollout = random_rollout(agent, agent.init(jax.random.key(2)), steps=200)
    options = {
        "batch_size": 400, "gamma": 0.0, "value_damping": 1e-8, "value_learning_rate": 0.5, "value_clip_kl": 1e6,
        "value_steps": 60, "momentum": 0.0,
    }  # fmt: skip
    state, metrics = update(small("acktr", **options), agent, rollout)
    x = np.concatenate([rollout.observation[:-1], np.ones((200, 2, 1))], axis=-1)[rollout.valid]
    expected = np.linalg.lstsq(x, rollout.reward[rollout.valid], rcond=None)[0]
    layer = state.parameters["value"][0]
    np.testing.assert_allclose(np.concatenate([layer["w"][:, 0], layer["b"]]), expected, atol=1e-3)
    assert np.isfinite(metrics["value_loss"])


def test_hundreds_of_bins_stay_cheap():
    """The last layer's curvature has a block for each action dimension."""
    agent = make_agent(Discrete(201))
    state = small("acktr").init(agent, jax.random.key(0))
    assert state.policy.curvature[-1].outputs.shape == (2, 201, 201)
    assert state.policy.curvature[0].outputs.shape == (1, 8, 8)
