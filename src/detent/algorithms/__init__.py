"""On-policy algorithms: how a rollout improves an agent. No algorithm knows which head or task it is given."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

from jaxtyping import Array, Bool, Float

from detent.agent import Agent, Parameters
from detent.distributions import Action, Key
from detent.registry import Registry

Metrics = dict[str, Float[Array, ""]]
"""Scalars to record, by their names after `train/`."""


class Rollout(NamedTuple):
    """t steps of n environments. Observations are normalised; `observation[t + 1]` is the one that step t led to."""

    observation: Float[Array, "t+1 n d"]
    action: Action
    """Native: as the distribution sampled it, before the environment's bounds are applied."""
    log_prob: Float[Array, "t n"]
    reward: Float[Array, "t n"]
    """Normalised."""
    terminated: Bool[Array, "t n"]
    truncated: Bool[Array, "t n"]
    valid: Bool[Array, "t n"]
    """False for a step that only reset its environment; such a step has no weight."""


class State(Protocol):
    """A pytree that contains at least the agent's parameters."""

    @property
    def parameters(self) -> Parameters: ...


class Algorithm(Protocol):
    """A frozen dataclass whose fields are the hyperparameters."""

    @property
    def batch_size(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def scheduled(self) -> bool:
        """Whether `update` depends on `progress`; if so, a run cannot be extended later."""
        ...

    def init(self, agent: Agent, key: Key) -> Any: ...

    def update(
        self, agent: Agent, state: Any, rollout: Rollout, progress: Float[Array, ""], key: Key
    ) -> tuple[Any, Metrics]:
        """One update from one rollout; `progress`, for schedules, is the fraction of training completed so far."""
        ...


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm", __name__)

A = TypeVar("A", bound=type[Algorithm])


def register_algorithm(name: str, algorithm: A) -> A:
    """Make `algorithm` available as `--algo NAME` and `Run(algo=NAME)`."""
    ALGORITHMS.register(name, algorithm)
    return algorithm
