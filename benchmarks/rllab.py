"""rllab's tasks against the bare physics: how much of its speed is left with observations, rewards and resets.

    python benchmarks/rllab.py [--seconds 10] [--envs 64]

Three contestants take turns in slices of steps, from the same states and with the same actions:

    detent   steps of the task, everything included
    calls    mj_step, mj_forward and mj_rnePostConstraint for each simulation, called from one Python thread per core
    batch    mujoco.batch's step and forward of the model without sensors (so without mj_rnePostConstraint)

The results are medians over slices: steps per second, and detent's ratio to each of the others, by the clock and by
processor time. On a busy machine only the latter means much; it does not show that observations and rewards are
computed by one thread while the others wait. Prints a table and writes benchmarks/rllab.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch

from detent.environments import Wanted
from detent.tasks.rllab import ASSETS, ROBOTS, Rllab, Robot

SLICE = 4
"""Steps of all environments in one slice."""
THREADS = len(os.sched_getaffinity(0))


def bare_model(robot: Robot) -> Any:
    spec = mujoco.MjSpec.from_file(str(ASSETS / robot.file))
    for sensor in list(spec.sensors):
        spec.delete(sensor)
    return spec.compile()


def speeds_of(what: Callable[[], None], steps: int) -> tuple[float, float]:
    """Steps per second and per second of processor time."""
    began, spent = time.perf_counter(), time.process_time()
    what()
    return steps / (time.perf_counter() - began), steps / (time.process_time() - spent)


def measured(name: str, envs: int, seconds: float) -> dict[str, Any]:
    robot, model = ROBOTS[name], bare_model(ROBOTS[name])
    env = Rllab(name, Wanted(seed=0, num_envs=envs, threads=THREADS))
    env.reset()
    datas = [mujoco.MjData(model) for _ in range(envs)]
    batch = Batch(model, envs, THREADS)
    states, forward = batch.state, int(mujoco.mjtStage.mjSTAGE_ACC)
    whole_state = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    rng = np.random.default_rng(0)

    def called(mine: list[Any]) -> None:
        for _ in range(SLICE):
            for data in mine:
                mujoco.mj_step(model, data, robot.frame_skip)
                mujoco.mj_forward(model, data)
                mujoco.mj_rnePostConstraint(model, data)

    def calls() -> None:
        list(pool.map(called, [datas[k::THREADS] for k in range(THREADS)]))

    def batched() -> None:
        for _ in range(SLICE):
            batch.step(nstep=robot.frame_skip, stage=forward)

    def detent() -> None:
        for _ in range(SLICE):
            env.step(None, action)

    contestants = {"detent": detent, "calls": calls, "batch": batched}
    speeds: dict[str, list[tuple[float, float]]] = {who: [] for who in contestants}
    with ThreadPoolExecutor(THREADS) as pool:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(speeds["detent"]) < 4:
            action = rng.uniform(env.space.low, env.space.high, (envs, *env.space.shape)).astype(np.float32)
            for i, data in enumerate(datas):
                start = env._simulations.data(i)
                start.ctrl[:] = action[i]
                mujoco.mj_getState(model, start, states[i], whole_state)
                mujoco.mj_setState(model, data, states[i], whole_state)
            # Another one goes first each time, so that what is left in the caches favours none of them.
            order = list(contestants)
            turn = len(speeds["detent"]) % len(order)
            for who in order[turn:] + order[:turn]:
                speeds[who].append(speeds_of(contestants[who], SLICE * envs))
    table = np.array([speeds[who][1:] for who in contestants])  # the first slice warms up
    clock, processor = np.median(table[:1] / table[1:], axis=1).T
    return {
        "steps_per_second": dict(zip(contestants, np.median(table[..., 0], axis=1).round().tolist(), strict=True)),
        "ratio_to": dict(zip(("calls", "batch"), clock.round(3).tolist(), strict=True)),
        "processor_ratio_to": dict(zip(("calls", "batch"), processor.round(3).tolist(), strict=True)),
        "slices": table.shape[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task")
    parser.add_argument("--envs", type=int, default=64)
    given = parser.parse_args()
    results = {name: measured(name, given.envs, given.seconds) for name in ROBOTS}
    print(f"{'':22}{'steps per second':^27}{'detent /':^18}{'by processor':^18}")
    print(f"{'task':22}{'detent':>9}{'calls':>9}{'batch':>9}" + 2 * f"{'calls':>9}{'batch':>9}")
    for name, found in results.items():
        ratios = [*found["ratio_to"].values(), *found["processor_ratio_to"].values()]
        speeds = "".join(f"{speed:9,.0f}" for speed in found["steps_per_second"].values())
        print(f"{name:22}{speeds}" + "".join(f"{ratio:9.2f}" for ratio in ratios))
    found = {"mujoco": mujoco.__version__, "threads": THREADS, "envs": given.envs, "tasks": results}
    (Path(__file__).parent / "rllab.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
