"""Gymnasium's Box2D tasks with continuous actions, simulated by EnvPool."""

from __future__ import annotations

from detent.environments import Environment
from detent.tasks import TASKS, Task, Wanted

REPLAYABLE = {
    "BipedalWalker-v3": True,
    "BipedalWalkerHardcore-v3": True,
    # These draw random numbers in every step, from a generator that cannot be read.
    "LunarLanderContinuous-v2": False,
    "LunarLanderContinuous-v3": False,
}


def _task(task_id: str, replayable: bool) -> Task:
    def make(wanted: Wanted) -> Environment:
        from detent.environments.pool import Pool  # imports EnvPool: two seconds

        return Pool(task_id, wanted.small_seed, wanted.num_envs, wanted.options, wanted.threads)

    return Task(task_id, "box2d", "envpool", make, replayable)


for name, replayable in REPLAYABLE.items():
    TASKS.register(name, _task(name, replayable))
