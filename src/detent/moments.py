"""Running mean and variance, for observations and for returns."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_EPSILON = 1e-8
LONGEST = 2.0**20
"""The number of full batches after which the oldest samples are gradually forgotten. A batch with a smaller share than
1 / LONGEST would change mean and variance by less than float32 resolves, with a bias: they would drift."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """Mean, variance and number of all samples so far, up to `LONGEST` batches."""

    mean: Float[Array, "*d"]
    var: Float[Array, "*d"]
    count: Float[Array, ""]

    @staticmethod
    def zero(shape: tuple[int, ...]) -> Moments:
        # A small initial weight on mean 0, variance 1, as in OpenAI Baselines, avoids a division by zero.
        return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), jnp.asarray(1e-4, jnp.float32))

    def update(self, x: Float[Array, "n *d"], weight: Float[Array, " n"]) -> Moments:
        """Merge a batch; samples of weight 0 have no effect (Chan, Golub & LeVeque 1979)."""
        weight = weight.reshape(-1, *[1] * (x.ndim - 1))
        count = weight.sum()
        share = jnp.where(weight > 0, weight, 0.0) / jnp.maximum(count, 1.0)
        batch_mean = (share * jnp.where(weight > 0, x, 0.0)).sum(0)
        batch_var = (share * jnp.where(weight > 0, x - batch_mean, 0.0) ** 2).sum(0)
        total = jnp.minimum(self.count + count, LONGEST * weight.shape[0])
        w = count / total
        delta = batch_mean - self.mean
        # The whole change is rounded once: rounding each term separately would bias the variance.
        change = w * (batch_var - self.var) + w * (1.0 - w) * delta**2
        return Moments(self.mean + w * delta, self.var + change, total)

    def normalize(self, x: Float[Array, "*n"], clip: float, least_variance: float = 0.0) -> Float[Array, "*n"]:
        var = jnp.maximum(self.var, least_variance)
        return jnp.clip((x - self.mean) / jnp.sqrt(var + _EPSILON), -clip, clip)

    def scale(self, x: Float[Array, "*n"], clip: float) -> Float[Array, "*n"]:
        """Divide by the standard deviation without subtracting the mean, so that a reward keeps its sign."""
        return jnp.clip(x / jnp.sqrt(self.var + _EPSILON), -clip, clip)
