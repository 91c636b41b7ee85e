"""Conjugate gradient and the inverse of a positive definite matrix, against NumPy's dense ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.solvers import ROWS_UP_TO, conjugate_gradient, inverse
from marks import slow_unless


def positive_definite(n, seed=0, batch=(), smallest=0.1):
    x = np.random.default_rng(seed).normal(size=(*batch, 2 * n, n))
    return x.swapaxes(-1, -2) @ x / n + smallest * np.eye(n)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_conjugate_gradient_is_the_dense_solution(n):
    a, b = positive_definite(n), np.random.default_rng(1).normal(size=n)
    with jax.enable_x64(True):
        found = jax.jit(lambda a, b: conjugate_gradient(lambda v: a @ v, b, 2 * n, tolerance=1e-28))(a, b)
    np.testing.assert_allclose(found, np.linalg.solve(a, b), atol=1e-10)


def test_each_iteration_of_conjugate_gradient_comes_nearer():
    a, b = positive_definite(30), np.random.default_rng(1).normal(size=30)
    solution = np.linalg.solve(a, b)
    errors = []
    for iterations in range(1, 12):
        with jax.enable_x64(True):
            error = solution - np.asarray(conjugate_gradient(lambda v: a @ v, jnp.asarray(b), iterations))
        errors.append(error @ a @ error)  # the norm in which it is the best of its Krylov space
    assert (np.diff(errors) < 0).all()


def test_conjugate_gradient_of_nothing_is_nothing():
    np.testing.assert_array_equal(conjugate_gradient(lambda v: 0.0 * v, jnp.zeros(3), 10), 0.0)


@pytest.mark.parametrize(
    ("n", "batch"),
    slow_unless(
        lambda n, batch: n < 349,
        [(1, ()), (2, (3,)), (11, (2, 3)), (65, ()), (ROWS_UP_TO, ()), (ROWS_UP_TO + 1, (2,)), (349, ())],
    ),
)
def test_inverse_is_the_inverse(n, batch):
    a = positive_definite(n, batch=batch)
    with jax.enable_x64(True):
        found = jax.jit(inverse)(a)
    np.testing.assert_allclose(found, np.linalg.inv(a), atol=1e-9)
    single = np.asarray(jax.jit(inverse)(a.astype(np.float32)))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, np.linalg.inv(a), atol=2e-5 * np.abs(np.linalg.inv(a)).max())


@pytest.mark.parametrize("n", [40, 349])
@pytest.mark.parametrize("shift", [0.1, 1e-4])
def test_inverse_of_a_nearly_singular_matrix_is_good_and_positive_definite_in_float32(n, shift):
    """Rank 1 and a little of the identity, as after a batch of one sample."""
    x = np.random.default_rng(0).normal(size=n)
    a = (np.outer(x, x) + shift * np.eye(n)).astype(np.float32)
    found, expected = np.asarray(jax.jit(inverse)(a), np.float64), np.linalg.inv(a.astype(np.float64))
    np.testing.assert_array_equal(found, found.T)
    assert np.linalg.eigvalsh(found).min() > 0
    assert np.abs(found - expected).max() < (1e-3 if shift == 0.1 else 0.1) * np.abs(expected).max()
