"""Updates of any algorithm on a small random rollout, and how to compare them."""

from __future__ import annotations

import functools

import jax
import numpy as np
from gymnasium.spaces import Box

from detent.agent import Agent
from detent.algorithms import ALGORITHMS, Rollout
from detent.critics.squared import Squared
from detent.heads import HEADS, accepts
from detent.options import options_of
from detent.trunks.mlp import MLP

BOX_HEADS = [name for name in HEADS.names() if accepts(HEADS.get(name), Box(-1.0, 1.0, (1,), np.float32))]
"""The heads of real actions; tests/test_choices.py is about the other one."""


SQUARED = Squared()


def make_agent(head, observation_size=3, dims=2, hidden_sizes=(8,), trunk=None, critic=SQUARED):
    space = Box(-1.0, 1.0, (dims,), np.float32)
    return Agent(head, trunk or MLP(hidden_sizes), critic, space, observation_size)


def random_rollout(agent, parameters, steps=16, envs=2, seed=0):
    """Random steps with terminated, truncated and invalid ones, of a policy that has since moved a little."""
    rng = np.random.default_rng(seed)
    terminated, truncated, valid = np.zeros((3, steps, envs), bool)
    for n in range(envs):
        resets = n == 1
        for t in range(steps):
            valid[t, n] = not resets
            if valid[t, n] and rng.random() < 0.3:
                (terminated if rng.random() < 0.5 else truncated)[t, n] = True
            resets = terminated[t, n] or truncated[t, n]
    observation = rng.normal(size=(steps + 1, envs, agent.observation_size)).astype(np.float32)
    policy = agent.policy(parameters, observation[:-1])
    action = np.asarray(policy.sample(jax.random.key(seed)))
    log_prob = np.asarray(policy.log_prob(action)) + 0.4 * rng.normal(size=(steps, envs)).astype(np.float32)
    reward = 2.0 * rng.normal(size=(steps, envs)).astype(np.float32)
    assert terminated.sum() > 1
    assert truncated.sum() > 1
    return Rollout(observation, action, log_prob, reward, terminated, truncated, valid)


# Nearly all the time here is spent compiling.
@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), compiler_options={"xla_backend_optimization_level": 0})
def compiled_update(algorithm, head, trunk, critic, *args):
    return algorithm.update(make_agent(head, trunk=trunk, critic=critic), *args)


def update(algorithm, agent, rollout, progress=0.5, seed=1, times=1):
    """From the initial parameters, which depend on nothing but the agent; the last state and its metrics."""
    state = algorithm.init(agent, jax.random.key(2))
    for number in range(times):
        args = state, rollout, np.float32(progress), jax.random.key(seed + number)
        state, metrics = compiled_update(algorithm, agent.head, agent.trunk, agent.critic, *args)
    return state, metrics


SMALL = {"batch_size": 32, "minibatch_size": 8, "epochs": 2}


def small(name, **changes):
    """The algorithm of this name, for a rollout of 32 steps."""
    algorithm = ALGORITHMS.get(name)
    known = {field.name for field in options_of(algorithm)}
    return algorithm(**{k: v for k, v in SMALL.items() if k in known} | changes)


def distance(some, others):
    """The largest difference between two trees of parameters."""
    pairs = zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True)
    return max(np.abs(np.asarray(x) - np.asarray(y)).max() for x, y in pairs)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
