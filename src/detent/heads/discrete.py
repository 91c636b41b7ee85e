"""The discrete head: K positions per action dimension, dimensions independent (Section 4.1 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from detent.distributions import Categorical
from detent.draws import choice
from detent.heads import Op, Outputs, register_head
from detent.initial_std import InitialStd, Logits, bell, bell_stds
from detent.options import check_options, option


@dataclass(frozen=True)
class Discrete(InitialStd):
    """K equally spaced positions per dimension, chosen by a softmax.

    Dimensions are independent: m K outputs instead of K^m.
    """

    bins: int = option(11, "positions per action dimension (K)", at_least=2, at_most=100_001, search=choice(7, 11, 15))

    def __post_init__(self) -> None:
        check_options(self)
        self.check_initial_std(f"--bins {self.bins}")

    def initial_stds(self) -> tuple[float, float]:
        return bell_stds(self.bins)

    def outputs(self, space: Box) -> int:
        return space.shape[0] * self.bins

    def initial_outputs(self, space: Box) -> Float[NDArray[np.float64], " mk"]:
        """In each dimension a bell with this standard deviation; without one, every position is equally likely."""
        if self.initial_std is None:
            return np.zeros(self.outputs(space))
        return np.tile(self.outputs_for(bell(self.bins, self.initial_std)), space.shape[0])

    def outputs_for(self, logits: Logits) -> Logits:
        """The outputs of one dimension whose distribution has these logits, up to a constant."""
        return logits

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {}

    def distribution(self, out: Float[Array, "*b mk"], parameters: Mapping[str, Array]) -> Categorical:
        return Categorical(self.by_dimension(out))

    def by_dimension(self, out: Shaped[Outputs, "*b mk"]) -> Shaped[Outputs, "*b mk//{self.bins} {self.bins}"]:
        return out.reshape(*out.shape[:-1], -1, self.bins)

    def to_unit(self, action: Int[Array, "*b m"]) -> Float[Array, "*b m"]:
        """a_j = 2 j / (K - 1) - 1, j = 0 ... K - 1."""
        return action.astype(jnp.float32) * (2.0 / (self.bins - 1)) - 1.0

    def deploy(self) -> list[Op]:
        return [{"op": "categorical", "bins": self.bins}]

    def diagnostics(self, distribution: Categorical) -> dict[str, Float[Array, ""]]:
        return {"bin_entropy": (distribution.entropy() / distribution.logits.shape[-2]).mean()}


register_head("discrete", Discrete)
