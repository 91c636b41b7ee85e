"""Policies that nobody had to train."""

from __future__ import annotations

import jax
import numpy as np

from detent.agent import Agent
from detent.critics.squared import Squared
from detent.networks import deployed
from detent.policy import Policy, whole_ops
from detent.runs.pytrees import flatten
from detent.trunks.mlp import MLP


def random_policy(head, space, size, trunk=None, *, clip=10.0, scale=True, shape=None, **meta):
    """Wide-awake random weights: actions all over the bounds."""
    agent = Agent(head, trunk or MLP((16, 8)), Squared(), space, size, policy_gain=3.0)
    parameters = agent.init(jax.random.key(1))
    rng = np.random.default_rng(0)
    tensors = {
        **flatten("policy", parameters["policy"]),
        **flatten("head", parameters["head"]),
        "observation/mean": rng.normal(size=size).astype(np.float32),
        "observation/var": rng.uniform(0.5, 2, size).astype(np.float32),
        "space/low": space.low,
        "space/high": space.high,
    }
    shape = space.shape if shape is None else shape
    ops = whole_ops(deployed(agent.policy_program, "policy"), head.deploy(), clip=clip, scale=scale, shape=shape)
    return Policy(tensors, {"ops": ops, "steps": 0, **meta})
