"""The Beta head: a continuous policy that cannot leave its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from gymnasium.spaces import Box
from jaxtyping import Array, Float

from detent.distributions import Beta
from detent.heads import Op, register_head


@dataclass(frozen=True)
class BetaHead:
    """Beta distribution: one peak, exactly between the bounds.

    alpha = 1 + softplus(first half of the outputs), beta = 1 + softplus(second half).
    """

    def outputs(self, space: Box) -> int:
        return 2 * space.shape[0]

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {}

    def distribution(self, out: Float[Array, "*b 2m"], parameters: Mapping[str, Array]) -> Beta:
        a, b = jnp.split(jax.nn.softplus(out), 2, axis=-1)
        return Beta(a, b)

    def by_dimension(self, out: Float[Array, "*b 2m"]) -> Float[Array, "*b m 2"]:
        return out.reshape(*out.shape[:-1], 2, -1).swapaxes(-1, -2)

    def to_unit(self, action: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        return 2.0 * action - 1.0

    def deploy(self) -> list[Op]:
        return [{"op": "softplus"}, {"op": "beta"}]

    def diagnostics(self, distribution: Beta) -> dict[str, Float[Array, ""]]:
        alpha, beta = 1.0 + distribution.a, 1.0 + distribution.b
        total = alpha + beta
        # Of the action in [-1, 1], hence twice that of the sample in [0, 1].
        return {"std": 2.0 * jnp.sqrt(alpha * beta / (total**2 * (total + 1.0))).mean()}


register_head("beta", BetaHead)
