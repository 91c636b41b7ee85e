"""Running mean and variance, for observations and for returns."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_EPSILON = 1e-8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """Mean, variance and number of everything seen so far."""

    mean: Float[Array, "*d"]
    var: Float[Array, "*d"]
    count: Float[Array, ""]

    @staticmethod
    def zero(shape: tuple[int, ...]) -> Moments:
        # A little weight on (0, 1), as in OpenAI Baselines, so that the first batch divides by no zero.
        return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), jnp.asarray(1e-4, jnp.float32))

    def update(self, x: Float[Array, "n *d"], weight: Float[Array, " n"]) -> Moments:
        """Merge a batch; samples of weight 0 leave no trace (Chan, Golub & LeVeque 1979)."""
        weight = weight.reshape(-1, *[1] * (x.ndim - 1))
        count = weight.sum()
        share = jnp.where(weight > 0, weight, 0.0) / jnp.maximum(count, 1.0)
        batch_mean = (share * jnp.where(weight > 0, x, 0.0)).sum(0)
        batch_var = (share * jnp.where(weight > 0, x - batch_mean, 0.0) ** 2).sum(0)
        total = self.count + count
        delta = batch_mean - self.mean
        mean = self.mean + delta * (count / total)
        # Each term is a convex combination of variances, so nothing grows with the count.
        var = (self.var * self.count + batch_var * count + delta**2 * (self.count * count / total)) / total
        return Moments(jnp.where(count > 0, mean, self.mean), jnp.where(count > 0, var, self.var), total)

    def normalize(self, x: Float[Array, "*n *d"], clip: float) -> Float[Array, "*n *d"]:
        return jnp.clip((x - self.mean) / jnp.sqrt(self.var + _EPSILON), -clip, clip)

    def scale(self, x: Float[Array, "*n *d"], clip: float) -> Float[Array, "*n *d"]:
        """Divide by the standard deviation without moving the mean: a reward keeps its sign."""
        return jnp.clip(x / jnp.sqrt(self.var + _EPSILON), -clip, clip)
