"""The Gaussian head: the usual policy of continuous control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Shaped

from detent.distributions import DiagGaussian
from detent.heads import Op, Outputs, register_head
from detent.initial_std import InitialStd
from detent.options import check_options, option

LOG_STDS = -20.0, 5.0
"""The least and the greatest initial log standard deviation."""


@dataclass(frozen=True)
class Gaussian(InitialStd):
    """Normal distribution: mean from the network, one standard deviation per dimension.

    The log standard deviation does not depend on the observation.
    """

    initial_log_std: float = option(
        0.0,
        "logarithm of --initial-std, which can be given instead",
        instead_of="initial_std",
        at_least=LOG_STDS[0],
        at_most=LOG_STDS[1],
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_initial_std("a normal distribution")

    def initial_stds(self) -> tuple[float, float]:
        return math.exp(LOG_STDS[0]), math.exp(LOG_STDS[1])

    def outputs(self, space: Box) -> int:
        return space.shape[0]

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        initial = self.initial_log_std if self.initial_std is None else math.log(self.initial_std)
        return {"log_std": jnp.full(space.shape, initial, jnp.float32)}

    def distribution(self, out: Float[Array, "*b m"], parameters: Mapping[str, Array]) -> DiagGaussian:
        return DiagGaussian(out, parameters["log_std"])

    def by_dimension(self, out: Shaped[Outputs, "*b m"]) -> Shaped[Outputs, "*b m 1"]:
        return out[..., None]

    def to_unit(self, action: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        return action

    def deploy(self) -> list[Op]:
        return [{"op": "normal", "log_std": "log_std"}]

    def diagnostics(self, distribution: DiagGaussian) -> dict[str, Float[Array, ""]]:
        return {"std": jnp.exp(distribution.log_std).mean()}


register_head("gaussian", Gaussian)
