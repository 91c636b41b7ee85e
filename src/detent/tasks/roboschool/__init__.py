"""OpenAI's Roboschool (v1) on pybullet: its robots, rewards, starts and observations, with batched queries of Bullet.

Roboschool needs Python 3.7 and a fork of Bullet; these tasks need neither. Its models are in `pybullet_data`.
docs/tasks.md says what is the same and what is not.
"""

from __future__ import annotations

from detent.tasks import TASKS, gymnasium_task
from detent.tasks.roboschool.humanoids import Humanoid, HumanoidFlagrun, HumanoidFlagrunHarder
from detent.tasks.roboschool.reacher import Reacher
from detent.tasks.roboschool.walkers import Ant, Walker2d
from detent.tasks.roboschool.world import Roboschool

ENVIRONMENTS: tuple[type[Roboschool], ...] = (Ant, Humanoid, HumanoidFlagrun, HumanoidFlagrunHarder, Reacher, Walker2d)


def _register(kind: type[Roboschool]) -> None:
    name = f"roboschool/{kind.__name__}"
    task = gymnasium_task(
        name,
        kind,
        suite="roboschool",
        backend="pybullet",
        replayable=kind is not HumanoidFlagrunHarder,  # whose starts depend on earlier episodes
        size=lambda: kind.size,
        extra="roboschool",
    )
    TASKS.register(name, task)


for kind in ENVIRONMENTS:
    _register(kind)
