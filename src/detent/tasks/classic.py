"""Gymnasium's classic control tasks, simulated by EnvPool."""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task

for name in ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"):
    TASKS.register(name, envpool_task(name, "classic"))
