"""A rollout as the flat batch of samples from which every algorithm learns."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from detent.advantages import gae
from detent.algorithms import Rollout
from detent.distributions import Action, Key
from detent.errors import BadInput

T = TypeVar("T")


class Sample(NamedTuple):
    """A batch of b steps, as an algorithm sees them."""

    observation: Float[Array, "b d"]
    action: Action
    log_prob: Float[Array, " b"]
    value: Float[Array, " b"]
    advantage: Float[Array, " b"]
    target: Float[Array, " b"]
    valid: Bool[Array, " b"]


class Discounting(Protocol):
    """The options with which every algorithm estimates advantages."""

    @property
    def gamma(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...
    @property
    def bootstrap_truncated(self) -> bool: ...


def samples(
    options: Discounting,
    rollout: Rollout,
    before: Float[Array, "{len(rollout.reward)}+1 n"],
    now: Float[Array, "{len(rollout.reward)}+1 n"],
) -> Sample:
    """The rollout as a flat batch. `before` are the critic's values before this update, `now` its current ones."""
    terminated = rollout.terminated if options.bootstrap_truncated else rollout.terminated | rollout.truncated
    advantage, target = gae(rollout.reward, now, terminated, rollout.truncated, options.gamma, options.gae_lambda)
    steps = Sample(
        rollout.observation[:-1], rollout.action, rollout.log_prob, before[:-1], advantage, target, rollout.valid
    )
    flat: Sample = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
    return flat


def weights(valid: Bool[Array, " b"]) -> Float[Array, " b"]:
    """Equal weights for valid samples and 0 for the others: `weights(valid) @ x` is the mean of x."""
    return valid / jnp.maximum(valid.sum(dtype=jnp.float32), 1.0)


def standardized(batch: Sample) -> Float[Array, " b"]:
    """The advantages with mean 0 and standard deviation 1."""
    weight = weights(batch.valid)
    centred = batch.advantage - weight @ batch.advantage
    return centred / (jnp.sqrt(weight @ centred**2) + 1e-8)


def minibatches(key: Key, batch: T, size: int) -> T:
    """The batch in random order, cut into minibatches: arrays [b, ...] become [b / size, size, ...]."""
    order = jax.random.permutation(key, jax.tree.leaves(batch)[0].shape[0])
    cut: T = jax.tree.map(lambda x: x[order].reshape(-1, size, *x.shape[1:]), batch)
    return cut


def spread_out(size: int, number: int) -> NDArray[np.intp]:
    """Indices of `number` samples of a batch of `size`, or of all if it has fewer; the same ones in every update.

    They are drawn at random, because every kth sample would come from the same few environments.
    """
    return np.sort(np.random.default_rng(0).permutation(size)[:number])


def check_minibatches(batch_size: int, minibatch_size: int) -> None:
    """Raise `BadInput` if the minibatches do not divide the batch."""
    if batch_size % minibatch_size:
        raise BadInput(
            f"--batch-size {batch_size} is not a multiple of --minibatch-size {minibatch_size}; "
            f"{minibatch_size * max(1, round(batch_size / minibatch_size))} would be."
        )


def explained_variance(batch: Sample) -> Float[Array, ""]:
    """1 - Var[target - value] / Var[target] over valid steps: 1 for a perfect critic, 0 for a constant one."""
    weight = weights(batch.valid)

    def variance(x: Float[Array, " b"]) -> Float[Array, ""]:
        return jnp.sum(weight * (x - jnp.sum(weight * x)) ** 2)

    return 1.0 - variance(batch.target - batch.value) / jnp.maximum(variance(batch.target), 1e-12)
