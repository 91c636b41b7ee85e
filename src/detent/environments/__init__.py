"""Environments: n copies of one task, stepped together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

if TYPE_CHECKING:  # worker processes import this package, and need no JAX
    from jaxtyping import Array, Bool, Float

    from detent.observations import Layout

ActionSpace: TypeAlias = "Box[Any]"
"""A Box of float32 for real actions; of int64 for choices, numbered from `low` to `high` in each dimension."""

EnvState = Any
"""A pytree that is passed from step to step; only the environment knows its contents."""


@dataclass(frozen=True)
class Wanted:
    """The environments to make of a task, and how to run them. Only `seed`, `num_envs` and `options` change results."""

    seed: int
    num_envs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task."""
    workers: int = 0
    """Worker processes for a Gymnasium environment; 0 to step it in this process."""
    threads: int | None = None
    timeout: float = 60.0
    """Seconds before an environment in a worker process counts as hung."""
    bounded: bool = True
    """Whether the bounds of the actions must be finite."""
    restarts: int = 0
    """How many times a failed environment may be replaced by a new one."""
    traced: bool = True
    """Whether steps become part of an XLA program, where the task's can. JAX and XLA keep some of every such program
    for ever, which adds up where environments are made again and again."""


class Step(NamedTuple):
    """The result of one step of n environments: JAX arrays if they are traceable, otherwise NumPy arrays."""

    observation: Float[Array, "n d"]
    """The observation that the step led to; after the last step of an episode, the true final one."""
    reward: Float[Array, " n"]
    terminated: Bool[Array, " n"]
    truncated: Bool[Array, " n"]
    valid: Bool[Array, " n"]
    """False where the previous step ended an episode: this one ignored its action and only reset."""
    success: Float[Array, " n"]
    """1 or 0 if the environment reports `is_success`, otherwise NaN."""


class Replay(NamedTuple):
    """All that is needed to restore n environments of a deterministic task."""

    resets: NDArray[np.int64]
    """[n] How many times each environment has been reset, including the first time."""
    actions: list[NDArray[np.float32]]
    """For each environment, the actions [length, m] of its current episode."""


class Environment(Protocol):
    """n environments made from one seed. The end of an episode is followed by one step that resets (`Step.valid`)."""

    observation_layout: Layout
    """The layout of an observation as users see it. The methods below return observations flattened to vectors [d]."""
    space: ActionSpace
    """The actions of one environment: one axis, and finite bounds unless actions are passed on raw."""
    action_shape: tuple[int, ...]
    """The shape of one action in the environment itself; `()` for a Discrete space."""
    num_envs: int
    traceable: bool
    """Whether `step` can be used inside `jax.jit` and `jax.lax.scan`."""
    x64: bool
    """Whether `step` must be traced under `jax.enable_x64`; what it returns is float32 either way."""
    saved: bool
    """Whether the state is a pytree of arrays that checkpoints contain; if not, `replay` restores it."""

    def reset(self) -> tuple[EnvState, Float[Array | NDArray[Any], "n d"]]:
        """Start the first episode of every environment."""
        ...

    def step(self, state: EnvState, action: Float[Array, "n m"]) -> tuple[EnvState, Step]: ...

    def replay(self, replay: Replay) -> tuple[EnvState, Float[Array | NDArray[Any], "n d"]]:
        """Bring newly made environments to the state that others had, and return the observations there.

        Never called where the state is `saved`.
        """
        ...

    def close(self) -> None: ...
