"""Gymnasium's MuJoCo tasks, simulated by EnvPool."""

from __future__ import annotations

from detent.environments import Environment
from detent.tasks import TASKS, Task, Wanted

VERSIONS = {
    "Ant": (3, 4, 5),
    "HalfCheetah": (3, 4, 5),
    "Hopper": (3, 4, 5),
    "Humanoid": (3, 4, 5),
    "HumanoidStandup": (2, 4, 5),
    "InvertedDoublePendulum": (2, 4, 5),
    "InvertedPendulum": (2, 4, 5),
    "Pusher": (2, 4, 5),
    "Reacher": (2, 4, 5),
    "Swimmer": (3, 4, 5),
    "Walker2d": (3, 4, 5),
}


def _task(task_id: str) -> Task:
    def make(wanted: Wanted) -> Environment:
        from detent.environments.pool import Pool  # imports EnvPool: two seconds

        return Pool(task_id, wanted.small_seed, wanted.num_envs, wanted.options, wanted.threads)

    return Task(task_id, "mujoco", "envpool", make)


for name, versions in VERSIONS.items():
    for version in versions:
        TASKS.register(f"{name}-v{version}", _task(f"{name}-v{version}"))
