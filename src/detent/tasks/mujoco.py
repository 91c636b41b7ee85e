"""Gymnasium's MuJoCo tasks, simulated by EnvPool."""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task

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

for name, versions in VERSIONS.items():
    for version in versions:
        TASKS.register(f"{name}-v{version}", envpool_task(f"{name}-v{version}", "mujoco"))
