"""How a run's policy acts: by the ops of its file or, if its head has none, through the head's own distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Float
from numpy.typing import NDArray

from detent.agent import Agent
from detent.distributions import Key, key_of
from detent.errors import BadInput
from detent.moments import Moments
from detent.ops import Choose
from detent.policy import Policy
from detent.rollout import Edge, normalized
from detent.runs.pytrees import restore
from detent.runs.run import Run

Act = Callable[[NDArray[Any]], NDArray[Any]]


def make_edge(run: Run) -> Edge:
    settings = run.settings
    return Edge(
        settings.actions,
        settings.normalize_observations,
        settings.normalize_rewards,
        settings.normalization_clip,
        run.algorithm.gamma,
        settings.least_variance,
        settings.returns_across_episodes,
    )


def acting(run: Run, policy: Policy, choose: Choose = "mode", rng: np.random.Generator | None = None) -> Act:
    """Observations [n, d] -> actions, chosen as the most probable ones, the expected ones or at random with `rng`."""
    if policy.meta["ops"] is None:
        return _through_distribution(run, policy, choose, rng or np.random.default_rng(0))
    acts: dict[Choose, Act] = {"mode": policy, "mean": policy.mean, "sample": partial(policy.sample, rng=rng)}
    return acts[choose]


def _through_distribution(run: Run, policy: Policy, choose: Choose, rng: np.random.Generator) -> Act:
    if choose == "mean":
        raise BadInput(
            f"The head {policy.head!r} has no method `deploy`, so its expected action is not known; leave out --mean."
        )
    low, high = policy.tensors["space/low"], policy.tensors["space/high"]
    space = Box(low, high, dtype=low.dtype.type)
    agent, edge = Agent(run.head, run.trunk, run.critic, space, policy.observation_size), make_edge(run)
    like = agent.init(key_of(0))
    parameters = {name: restore(name, like[name], policy.tensors) for name in ("policy", "head")}
    mean, var = (jnp.asarray(policy.tensors[f"observation/{name}"]) for name in ("mean", "var"))
    moments = Moments(mean, var, jnp.float32(1.0))

    @jax.jit
    def decide(observation: Float[Array, "n d"], key: Key) -> Float[Array, "n m"]:
        distribution = agent.policy(parameters, normalized(edge, moments, observation))
        action = distribution.sample(key) if choose == "sample" else distribution.mode()
        # Even where training passed raw actions on, a policy stays within the bounds.
        return jnp.clip(edge.action(agent.head.to_unit(action), space), low, high)

    def act(observation: NDArray[Any]) -> NDArray[Any]:
        vectors = jnp.asarray(np.atleast_2d(observation), jnp.float32)
        actions = np.asarray(decide(vectors, key_of(int(rng.integers(2**62)))))
        return actions.reshape(*np.shape(observation)[:-1], -1)

    return act
