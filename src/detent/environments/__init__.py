"""What a policy can be run in: n copies of one task, stepped together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

if TYPE_CHECKING:  # worker processes import this package, and need no JAX
    from jaxtyping import Array, Bool, Float

ActionSpace: TypeAlias = "Box[Any]"
"""Of float32 with real actions; of int64 where actions are choices, from the first to the last of each dimension."""

EnvState = Any
"""A pytree that is handed from step to step; what it holds is the environment's own business."""


class Step(NamedTuple):
    """What one step of n environments gives."""

    observation: Float[Array, "n d"]
    """The observation the step led to; after the last step of an episode, the true final one."""
    reward: Float[Array, " n"]
    terminated: Bool[Array, " n"]
    truncated: Bool[Array, " n"]
    valid: Bool[Array, " n"]
    """False where the previous step ended an episode: this one ignored its action and only reset."""
    success: Float[Array, " n"]
    """1 or 0 where the environment reports `is_success`, else NaN."""


class Replay(NamedTuple):
    """What brings n environments back to where they were: deterministic tasks need no more."""

    resets: NDArray[np.int64]
    """[n] How often each environment has been reset, the first time included."""
    actions: list[NDArray[np.float32]]
    """For each environment, the actions [length, m] of its current episode."""


class Environment(Protocol):
    """n environments made for one seed. An episode's end is followed by one step that resets (`Step.valid`)."""

    observation_size: int
    space: ActionSpace
    """Of one environment's actions: one axis, finite bounds unless actions are passed on raw."""
    action_shape: tuple[int, ...]
    """Of one action as the environment itself has it; `()` for a Discrete space."""
    num_envs: int
    traceable: bool
    """Whether `step` can be used inside `jax.jit` and `jax.lax.scan`."""

    def reset(self) -> tuple[EnvState, Float[Array, "n d"]]:
        """Start the first episode of every environment."""
        ...

    def step(self, state: EnvState, action: Float[Array, "n m"]) -> tuple[EnvState, Step]: ...

    def replay(self, replay: Replay) -> tuple[EnvState, Float[Array, "n d"]]:
        """Bring freshly made environments to where others were; returns the observations found there."""
        ...

    def close(self) -> None: ...
