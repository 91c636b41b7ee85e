"""Critics: how the value network's outputs become a value, and how they learn from returns.

There is one file per critic. To add one, add a file here or call `detent.register_critic` in your own module. Every
algorithm takes its values and losses from these methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from jaxtyping import Array, Bool, Float

from detent.distributions import Key
from detent.registry import Registry

State = Mapping[str, Float[Array, ""]]
"""What a critic stores besides the network's parameters, such as the range of the returns; no gradient changes it."""


class Critic(Protocol):
    """A frozen dataclass whose fields are its options. `out` is the output of the value network for a batch."""

    @property
    def outputs(self) -> int:
        """Width of the value network's last layer."""
        ...

    def state(self) -> State:
        """The initial state; `{}` if the critic has none."""
        ...

    def adapted(self, state: State, target: Float[Array, " b"], valid: Bool[Array, " b"]) -> State:
        """The state adapted to the returns that the critic is about to learn; called once per update."""
        ...

    def value(self, out: Float[Array, "*b o"], state: State) -> Float[Array, "*b"]:
        """The value that the outputs represent."""
        ...

    def loss(self, out: Float[Array, "*b o"], state: State, target: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """The loss of each sample, given its return `target`."""
        ...

    def clipped_loss(
        self,
        out: Float[Array, "*b o"],
        state: State,
        target: Float[Array, "*b"],
        before: Float[Array, "*b"],
        radius: float,
    ) -> Float[Array, "*b"]:
        """`loss`, but with no gain from moving a value further than `radius` away from its value `before`."""
        ...

    def sampled_log_prob(self, out: Float[Array, "b o"], key: Key) -> Float[Array, " b"]:
        """The log-probability of returns sampled from the model whose log-likelihood is -`loss`.

        Its gradients with respect to the outputs are the scores from which K-FAC estimates the Fisher information.
        """
        ...


CRITICS: Registry[type[Critic]] = Registry("critic", __name__)

C = TypeVar("C", bound=type[Critic])


def register_critic(name: str, critic: C) -> C:
    """Make `critic` available as `--critic NAME` and `Run(critic=NAME)`."""
    CRITICS.register(name, critic)
    return critic
