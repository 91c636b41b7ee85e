"""The ordinal head is Eq. 4 of the paper; its published variant is what its docstring says."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from detent.distributions import TRIANGLE_UP_TO, running_sum
from detent.heads.discrete import Discrete
from detent.heads.ordinal import Ordinal
from detent.heads.ordinal_released import OrdinalReleased

BOTH_SIDES = [11, TRIANGLE_UP_TO, TRIANGLE_UP_TO + 1, 300]
"""Numbers of bins, on both sides of the width up to which a running sum is one matrix product."""


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def logits_of(dims, bins, scale=1.0):
    return scale * np.random.default_rng(bins).normal(size=(dims, bins))


@functools.partial(jax.jit, static_argnums=0)
def compiled_log_probs(head, out):
    return head.distribution(out, {}).log_probs


def log_probs(head, logits):
    return np.asarray(compiled_log_probs(head, logits.ravel()))


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def equation_4(logits):
    """L'_i = sum_{j<=i} log s_j + sum_{j>i} log(1 - s_j), s = sigmoid(L), term by term."""
    dims, bins = logits.shape
    s = 1.0 / (1.0 + np.exp(-logits))
    result = np.zeros_like(logits)
    for d in range(dims):
        for i in range(bins):
            for j in range(bins):
                result[d, i] += np.log(s[d, j]) if j <= i else np.log(1.0 - s[d, j])
    return result


@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_ordinal_is_equation_4(bins):
    logits = logits_of(3, bins)
    np.testing.assert_allclose(log_probs(Ordinal(bins), logits), log_softmax(equation_4(logits)), atol=1e-11)


@pytest.mark.parametrize("head", [Ordinal, OrdinalReleased])
@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_zero_logits_are_uniform(head, bins):
    np.testing.assert_allclose(log_probs(head(bins), np.zeros((2, bins))), -np.log(bins), atol=1e-12)


@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_score_of_ordinal(bins):
    """d log p_k / d L_j = 1[j <= k] - P(i >= j)."""
    logits = logits_of(1, bins)
    score = jax.jit(jax.jacobian(lambda x: Ordinal(bins).distribution(x, {}).log_probs[0]))(logits[0])
    tail = np.cumsum(np.exp(log_probs(Ordinal(bins), logits))[0, ::-1])[::-1]
    k, j = np.indices((bins, bins))
    np.testing.assert_allclose(score, (j <= k) - tail[j], atol=1e-11)


@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_first_ordinal_logit_has_no_effect(bins):
    logits = logits_of(2, bins)
    moved = logits.copy()
    moved[:, 0] += 3.0
    np.testing.assert_allclose(log_probs(Ordinal(bins), moved), log_probs(Ordinal(bins), logits), atol=1e-11)

    def objective(x):
        distribution = Ordinal(bins).distribution(x, {})
        return distribution.log_prob(jnp.array([bins - 1, 0], jnp.int32)) + distribution.entropy()

    gradient = np.asarray(jax.jit(jax.grad(objective))(logits.ravel())).reshape(2, bins)
    np.testing.assert_allclose(gradient[:, 0], 0.0, atol=1e-11)
    assert (np.abs(gradient[:, 1]) > 1e-6).all()


WIDTHS = [1, 2, 11, TRIANGLE_UP_TO, TRIANGLE_UP_TO + 1, 144, 145, 1001]


@pytest.mark.parametrize("width", WIDTHS)
def test_running_sum_is_the_cumulative_sum(width):
    x = np.random.default_rng(width).normal(size=(4, 5, width))
    np.testing.assert_allclose(jax.jit(running_sum)(x), np.cumsum(x, -1), atol=1e-11)


def test_running_sum_is_the_same_on_both_sides_of_its_switch():
    x = np.random.default_rng(0).normal(size=(4, TRIANGLE_UP_TO + 1))
    short, long = [jax.jit(running_sum)(part) for part in (x[:, :-1], x)]
    np.testing.assert_allclose(short, long[:, :-1], atol=1e-12)


@pytest.mark.parametrize("width", WIDTHS)
def test_running_sum_in_float32_is_flat_where_there_is_nothing_to_add(width):
    """Sampling relies on it: a bin without probability is an empty step of the cumulative distribution."""
    rng = np.random.default_rng(width)
    x = np.exp(5.0 * rng.normal(size=(50, width))) * (rng.random((50, width)) < 0.2)
    total = np.asarray(jax.jit(running_sum)(jnp.asarray(x, jnp.float32)), np.float64)
    step = np.diff(total, axis=-1) / np.maximum(total[:, -1:], 1e-30)
    rounding = 0.0 if width <= TRIANGLE_UP_TO else 1e-6
    assert (step >= -rounding).all()
    assert (step[x[:, 1:] == 0] <= rounding).all()


@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_float32_is_close_to_float64(bins):
    logits = logits_of(2, bins).astype(np.float32)
    single = log_probs(Ordinal(bins), logits)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, log_probs(Ordinal(bins), logits.astype(np.float64)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bins", BOTH_SIDES)
def test_ordinal_can_express_whatever_discrete_can(bins):
    """Weights whose running sums over the bins are the discrete weights give the same policy."""
    rng = np.random.default_rng(bins)
    hidden, discrete = rng.normal(size=7), rng.normal(size=(7, 3, bins))
    ordinal = np.diff(discrete, axis=-1, prepend=0.0)
    np.testing.assert_allclose(
        log_probs(Ordinal(bins), np.tensordot(hidden, ordinal, 1)),
        log_probs(Discrete(bins), np.tensordot(hidden, discrete, 1)),
        atol=1e-11,
    )


@pytest.mark.parametrize("bins", [2, 11, 129])
def test_released_variant_is_its_formula(bins):
    """L'_i = (K - i) log s_i + i log(1 - s_i), s = sigmoid(L)."""
    logits = logits_of(3, bins)
    s = 1.0 / (1.0 + np.exp(-logits))
    i = np.arange(bins)
    expected = (bins - i) * np.log(s) + i * np.log(1.0 - s)
    found = jax.jit(lambda out: OrdinalReleased(bins).distribution(out, {}).logits)(logits.ravel())
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    np.testing.assert_allclose(log_probs(OrdinalReleased(bins), logits), log_softmax(expected), atol=1e-10)


@pytest.mark.parametrize("bins", [2, 11])
def test_no_bin_of_the_released_variant_sees_another_bins_logit(bins):
    logits = logits_of(2, bins).ravel()
    jacobian = jax.jit(jax.jacobian(lambda x: OrdinalReleased(bins).distribution(x, {}).logits.ravel()))(logits)
    off_diagonal = ~np.eye(2 * bins, dtype=bool)
    np.testing.assert_array_equal(np.asarray(jacobian)[off_diagonal], 0.0)
    assert (np.abs(np.diag(jacobian)) > 1e-3).all()


def test_released_variant_is_not_equation_4():
    logits = logits_of(1, 11)
    assert np.abs(log_probs(OrdinalReleased(11), logits) - log_probs(Ordinal(11), logits)).max() > 0.1


def test_ordinal_heads_are_as_wide_as_the_discrete_one():
    space = Box(-1.0, 1.0, (3,), np.float32)
    assert [head(7).outputs(space) for head in (Discrete, Ordinal, OrdinalReleased)] == [21, 21, 21]
