"""SimBa: residual blocks behind layer norms (Lee et al. 2024, arXiv:2410.09754)."""

from __future__ import annotations

from dataclasses import dataclass

from detent.networks import Op, layer_norm, linear
from detent.options import check_options, option
from detent.trunks import register_trunk

EXPANSION = 4


@dataclass(frozen=True)
class SimBa:
    """A linear layer to the width, residual blocks x + W2 relu(W1 LN(x)) with W1 four times as wide, and a last LN.

    Layer norm bounds what a block adds, and x itself passes through unchanged, so the network starts simple and can be
    made deep. The default is the size of that paper's policy.
    """

    trunk_width: int = option(
        128, "width of the residual stream of policy and value function", at_least=1, at_most=8192
    )
    trunk_blocks: int = option(1, "number of residual blocks of policy and value function", at_least=0, at_most=100)

    def __post_init__(self) -> None:
        check_options(self)

    def program(self, inputs: int, outputs: int) -> list[Op]:
        width, wide = self.trunk_width, EXPANSION * self.trunk_width
        block: list[Op] = [
            {"op": "keep"},
            layer_norm(width),
            linear(width, wide),
            {"op": "relu"},
            linear(wide, width),
            {"op": "add"},
        ]
        return [linear(inputs, width), *block * self.trunk_blocks, layer_norm(width), linear(width, outputs)]


register_trunk("simba", SimBa)
