"""Policy heads: how a network's outputs become a distribution over actions.

There is one file per head. To add one, add a file here or call `detent.register_head` in your own module; every
algorithm, task, flag and test then includes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from detent.distributions import Action, Distribution
from detent.registry import Registry

Op = dict[str, str | int | float]
"""One step of a deployed policy: `{"op": name, ...constants}`; the vocabulary is in `detent.ops`."""
Outputs = TypeVar("Outputs", Array, NDArray[Any])
"""Of the network, or the numbers of its outputs."""


class Head(Protocol):
    """A frozen dataclass whose fields are its options. Actions are *native*, such as a bin index or a real number.

    These methods are required; `OptionalMethods` lists those that are not.
    """

    def outputs(self, space: Box) -> int:
        """Width of the network's last layer for this action space."""
        ...

    def parameters(self, space: Box) -> dict[str, Float[Array, " m"]]:
        """Initial values of the parameters that are learned besides the network, such as `log_std`."""
        ...

    def distribution(self, out: Float[Array, "*b o"], parameters: Mapping[str, Array]) -> Distribution:
        """The distribution over native actions."""
        ...

    def to_unit(self, action: Action) -> Float[Array, "*b m"]:
        """The native action in units where the environment's bounds are -1 and 1."""
        ...

    def diagnostics(self, distribution: Any) -> dict[str, Float[Array, ""]]:
        """Scalars to record about a batch of distributions."""
        ...


class OptionalMethods(Protocol):
    """Methods that a head may have, and what happens without them."""

    @staticmethod
    def accepts(space: Box) -> bool:
        """Whether the head supports these actions. Without it, the head supports real actions but no choices."""
        ...

    @staticmethod
    def defaults(space: Box) -> dict[str, Any]:
        """Values for options that are not given, determined by the actions. Without it, there are none."""
        ...

    def initial_outputs(self, space: Box) -> Float[NDArray[Any], " o"]:
        """The outputs of the first policy, but for the small random weights: the initial biases of the last layer.

        Without it they are 0.
        """
        ...

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of options whose range depends on the others, for `detent tune`.

        Algorithms, trunks and critics may have it too. Without it, what the options themselves declare is searched.
        """
        ...

    def deploy(self) -> list[Op]:
        """How the network's outputs become a unit action, as a short list of named ops.

        Without it the head can be trained, evaluated and filmed, but its policies cannot be exported or act alone.
        """
        ...

    def by_dimension(self, out: Shaped[Outputs, "*b o"]) -> Shaped[Outputs, "*b g k"]:
        """The outputs grouped by action dimension, for heads whose dimensions are independent of each other.

        Without it the outputs form one block (`output_blocks`), and ACKTR inverts one matrix of m k rows instead of m
        matrices of k rows.
        """
        ...


def are_choices(space: Box) -> bool:
    """Whether actions are choices, numbered from `low` to `high` in each dimension, rather than real numbers."""
    return np.issubdtype(space.dtype, np.integer)


def accepts(head: type[Head], space: Box) -> bool:
    """Whether the head supports these actions."""
    method: Callable[[Box], bool] = getattr(head, "accepts", lambda space: not are_choices(space))
    return method(space)


def defaults(head: type[Head], space: Box) -> dict[str, Any]:
    """The options of the head that are determined by these actions."""
    method: Callable[[Box], dict[str, Any]] = getattr(head, "defaults", lambda space: {})
    return method(space)


def initial_outputs(head: Head, space: Box) -> NDArray[np.float64]:
    """The initial biases of the policy's last layer."""
    method: Callable[[Box], NDArray[np.float64]] = getattr(
        head, "initial_outputs", lambda space: np.zeros(head.outputs(space))
    )
    return method(space)


def deployed(head: Head) -> list[Op] | None:
    """The head's ops in a policy file; None if it has no `deploy`."""
    method: Callable[[], list[Op] | None] = getattr(head, "deploy", lambda: None)
    return method()


def output_blocks(head: Head, space: Box) -> NDArray[np.intp]:
    """[blocks, k] The indices of the outputs, with one row for each group that is independent of all others.

    The Fisher information of the outputs has zeros between the blocks.
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
