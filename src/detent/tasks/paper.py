"""`paper/NAME`: of the tasks available today, those closest to the paper's (openai/gym's v1 of 2017).

docs/tasks.md says what still differs.
"""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task
from detent.tasks.box2d import REPLAYABLE

NEAREST = {
    # The contact forces are in the observations (376 and 111 numbers) and in the reward, and the alive bonus is paid
    # on the last step too.
    "Ant": "Ant-v3",
    "Humanoid": "Humanoid-v3",
    "HumanoidStandup": "HumanoidStandup-v2",
    "HalfCheetah": "HalfCheetah-v3",
    "Hopper": "Hopper-v3",
    # Feet of different friction, as in 2017.
    "Walker2d": "Walker2d-v3",
    "Swimmer": "Swimmer-v3",
    # The reward is of the state before the step, and the observation has 11 numbers.
    "Reacher": "Reacher-v2",
    "InvertedPendulum": "InvertedPendulum-v2",
    "InvertedDoublePendulum": "InvertedDoublePendulum-v2",
    "BipedalWalker": "BipedalWalker-v3",
    "LunarLanderContinuous": "LunarLanderContinuous-v2",
}

CONTACTS = {"Ant", "Humanoid", "HumanoidStandup"}
"""Since MuJoCo 2.0 the contact forces are zero unless requested, which was a bug of the ids v2 and v3."""

for name, task_id in NEAREST.items():
    made = envpool_task(
        f"paper/{name}",
        "paper",
        replayable=REPLAYABLE.get(task_id, True),
        task_id=task_id,
        options={"post_constraint": True} if name in CONTACTS else {},
    )
    TASKS.register(made.name, made)
