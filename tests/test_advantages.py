"""Generalised advantage estimation against an implementation that goes episode by episode."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from detent.advantages import gae


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def rollout(seed, steps=60, envs=5, end=0.15):
    """Random data in which every end is followed by a step that only resets, as environments do it.

    Episodes end by termination, by truncation and by both at once. Some environments start with a reset step.
    """
    rng = np.random.default_rng(seed)
    value, reward = rng.normal(size=(steps + 1, envs)), rng.normal(size=(steps, envs))
    terminated, truncated, valid = np.zeros((3, steps, envs), bool)
    for n in range(envs):
        resets = n % 2 == 1
        for t in range(steps):
            valid[t, n] = not resets
            if valid[t, n] and rng.random() < end:
                terminated[t, n], truncated[t, n] = [(True, False), (False, True), (True, True)][rng.integers(3)]
            resets = terminated[t, n] or truncated[t, n]
    return value, reward, terminated, truncated, valid


compiled_gae = jax.jit(gae)


def estimate(value, reward, terminated, truncated, gamma, gae_lambda):
    advantage, target = compiled_gae(reward, value, terminated, truncated, gamma, gae_lambda)
    return np.asarray(advantage), np.asarray(target)


def episodes(data):
    """(environment, steps, values, rewards, value of the observation it stopped at or 0) of each episode."""
    value, reward, terminated, truncated, valid = data
    for n in range(reward.shape[1]):
        steps = []
        for t in range(len(reward)):
            if not valid[t, n]:
                assert not steps
                continue
            steps.append(t)
            if terminated[t, n] or truncated[t, n] or t == len(reward) - 1:
                last = 0.0 if terminated[t, n] else value[t + 1, n]
                yield n, steps, value[steps, n], reward[steps, n], last
                steps = []


def of_one_episode(values, rewards, last, gamma, gae_lambda):
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t: the sum itself."""
    delta = rewards + gamma * np.append(values[1:], last) - values
    return np.array([sum((gamma * gae_lambda) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))])


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.5), (1.0, 1.0), (0.0, 0.9), (0.7, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_valid_advantages_are_those_of_the_episodes_alone(seed, gamma, gae_lambda):
    data = rollout(seed)
    valid = data[-1]
    expected = np.full(valid.shape, np.nan)
    for n, steps, values, rewards, last in episodes(data):
        expected[steps, n] = of_one_episode(values, rewards, last, gamma, gae_lambda)
    np.testing.assert_array_equal(np.isfinite(expected), valid)
    assert min((~valid).sum(), (data[2] & ~data[3]).sum(), (data[3] & ~data[2]).sum(), (data[2] & data[3]).sum()) > 0

    advantage, target = estimate(*data[:4], gamma, gae_lambda)
    np.testing.assert_allclose(advantage[valid], expected[valid], atol=1e-11)
    np.testing.assert_allclose(target[valid], (expected + data[0][:-1])[valid], atol=1e-11)


def test_without_discount_only_the_next_reward_counts():
    data = rollout(4)
    advantage, target = estimate(*data[:4], gamma=0.0, gae_lambda=0.95)
    np.testing.assert_allclose(advantage, data[1] - data[0][:-1], atol=1e-12)
    np.testing.assert_allclose(target, data[1], atol=1e-12)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    data, gamma = rollout(5), 0.9
    advantage, target = estimate(*data[:4], gamma, gae_lambda=1.0)
    for n, steps, values, rewards, last in episodes(data):
        ahead = last
        for t, value, reward in reversed([*zip(steps, values, rewards, strict=True)]):
            ahead = reward + gamma * ahead
            assert target[t, n] == pytest.approx(ahead, abs=1e-11)
            assert advantage[t, n] == pytest.approx(ahead - value, abs=1e-11)


def test_lambda_zero_is_the_temporal_difference():
    value, reward, terminated, truncated, _ = rollout(6)
    advantage, _ = estimate(value, reward, terminated, truncated, gamma=0.9, gae_lambda=0.0)
    np.testing.assert_allclose(advantage, reward + 0.9 * value[1:] * ~terminated - value[:-1], atol=1e-12)


@pytest.mark.parametrize(("terminates", "truncates", "bootstraps"), [(0, 1, 1), (1, 0, 0), (1, 1, 0), (0, 0, 1)])
def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not(terminates, truncates, bootstraps):
    """Two steps of one episode by hand; the value of the final observation is 7."""
    value, reward = np.array([[3.0], [5.0], [7.0]]), np.array([[1.0], [2.0]])
    terminated, truncated = np.array([[False], [bool(terminates)]]), np.array([[False], [bool(truncates)]])
    advantage, target = estimate(value, reward, terminated, truncated, gamma=0.5, gae_lambda=0.5)
    last = 2.0 + 0.5 * 7.0 * bootstraps - 5.0
    first = 1.0 + 0.5 * 5.0 - 3.0 + 0.25 * last
    np.testing.assert_allclose(advantage[:, 0], [first, last])
    np.testing.assert_allclose(target[:, 0], [first + 3.0, last + 5.0])


def test_an_invalid_step_changes_no_valid_advantage():
    """Except that its observation, hence its value, is the final one of the episode before: truncation needs it."""
    value, reward, terminated, truncated, valid = rollout(7)
    before = estimate(value, reward, terminated, truncated, 0.99, 0.95)
    after_termination = np.zeros_like(valid)
    after_termination[1:] = terminated[:-1]
    assert (after_termination & ~valid).sum() > 3

    value, reward, terminated, truncated = (x.copy() for x in (value, reward, terminated, truncated))
    reward[~valid] = 1e3
    value[:-1][after_termination] = -1e3
    terminated[1:][~valid[1:]] = True
    truncated[:-1][~valid[:-1]] = True
    after = estimate(value, reward, terminated, truncated, 0.99, 0.95)
    assert np.abs(after[0] - before[0])[~valid].max() > 100
    np.testing.assert_array_equal(after[0][valid], before[0][valid])
    np.testing.assert_array_equal(after[1][valid], before[1][valid])


def test_the_final_value_of_a_truncated_episode_does_change_its_advantages():
    value, reward, terminated, truncated, valid = rollout(8)
    t, n = np.argwhere(truncated & ~terminated)[1]
    moved = value.copy()
    moved[t + 1, n] += 1.0
    before, after = [estimate(v, reward, terminated, truncated, 0.9, 0.8)[0] for v in (value, moved)]
    assert (after - before)[t, n] == pytest.approx(0.9)
    np.testing.assert_array_equal(np.flatnonzero((after != before)[:, n] & valid[:, n])[-1], t)


def test_float32_stays_float32_and_agrees():
    data = rollout(9)
    single = [x.astype(np.float32) for x in data[:2]]
    advantage, target = estimate(*single, *data[2:4], 0.99, 0.95)
    assert (advantage.dtype, target.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(advantage, estimate(*data[:4], 0.99, 0.95)[0], rtol=1e-4, atol=1e-4)
