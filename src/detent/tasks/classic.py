"""Gymnasium's classic control tasks, simulated by EnvPool."""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task

CHOICES: dict[str, tuple[int, ...] | None] = {
    "Acrobot-v1": (3,),
    "CartPole-v1": (2,),
    "MountainCar-v0": (3,),
    "MountainCarContinuous-v0": None,
    "Pendulum-v1": None,
}

for name, choices in CHOICES.items():
    TASKS.register(name, envpool_task(name, "classic", choices=choices))
