"""Gymnasium's Box2D tasks with continuous actions, simulated by EnvPool."""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task

REPLAYABLE = {
    "BipedalWalker-v3": True,
    "BipedalWalkerHardcore-v3": True,
    # These draw random numbers in every step, from a generator that cannot be read.
    "LunarLanderContinuous-v2": False,
    "LunarLanderContinuous-v3": False,
}

for name, replayable in REPLAYABLE.items():
    TASKS.register(name, envpool_task(name, "box2d", replayable))
