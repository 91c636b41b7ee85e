"""HL-Gauss: a value learned by classification (Imani & White 2018; Farebrother et al. 2024, arXiv:2403.03950)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float

from detent.critics import State, register_critic
from detent.distributions import Categorical, Key
from detent.options import check_options, option

TAILS = 3.0
"""Bins extend beyond the range at either end by this many standard deviations of a Gaussian."""
LEAST_MARGIN = 0.01
"""Minimum margin around the returns, relative to 1 + their size, so that the range is never empty."""


@dataclass(frozen=True)
class HLGauss:
    """The outputs are the logits of a distribution over bins of returns; the value is its mean.

    A return y is learned as a Gaussian around y, integrated over the bins: with the edges e_i and the cumulative normal
    distribution function Phi,

        p_i(y) = [Phi((e_{i+1} - y) / sigma) - Phi((e_i - y) / sigma)] / z,  z such that the p_i sum to 1
        loss   = - sum_i p_i(y) log softmax(out)_i

    The gradient with respect to the logits is softmax(out) - p, whose size does not grow with the returns.

    Everything is computed in units of bins; the state holds their position. Between `low` and `high`, which are running
    averages of the smallest and the largest return plus a margin, the mean of p(y) is y; returns outside are clipped to
    `low` or `high`. (At either end there are bins for `TAILS` more sigmas, for the Gaussians around the ends.)

    When the range moves, the network does not, so every value V becomes a + b V with the same a and b, and the order of
    the values is preserved. The temporal differences r + gamma V' - V change by (b - 1)(gamma V' - V) - (1 - gamma) a,
    which is small while b is close to 1; hence the range follows averages and does not jump to contain an outlier. It
    moves once per update, after the values of the rollout are computed and before its returns are learned, so that the
    same update corrects the values. The first range is that of the first returns.
    """

    value_bins: int = option(51, "number of bins of the value distribution", at_least=11, at_most=1001)
    value_spread: float = option(
        0.75, "standard deviation, in bins, of the Gaussian target around a return", at_least=0.25, at_most=1.5
    )
    value_margin: float = option(
        0.25, "how far the bins extend beyond the returns at either end, as a fraction of their range", at_least=0
    )
    value_range_decay: float = option(
        0.95, "decay of the running averages of the smallest and the largest return", at_least=0, at_most=0.9999
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def outputs(self) -> int:
        return self.value_bins

    def state(self) -> State:
        return {"low": jnp.float32(-1.0), "high": jnp.float32(1.0), "batches": jnp.float32(0.0)}

    def adapted(self, state: State, target: Float[Array, " b"], valid: Bool[Array, " b"]) -> State:
        least, largest = jnp.where(valid, target, jnp.inf).min(), jnp.where(valid, target, -jnp.inf).max()
        size = 1.0 + jnp.maximum(jnp.abs(least), jnp.abs(largest))
        margin = self.value_margin * (largest - least) + LEAST_MARGIN * size
        # A plain mean at first, until the decay gives a batch more weight.
        share = jnp.maximum(1.0 / (state["batches"] + 1.0), 1.0 - self.value_range_decay)
        moved = {
            "low": state["low"] + share * (least - margin - state["low"]),
            "high": state["high"] + share * (largest + margin - state["high"]),
            "batches": state["batches"] + 1.0,
        }
        # A batch without a valid step changes nothing.
        return {name: jnp.where(valid.any(), moved[name], state[name]) for name in state}

    def value(self, out: Float[Array, "*b k"], state: State) -> Float[Array, "*b"]:
        middles = jnp.arange(self.value_bins, dtype=out.dtype) + 0.5
        position = jax.nn.softmax(out) @ middles
        return state["low"] + (position - TAILS * self.value_spread) * self._width(state)

    def loss(self, out: Float[Array, "*b k"], state: State, target: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return -jnp.sum(self.projected(state, target) * jax.nn.log_softmax(out), axis=-1)

    def clipped_loss(
        self,
        out: Float[Array, "*b k"],
        state: State,
        target: Float[Array, "*b"],
        before: Float[Array, "*b"],
        radius: float,
    ) -> Float[Array, "*b"]:
        """No gradient where the value has moved more than `radius` towards the target, as in least squares."""
        loss, value = self.loss(out, state, target), self.value(out, state)
        near = before + jnp.clip(value - before, -radius, radius)
        far_enough = jnp.abs(near - target) > jnp.abs(value - target)
        return jnp.where(far_enough, jax.lax.stop_gradient(loss), loss)

    def sampled_log_prob(self, out: Float[Array, "b k"], key: Key) -> Float[Array, " b"]:
        """The log-probability of a bin sampled from the softmax."""
        distribution = Categorical(out[..., None, :])
        return distribution.log_prob(distribution.sample(key))

    def projected(self, state: State, target: Float[Array, "*b"]) -> Float[Array, "*b k"]:
        """p(y): the Gaussian around each target, integrated over the bins."""
        inside = jnp.clip(target, state["low"], state["high"])
        position = TAILS * self.value_spread + (inside - state["low"]) / self._width(state)
        edges = jnp.arange(self.value_bins + 1, dtype=target.dtype)
        below = ndtr((edges - position[..., None]) / self.value_spread)
        return jnp.diff(below) / (below[..., -1:] - below[..., :1])

    def _width(self, state: State) -> Float[Array, ""]:
        """The width of a bin, in units of the returns."""
        return (state["high"] - state["low"]) / (self.value_bins - 2.0 * TAILS * self.value_spread)


register_critic("hl_gauss", HLGauss)
