"""The agent: a policy (trunk and head) and a value function (trunk and critic), separate networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float

from detent.critics import Critic, State
from detent.distributions import Distribution
from detent.heads import Head, initial_outputs
from detent.networks import Op, checked, init_network, network
from detent.trunks import Trunk

Parameters = dict[str, Any]
"""`{"policy": layers, "head": the head's own parameters, "value": layers, "critic": the critic's state}`."""


@dataclass(frozen=True)
class Agent:
    """The functions that are trained. They are pure: parameters go in, distributions and values come out."""

    head: Head
    trunk: Trunk
    critic: Critic
    space: Box
    observation_size: int
    policy_gain: float = 0.01
    """Gain of the policy's last layer; small, so that the initial policy is nearly the same for all observations."""

    @property
    def policy_program(self) -> list[Op]:
        return self._program(self.head.outputs(self.space))

    @property
    def value_program(self) -> list[Op]:
        return self._program(self.critic.outputs)

    def _program(self, outputs: int) -> list[Op]:
        program = self.trunk.program(self.observation_size, outputs)
        return checked(program, self.observation_size, outputs)

    def init(self, key: Array) -> Parameters:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return {
            "policy": init_network(rng, self.policy_program, self.policy_gain, initial_outputs(self.head, self.space)),
            "head": self.head.parameters(self.space),
            "value": init_network(rng, self.value_program, 1.0),
            "critic": self.critic.state(),
        }

    def outputs(
        self, parameters: Parameters, observation: Float[Array, "*b d"]
    ) -> tuple[Float[Array, "*b o"], dict[str, Array]]:
        """The arguments of the head's distribution: the network's outputs and the head's own parameters."""
        return network(self.policy_program, parameters["policy"], observation), parameters["head"]

    def policy(self, parameters: Parameters, observation: Float[Array, "*b d"]) -> Distribution:
        return self.head.distribution(*self.outputs(parameters, observation))

    def value_outputs(
        self, parameters: Parameters, observation: Float[Array, "*b d"]
    ) -> tuple[Float[Array, "*b o"], State]:
        """The arguments of the critic's value: the network's outputs and the critic's state, without its gradient."""
        out = network(self.value_program, parameters["value"], observation)
        return out, jax.lax.stop_gradient(parameters["critic"])

    def value(self, parameters: Parameters, observation: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        return self.critic.value(*self.value_outputs(parameters, observation))

    def adapted(self, parameters: Parameters, target: Float[Array, " b"], valid: Bool[Array, " b"]) -> Parameters:
        """The parameters, with the critic's state adapted to the returns it is about to learn."""
        return parameters | {"critic": self.critic.adapted(parameters["critic"], target, valid)}
