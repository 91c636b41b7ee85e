"""The head of Discrete and MultiDiscrete action spaces: choices without an order, so there is no grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from detent.distributions import Categorical
from detent.errors import BadInput
from detent.heads import Op, Outputs, are_choices, register_head
from detent.options import check_options, option


@dataclass(frozen=True)
class Choices:
    """The actions of a Discrete or MultiDiscrete space, chosen by a softmax.

    Dimension i has k_i choices. The logits of all dimensions are padded to the longest with -1e9, whose exponential is
    0, so that dimensions of different lengths are one `Categorical`.
    """

    choices: tuple[int, ...] = option((), "number of choices per action dimension (default: the task's)")

    def __post_init__(self) -> None:
        check_options(self)

    @staticmethod
    def accepts(space: Box) -> bool:
        return are_choices(space)

    @staticmethod
    def defaults(space: Box) -> dict[str, tuple[int, ...]]:
        return {"choices": tuple((space.high - space.low + 1).tolist())}

    def outputs(self, space: Box) -> int:
        counts = self.defaults(space)["choices"]
        if counts != self.choices:
            raise BadInput(f"The task has {_listed(counts)} choices per action dimension, not {_listed(self.choices)}.")
        return sum(self.choices)

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        return {}

    def distribution(self, out: Float[Array, "*b o"], parameters: Mapping[str, Array]) -> Categorical:
        exists: NDArray[np.bool_] = np.arange(max(self.choices)) < np.array(self.choices)[:, None]
        index = np.where(exists, np.cumsum(exists).reshape(exists.shape) - 1, 0)
        return Categorical(jnp.where(exists, out[..., index], -1e9))

    def by_dimension(self, out: Shaped[Outputs, "*b o"]) -> Shaped[Outputs, "*b g k"]:
        """A single row if dimensions differ in their number of choices."""
        k = self.choices[0] if len(set(self.choices)) == 1 else sum(self.choices)
        return out.reshape(*out.shape[:-1], -1, k)

    def to_unit(self, action: Int[Array, "*b m"]) -> Float[Array, "*b m"]:
        """-1 for the first choice of a dimension, 1 for the last; the environment rounds to the nearest."""
        last = jnp.asarray([max(1, count - 1) for count in self.choices], jnp.float32)
        return action.astype(jnp.float32) * (2.0 / last) - 1.0

    def deploy(self) -> list[Op]:
        return [{"op": "choices", "counts": ",".join(map(str, self.choices))}]

    def diagnostics(self, distribution: Categorical) -> dict[str, Float[Array, ""]]:
        return {"bin_entropy": (distribution.entropy() / len(self.choices)).mean()}


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(map(str, counts)) or "no"


register_head("categorical", Choices)
