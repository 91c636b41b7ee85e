"""One measurement of a peer, run by `peers.py` with the Python of the peers' own environment; prints one line of JSON.

What is timed is training as the library does it in one call of `learn`: collecting a rollout of 2,048 steps and
updating from it (PPO: 10 epochs of minibatches of 64; TRPO: 15 iterations of conjugate gradient on all samples, 10
epochs of minibatches of 128 for the value function), with `VecNormalize` on observations and rewards and without
evaluation. The first two rollouts and updates, and whatever is imported or compiled for them, are not timed; the clock
runs from the start of one rollout to the start of a later one, at least three whole iterations.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

BATCH, MINIBATCH, EPOCHS, HIDDEN = 2048, 64, 10, [64, 64]
WARM_UP, LEAST = 2, 3


class Stopwatch(BaseCallback):
    """Times whole iterations, and stops training when enough of them are timed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.limit = seconds
        self.timed = -WARM_UP - 1
        self.begin = self.elapsed = 0.0
        self.over = False

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        self.timed += 1
        if self.timed == 0:
            self.begin = now
        elif self.timed >= LEAST and now - self.begin >= self.limit:
            self.elapsed = now - self.begin
            self.over = True

    def _on_step(self) -> bool:
        return not self.over


def algorithm_of(library: str) -> tuple[Any, dict[str, Any]]:
    """The library's algorithm, and how much it computes per batch."""
    if library == "sb3-contrib":
        from sb3_contrib import TRPO

        trust_region = {"cg_max_steps": 15, "cg_damping": 0.1, "target_kl": 0.01, "sub_sampling_factor": 1}
        return TRPO, {"batch_size": 128, "n_critic_updates": 10, **trust_region}
    if library == "sbx":
        from sbx import PPO
    else:
        from stable_baselines3 import PPO
    return PPO, {"batch_size": MINIBATCH, "n_epochs": EPOCHS}


def train(library: str, task: str, seconds: float, envs: int, workers: bool) -> dict[str, Any]:
    """Train for about `seconds` after the warm-up."""
    algorithm, options = algorithm_of(library)
    env = make_vec_env(task, n_envs=envs, seed=0, vec_env_cls=SubprocVecEnv if workers else DummyVecEnv)
    env = VecNormalize(env)
    model = algorithm(
        "MlpPolicy",
        env,
        n_steps=BATCH // envs,
        policy_kwargs={"net_arch": {"pi": HIDDEN, "vf": HIDDEN}},  # tanh is the default of both libraries
        seed=0,
        device="cpu",
        **options,
    )
    stopwatch = Stopwatch(seconds)
    model.learn(10**9, callback=stopwatch)
    env.close()
    return {
        "steps_per_second": stopwatch.timed * BATCH / stopwatch.elapsed,
        "steps": stopwatch.timed * BATCH,
        "seconds": stopwatch.elapsed,
        "iterations": stopwatch.timed,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["sb3", "sbx", "sb3-contrib"])
    parser.add_argument("task")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", action="store_true", help="each environment in a process of its own")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(train(options.library, options.task, options.seconds, options.envs, options.workers)))


if __name__ == "__main__":
    main()
