"""The discrete head: K positions per action dimension, dimensions independent (Section 4.1 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Int

from detent.distributions import Categorical
from detent.heads import Op, register_head
from detent.options import check_options, option


@dataclass(frozen=True)
class Discrete:
    """K equally spaced positions per dimension, chosen by a softmax.

    Dimensions are independent: m K outputs instead of K^m.
    """

    bins: int = option(11, "positions per action dimension (K)", at_least=2, at_most=100_001)

    def __post_init__(self) -> None:
        check_options(self)

    def outputs(self, space: Box) -> int:
        return space.shape[0] * self.bins

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {}

    def distribution(self, out: Float[Array, "*b mk"], parameters: Mapping[str, Array]) -> Categorical:
        return Categorical(self.by_dimension(out))

    def by_dimension(self, out: Float[Array, "*b mk"]) -> Float[Array, "*b m k"]:
        return out.reshape(*out.shape[:-1], -1, self.bins)

    def to_unit(self, action: Int[Array, "*b m"]) -> Float[Array, "*b m"]:
        """a_j = 2 j / (K - 1) - 1, j = 0 ... K - 1."""
        return action.astype(jnp.float32) * (2.0 / (self.bins - 1)) - 1.0

    def deploy(self) -> list[Op]:
        return [{"op": "categorical", "bins": self.bins}]

    def diagnostics(self, distribution: Categorical) -> dict[str, Float[Array, ""]]:
        return {"bin_entropy": (distribution.entropy() / distribution.logits.shape[-2]).mean()}


register_head("discrete", Discrete)
