"""Linear systems that are known only through products with their matrix."""

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
