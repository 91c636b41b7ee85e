"""The Gaussian head with a bounded mean, as in the paper's Appendix A."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from detent.distributions import DiagGaussian
from detent.heads import Op, register_head
from detent.heads.gaussian import Gaussian


@dataclass(frozen=True)
class GaussianTanh(Gaussian):
    """Normal distribution whose mean is kept in [-1, 1] by a tanh.

    Samples are unbounded. This is not the "tanh-Gaussian" of soft actor-critic, which squashes the sample and so has a
    different density.
    """

    def distribution(self, out: Float[Array, "*b m"], parameters: Mapping[str, Array]) -> DiagGaussian:
        return DiagGaussian(jnp.tanh(out), parameters["log_std"])

    def deploy(self) -> list[Op]:
        return [{"op": "tanh"}, *super().deploy()]


register_head("gaussian_tanh", GaussianTanh)
