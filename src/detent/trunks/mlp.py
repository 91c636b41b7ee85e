"""The multi-layer perceptron of the paper."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from detent.errors import BadInput
from detent.networks import ACTIVATIONS, Op, layer_norm, linear
from detent.options import check_options, option
from detent.trunks import register_trunk


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with an activation between them: x_{l+1} = f(x_l W_l + b_l), or f(LN(x_l W_l + b_l))."""

    hidden_sizes: tuple[int, ...] = option((64, 64), "widths of the hidden layers of policy and value function")
    activation: str = option("tanh", f"activation function: {', '.join(ACTIVATIONS)}", choices=tuple(ACTIVATIONS))
    layer_norm: bool = option(False, "normalise each hidden layer before its activation")

    def __post_init__(self) -> None:
        check_options(self)
        if not all(1 <= size <= 8192 for size in self.hidden_sizes):
            raise BadInput(f"--hidden-sizes must be from 1 to 8192, not {','.join(map(str, self.hidden_sizes))}.")

    def program(self, inputs: int, outputs: int) -> list[Op]:
        *hidden, last = itertools.pairwise((inputs, *self.hidden_sizes, outputs))
        program: list[Op] = []
        for before, after in hidden:
            program += [linear(before, after), *[layer_norm(after)] * self.layer_norm, {"op": self.activation}]
        return [*program, linear(*last)]


register_trunk("mlp", MLP)
