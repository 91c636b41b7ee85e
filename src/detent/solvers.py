"""Linear systems: one known only through products with its matrix, and the inverse of a small matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Vector = Float[Array, " p"]


class Conjugate(NamedTuple):
    """One iterate: x, its residual b - A x, the next direction, and the residual's squared length."""

    done: Int[Array, ""]
    x: Vector
    residual: Vector
    direction: Vector
    squared: Float[Array, ""]


def conjugate_gradient(
    product: Callable[[Vector], Vector], b: Vector, iterations: int, tolerance: float = 1e-10
) -> Vector:
    """x with A x = b, for a symmetric positive definite A given as v -> A v (Hestenes & Stiefel 1952).

    Starts from 0, so that x^T b > 0 for every iterate; ends early once |b - A x|^2 <= tolerance.
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


PIVOTS_UP_TO = 128
"""Widest matrix that is inverted pivot by pivot."""


def inverse(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """The inverse of a symmetric positive definite matrix, in XLA's own operations.

    Not LAPACK's: its bits depend on how many threads it finds. A wide matrix is cut in four, and with the Schur
    complement S = R - Q^T P^-1 Q

    [P   Q]^-1   [P^-1 + T S^-1 T^T   -T S^-1]
    [Q^T R]    = [-S^-1 T^T             S^-1 ],   T = P^-1 Q.
    """
    n = a.shape[-1]
    if n <= PIVOTS_UP_TO:
        return _pivoted(a)
    p, q, r = a[..., : n // 2, : n // 2], a[..., : n // 2, n // 2 :], a[..., n // 2 :, n // 2 :]
    p_inverse = inverse(p)
    t = p_inverse @ q
    s_inverse = inverse(r - q.mT @ t)
    t_s = t @ s_inverse
    return jnp.block([[p_inverse + t_s @ t.mT, -t_s], [-t_s.mT, s_inverse]])


def _pivoted(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """Gauss-Jordan elimination in place; a positive definite matrix needs no exchange of rows."""
    numbers = jnp.arange(a.shape[-1], dtype=jnp.int32)

    def eliminate(i: Int[Array, ""], a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
        pivot = numbers == i
        row, column = (jax.lax.dynamic_slice_in_dim(a, i, 1, axis) for axis in (-2, -1))
        scale = 1.0 / jax.lax.dynamic_slice_in_dim(row, i, 1, -1)
        rest = jnp.where(pivot, -column * scale, a - column * row * scale)
        return jnp.where(pivot[:, None], jnp.where(pivot, scale, row * scale), rest)

    inverted: Float[Array, "*b n n"] = jax.lax.fori_loop(0, a.shape[-1], eliminate, a)
    return inverted
