"""Two oddities of the authors' code that preset `paper` copies: how observations and rewards are scaled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.moments import Moments
from detent.rollout import Edge, begin, make_collect
from detent.runs.pytrees import restore
from detent.runs.run import Run
from detent.runs.training import make_agent, make_environment, train


@pytest.mark.parametrize("across", [False, True])
def test_the_return_that_scales_rewards_may_run_on_after_the_end_of_an_episode(across):
    """Episodes of two steps, of which the second pays 1, and a step that only resets after each."""
    run = Run("probe/discount", "gaussian", batch_size=28, minibatch_size=28, envs=4)
    env = make_environment(run, 0, 4)
    agent = make_agent(run, env)
    edge = Edge("scale", False, True, 10.0, 0.9, returns_across_episodes=across)
    env_state, observation = env.reset()
    parameters = agent.init(jax.random.key(0))
    collect = make_collect(agent, edge, env, 7)
    memory, _, rollout, _ = collect(parameters, begin(observation), env_state, jax.random.key(1))

    returns, current = [], 0.0
    for number in range(7):
        if number % 3 == 2:  # only resets
            continue
        current = 0.9 * (current if across or number % 3 else 0.0) + (number % 3 == 1)
        returns.append(current)
    np.testing.assert_array_equal(rollout.valid[:, 0], [True, True, False, True, True, False, True])
    np.testing.assert_allclose(memory.discounted, current, rtol=1e-5)
    np.testing.assert_allclose(memory.return_moments.mean, np.mean(returns), rtol=1e-3)
    np.testing.assert_allclose(memory.return_moments.var, np.var(returns), rtol=1e-3)


def test_a_variance_below_the_least_one_is_raised_to_it():
    moments = Moments(jnp.array([1.0, 1.0]), jnp.array([1e-6, 4.0]), jnp.asarray(10.0))
    normalised = moments.normalize(jnp.array([1.3, 2.0]), 5.0, least_variance=0.01)
    np.testing.assert_allclose(normalised, [3.0, 0.5], rtol=1e-5)


def test_the_policy_that_is_written_normalises_as_training_did():
    run = Run("probe/follow", "gaussian", steps=512, batch_size=256, envs=64, policy_gain=1.0, least_variance=25.0)
    for record in train(run):
        last = record
    tensors = last.snapshot().tensors
    assert tensors["memory/observation_moments/var"] < 2.0
    agent = make_agent(run, make_environment(run, 0, 1))
    parameters = restore("algorithm/parameters", agent.init(jax.random.key(0)), tensors)
    moments = restore("memory/observation_moments", Moments.zero((1,)), tensors)
    policy = last.policy()
    for observation in ([1.0], [-1.0], [4.0]):
        seen = moments.normalize(jnp.asarray(observation), 10.0, 25.0)
        expected = np.clip(agent.policy(parameters, seen).mode(), -1.0, 1.0)
        np.testing.assert_allclose(policy(observation), expected, rtol=1e-4, atol=1e-6)
        assert abs(agent.policy(parameters, moments.normalize(jnp.asarray(observation), 10.0)).mode() - expected) > 1e-3


@pytest.mark.parametrize(("algo", "expected"), [("ppo", (0.0, True)), ("trpo", (0.01, False)), ("acktr", (0.0, False))])
def test_only_paper_has_them_and_only_since_it_was_changed(algo, expected):
    def settings(preset):
        found = Run("probe/action", "gaussian", algo, preset).settings
        return found.least_variance, found.returns_across_episodes

    assert settings("paper") == expected
    assert {settings(preset) for preset in ("modern", "modern-0.1", "paper-0.1")} == {(0.0, False)}
