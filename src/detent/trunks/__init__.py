"""Trunks: the networks of policy and value function, from observations to the inputs of head and critic.

There is one file per trunk. To add one, add a file here or call `detent.register_trunk` in your own module.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from detent.networks import Op
from detent.registry import Registry


class Trunk(Protocol):
    """A frozen dataclass whose fields are its options. A trunk is a short program of the ops in `detent.networks`."""

    def program(self, inputs: int, outputs: int) -> list[Op]:
        """The ops of a network from `inputs` numbers to `outputs`; the last op is a linear output layer."""
        ...


TRUNKS: Registry[type[Trunk]] = Registry("trunk", __name__)

T = TypeVar("T", bound=type[Trunk])


def register_trunk(name: str, trunk: T) -> T:
    """Make `trunk` available as `--trunk NAME` and `Run(trunk=NAME)`."""
    TRUNKS.register(name, trunk)
    return trunk
