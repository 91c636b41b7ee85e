"""The Gaussian head: the usual policy of continuous control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from gymnasium.spaces import Box
from jaxtyping import Array, Float

from detent.distributions import DiagGaussian
from detent.heads import Op, register_head
from detent.options import check_options, option


@dataclass(frozen=True)
class Gaussian:
    """Normal distribution: mean from the network, one spread per dimension.

    The log standard deviation does not depend on the observation.
    """

    initial_log_std: float = option(
        0.0, "log standard deviation at the start, in units where the bounds are -1 and 1", at_least=-20, at_most=5
    )

    def __post_init__(self) -> None:
        check_options(self)

    def outputs(self, space: Box) -> int:
        return space.shape[0]

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {"log_std": jnp.full(space.shape, self.initial_log_std, jnp.float32)}

    def distribution(self, out: Float[Array, "*b m"], parameters: Mapping[str, Array]) -> DiagGaussian:
        return DiagGaussian(out, parameters["log_std"])

    def by_dimension(self, out: Float[Array, "*b m"]) -> Float[Array, "*b m 1"]:
        return out[..., None]

    def to_unit(self, action: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        return action

    def deploy(self) -> list[Op]:
        return [{"op": "normal", "log_std": "log_std"}]

    def diagnostics(self, distribution: DiagGaussian) -> dict[str, Float[Array, ""]]:
        return {"std": jnp.exp(distribution.log_std).mean()}


register_head("gaussian", Gaussian)
