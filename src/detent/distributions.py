"""The three distributions behind every head: categorical, Gaussian and Beta, independent over action dimensions.

Each is a batched pytree. `log_prob`, `entropy` and `kl` are summed over the action dimensions, since the joint
density factorises; `old.kl(new)` is KL(old || new).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, digamma
from jaxtyping import Array, Float, Int

Key = Array
Action = Array

TRIANGLE_UP_TO = 128
"""Widest axis that `running_sum` sums with a single triangular matrix."""


def key_of(seed: int) -> Key:
    """The key of a seed below 2^63. Without x64, `jax.random.key` uses only the lowest 32 bits of a seed."""
    with jax.enable_x64(True):
        return jax.random.key(seed)


class Distribution(Protocol):
    """A batch of distributions over native actions."""

    def sample(self, key: Key) -> Action: ...
    def mode(self) -> Action: ...
    def log_prob(self, action: Action) -> Float[Array, "*b"]: ...
    def entropy(self) -> Float[Array, "*b"]: ...
    def kl(self, new: Self) -> Float[Array, "*b"]: ...


def running_sum(x: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """y_i = x_0 + ... + x_i along the last axis.

    A product with a triangular matrix of ones, which on a CPU is several times faster than `jnp.cumsum`. A wide axis
    is cut into about sqrt(k) blocks; each is summed and then shifted by the sum of the blocks before it.
    """
    width = x.shape[-1]
    if width <= TRIANGLE_UP_TO:
        return x @ jnp.triu(jnp.ones((width, width), x.dtype))
    block = math.isqrt(width - 1) + 1
    padding = -width % block
    blocks = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)]).reshape(*x.shape[:-1], -1, block)
    inside = blocks @ jnp.triu(jnp.ones((block, block), x.dtype))
    before = running_sum(inside[..., -1]) - inside[..., -1]
    return (inside + before[..., None]).reshape(*x.shape[:-1], -1)[..., :width]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """m independent choices among k bins: p_i = softmax(logits_i). An action is m bin indices."""

    logits: Float[Array, "*b m k"]

    @property
    def _shifted(self) -> Float[Array, "*b m k"]:
        """The logits minus their maximum, which changes no probability and prevents overflow."""
        return self.logits - jax.lax.stop_gradient(self.logits.max(-1, keepdims=True))

    @property
    def log_probs(self) -> Float[Array, "*b m k"]:
        return jax.nn.log_softmax(self.logits)

    def sample(self, key: Key) -> Int[Array, "*b m"]:
        """Inverse of the cumulative distribution: one random number per dimension instead of k Gumbels.

        With 0 < t <= total, bin i is chosen iff c_{i-1} < t <= c_i, so a bin whose probability is 0 in float32 is never
        chosen (or hardly ever for K > 128, where sums are rounded block by block).
        """
        cumulative = running_sum(jnp.exp(self._shifted))
        uniform = 1.0 - jax.random.uniform(key, (*self.logits.shape[:-1], 1), self.logits.dtype)
        threshold = uniform * cumulative[..., -1:]
        return jnp.sum(cumulative < threshold, axis=-1, dtype=jnp.int32)

    def mode(self) -> Int[Array, "*b m"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*b m"]) -> Float[Array, "*b"]:
        """log p_a = l_a - log sum_i exp l_i."""
        # A masked sum, because the gradient of a gather is a scatter, which is slow on a CPU.
        chosen = jnp.arange(self.logits.shape[-1], dtype=action.dtype) == action[..., None]
        logit = jnp.sum(jnp.where(chosen, self._shifted, 0.0), axis=-1)
        return jnp.sum(logit - jnp.log(jnp.sum(jnp.exp(self._shifted), axis=-1)), axis=-1)

    def entropy(self) -> Float[Array, "*b"]:
        log_p = self.log_probs
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=(-2, -1))

    def kl(self, new: Categorical) -> Float[Array, "*b"]:
        log_p, log_q = self.log_probs, new.log_probs
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagGaussian:
    """N(mean, exp(log_std)^2), independent over m dimensions."""

    mean: Float[Array, "*b m"]
    log_std: Float[Array, " m"]

    def sample(self, key: Key) -> Float[Array, "*b m"]:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "*b m"]:
        return self.mean

    def log_prob(self, action: Float[Array, "*b m"]) -> Float[Array, "*b"]:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Float[Array, "*b"]:
        per_dimension = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return jnp.broadcast_to(per_dimension.sum(-1), self.mean.shape[:-1])

    def kl(self, new: DiagGaussian) -> Float[Array, "*b"]:
        ratio = jnp.exp(self.log_std - new.log_std)
        z = (self.mean - new.mean) * jnp.exp(-new.log_std)
        return jnp.sum(new.log_std - self.log_std + 0.5 * (ratio**2 + z**2 - 1.0), axis=-1)


PROPOSALS = 4
"""A gamma variable is the first accepted one of these; if none is, less than once in 170,000 times, the first."""


def log_gamma_variable(key: Key, shape: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """The logarithm of a gamma variable with a shape of at least 1, by Marsaglia and Tsang's rejection (2000).

    With d = shape - 1/3, x normal, u uniform and v = (1 + x / (3 sqrt(d)))^3: d v is gamma distributed, given that
    v > 0 and log u < x^2 / 2 + d (1 - v + log v), which holds with probability 0.95 or more. All proposals are made at
    once. `jax.random.gamma` retries in a loop instead, which for some shapes and keys never ends
    (github.com/jax-ml/jax, issue 21352).
    """
    of_x, of_u = jax.random.split(key)
    x = jax.random.normal(of_x, (PROPOSALS, *shape.shape), shape.dtype)
    log_u = jnp.log1p(-jax.random.uniform(of_u, (PROPOSALS, *shape.shape), shape.dtype))
    d = shape - 1.0 / 3.0
    root = 1.0 + x / (3.0 * jnp.sqrt(d))
    log_v = 3.0 * jnp.log(jnp.maximum(root, 1e-6))
    accepted = (root > 1e-6) & (log_u < x**2 / 2 + d * (log_v - jnp.expm1(log_v)))
    first = jnp.argmax(accepted, axis=0, keepdims=True)
    return jnp.log(d) + jnp.take_along_axis(log_v, first, axis=0)[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beta:
    """Beta(1 + a, 1 + b) on (0, 1), independent over m dimensions; a, b >= 0 make it unimodal.

    The excesses a and b are stored rather than alpha and beta: the mode a / (a + b) keeps its precision when
    both are tiny. Samples stay `edge` away from 0 and 1, where the log-density would be infinite.
    """

    a: Float[Array, "*b m"]
    b: Float[Array, "*b m"]

    edge = 1e-6

    def sample(self, key: Key) -> Float[Array, "*b m"]:
        """x / (x + y) for gamma variables x and y with the shapes 1 + a and 1 + b."""
        of_x, of_y = jax.random.split(key)
        drawn = jax.nn.sigmoid(log_gamma_variable(of_x, 1.0 + self.a) - log_gamma_variable(of_y, 1.0 + self.b))
        return jnp.clip(drawn, self.edge, 1.0 - self.edge)

    def mode(self) -> Float[Array, "*b m"]:
        total = self.a + self.b
        return jnp.where(total > 0, self.a / jnp.where(total > 0, total, 1.0), 0.5)

    def log_prob(self, action: Float[Array, "*b m"]) -> Float[Array, "*b"]:
        x = jnp.clip(action, self.edge, 1.0 - self.edge)
        log_density = self.a * jnp.log(x) + self.b * jnp.log1p(-x) - self._log_normaliser
        return jnp.sum(log_density, axis=-1)

    def entropy(self) -> Float[Array, "*b"]:
        mean_log_x, mean_log_1_x = self._mean_logs
        return jnp.sum(self._log_normaliser - self.a * mean_log_x - self.b * mean_log_1_x, axis=-1)

    def kl(self, new: Beta) -> Float[Array, "*b"]:
        mean_log_x, mean_log_1_x = self._mean_logs
        shift = (self.a - new.a) * mean_log_x + (self.b - new.b) * mean_log_1_x
        return jnp.sum(new._log_normaliser - self._log_normaliser + shift, axis=-1)

    @property
    def _log_normaliser(self) -> Float[Array, "*b m"]:
        return betaln(1.0 + self.a, 1.0 + self.b)

    @property
    def _mean_logs(self) -> tuple[Float[Array, "*b m"], Float[Array, "*b m"]]:
        """E[log x] and E[log(1 - x)]."""
        both = digamma(2.0 + self.a + self.b)
        return digamma(1.0 + self.a) - both, digamma(1.0 + self.b) - both
