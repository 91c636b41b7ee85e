"""Probes with known answers (see `detent.tasks.probes`), for every head by registry."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.runs.pytrees import restore
from detent.runs.run import DEFAULT_ALGO, DEFAULT_HEAD, Run
from detent.runs.training import make_agent, make_environment, train
from detent.tasks.probes import bimodal
from marks import crossed, slow_unless
from updates import BOX_HEADS

PAIRS = crossed(BOX_HEADS, ALGORITHMS.names(), DEFAULT_HEAD, DEFAULT_ALGO)


def everywhere(quick):
    """Every head and every algorithm; those that are not `quick` are slow tests."""
    return pytest.mark.parametrize(
        ("head", "algo"),
        slow_unless(quick, PAIRS),
    )


ACTIONS = everywhere(lambda head, algo: head == DEFAULT_HEAD and algo != "acktr")
# The head hardly matters to the value function, the critic does.
VALUES = pytest.mark.parametrize(
    ("head", "algo", "critic"),
    slow_unless(
        lambda head, algo, critic: algo == DEFAULT_ALGO,
        itertools.product([DEFAULT_HEAD], ALGORITHMS.names(), CRITICS.names()),
    ),
)
# Raw observations and rewards, so that values can be read off.
PROBE = {"normalize_observations": False, "normalize_rewards": False, "envs": 64, "batch_size": 256, "seed": 0}
BY_ALGORITHM = {
    "ppo": {"minibatch_size": 64, "learning_rate": 3e-3},
    "trpo": {"minibatch_size": 64, "learning_rate": 3e-3},
}


def trained(task, head, algo, steps, **options):
    """The policy, and the value function of one number."""
    run = Run(f"probe/{task}", head, algo, steps=steps, **{**PROBE, **BY_ALGORITHM.get(algo, {}), **options})
    for record in train(run):
        last = record
    agent = make_agent(run, make_environment(run, 0, 1))
    parameters = restore("algorithm/parameters", agent.init(jax.random.key(0)), last.snapshot().tensors)
    return last.policy(), lambda observation: float(agent.value(parameters, jnp.atleast_1d(observation)))


@VALUES
def test_value(head, algo, critic):
    _, value = trained("value", head, algo, 4_000, critic=critic)
    assert value(1.0) == pytest.approx(1.0, abs=0.05)


@VALUES
def test_discount(head, algo, critic):
    _, value = trained("discount", head, algo, 8_000, critic=critic, gamma=0.6)
    assert value(2.0) == pytest.approx(1.0, abs=0.08)
    assert value(1.0) == pytest.approx(0.6, abs=0.08)


@VALUES
def test_value_of_the_context(head, algo, critic):
    _, value = trained("context", head, algo, 5_000, critic=critic)
    assert value(1.0) == pytest.approx(1.0, abs=0.1)
    assert value(-1.0) == pytest.approx(-1.0, abs=0.1)


@ACTIONS
def test_action(head, algo):
    policy, _ = trained("action", head, algo, 12_000)
    assert policy([1.0])[0] == pytest.approx(0.5, abs=0.15)  # bins are 0.2 apart


@ACTIONS
def test_action_that_follows_the_observation(head, algo):
    policy, _ = trained("follow", head, algo, 16_000)
    assert policy([1.0])[0] == pytest.approx(0.5, abs=0.2)
    assert policy([-1.0])[0] == pytest.approx(-0.5, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_discrete_finds_the_higher_of_two_peaks(seed):
    """The paper's bandit: a policy that can have two peaks does not get stuck on the wider, lower one."""
    policy, _ = trained("bimodal", "discrete", "ppo", 12_000, seed=seed)
    best = np.max(bimodal(jnp.linspace(-1, 1, 1001)))
    assert bimodal(jnp.asarray(policy([1.0])))[0] > 0.95 * best
