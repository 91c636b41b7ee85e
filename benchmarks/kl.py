"""PPO's limit on the KL: what looking at it costs, and at which true KL it stops heads that learn from noise.

    python benchmarks/kl.py

On the shapes of HalfCheetah (17 observations, 6 action dimensions) and Humanoid (348 and 17), 2,048 steps of 64
environments, 64-64 networks. The cost is CPU time, a share of that of an update of ten epochs. The noise is rewards
that nothing explains; the limit is `modern`'s, 0.2 divided by the number of action dimensions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("NPROC", "1")  # as `detent train` does

import jax
import numpy as np
from gymnasium.spaces import Box

from detent.agent import Agent
from detent.algorithms import Rollout
from detent.algorithms.ppo import PPO, kl_from_old
from detent.algorithms.samples import samples
from detent.critics.squared import Squared
from detent.heads import HEADS
from detent.rollout import COMPILER_OPTIONS
from detent.trunks.mlp import MLP

SHAPES = {"HalfCheetah": (17, 6), "Humanoid": (348, 17)}
MANY = 1000


def noise(agent: Agent, parameters: Any, seed: int) -> Rollout:
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(33, 64, agent.observation_size)).astype(np.float32)
    policy = agent.policy(parameters, observation[:-1])
    action = policy.sample(jax.random.key(seed))
    never = np.zeros((32, 64), bool)
    reward = rng.normal(size=(32, 64)).astype(np.float32)
    return Rollout(observation, action, policy.log_prob(action), reward, never, never, ~never)


def compiled(what: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(what, compiler_options=COMPILER_OPTIONS).lower(*args).compile()


def cpu_seconds(what: Callable[..., Any], *args: Any) -> float:
    times = []
    for _ in range(10):
        began = time.process_time()
        jax.block_until_ready(what(*args))
        times.append(time.process_time() - began)
    return median(times)


def share(agent: Agent) -> float:
    """Of the KL after each of ten epochs in an update without it."""
    ppo = PPO(target_kl=0.0)
    state = ppo.init(agent, jax.random.key(0))
    rollout = noise(agent, state.parameters, 0)
    value = agent.value(state.parameters, rollout.observation)
    batch = samples(ppo, rollout, value, value)

    def kls(parameters: Any) -> Any:
        kl_of = kl_from_old(agent, parameters, batch)
        # Each is of other parameters, so that none can be left out.
        one_more = lambda _, total: total + kl_of(jax.tree.map(lambda x: x + 1e-9 * total, parameters))
        return jax.lax.fori_loop(0, MANY, one_more, np.float32(0.0))

    args = state, rollout, np.float32(0.0), jax.random.key(1)
    update = compiled(lambda *args: ppo.update(agent, *args), *args)
    of_kl = cpu_seconds(compiled(kls, state.parameters), state.parameters) / MANY
    return ppo.epochs * of_kl / cpu_seconds(update, *args)


def true_kl(agent: Agent, kl_from: str) -> float:
    """Where it stops, on average over three updates."""
    limit = 0.2 / agent.space.shape[0]
    ppo = PPO(target_kl=limit, kl_from=kl_from, gamma=0.0, recompute_advantages=False, epochs=50)
    state = ppo.init(agent, jax.random.key(0))
    update = jax.jit(lambda *args: ppo.update(agent, *args), compiler_options=COMPILER_OPTIONS)
    kls = []
    for seed in range(3):
        rollout = noise(agent, state.parameters, seed)
        old = agent.policy(state.parameters, rollout.observation[:-1])
        state, _ = update(state, rollout, np.float32(0.0), jax.random.key(seed))
        kls.append(float(old.kl(agent.policy(state.parameters, rollout.observation[:-1])).mean()))
    return float(np.mean(kls))


def main() -> None:
    print("shapes of     head       cost of the KL   true KL where it stops, limit from: distributions   samples")
    for task, (size, dims) in SHAPES.items():
        for head in ("gaussian", "discrete", "ordinal"):
            options = {"initial_log_std": -0.5} if head == "gaussian" else {}
            space = Box(-1.0, 1.0, (dims,), np.float32)
            agent = Agent(HEADS.get(head)(**options), MLP(), Squared(), space, size)
            kls = [true_kl(agent, kl_from) for kl_from in ("distributions", "samples")]
            print(f"{task:13s} {head:10s} {share(agent):14.2%} {kls[0]:52.4f} {kls[1]:9.4f}")


if __name__ == "__main__":
    main()
