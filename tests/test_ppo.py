"""PPO against numbers worked out by hand and against an update written again in NumPy."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms import Rollout
from detent.algorithms.ppo import PPO
from detent.algorithms.samples import Sample, explained_variance, samples
from detent.errors import BadInput
from detent.heads.discrete import Discrete
from detent.heads.gaussian import Gaussian
from marks import slow_unless
from updates import bits, distance, make_agent, random_rollout, update


@pytest.fixture(scope="module")
def agent():
    return make_agent(Gaussian())


@pytest.fixture(scope="module")
def rollout(agent):
    return random_rollout(agent, agent.init(jax.random.key(2)))


def small(**changes):
    return PPO(**{"batch_size": 32, "minibatch_size": 8, "epochs": 2, **changes})


# The loss.


def hand_worked(clip_range_value=0.0, entropy_coef=0.0):
    """Four samples and a fifth without weight; a policy N(0, 1) and a value of 0 everywhere.

    The ratios are 1.5 and 0.5, each with an advantage of 1 and of -1 (mean 0 and standard deviation 1, so
    normalising changes nothing); old values are 0, 1, -1, 0.05 and targets 1, 2, 3, -1.
    """
    agent = make_agent(Gaussian(), observation_size=1, dims=1, hidden_sizes=())
    parameters = jax.tree.map(jnp.zeros_like, agent.init(jax.random.key(0)))
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 30.0])
    log_prob_now = -0.5 * np.log(2 * np.pi)  # of the action 0
    batch = Sample(
        observation=jnp.ones((5, 1)),
        action=jnp.zeros((5, 1)),
        log_prob=jnp.asarray(log_prob_now - np.log(ratio), jnp.float32),
        value=jnp.array([0.0, 1.0, -1.0, 0.05, 40.0]),
        advantage=jnp.array([1.0, -1.0, 1.0, -1.0, 1000.0]),
        target=jnp.array([1.0, 2.0, 3.0, -1.0, -1000.0]),
        valid=jnp.array([True, True, True, True, False]),
    )
    ppo = PPO(clip_range=0.2, value_coef=0.25, clip_range_value=clip_range_value, entropy_coef=entropy_coef)
    return ppo.loss(agent, parameters, batch)


POLICY_LOSS = -(1.2 - 1.5 + 0.5 - 0.8) / 4  # min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8)
FREE_VALUE_LOSS = 0.5 * (1.0 + 4.0 + 9.0 + 1.0) / 4
# The values come to lie at 0, 0.9, -0.9 and 0; the larger error counts, which is the free one of the second sample.
NEAR_VALUE_LOSS = 0.5 * (1.0 + 4.0 + 3.9**2 + 1.0) / 4
ENTROPY = 0.5 * np.log(2 * np.pi * np.e)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize(("clip_range_value", "value_loss"), [(0.0, FREE_VALUE_LOSS), (0.1, NEAR_VALUE_LOSS)])
def test_loss_is_the_one_worked_out_by_hand(clip_range_value, value_loss, entropy_coef):
    loss, metrics = hand_worked(clip_range_value, entropy_coef)
    assert loss == pytest.approx(POLICY_LOSS + 0.25 * value_loss - entropy_coef * ENTROPY, rel=1e-5)
    assert metrics["loss"] == loss
    assert metrics["policy_gradient_loss"] == pytest.approx(POLICY_LOSS, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(value_loss, rel=1e-5)
    # (r - 1) - log r, twice for each ratio.
    assert metrics["approx_kl"] == pytest.approx((0.5 - np.log(1.5) - 0.5 - np.log(0.5)) / 2, rel=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(1.0, rel=1e-5)


def test_a_batch_without_a_valid_step_has_no_loss_and_no_gradient(agent, rollout):
    parameters = agent.init(jax.random.key(3))
    ppo = PPO(clip_range_value=0.1, entropy_coef=0.1)
    value = agent.value(parameters, rollout.observation)
    batch = samples(ppo, rollout, value, value)._replace(valid=jnp.zeros(32, bool))
    (loss, _), gradient = jax.jit(jax.value_and_grad(lambda p: ppo.loss(agent, p, batch), has_aux=True))(parameters)
    assert loss == 0.0
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(leaf, 0.0)


def test_explained_variance_of_a_perfect_a_constant_and_a_half_right_critic():
    target = np.array([1.0, -1.0, 3.0, 5.0, 1e6], np.float32)
    valid = np.array([True, True, True, True, False])
    found = [
        explained_variance(Sample(None, None, None, jnp.asarray(value), None, jnp.asarray(target), jnp.asarray(valid)))
        for value in (target, np.full(5, 7.0, np.float32), target / 2)
    ]
    np.testing.assert_allclose(found, [1.0, 0.0, 0.75], atol=1e-6)


def test_a_step_that_only_resets_may_become_as_likely_as_it_likes(agent, rollout):
    """Its ratio overflows, and 0 times infinity is no number."""
    parameters = agent.init(jax.random.key(3))
    value = agent.value(parameters, rollout.observation)
    log_prob = np.where(rollout.valid, rollout.log_prob, -1e4)
    batch = samples(small(), rollout._replace(log_prob=log_prob), value, value)
    (loss, metrics), gradient = jax.jit(jax.value_and_grad(lambda p: small().loss(agent, p, batch), has_aux=True))(
        parameters
    )
    for number in jax.tree.leaves((loss, metrics, gradient)):
        assert np.isfinite(number).all()


# One whole update.


def numpy_update(ppo, parameters, rollout, progress):
    """The first gradient step on the whole rollout for a linear Gaussian agent, in float64 and without optax."""
    observation, action, old_log_prob, reward = [np.asarray(x, np.float64) for x in rollout[:4]]
    terminated, truncated, valid = rollout[4:]
    steps, envs = reward.shape
    leaves, structure = jax.tree.flatten(parameters)
    leaves = [np.asarray(leaf, np.float64) for leaf in leaves]

    def values(p):
        layer = p["value"][0]
        return (observation @ layer["w"] + layer["b"])[..., 0]

    value = values(jax.tree.unflatten(structure, leaves))
    advantage = np.zeros((steps, envs))
    for n in range(envs):
        for t in reversed(range(steps)):
            stops = terminated[t, n] or (truncated[t, n] and not ppo.bootstrap_truncated)
            ahead = 0.0 if stops else value[t + 1, n]
            advantage[t, n] = reward[t, n] + ppo.gamma * ahead - value[t, n]
            if t + 1 < steps and not (terminated[t, n] or truncated[t, n]):
                advantage[t, n] += ppo.gamma * ppo.gae_lambda * advantage[t + 1, n]
    target = (advantage + value[:-1])[valid]
    standard = (advantage[valid] - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)

    def loss(leaves):
        p = jax.tree.unflatten(structure, leaves)
        layer, log_std = p["policy"][0], p["head"]["log_std"]
        z = (action - observation[:-1] @ layer["w"] - layer["b"]) / np.exp(log_std)
        log_prob = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
        ratio = np.exp(log_prob - old_log_prob)[valid]
        surrogate = np.minimum(ratio * standard, np.clip(ratio, 1 - ppo.clip_range, 1 + ppo.clip_range) * standard)
        entropy = np.sum(log_std + 0.5 * np.log(2 * np.pi * np.e))
        error = (values(p)[:-1][valid] - target) ** 2
        return -surrogate.mean() + ppo.value_coef * 0.5 * error.mean() - ppo.entropy_coef * entropy

    gradient = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, slope in zip(leaves, gradient, strict=True):
        for i in np.ndindex(leaf.shape):
            there = leaf[i]
            ends = []
            for h in (1e-6, -1e-6):
                leaf[i] = there + h
                ends.append(loss(leaves))
            leaf[i] = there
            slope[i] = (ends[0] - ends[1]) / 2e-6

    norm = np.sqrt(sum((slope**2).sum() for slope in gradient))
    gradient = [slope * min(1.0, ppo.max_grad_norm / norm) for slope in gradient]
    # Adam's first step: its bias-corrected moments are g and g^2.
    size = ppo.learning_rate * ((1.0 - progress) if ppo.anneal_learning_rate else 1.0)
    new = [leaf - size * g / (np.abs(g) + ppo.adam_epsilon) for leaf, g in zip(leaves, gradient, strict=True)]
    return jax.tree.unflatten(structure, new), norm


@pytest.mark.parametrize(
    ("max_grad_norm", "changes"),
    [(0.5, {}), (100.0, {"anneal_learning_rate": False, "bootstrap_truncated": False, "entropy_coef": 0.1})],
    ids=["defaults", "others"],
)
def test_one_update_is_one_clipped_adam_step(max_grad_norm, changes):
    agent = make_agent(Gaussian(initial_log_std=-0.5), hidden_sizes=())
    ppo = PPO(
        batch_size=32,
        minibatch_size=32,
        epochs=1,
        learning_rate=0.1,
        adam_epsilon=0.01,
        max_grad_norm=max_grad_norm,
        **changes,
    )
    start = ppo.init(agent, jax.random.key(2)).parameters
    rollout = random_rollout(agent, start)
    expected, norm = numpy_update(ppo, start, rollout, progress=0.25)
    assert 0.5 < norm < 100.0
    state, metrics = update(ppo, agent, rollout, progress=0.25)
    for found, wanted in zip(jax.tree.leaves(state.parameters), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert metrics["learning_rate"] == pytest.approx(0.1 if changes else 0.075)


def test_an_update_takes_one_optimizer_step_per_minibatch_and_epoch(agent):
    for steps, expected in ((16, 2 * 4), (32, 2 * 8)):
        rollout = random_rollout(agent, agent.init(jax.random.key(2)), steps=steps)
        state, metrics = update(small(batch_size=2 * steps), agent, rollout)
        counts = [int(x) for x in jax.tree.leaves(state.optimizer) if jnp.issubdtype(x.dtype, jnp.integer)]
        assert counts == [expected]
        assert metrics["epochs"] == 2


def test_a_small_target_kl_stops_after_the_first_epoch(agent, rollout):
    stopped, metrics = update(small(target_kl=1e-9), agent, rollout)
    once, _ = update(small(epochs=1), agent, rollout)
    assert metrics["epochs"] == 1
    assert distance(stopped.parameters, once.parameters) < 1e-6


@pytest.mark.parametrize(
    ("kl_from", "recorded"),
    slow_unless(
        lambda kl_from, _: kl_from == "distributions",
        [("distributions", "kl_divergence_loss"), ("samples", "approx_kl")],
    ),
)
def test_the_kl_limit_can_be_divided_by_the_number_of_action_dimensions(agent, rollout, kl_from, recorded):
    """A limit a little above the KL of the first epoch stops nothing, unless it is divided."""
    dimensions = agent.space.shape[0]
    assert dimensions > 1
    kl = float(update(small(epochs=1, target_kl=100.0, kl_from=kl_from), agent, rollout)[1][recorded])
    for divided in (False, True):
        ppo = small(epochs=2, target_kl=1.2 * kl, divide_target_kl=divided, kl_from=kl_from)
        assert update(ppo, agent, rollout)[1]["epochs"] == (1 if divided else 2)


def test_the_kl_that_stops_the_epochs_is_that_of_the_distributions(agent, rollout):
    start = agent.init(jax.random.key(2))
    state, metrics = update(small(target_kl=100.0, learning_rate=0.01), agent, rollout)
    observation = rollout.observation[:-1][rollout.valid]
    kl = agent.policy(start, observation).kl(agent.policy(state.parameters, observation)).mean()
    assert metrics["kl_divergence_loss"] == pytest.approx(float(kl), rel=1e-4)
    assert abs(metrics["approx_kl"] - kl) > 0.1 * kl


def kl_where_it_stops(head, kl_from):
    """The true KL of an update on noise: rewards that nothing explains, of eight action dimensions."""
    agent = make_agent(head, observation_size=64, dims=8, hidden_sizes=(32, 32))
    ppo = PPO(
        batch_size=1024, learning_rate=5e-4, epochs=30, gamma=0.0, recompute_advantages=False, target_kl=LIMIT,
        kl_from=kl_from,
    )  # fmt: skip
    state, rng = ppo.init(agent, jax.random.key(2)), np.random.default_rng(0)
    observation = rng.normal(size=(17, 64, 64)).astype(np.float32)
    old = agent.policy(state.parameters, observation[:-1])
    action = old.sample(jax.random.key(3))
    reward, never = rng.normal(size=(16, 64)).astype(np.float32), np.zeros((16, 64), bool)
    rollout = Rollout(observation, action, old.log_prob(action), reward, never, never, ~never)
    state, _ = jax.jit(partial(ppo.update, agent))(state, rollout, np.float32(0.0), jax.random.key(4))
    return float(old.kl(agent.policy(state.parameters, observation[:-1])).mean())


LIMIT = 0.01


@pytest.mark.parametrize(
    "kl_from", slow_unless(lambda kl_from: kl_from == "distributions", ["distributions", "samples"])
)
def test_heads_may_go_equally_far(kl_from):
    """The estimate from the samples that were just learned from stops the head with more outputs far too soon."""
    gaussian, discrete = (kl_where_it_stops(head, kl_from) for head in (Gaussian(initial_log_std=-0.5), Discrete()))
    if kl_from == "distributions":
        assert 0.8 * LIMIT < gaussian < 1.6 * LIMIT
        assert 0.8 * LIMIT < discrete < 1.6 * LIMIT
    else:
        assert discrete < 0.6 * gaussian


def test_progress_and_key_matter_and_the_rest_is_deterministic(agent, rollout):
    first, again, later, shuffled = [
        bits(update(small(), agent, rollout, progress, seed)) for progress, seed in ((0, 1), (0, 1), (0.9, 1), (0, 2))
    ]
    assert first == again
    assert first != later
    assert first != shuffled


def test_at_the_end_of_an_annealed_run_nothing_moves(agent, rollout):
    start = small().init(agent, jax.random.key(2)).parameters
    assert bits(update(small(), agent, rollout, progress=1.0)[0].parameters) == bits(start)
    assert distance(update(small(), agent, rollout, progress=0.9)[0].parameters, start) > 1e-6


@pytest.mark.parametrize(("batch_size", "minibatch_size", "better"), [(100, 64, 128), (10, 64, 64), (2048, 63, 2079)])
def test_a_batch_that_is_no_multiple_of_the_minibatch_is_refused(batch_size, minibatch_size, better):
    with pytest.raises(BadInput, match=rf"--batch-size {batch_size} .*--minibatch-size {minibatch_size}; {better} "):
        PPO(batch_size=batch_size, minibatch_size=minibatch_size)
    assert better % minibatch_size == 0
