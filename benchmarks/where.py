"""Where the time of an iteration goes: milliseconds spent on collecting and on updating.

    python benchmarks/where.py [--tasks HalfCheetah-v5,Humanoid-v5] [--repeats 10]

One iteration: 2,048 steps of 64 environments, then 10 epochs of minibatches of 64 (ordinal head, K = 11, 64-64
networks). The numbers are medians. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("NPROC", "1")  # as `detent train` does

import jax
import numpy as np

from detent.rollout import COMPILER_OPTIONS, Edge, begin, make_collect
from detent.runs.run import Run
from detent.runs.training import make_agent, make_environment


def milliseconds(what: Callable[[], Any], repeats: int) -> float:
    """The median, after two calls that compile and warm up."""
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        jax.block_until_ready(what())  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
    return 1000.0 * median(times[2:])


def iteration(task: str, repeats: int, head: str = "ordinal", **options: Any) -> tuple[float, float]:
    """Milliseconds of collecting and of updating."""
    run = Run(task, head, target_kl=0.0, **options)
    env = make_environment(run, 0, run.settings.envs)
    agent = make_agent(run, env)
    edge = Edge("scale", True, True, 10.0, run.algorithm.gamma)
    collect = make_collect(agent, edge, env, run.algorithm.batch_size // run.settings.envs)
    key = jax.random.key(0)
    state = run.algorithm.init(agent, key)
    env_state, observation = env.reset()
    last = [begin(observation), env_state]

    def collected() -> Any:
        last[0], last[1], rollout, _ = collect(state.parameters, last[0], last[1], key)
        return rollout

    collecting = milliseconds(collected, repeats)
    rollout = collected()

    def update(state: Any, rollout: Any) -> Any:
        return run.algorithm.update(agent, state, rollout, np.float32(0), key)

    compiled = jax.jit(update, compiler_options=COMPILER_OPTIONS)
    updating = milliseconds(lambda: compiled(state, rollout), repeats)
    env.close()
    return collecting, updating


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="HalfCheetah-v5,Humanoid-v5")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    print("| task | collect | update | update with the Gaussian head |\n|---|---|---|---|")
    for task in options.tasks.split(","):
        collecting, updating = iteration(task, options.repeats)
        _, gaussian = iteration(task, options.repeats, head="gaussian")
        print(f"| {task} | {collecting:.0f} ms | {updating:.0f} ms | {gaussian:.0f} ms |")


if __name__ == "__main__":
    main()
