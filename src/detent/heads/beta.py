"""The Beta head: a continuous policy that cannot leave its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from detent.distributions import Beta
from detent.heads import Op, Outputs, register_head
from detent.initial_std import InitialStd
from detent.options import check_options

EXCESSES = 0.01, 1000.0
"""The least and the greatest alpha - 1 of a first policy: below, softplus is flat; above, float32 lacks digits."""


@dataclass(frozen=True)
class BetaHead(InitialStd):
    """Beta distribution: one peak, support exactly between the bounds.

    alpha = 1 + softplus(first half of the outputs), beta = 1 + softplus(second half).
    """

    def __post_init__(self) -> None:
        check_options(self)
        self.check_initial_std("a Beta distribution")

    def initial_stds(self) -> tuple[float, float]:
        most, least = (1.0 / math.sqrt(3.0 + 2.0 * excess) for excess in EXCESSES)
        return least, most

    def outputs(self, space: Box) -> int:
        return 2 * space.shape[0]

    def initial_outputs(self, space: Box) -> Float[NDArray[np.float64], " o"]:
        """softplus^-1(alpha - 1), where alpha = beta: the variance of the action in [-1, 1] is 1 / (2 alpha + 1)."""
        if self.initial_std is None:
            return np.zeros(self.outputs(space))
        excess = (self.initial_std**-2 - 3.0) / 2.0
        return np.full(self.outputs(space), excess + math.log(-math.expm1(-excess)))

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {}

    def distribution(self, out: Float[Array, "*b o"], parameters: Mapping[str, Array]) -> Beta:
        a, b = jnp.split(jax.nn.softplus(out), 2, axis=-1)
        return Beta(a, b)

    def by_dimension(self, out: Shaped[Outputs, "*b o"]) -> Shaped[Outputs, "*b o//2 2"]:
        return out.reshape(*out.shape[:-1], 2, -1).swapaxes(-1, -2)

    def to_unit(self, action: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        return 2.0 * action - 1.0

    def deploy(self) -> list[Op]:
        return [{"op": "softplus"}, {"op": "beta"}]

    def diagnostics(self, distribution: Beta) -> dict[str, Float[Array, ""]]:
        alpha, beta = 1.0 + distribution.a, 1.0 + distribution.b
        total = alpha + beta
        # For the action in [-1, 1], hence twice that of the sample in [0, 1].
        return {"std": 2.0 * jnp.sqrt(alpha * beta / (total**2 * (total + 1.0))).mean()}


register_head("beta", BetaHead)
