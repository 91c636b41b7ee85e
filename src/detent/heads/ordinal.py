"""The ordinal head: a discrete policy that knows the order of its bins (Section 4.2, Eq. 4 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from detent.distributions import Categorical, running_sum
from detent.heads import Op, register_head
from detent.heads.discrete import Discrete
from detent.initial_std import Logits


@dataclass(frozen=True)
class Ordinal(Discrete):
    """K positions per dimension that know their order (Eq. 4).

    With s = sigmoid(L), Eq. 4 is L'_i = sum_{j<=i} log s_j + sum_{j>i} log(1 - s_j), then softmax(L').
    Since log s - log(1 - s) = L, L'_i = sum_{j<=i} L_j + constant, and the softmax removes the constant:
    the policy is exactly softmax(cumsum(L)). Hence L_i = log p_i - log p_{i-1}, and L_0 has no effect.
    """

    def distribution(self, out: Float[Array, "*b mk"], parameters: Mapping[str, Array]) -> Categorical:
        return Categorical(running_sum(super().distribution(out, parameters).logits))

    def outputs_for(self, logits: Logits) -> Logits:
        return np.diff(logits, prepend=logits[0])

    def deploy(self) -> list[Op]:
        return [{"op": "running_sum", "bins": self.bins}, *super().deploy()]


register_head("ordinal", Ordinal)
