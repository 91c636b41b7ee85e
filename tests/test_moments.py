"""Running moments against NumPy over everything at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.moments import Moments


def batches(seed, shape, number=50, size=32, mean=3.0, std=5.0):
    """Random batches with random weights 0 and 1; every tenth batch has no weight at all."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        weight = (rng.random(size) < 0.6) & (i % 10 != 9)
        yield (mean + std * rng.normal(size=(size, *shape))).astype(np.float32), weight.astype(np.float32)


update = jax.jit(Moments.update)


def merged(shape, data):
    moments = Moments.zero(shape)
    for x, weight in data:
        moments = update(moments, x, weight)
    return moments


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_moments_are_those_of_everything_with_weight(shape):
    data = [*batches(0, shape)]
    moments = merged(shape, data)
    seen = np.concatenate([x[weight > 0] for x, weight in data]).astype(np.float64)
    assert moments.count == pytest.approx(len(seen), rel=1e-5)
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var, seen.var(0), rtol=1e-4)


def test_a_mean_far_from_zero_does_not_cost_the_variance():
    """A sum of squares would lose it: (1e4)^2 is 1e8 times the variance, more than float32 holds."""
    data = [*batches(1, (3,), mean=1e4, std=1.0)]
    seen = np.concatenate([x[weight > 0] for x, weight in data]).astype(np.float64)
    # What is left of the prior, a weight of 1e-4 at 0.
    prior = 1e-4 * 1e4**2 / len(seen)
    np.testing.assert_allclose(merged((3,), data).var, seen.var(0) + prior, rtol=2e-2)


def test_one_big_batch_equals_many_small_ones():
    data = [*batches(2, (3,))]
    together = merged((3,), [tuple(np.concatenate(part) for part in zip(*data, strict=True))])
    apart = merged((3,), data)
    np.testing.assert_allclose(apart.mean, together.mean, rtol=1e-4)
    np.testing.assert_allclose(apart.var, together.var, rtol=1e-4)
    np.testing.assert_allclose(apart.count, together.count, rtol=1e-6)


@pytest.mark.parametrize("seen", [2.0**24, 2.0**40])
def test_moments_neither_drift_nor_stall_however_many_samples_came_before(seen):
    """Steps of one environment each, long after a float32 could still count them; 2,000 runs beside each
    other make a billion steps.

    A batch that counts too little is rounded away, or always in one direction: by a percent in 200,000 steps.
    """
    table = jnp.asarray(np.random.default_rng(7).normal(size=8192).astype(np.float32))
    spread, truth = float(table.std()), float(table.mean())
    start = Moments(jnp.full(2000, truth), jnp.full(2000, spread**2), jnp.asarray(seen, jnp.float32))

    def step(i, moments):
        x = table[(7919 * i + 104729 * jnp.arange(2000)) % 8192]
        return moments.update(x[None], jnp.ones(1))

    moments = jax.jit(lambda m: jax.lax.fori_loop(0, 500_000, step, m))(start)
    np.testing.assert_allclose(moments.var, spread**2, rtol=0.005)
    np.testing.assert_allclose(moments.mean, truth, atol=0.005 * spread)
    # And they still follow: of a shift by one spread, a million steps from now on would show 1 - 1/e.
    shifted = jax.jit(lambda m: jax.lax.fori_loop(0, 500_000, lambda i, m: m.update(ONE, jnp.ones(1)), m))(start)
    np.testing.assert_allclose(shifted.mean, truth + (1.0 - truth) * (1.0 - np.exp(-500_000 / 2**20)), rtol=0.02)


ONE = jnp.ones((1, 2000))


def test_before_anything_is_seen_normalising_changes_little():
    moments = Moments.zero((2,))
    np.testing.assert_array_equal(moments.mean, 0.0)
    np.testing.assert_array_equal(moments.var, 1.0)
    np.testing.assert_allclose(moments.normalize(jnp.array([0.5, -2.0]), 10.0), [0.5, -2.0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_batch_without_weight_leaves_the_moments_untouched(shape):
    x = np.full((32, *shape), 1e6, np.float32)
    for moments in (Moments.zero(shape), merged(shape, batches(3, shape, number=5))):
        assert_same_bits(update(moments, x, np.zeros(32, np.float32)), moments)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_samples_of_weight_zero_leave_no_trace_whatever_they_are(shape, bad):
    start = merged(shape, batches(4, shape, number=3))
    x, weight = next(batches(5, shape))
    spoilt = x.copy()
    spoilt[weight == 0] = bad
    assert_same_bits(update(start, spoilt, weight), update(start, x, weight))
    assert_same_bits(update(start, np.full_like(x, bad), np.zeros_like(weight)), start)


def test_a_constant_has_no_variance_and_normalises_to_zero():
    moments = merged((1,), [(np.full((1000, 1), 2.0, np.float32), np.ones(1000, np.float32))] * 100)
    np.testing.assert_allclose(moments.var, 0.0, atol=1e-4)
    assert np.isfinite(moments.normalize(jnp.array([2.0]), 10.0)).all()


def test_normalize_standardises_and_clips():
    moments = Moments(jnp.array([1.0, -2.0]), jnp.array([4.0, 0.25]), jnp.asarray(10.0))
    x = jnp.array([[3.0, -1.0], [1e6, -1e6], [1.0, -2.0]])
    np.testing.assert_allclose(moments.normalize(x, 5.0), [[1.0, 2.0], [5.0, -5.0], [0.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(moments.normalize(x, 1.5)[0], [1.0, 1.5], rtol=1e-6)


def test_scale_divides_clips_and_keeps_the_sign():
    moments = Moments(jnp.asarray(100.0), jnp.asarray(4.0), jnp.asarray(10.0))
    x = jnp.array([3.0, -3.0, 1e6, -1e6, 0.0])
    np.testing.assert_allclose(moments.scale(x, 5.0), [1.5, -1.5, 5.0, -5.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(moments.scale(x, 1.0), [1.0, -1.0, 1.0, -1.0, 0.0], rtol=1e-6)


def test_moments_stay_float32_where_float64_is_enabled():
    with jax.enable_x64(True):
        x, weight = next(batches(6, (3,)))
        moments = jax.eval_shape(Moments.update, Moments.zero((3,)), x, weight)
        normalised = jax.eval_shape(lambda m, x: (m.normalize(x, 10.0), m.scale(x, 10.0)), moments, x)
    assert {leaf.dtype for leaf in jax.tree.leaves((moments, normalised))} == {np.dtype(np.float32)}
