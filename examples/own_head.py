"""A head of your own: one class and one line make it available to every algorithm, flag and check.

    python examples/own_head.py                                    # trains it for a few seconds
    cd examples && detent train Hopper-v5 --import own_head --head gentle_ordinal --algo trpo

The head is the ordinal one (Eq. 4 of the paper: L'_i = L_1 + ... + L_i, then softmax) with each L bounded by a tanh, so
that the log-probabilities of neighbouring positions differ by at most 1: a policy that cannot jump.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

import detent
from detent.distributions import Categorical, running_sum
from detent.heads import Op
from detent.options import option


@dataclass(frozen=True)
class GentleOrdinal:
    """K ordered positions; the log-probabilities of neighbours differ by at most 1."""

    bins: int = option(11, "positions per action dimension (K)", at_least=2)

    def outputs(self, space: Any) -> int:
        """How wide the network's last layer has to be."""
        return space.shape[0] * self.bins

    def parameters(self, space: Any) -> dict[str, Any]:
        """What is learned besides the network: nothing."""
        return {}

    def distribution(self, out: Any, parameters: Mapping[str, Any]) -> Categorical:
        """From the network's outputs to a distribution over native actions, here bin numbers."""
        by_dimension = out.reshape(*out.shape[:-1], -1, self.bins)
        return Categorical(running_sum(jnp.tanh(by_dimension)))

    def to_unit(self, action: Any) -> Any:
        """From a native action to units in which the task's bounds are -1 and 1."""
        return action.astype(jnp.float32) * (2.0 / (self.bins - 1)) - 1.0

    def deploy(self) -> list[Op]:
        """The same as named operations, which a policy file can hold: see OPS in detent.ops."""
        return [
            {"op": "tanh"},
            {"op": "running_sum", "bins": self.bins},
            {"op": "categorical", "bins": self.bins},
        ]

    def diagnostics(self, distribution: Categorical) -> dict[str, Any]:
        """Scalars for the records."""
        return {"bin_entropy": (distribution.entropy() / distribution.logits.shape[-2]).mean()}


detent.register_head("gentle_ordinal", GentleOrdinal)


def main(steps: int = 60_000) -> None:
    run = detent.Run("Hopper-v5", head="gentle_ordinal", bins=15, steps=steps, seed=0)
    for record in detent.train(run):
        print(f"{record['time/total_timesteps']:>8,} steps: return {record['rollout/ep_rew_mean'] or 0:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
