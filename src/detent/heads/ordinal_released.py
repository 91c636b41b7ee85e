"""The ordinal head of the authors' published code: an ablation, not the paper's Eq. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from detent.distributions import Categorical
from detent.heads import Op, register_head
from detent.heads.discrete import Discrete


@dataclass(frozen=True)
class OrdinalReleased(Discrete):
    """Ablation: ordinal as in the authors' published code.

    No bin sees another bin's logit: the code sums Eq. 4's triangle over the wrong axis, which leaves
    L'_i = (K - i) log s_i + i log(1 - s_i), s = sigmoid(L), i = 0 ... K - 1.
    Its epsilon of 1e-8 inside the logarithms is left out: it only stops the gradient at |L| > 18.
    """

    def distribution(self, out: Float[Array, "*b mk"], parameters: Mapping[str, Array]) -> Categorical:
        logits = super().distribution(out, parameters).logits
        i = jnp.arange(self.bins, dtype=logits.dtype)
        return Categorical((self.bins - i) * jax.nn.log_sigmoid(logits) + i * jax.nn.log_sigmoid(-logits))

    def deploy(self) -> list[Op]:
        return [{"op": "released_ladder", "bins": self.bins}, *super().deploy()]


register_head("ordinal_released", OrdinalReleased)
