"""Generalised advantage estimation (Schulman et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    reward: Float[Array, "t n"],
    value: Float[Array, "t+1 n"],
    terminated: Bool[Array, "t n"],
    truncated: Bool[Array, "t n"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "t n"], Float[Array, "t n"]]:
    """Advantages and lambda-returns.

    delta_t = r_t + gamma V(s_{t+1}) [not terminated] - V(s_t)
    A_t     = delta_t + gamma lambda A_{t+1} [neither terminated nor truncated]

    `value[t + 1]` is the value of the observation that step t led to. At the end of an episode that is the
    true final observation, so a truncated episode bootstraps from it. The step after the end of an episode only
    resets the environment; its advantage is meaningless and must be given no weight.
    """
    going_on = 1.0 - terminated.astype(value.dtype)
    delta = reward + gamma * value[1:] * going_on - value[:-1]
    decay = gamma * gae_lambda * (1.0 - (terminated | truncated).astype(value.dtype))

    def backwards(
        advantage: Float[Array, " n"], step: tuple[Float[Array, " n"], Float[Array, " n"]]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage, advantage + value[:-1]
