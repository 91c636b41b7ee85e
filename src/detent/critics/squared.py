"""The usual critic: one output, trained by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from detent.critics import State, register_critic
from detent.distributions import Key


@dataclass(frozen=True)
class Squared:
    """The value is the network's single output; the model is that a return is distributed as N(V(s), 1)."""

    outputs = 1

    def state(self) -> State:
        return {}

    def adapted(self, state: State, target: Float[Array, " b"], valid: Bool[Array, " b"]) -> State:
        return state

    def value(self, out: Float[Array, "*b 1"], state: State) -> Float[Array, "*b"]:
        return out[..., 0]

    def loss(self, out: Float[Array, "*b 1"], state: State, target: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return 0.5 * (out[..., 0] - target) ** 2

    def clipped_loss(
        self,
        out: Float[Array, "*b 1"],
        state: State,
        target: Float[Array, "*b"],
        before: Float[Array, "*b"],
        radius: float,
    ) -> Float[Array, "*b"]:
        """The larger of the errors of the value and of the value clipped to `radius`."""
        value = out[..., 0]
        near = before + jnp.clip(value - before, -radius, radius)
        return 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2)

    def sampled_log_prob(self, out: Float[Array, "b 1"], key: Key) -> Float[Array, " b"]:
        """Up to a constant: the derivative of log N(V + noise; V, 1) in V is `noise`, and so is that of noise * V."""
        return jax.random.normal(key, out.shape[:-1], jnp.float32) * out[..., 0]


register_critic("squared", Squared)
