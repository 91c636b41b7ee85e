"""Policies that nobody had to train."""

from __future__ import annotations

import jax
import numpy as np

from detent.agent import Agent
from detent.policy import Policy
from detent.snapshot import flatten


def random_policy(head, space, size, hidden_sizes=(16, 8), **meta):
    """Wide-awake random weights: actions all over the bounds."""
    parameters = Agent(head, space, size, hidden_sizes, policy_gain=3.0).init(jax.random.key(1))
    rng = np.random.default_rng(0)
    tensors = {
        **flatten("policy", parameters["policy"]),
        **flatten("head", parameters["head"]),
        "observation/mean": rng.normal(size=size).astype(np.float32),
        "observation/var": rng.uniform(0.5, 2, size).astype(np.float32),
        "space/low": space.low,
        "space/high": space.high,
    }
    usual = {"actions": "scale", "normalize_observations": True, "clip": 10.0, "steps": 0}
    return Policy(tensors, {"ops": head.deploy(), **usual, **meta})
