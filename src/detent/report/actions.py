"""What a trained policy does: the distribution of each action dimension at observations of its last rollout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.ops import Acting, Floats, Op, counts_of, positions
from detent.policy import Policy

OBSERVATIONS = 24
"""Number of observations shown, of those in the policy file."""


@dataclass(frozen=True)
class Bins:
    """Probabilities of positions: bars."""

    positions: tuple[NDArray[Any], ...]
    """For each dimension, in the environment's units."""
    probabilities: tuple[Floats, ...]
    """For each dimension, [observations, positions]."""


@dataclass(frozen=True)
class Normals:
    """Gaussian densities in the environment's units: [observations, dimensions] each."""

    mean: Floats
    std: Floats


@dataclass(frozen=True)
class Betas:
    """Densities c u^a (1 - u)^b on the bounds, u running from 0 to 1 between them: [observations, dimensions] each."""

    a: Floats
    b: Floats
    log_c: Floats


Shown = Bins | Normals | Betas


def action_distributions(policy: Policy, observations: int = OBSERVATIONS) -> Shown | None:
    """The policy's distributions at the first few observations in its file; None if their kind is unknown."""
    if policy.meta["ops"] is None or "observations" not in policy.tensors:
        return None
    with np.errstate(all="ignore"):  # a forged policy may overflow
        op, x = policy.distribution(policy.tensors["observations"][:observations])
        make = _KINDS.get(op["op"])
        return make(x, op, policy) if make else None


def _bins(x: Floats, op: Op, policy: Policy) -> Bins:
    logits = x.reshape(x.shape[0], -1, int(op["bins"]))
    grid = positions(logits.shape[-1])
    everywhere = np.repeat(grid[:, None], logits.shape[1], axis=1)
    places = policy.bounds(everywhere, Acting("mode", None, [])).reshape(len(grid), -1)
    return Bins(tuple(places.T), tuple(np.moveaxis(_softmax(logits), 1, 0)))


def _choices(x: Floats, op: Op, policy: Policy) -> Bins:
    counts = counts_of(op)
    parts = np.split(x, np.cumsum(counts)[:-1], axis=-1)
    low = np.broadcast_to(policy.tensors["space/low"], len(counts))
    return Bins(tuple(first + np.arange(n) for first, n in zip(low, counts, strict=True)), tuple(map(_softmax, parts)))


def _softmax(logits: Floats) -> Floats:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    share: Floats = weight / weight.sum(-1, keepdims=True)
    return share


def _normals(x: Floats, op: Op, policy: Policy) -> Normals:
    """The distributions of the head, before the environment's bounds are applied."""
    std = np.broadcast_to(np.exp(policy.tensors[f"head/{op['log_std']}"]), x.shape)
    if not policy.scaled:
        return Normals(x, std)
    low, high = policy.tensors["space/low"], policy.tensors["space/high"]
    return Normals(low + (x + 1) * (high - low) / 2, std * (high - low) / 2)


def _betas(x: Floats, _: Op, policy: Policy) -> Betas:
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    return Betas(a, b, log_gamma(a + b + 2) - log_gamma(a + 1) - log_gamma(b + 1))


_KINDS: dict[str, Any] = {"categorical": _bins, "choices": _choices, "normal": _normals, "beta": _betas}
