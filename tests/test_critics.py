"""Critics: what their losses are smallest at, how HL-Gauss keeps its bins where the returns are, and their scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.critics.hl_gauss import HLGauss
from detent.critics.squared import Squared
from detent.errors import BadInput
from detent.heads.gaussian import Gaussian
from updates import bits, distance, make_agent, random_rollout, small, update

every_critic = pytest.mark.parametrize("critic", [CRITICS.get(name)() for name in CRITICS.names()], ids=CRITICS.names())
every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS.names())
RANGES = {"narrow": (0.99, 1.03), "wide": (-500.0, 3000.0), "usual": (-1.5, 4.0)}


def spanning(low, high):
    return {"low": jnp.float32(low), "high": jnp.float32(high), "batches": jnp.float32(3.0)}


# HL-Gauss.


def integrated(critic, state, target):
    """The target's distribution over bins, by adding up a density on a fine grid, in float64."""
    low, high = float(state["low"]), float(state["high"])
    width = (high - low) / (critic.value_bins - 6.0 * critic.value_spread)
    first = low - 3.0 * critic.value_spread * width
    x = first + width * (np.arange(critic.value_bins * 1000) + 0.5) / 1000
    density = np.exp(-0.5 * ((x - target) / (critic.value_spread * width)) ** 2)
    mass = density.reshape(critic.value_bins, 1000).sum(-1)
    return mass / mass.sum(), first + width * (np.arange(critic.value_bins) + 0.5)


@pytest.mark.parametrize("ends", RANGES.values(), ids=RANGES)
def test_a_return_becomes_a_gaussian_integrated_over_the_bins(ends):
    critic, state = HLGauss(), spanning(*ends)
    for target in np.linspace(*ends, 7):
        mass, _ = integrated(critic, state, target)
        np.testing.assert_allclose(critic.projected(state, jnp.float32(target)), mass, atol=2e-3 * mass.max())


@pytest.mark.parametrize("critic", [HLGauss(), HLGauss(value_bins=11), HLGauss(value_bins=201, value_spread=1.5)])
@pytest.mark.parametrize("ends", RANGES.values(), ids=RANGES)
def test_the_value_of_a_projected_return_is_the_return_wherever_there_are_bins_for_it(critic, ends):
    state = spanning(*ends)
    target = jnp.linspace(*ends, 101)
    out = jnp.log(jnp.maximum(critic.projected(state, target), 1e-30))
    # At the very ends 0.1% of the Gaussian is missing.
    np.testing.assert_allclose(critic.value(out, state), target, atol=2e-3 * (ends[1] - ends[0]))
    inner = slice(20, -20)
    np.testing.assert_allclose(critic.value(out, state)[inner], target[inner], atol=2e-4 * (ends[1] - ends[0]))


def test_returns_beyond_the_range_are_taken_for_its_ends():
    critic, state = HLGauss(), spanning(-1.0, 2.0)
    np.testing.assert_array_equal(
        critic.projected(state, jnp.array([-7.0, 1e9])), critic.projected(state, jnp.array([-1.0, 2.0]))
    )


def test_the_loss_is_smallest_at_the_projection_of_the_return():
    critic, state, target = HLGauss(), spanning(-1.0, 2.0), jnp.float32(0.3)
    best = jnp.log(jnp.maximum(critic.projected(state, target), 1e-30))
    np.testing.assert_allclose(jax.grad(critic.loss)(best, state, target), 0.0, atol=1e-6)
    least = critic.loss(best, state, target)
    for key in jax.random.split(jax.random.key(0), 20):
        assert critic.loss(best + 0.1 * jax.random.normal(key, best.shape), state, target) > least


def test_by_gradient_descent_the_value_becomes_the_mean_of_the_returns():
    critic, state = HLGauss(), spanning(-1.0, 2.0)
    target = jnp.array([-0.8, 0.1, 0.2, 1.9])
    slope = jax.jit(jax.grad(lambda out: critic.loss(jnp.tile(out, (4, 1)), state, target).mean()))
    out = jnp.zeros(critic.outputs)
    for _ in range(3000):
        out -= 5.0 * slope(out)
    assert critic.value(out, state) == pytest.approx(0.35, abs=0.01)


def test_the_first_range_is_that_of_the_first_returns_and_then_it_follows_slowly():
    critic = HLGauss(value_margin=0.5, value_range_decay=0.75)
    valid = jnp.array([True, True, True, False])
    adapted = jax.jit(critic.adapted)
    first = adapted(critic.state(), jnp.array([3.0, 1.0, 2.0, np.inf]), valid)
    assert first["low"] == pytest.approx(1.0 - 0.5 * 2.0 - 0.01 * 4.0)
    assert first["high"] == pytest.approx(3.0 + 0.5 * 2.0 + 0.01 * 4.0)
    state = first
    for batches in (2, 3, 4, 5):
        before, state = state, adapted(state, jnp.array([7.0, 5.0, 6.0, -np.inf]), valid)
        share = max(1 / batches, 0.25)
        assert state["high"] == pytest.approx(float(before["high"] + share * (8.08 - before["high"])), rel=1e-5)
        assert before["low"] < state["low"] < 4.0
    for _ in range(100):
        state = adapted(state, jnp.array([7.0, 5.0, 6.0, np.nan]), valid)
    assert (float(state["low"]), float(state["high"])) == pytest.approx((3.92, 8.08), rel=1e-4)


@pytest.mark.parametrize("same", [0.0, 1.0, -3e4])
def test_returns_that_are_all_alike_still_have_a_range(same):
    critic, target = HLGauss(), jnp.full(8, same)
    state = critic.adapted(critic.state(), target, jnp.ones(8, bool))
    assert state["low"] < same < state["high"]
    out = jnp.log(jnp.maximum(critic.projected(state, target), 1e-30))
    np.testing.assert_allclose(critic.value(out, state), same, atol=1e-3 * (1.0 + abs(same)))


def test_when_the_range_moves_all_values_move_alike():
    """V becomes a + b V, so that an order of states stays what it was."""
    critic, out = HLGauss(), jax.random.normal(jax.random.key(0), (50, 51))
    before, after = (np.asarray(critic.value(out, spanning(*ends))) for ends in ((-1.0, 2.0), (0.0, 8.0)))
    b, a = np.polyfit(before, after, 1)
    assert b == pytest.approx(8.0 / 3.0, rel=1e-3)
    np.testing.assert_allclose(after, a + b * before, rtol=1e-4)


@pytest.mark.parametrize("options", [{"value_bins": 10}, {"value_spread": 0.1}, {"value_margin": -1.0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(BadInput, match=f"--{next(iter(options)).replace('_', '-')} must be at least"):
        HLGauss(**options)


# Every critic.


@every_critic
def test_the_scores_give_the_curvature_of_the_loss(critic):
    """E[s s^T] is the Fisher matrix, which here is the second derivative of the loss whatever the target is."""
    draws = 40_000
    out = 0.5 * jax.random.normal(jax.random.key(0), (critic.outputs,))
    score = jax.jit(jax.grad(lambda out: critic.sampled_log_prob(out, jax.random.key(1)).sum()))
    scores = np.asarray(score(jnp.tile(out, (draws, 1))))
    np.testing.assert_allclose(scores.mean(0), 0.0, atol=0.03)
    hessian = jax.hessian(lambda out: critic.loss(out, critic.state(), jnp.float32(0.3)))(out)
    np.testing.assert_allclose(scores.T @ scores / draws, hessian, atol=0.1 * float(np.abs(hessian).max()))


@every_critic
def test_a_clipped_loss_gains_nothing_by_moving_a_value_further_than_the_radius_towards_its_target(critic):
    state = critic.state()
    out = 0.2 * jax.random.normal(jax.random.key(0), (6, critic.outputs))
    value = critic.value(out, state)
    # The value has moved by 0.3: too far towards the target, too far away from it, and not too far.
    before = value + jnp.array([-0.3, 0.3, -0.3, 0.3, -0.3, 0.3])
    target = value + jnp.array([0.5, -0.5, -0.5, 0.5, 0.5, -0.5])
    radius = jnp.array([0.1, 0.1, 0.1, 0.1, 0.4, 0.4])

    def slopes(loss):
        return jax.grad(lambda out: loss(out).sum())(out)

    clipped = slopes(lambda out: jax.vmap(critic.clipped_loss, (0, None, 0, 0, 0))(out, state, target, before, radius))
    free = slopes(lambda out: critic.loss(out, state, target))
    np.testing.assert_array_equal(clipped[:2], 0.0)
    np.testing.assert_allclose(clipped[2:], free[2:], rtol=1e-5, atol=1e-7)
    assert np.abs(free).max(-1).min() > 1e-4


@every_critic
@every_algorithm
def test_every_algorithm_learns_values_with_every_critic(algo, critic):
    agent = make_agent(Gaussian(), critic=critic)
    rollout = random_rollout(agent, agent.init(jax.random.key(2)))
    # Every episode ends at once: returns are rewards, here the first number of the observation.
    reward = 3.0 + rollout.observation[:-1, :, 0]
    rollout = rollout._replace(reward=reward, terminated=np.ones_like(rollout.terminated))
    options = {"value_steps": 50, "value_learning_rate": 1.0} if algo == "acktr" else {"epochs": 50}
    learning = small(algo, **options) if algo == "acktr" else small(algo, learning_rate=0.01, **options)
    state, metrics = update(learning, agent, rollout, progress=0.0, times=3)
    assert all(np.isfinite(number).all() for number in jax.tree.leaves((state, metrics)))
    error = (agent.value(state.parameters, rollout.observation[:-1]) - reward)[rollout.valid]
    assert np.mean(error**2) < 0.2 * reward[rollout.valid].var()


@every_algorithm
def test_no_gradient_changes_the_range(algo):
    agent = make_agent(Gaussian(), critic=HLGauss(value_range_decay=0.0))
    rollout = random_rollout(agent, agent.init(jax.random.key(2)))
    rollout = rollout._replace(terminated=np.ones_like(rollout.terminated))
    state, _ = update(small(algo), agent, rollout)
    reward = jnp.asarray(rollout.reward.ravel())
    expected = agent.critic.adapted(agent.critic.state(), reward, jnp.asarray(rollout.valid.ravel()))
    assert distance(state.parameters["critic"], expected) < 1e-5
    nothing, _ = update(small(algo), agent, rollout._replace(valid=np.zeros_like(rollout.valid)))
    assert bits(nothing.parameters["critic"]) == bits(agent.critic.state())


def test_squared_keeps_no_state_so_that_checkpoints_of_0_1_0_fit():
    parameters = make_agent(Gaussian(), critic=Squared()).init(jax.random.key(0))
    assert jax.tree.leaves(parameters["critic"]) == []
