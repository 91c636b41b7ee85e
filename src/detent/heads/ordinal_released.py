"""The ordinal head of the authors' published code: an ablation, not the paper's Eq. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from detent.distributions import Categorical
from detent.heads import Op, register_head
from detent.heads.discrete import Discrete
from detent.initial_std import Logits, bisect


@dataclass(frozen=True)
class OrdinalReleased(Discrete):
    """Ablation: ordinal as in the authors' published code.

    No bin depends on another bin's logit: the code sums Eq. 4's triangle over the wrong axis, which leaves
    L'_i = (K - i) log s_i + i log(1 - s_i), s = sigmoid(L), i = 0 ... K - 1.
    The code's epsilon of 1e-8 inside the logarithms is omitted; its only effect is to stop the gradient at |L| > 18.
    """

    def distribution(self, out: Float[Array, "*b mk"], parameters: Mapping[str, Array]) -> Categorical:
        logits = super().distribution(out, parameters).logits
        i = jnp.arange(self.bins, dtype=logits.dtype)
        return Categorical((self.bins - i) * jax.nn.log_sigmoid(logits) + i * jax.nn.log_sigmoid(-logits))

    def outputs_for(self, logits: Logits) -> Logits:
        """L is 0 where the logits are highest, and L' = -K log 2; elsewhere L' is lower by their difference d.

        L = -u for i < K / 2 and u for i > K / 2 lower it by n log(1 + e^u) + (K - n) log(1 + e^-u) - K log 2, where
        n = max(i, K - i); this grows by at least 1/2 per unit of u, so 0 <= u <= 2 d.
        """
        i = np.arange(self.bins)
        n, d = np.maximum(i, self.bins - i), logits.max() - logits

        def too_little(u: NDArray[np.float64]) -> NDArray[np.float64]:
            lower = n * np.logaddexp(0.0, u) + (self.bins - n) * np.logaddexp(0.0, -u) - self.bins * np.log(2.0)
            return np.asarray(d - lower)

        u = bisect(too_little, 0.0 * d, 2.0 * d)
        return np.where(2 * i < self.bins, -u, u)

    def deploy(self) -> list[Op]:
        return [{"op": "released_ladder", "bins": self.bins}, *super().deploy()]


register_head("ordinal_released", OrdinalReleased)
