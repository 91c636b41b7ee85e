"""TRPO: its Fisher matrix, its trust region, and a line search that takes nothing it should not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms.samples import samples
from detent.algorithms.trpo import TRPO, policy_vector
from detent.heads import HEADS
from detent.heads.gaussian import Gaussian
from detent.runs.presets import PRESETS
from detent.runs.run import Run
from updates import BOX_HEADS, bits, distance, make_agent, random_rollout, small, update

every_head = pytest.mark.parametrize("head", BOX_HEADS)


def batch_of(trpo, agent, parameters, rollout):
    value = agent.value(parameters, rollout.observation)
    return samples(trpo, rollout, value, value)


@every_head
@pytest.mark.parametrize("fisher_every", [1, 3])
def test_fisher_product_is_the_hessian_of_the_kl(head, fisher_every):
    """Of a tiny network, in float64, over the valid samples: F is the Hessian of E[KL(old || new)] at new = old."""
    head = HEADS.get(head)()
    agent, trpo = make_agent(head, hidden_sizes=(3,)), small("trpo", fisher_every=fisher_every)
    rollout = random_rollout(agent, agent.init(jax.random.key(2)))
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        parameters = jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape), agent.init(jax.random.key(2)))
        batch = batch_of(trpo, agent, parameters, rollout)
        theta, with_theta = policy_vector(parameters)
        used = np.flatnonzero(batch.valid[::fisher_every]) * fisher_every
        assert 0 < len(used) < len(batch.valid) / fisher_every

        @jax.jit
        def both(theta, observation):
            product = trpo.fisher_product(agent, parameters, batch)
            old = agent.policy(parameters, observation)
            kl = lambda new: old.kl(agent.policy(with_theta(new), observation)).mean()
            return jax.vmap(product)(jnp.eye(theta.size)), jax.hessian(kl)(theta)

        found, expected = both(theta, batch.observation[used])
    assert found.dtype == np.float64
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.eigvalsh(found).min() > -1e-6


@every_head
@pytest.mark.parametrize("preset", PRESETS)
def test_accepted_steps_obey_the_limit_of_the_preset(head, preset):
    """And the KL that is reported is that of the policies before and after."""
    run = Run("probe/action", head, "trpo", preset)
    chosen = run.algorithm
    trpo = small("trpo", max_kl=chosen.max_kl, kl_tolerance=chosen.kl_tolerance, damping=chosen.damping)
    assert trpo.kl_tolerance == (1.5 if preset == "paper" else 1.0)
    agent = make_agent(run.head)
    start = agent.init(jax.random.key(2))
    rollout = random_rollout(agent, start)
    state, metrics = update(trpo, agent, rollout)
    assert metrics["is_line_search_success"] == 1.0
    observation = rollout.observation[:-1][rollout.valid]
    kl = agent.policy(start, observation).kl(agent.policy(state.parameters, observation)).mean()
    assert kl == pytest.approx(float(metrics["kl_divergence_loss"]), rel=1e-2, abs=1e-5)
    assert 0.0 < kl <= 1.001 * trpo.kl_tolerance * trpo.max_kl


THETA, STEP = jnp.array([0.1, -0.3]), jnp.array([1.0, 2.0])


def search(objective_and_kl, **changes):
    trpo = TRPO(max_kl=0.1, line_search_factor=0.5, **changes)
    return jax.jit(lambda: trpo.line_search(objective_and_kl, THETA, STEP, jnp.float32(0.0)))()


def length(theta):
    """Of the step to theta, as a share of the full one."""
    return (theta - THETA)[0] / STEP[0]


def test_line_search_takes_the_first_length_that_fulfils_both_conditions():
    found = search(lambda theta: (length(theta), length(theta) ** 2))  # 1 and 0.25 are too far, 0.0625 is not
    assert found.accepted
    assert found.tried == 3
    assert found.kl == pytest.approx(1 / 16, rel=1e-5)
    np.testing.assert_allclose(found.theta, THETA + STEP / 4, rtol=1e-5)
    found = search(lambda theta: (0.3 - length(theta), 0.0 * length(theta)))  # better only below 0.3
    assert found.tried == 3


def test_line_search_options_count():
    near = lambda theta: (length(theta), 0.14 * length(theta))
    assert search(near).tried == 2
    assert search(near, kl_tolerance=1.5).tried == 1
    assert search(near).accepted
    assert not search(near, line_search_steps=1).accepted


@pytest.mark.parametrize(
    "objective_and_kl",
    [
        lambda theta: (-length(theta), 0.0 * length(theta)),
        lambda theta: (length(theta), 1.0 + 0.0 * length(theta)),
        lambda theta: (jnp.nan * length(theta), 0.0 * length(theta)),
        lambda theta: (length(theta), jnp.nan * length(theta)),
    ],
    ids=["worse", "too far", "objective not finite", "KL not finite"],
)
def test_a_failed_line_search_restores_bitwise(objective_and_kl):
    found = search(objective_and_kl)
    assert not found.accepted
    assert found.tried == 10
    assert bits(found.theta) == bits(THETA)
    assert found.kl == 0.0


@every_head
def test_an_update_whose_line_search_fails_keeps_the_policy_bitwise(head):
    """Ratios of probabilities that overflow: no step is better than what is not a number."""
    agent = make_agent(HEADS.get(head)())
    start = agent.init(jax.random.key(2))
    rollout = random_rollout(agent, start)
    state, metrics = update(small("trpo"), agent, rollout._replace(log_prob=rollout.log_prob - 1000.0))
    assert metrics["is_line_search_success"] == 0.0
    for part in ("policy", "head"):
        assert bits(state.parameters[part]) == bits(start[part])
    assert distance(state.parameters["value"], start["value"]) > 1e-6


def test_the_value_function_learns_the_returns():
    agent = make_agent(Gaussian())
    rollout = random_rollout(agent, agent.init(jax.random.key(2)))
    losses = [update(small("trpo", epochs=n, learning_rate=0.01), agent, rollout)[1]["value_loss"] for n in (1, 50)]
    assert losses[1] < 0.5 * losses[0]
