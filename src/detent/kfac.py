"""K-FAC: natural gradients with Kronecker-factored curvature (Martens & Grosse 2015, arXiv:1503.05671).

A layer is one matrix W of shape [i, o] whose last row is the bias, so it computes a W with a = (x, 1). Parameters that
no input is multiplied with, such as the scale and shift of a layer norm, are a layer with a = (1). If s is the
gradient of the log-probability of a sample with respect to the layer's outputs, the Fisher information of W is
E[(a a^T) x (s s^T)] (x: Kronecker product). K-FAC approximates it by A x S, A = E[a a^T], S = E[s s^T], which is exact
if inputs and scores are independent. The natural gradient is then a product of small matrices, A^-1 V S^-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from detent.networks import Layer, Op, tapped_network
from detent.solvers import inverse

Matrix = Float[Array, "_ _"]
"""[i, o] The matrix of a layer; layers may differ in size."""
Scalar = Float[Array, ""]
Blocks = NDArray[np.intp]
"""[g, k] Groups of a layer's outputs; between groups the curvature S is 0."""


class Curvature(NamedTuple):
    """Both factors of one layer, or their inverses."""

    inputs: Float[Array, "i i"]
    outputs: Float[Array, "g k k"]


class Seen(NamedTuple):
    """The inputs and scores of one layer for a batch."""

    inputs: Float[Array, "b i"]
    scores: Float[Array, "b o"]


class KFACState(NamedTuple):
    curvature: list[Curvature]
    """Running averages."""
    momentum: list[Matrix]
    batches: Float[Array, ""]
    """Number of batches averaged."""


@dataclass(frozen=True)
class KFAC:
    """Natural gradient steps with damping, a trust region and momentum, for a list of layers."""

    blocks: Sequence[Blocks]
    """The blocks of each layer."""
    decay: float
    damping: float
    max_kl: float
    momentum: float

    def init(self, layers: Sequence[Matrix]) -> KFACState:
        def nothing(layer: Matrix, blocks: Blocks) -> Curvature:
            inputs, (groups, outputs) = layer.shape[0], blocks.shape
            return Curvature(
                jnp.zeros((inputs, inputs), jnp.float32), jnp.zeros((groups, outputs, outputs), jnp.float32)
            )

        curvature = [nothing(layer, blocks) for layer, blocks in zip(layers, self.blocks, strict=True)]
        return KFACState(curvature, [jnp.zeros_like(layer) for layer in layers], jnp.float32(0.0))

    def observe(self, state: KFACState, layers: Sequence[Seen], weight: Float[Array, " b"]) -> KFACState:
        """Add the curvature of a batch to the averages: a plain mean at first, until `decay` gives it more weight."""
        taken = (weight.sum() > 0).astype(jnp.float32)  # a batch without valid samples changes nothing
        share = taken * jnp.maximum(1.0 / (state.batches + 1.0), 1.0 - self.decay)
        fresh = [factors(seen, weight, blocks) for seen, blocks in zip(layers, self.blocks, strict=True)]
        curvature = jax.tree.map(lambda old, new: old + share * (new - old), state.curvature, fresh)
        return KFACState(curvature, state.momentum, state.batches + taken)

    def inverses(self, state: KFACState) -> list[Curvature]:
        return [damped_inverse(factor, self.damping) for factor in state.curvature]

    def step(
        self,
        momentum: Sequence[Matrix],
        inverses: Sequence[Curvature],
        gradient: Sequence[Matrix],
        learning_rate: float | Scalar,
    ) -> list[Matrix]:
        """The steps to add to the layers to increase the objective with this gradient; also the next step's momentum.

        The step is eta u with u = F^-1 g; the trust region limits its length: eta = min(learning_rate,
        sqrt(2 max_kl / u^T F u)), u^T F u = u^T g (Wu et al. 2017, Section 3.2). Momentum is a running mean of such
        steps; a mean of steps inside the trust region is inside it too.
        """
        each = zip(inverses, gradient, self.blocks, strict=True)
        natural = [natural_gradient(inverted, g, blocks) for inverted, g, blocks in each]
        squared = sum(jnp.vdot(u, g) for u, g in zip(natural, gradient, strict=True))
        eta = jnp.minimum(learning_rate, jnp.sqrt(2.0 * self.max_kl / jnp.maximum(squared, 1e-30)))
        fresh = (1.0 - self.momentum) * eta
        return [self.momentum * m + fresh * u for m, u in zip(momentum, natural, strict=True)]


def factors(seen: Seen, weight: Float[Array, " b"], blocks: Blocks) -> Curvature:
    """A = E[a a^T] and, for each block j, S_j = E[s_j s_j^T]."""
    grouped = seen.scores[:, blocks]
    return Curvature(
        (seen.inputs * weight[:, None]).T @ seen.inputs,
        jnp.einsum("bgk,bgl->gkl", grouped * weight[:, None, None], grouped),
    )


def damped_inverse(factor: Curvature, damping: float) -> Curvature:
    """(A + pi sqrt(damping) I)^-1 and (S + sqrt(damping) / pi I)^-1, pi^2 = mean eigenvalue of A over that of S.

    Their product is close to (A x S + damping I)^-1 (Section 6.3). Both exist, however degenerate the batch is.
    """
    mean_a, mean_s = (jnp.maximum(jnp.trace(m, axis1=-2, axis2=-1).mean() / m.shape[-1], 1e-12) for m in factor)
    pi = jnp.sqrt(mean_a / mean_s)

    def shifted(m: Float[Array, "*g n n"], shift: Scalar) -> Float[Array, "*g n n"]:
        # Anything below a millionth of the largest eigenvalue would be lost in float32.
        least = 1e-6 * jnp.trace(m, axis1=-2, axis2=-1).max()
        return m + jnp.maximum(shift, least) * jnp.eye(m.shape[-1], dtype=m.dtype)

    root = damping**0.5
    return Curvature(inverse(shifted(factor.inputs, pi * root)), inverse(shifted(factor.outputs, root / pi)))


def natural_gradient(inverted: Curvature, gradient: Float[Array, "i o"], blocks: Blocks) -> Float[Array, "i o"]:
    """A^-1 V S^-1, with the columns of V grouped in blocks."""
    grouped = jnp.einsum("igk,gkl->igl", (inverted.inputs @ gradient)[:, blocks], inverted.outputs)
    return grouped.reshape(gradient.shape)[:, np.argsort(blocks.ravel())]


def share_within(kl_of: Callable[[Scalar], Scalar], whole_kl: Scalar, max_kl: float) -> tuple[Scalar, Scalar]:
    """The first fraction 1, 1/2, 1/4, ... of a step (or 0, after ten) whose true KL is at most `max_kl`, and that KL.

    K-FAC treats layers as independent. If n layers all change the outputs in the same direction, the KL is up to n^2
    times the predicted one.
    """

    def too_far(carry: tuple[Scalar, Scalar]) -> Bool[Array, ""]:
        share, kl = carry
        return ~(kl <= max_kl) & (share > 0.0)

    def halved(carry: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        share = jnp.where(carry[0] > 0.5**10, 0.5 * carry[0], 0.0)
        return share, kl_of(share)

    found: tuple[Scalar, Scalar] = jax.lax.while_loop(too_far, halved, (jnp.ones_like(whole_kl), whole_kl))
    return found


def one_block(outputs: int) -> Blocks:
    return np.arange(outputs)[None]


def as_matrices(layers: Sequence[Layer]) -> tuple[list[Matrix], Callable[[Sequence[Matrix]], list[Layer]]]:
    """Each op's parameters as one matrix, and the inverse function.

    [w; b] of a linear op, a row for each input and one for the bias; (scale, shift) of a layer norm, one row.
    """
    norms = ["scale" in layer for layer in layers]

    def matrix(layer: Layer, norm: bool) -> Matrix:
        if norm:
            return jnp.concatenate([layer["scale"], layer["shift"]])[None]
        return jnp.concatenate([layer["w"], layer["b"][None]])

    def layer(matrix: Matrix, norm: bool) -> Layer:
        if norm:
            scale, shift = jnp.split(matrix[0], 2)
            return {"scale": scale, "shift": shift}
        return {"w": matrix[:-1], "b": matrix[-1]}

    return (
        [matrix(one, norm) for one, norm in zip(layers, norms, strict=True)],
        lambda matrices: [layer(one, norm) for one, norm in zip(matrices, norms, strict=True)],
    )


def inputs_and_scores(
    program: Sequence[Op],
    layers: Sequence[Layer],
    x: Float[Array, "b d"],
    log_prob: Callable[[Float[Array, "b o"], Any], Scalar],
    extra: Any = (),
) -> tuple[list[Seen], Any]:
    """Inputs a and scores s of every layer; `log_prob` maps outputs to the sum of the samples' log-probabilities.

    `extra` is whatever else `log_prob` depends on; the second result is the gradient with respect to it.
    """

    def tapped(taps: list[Float[Array, "b _"]], extra: Any) -> tuple[Scalar, list[Float[Array, "b _"]]]:
        out, inputs = tapped_network(program, layers, x, taps)
        return log_prob(out, extra), inputs

    taps = [jnp.zeros((*x.shape[:-1], matrix.shape[1]), x.dtype) for matrix in as_matrices(layers)[0]]
    (scores, of_extra), inputs = jax.grad(tapped, argnums=(0, 1), has_aux=True)(taps, extra)
    ones = jnp.ones((*x.shape[:-1], 1), x.dtype)
    return [Seen(jnp.concatenate([a, ones], -1), s) for a, s in zip(inputs, scores, strict=True)], of_extra
