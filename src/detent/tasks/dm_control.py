"""The DeepMind control suite, simulated by EnvPool: `dm_control/<domain>-<task>`, observations flattened."""

from __future__ import annotations

from detent.tasks import TASKS, envpool_task

SUITE = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("fetch", "run", "stand", "trot", "walk"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("swim", "upright"),
    "hopper": ("hop", "stand"),
    "humanoid": ("run", "run_pure_state", "stand", "walk"),
    "humanoid_CMU": ("run", "stand", "walk"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("escape", "fetch", "run", "walk"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("run", "stand", "walk"),
}

# EnvPool gives every task of a domain the same parts of an observation, and fills those of other tasks with zeros (the
# quadruped's origin, with itself). dm_control does not have the parts that are left out here.
WITHOUT = {
    "dog-run": ("ball_state", "target_position"),
    "dog-stand": ("ball_state", "target_position"),
    "dog-trot": ("ball_state", "target_position"),
    "dog-walk": ("ball_state", "target_position"),
    "finger-spin": ("target_position", "dist_to_target"),
    "fish-upright": ("target",),
    "humanoid-run": ("position",),
    "humanoid-run_pure_state": ("joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity"),
    "humanoid-stand": ("position",),
    "humanoid-walk": ("position",),
    "quadruped-escape": ("ball_state", "target_position"),
    "quadruped-fetch": ("origin", "rangefinder"),
    "quadruped-run": ("origin", "rangefinder", "ball_state", "target_position"),
    "quadruped-walk": ("origin", "rangefinder", "ball_state", "target_position"),
}


def envpool_id(domain: str, task: str) -> str:
    """ball_in_cup, catch -> BallInCupCatch-v1."""
    words = f"{domain}_{task}".split("_")
    return "".join(word[0].upper() + word[1:] for word in words) + "-v1"


for domain, tasks in SUITE.items():
    for task in tasks:
        name = f"{domain}-{task}"
        made = envpool_task(
            f"dm_control/{name}", "dm_control", task_id=envpool_id(domain, task), without=WITHOUT.get(name, ())
        )
        TASKS.register(made.name, made)
