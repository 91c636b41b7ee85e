"""Policy heads: how the outputs of a network become a distribution over actions.

One file per head; a new file here, or `detent.register_head` in a user's module, is all it takes: every
algorithm, task, flag and test picks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float
from numpy.typing import NDArray

from detent.distributions import Action, Distribution
from detent.registry import Registry

Op = dict[str, str | int | float]
"""One step of a deployed policy: `{"op": name, ...constants}`; the vocabulary is in `detent.policy`."""


class Head(Protocol):
    """A frozen dataclass whose fields are its options. Actions are *native*: a bin index, a real number."""

    def outputs(self, space: Box) -> int:
        """Width of the network's last layer for this action space."""
        ...

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        """Initial values of what is learned besides the network (e.g. `log_std`)."""
        ...

    def distribution(self, out: Float[Array, "*b o"], parameters: Mapping[str, Array]) -> Distribution:
        """The distribution over native actions."""
        ...

    def to_unit(self, action: Action) -> Float[Array, "*b m"]:
        """Native action -> units in which the environment's bounds are -1 and 1."""
        ...

    def deploy(self) -> list[Op]:
        """From the network's outputs to a unit action, as a few named ops."""
        ...

    def diagnostics(self, distribution: Any) -> dict[str, Float[Array, ""]]:
        """Scalars worth recording about a batch of distributions."""
        ...

    # A head may also have
    #
    #     def by_dimension(self, out: "*b o") -> "*b m k"
    #
    # the outputs grouped by the action dimension that they decide on, if the dimensions are independent of each
    # other; see `output_blocks`.


def output_blocks(head: Head, space: Box) -> NDArray[np.intp]:
    """[blocks, k] Which outputs may depend on each other: a row for each set of outputs that no other set affects.

    From the head's `by_dimension`; the outputs of a head without it are one block. The Fisher information of the
    outputs has zeros between the blocks.
    """
    every = np.arange(head.outputs(space))
    by_dimension: Callable[[NDArray[np.intp]], NDArray[np.intp]] = getattr(head, "by_dimension", np.atleast_2d)
    return by_dimension(every)


HEADS: Registry[type[Head]] = Registry("head", __name__)

H = TypeVar("H", bound=type[Head])


def register_head(name: str, head: H) -> H:
    """Make `head` available as `--head NAME` and `Run(head=NAME)`."""
    HEADS.register(name, head)
    return head
