"""The agent: a policy (network + head) and a value function (network), separate networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float

from detent.distributions import Distribution
from detent.heads import Head
from detent.networks import init_mlp, mlp

Parameters = dict[str, Any]
"""`{"policy": layers, "head": the head's own parameters, "value": layers}`."""


@dataclass(frozen=True)
class Agent:
    """What is trained. Pure: parameters go in, distributions and values come out."""

    head: Head
    space: Box
    observation_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    policy_gain: float = 0.01
    """Gain of the policy's last layer; small, so that a head starts from the same policy everywhere."""

    def init(self, key: Array) -> Parameters:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        hidden_gains = [math.sqrt(2.0)] * len(self.hidden_sizes)
        inner = (self.observation_size, *self.hidden_sizes)
        return {
            "policy": init_mlp(rng, (*inner, self.head.outputs(self.space)), [*hidden_gains, self.policy_gain]),
            "head": self.head.parameters(self.space),
            "value": init_mlp(rng, (*inner, 1), [*hidden_gains, 1.0]),
        }

    def outputs(
        self, parameters: Parameters, observation: Float[Array, "*b d"]
    ) -> tuple[Float[Array, "*b o"], dict[str, Array]]:
        """What the head makes a distribution of: the network's outputs and the head's own parameters."""
        return mlp(parameters["policy"], observation), parameters["head"]

    def policy(self, parameters: Parameters, observation: Float[Array, "*b d"]) -> Distribution:
        return self.head.distribution(*self.outputs(parameters, observation))

    def value(self, parameters: Parameters, observation: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        return mlp(parameters["value"], observation)[..., 0]
