"""Evaluation: whole episodes of a policy, each counted once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from detent.environments import Environment, Step
from detent.errors import BadInput

MOST_ENVS = 16
MOST_STEPS = 100_000
"""Maximum length of an episode, for tasks without a time limit."""

Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, in the order in which they ended; success if the task reports it."""

    returns: list[float]
    lengths: list[int]
    successes: list[float]

    def summary(self) -> dict[str, float]:
        """Mean and standard deviation (over episodes, not of the mean)."""
        reported = [s for s in self.successes if not np.isnan(s)]
        return {
            "episodes": len(self.returns),
            "mean_reward": float(np.mean(self.returns)),
            "std_reward": float(np.std(self.returns)),
            "mean_ep_length": float(np.mean(self.lengths)),
        } | ({"success_rate": float(np.mean(reported))} if reported else {})


def evaluate(act: Act, make: Callable[[int], Environment], episodes: int) -> Evaluation:
    """Play `episodes` episodes in environments made for the purpose.

    The number of episodes of each environment is fixed in advance: using the first to end would favour short ones.
    """
    env = make(min(episodes, MOST_ENVS))
    try:
        return _play(act, env, episodes)
    finally:
        env.close()


def checked(act: Callable[[Any], Any], observation: Any) -> Any:
    """A policy's action, if it is one: numbers so large that sums overflow give none."""
    try:
        action = act(observation)
    except ValueError as error:  # of a distribution without parameters
        raise BadInput(f"The policy cannot choose an action ({error}); it is damaged or did not learn.") from error
    if not np.isfinite(action).all():
        raise BadInput("The policy chose an action that is not finite; it is damaged or did not learn.")
    return action


def _play(act: Act, env: Environment, episodes: int) -> Evaluation:
    left = np.array([len(range(i, episodes, env.num_envs)) for i in range(env.num_envs)])
    totals, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    result = Evaluation([], [], [])
    state, observation = env.reset()
    step_env = jax.jit(env.step) if env.traceable else env.step
    while left.any():
        action = act(np.asarray(observation)).reshape(env.num_envs, -1)
        if not np.isfinite(action).all():
            raise BadInput(
                "The policy gave an action that is not finite; it is damaged, or was never trained for this."
            )
        with jax.enable_x64(env.x64):
            state, taken = step_env(state, jnp.asarray(action))
        step: Step = jax.device_get(taken)
        observation = step.observation
        counted = step.valid & (left > 0)
        totals += np.where(counted, step.reward, 0.0)
        lengths += counted
        if lengths.max() > MOST_STEPS:
            raise BadInput(
                f"An episode took more than {MOST_STEPS} steps; wrap the environment in "
                "gymnasium.wrappers.TimeLimit to evaluate it."
            )
        for i in np.flatnonzero(counted & (step.terminated | step.truncated)).tolist():
            _finish(result, totals, lengths, step.success, i)
            left[i] -= 1
    return result


def _finish(result: Evaluation, totals: Any, lengths: Any, success: Any, i: int) -> None:
    result.returns.append(float(totals[i]))
    result.lengths.append(int(lengths[i]))
    result.successes.append(float(success[i]))
    totals[i], lengths[i] = 0.0, 0
