"""Linear systems given by products with their matrix, and inverses of small matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Vector = Float[Array, " p"]


class Conjugate(NamedTuple):
    """One iterate: x, its residual b - A x, the next direction, and the squared length of the residual."""

    done: Int[Array, ""]
    x: Vector
    residual: Vector
    direction: Vector
    squared: Float[Array, ""]


def conjugate_gradient(
    product: Callable[[Vector], Vector], b: Vector, iterations: int, tolerance: float = 1e-10
) -> Vector:
    """x with A x = b, for a symmetric positive definite A given as v -> A v (Hestenes & Stiefel 1952).

    It starts from 0, so x^T b > 0 for every iterate, and ends early once |b - A x|^2 <= tolerance.
    """

    def unsolved(now: Conjugate) -> Bool[Array, ""]:
        return (now.done < iterations) & (now.squared > tolerance)

    def iterate(now: Conjugate) -> Conjugate:
        a_p = product(now.direction)
        alpha = now.squared / (now.direction @ a_p)
        residual = now.residual - alpha * a_p
        squared = residual @ residual
        direction = residual + (squared / now.squared) * now.direction
        return Conjugate(now.done + 1, now.x + alpha * now.direction, residual, direction, squared)

    return jax.lax.while_loop(unsolved, iterate, Conjugate(jnp.int32(0), jnp.zeros_like(b), b, b, b @ b)).x


ROWS_UP_TO = 64
"""Widest matrix that is factorised row by row."""


def inverse(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """The inverse of a symmetric positive definite matrix: W^T W with W A W^T = I.

    It uses XLA's own operations, because LAPACK's bits depend on the number of threads. The result is symmetric and
    positive definite by construction.
    """
    w = inverse_root(a)
    return w.mT @ w


def inverse_root(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """W = L^-1, the inverse of the Cholesky factor of A = L L^T.

    A wide matrix is cut in four: A = [P Q; Q^T R] has W = [W_P 0; -W_S B^T W_P  W_S] with B = W_P Q and the Schur
    complement S = R - B^T B. (Using P^-1 itself instead loses all digits at a condition number of 1e4.)
    """
    n = a.shape[-1]
    if n <= ROWS_UP_TO:
        return _inverse_root_by_rows(a)
    p, q, r = a[..., : n // 2, : n // 2], a[..., : n // 2, n // 2 :], a[..., n // 2 :, n // 2 :]
    w_p = inverse_root(p)
    b = w_p @ q
    w_s = inverse_root(r - b.mT @ b)
    return jnp.block([[w_p, jnp.zeros_like(q)], [-w_s @ (b.mT @ w_p), w_s]])


def _inverse_root_by_rows(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """Gaussian elimination: what makes A upper triangular, with diagonal D, turns the identity into D^(1/2) L^-1."""
    rows = jnp.arange(a.shape[-1], dtype=jnp.int32)[:, None]

    def eliminate(i: Int[Array, ""], both: tuple[Array, Array]) -> tuple[Array, Array]:
        """Subtract multiples of row i from all rows below."""
        upper, w = both
        row, own_row = (jax.lax.dynamic_slice_in_dim(m, i, 1, -2) for m in both)
        column, pivot = (jax.lax.dynamic_slice_in_dim(m, i, 1, -1) for m in (upper, row))
        factor = jnp.where(rows > i, column / pivot, 0.0)
        return upper - factor * row, w - factor * own_row

    identity = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    both: tuple[Array, Array] = jax.lax.fori_loop(0, a.shape[-1], eliminate, (a, identity))
    upper, w = both
    return w * jax.lax.rsqrt(jnp.diagonal(upper, axis1=-2, axis2=-1))[..., None]
