"""Humanoids that walk, run to flags, and get up again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from detent.tasks import Size
from detent.tasks.roboschool.walkers import Walker
from detent.tasks.roboschool.world import Observation, World


class Start(NamedTuple):
    """Where the humanoid's torso is when an episode begins."""

    height: float
    pitch: float


STANDING, ON_ITS_FRONT, ON_ITS_BACK = Start(1.4, 0.0), Start(0.45, math.pi / 2), Start(0.22, 1.5 * math.pi - 0.15)


class Humanoid(Walker):
    """A humanoid with 17 joints that starts in the air, facing the target within π/16; ends when its torso is low."""

    size = Size(44, 17, 1000)
    model = "humanoid_symmetric.xml"
    feet = ("right_foot", "left_foot")
    power = 0.41
    strengths: ClassVar[Mapping[str, float]] = {
        **{f"{side}_{joint}": 75.0 for side in ("right", "left") for joint in ("shoulder1", "shoulder2", "elbow")},
        **{f"{side}_hip_y": 300.0 for side in ("right", "left")},
        **{f"{side}_knee": 200.0 for side in ("right", "left")},
    }
    work_cost = 4.25 * Walker.work_cost
    stall_cost = 4.25 * Walker.stall_cost
    start_height = 0.8

    def _place(self) -> None:
        self._lay(STANDING)

    def _lay(self, start: Start) -> None:
        yaw = self.np_random.uniform(-math.pi / 16, math.pi / 16)
        orientation = self.world._bullet.getQuaternionFromEuler((0.0, start.pitch, yaw))
        self.world.resetBasePositionAndOrientation(self._robot, (0.0, 0.0, start.height), orientation)
        self.world.resetBaseVelocity(self._robot, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))

    def _alive(self, height: float) -> float:
        return 2.0 if height > 0.78 else -1.0


class HumanoidFlagrun(Humanoid):
    """The humanoid runs to a flag, which moves when it is reached (1 m) and after 150 steps.

    The first flag is straight ahead half of the time, at least a quarter of the field away; other flags are anywhere in
    the inner quarter of the field. A step in which the flag moves has no progress.
    """

    work_cost = Humanoid.work_cost / 2

    FIELD = (26.25, 12.5)
    """Half its length, half its width."""
    PATIENCE = 150
    REACHED = 1.0

    def _load(self, world: World) -> None:
        super()._load(world)
        if self.render_mode is not None:
            ball = world.createVisualShape(world.GEOM_SPHERE, radius=0.2, rgbaColor=(1.0, 0.5, 0.5, 1.0))
            self._flag = world.createMultiBody(baseVisualShapeIndex=ball)

    def _place(self) -> None:
        super()._place()
        self._raise_flag(first=True)

    def _raise_flag(self, first: bool) -> None:
        length, width = self.FIELD
        if first and self.np_random.integers(2) == 0:
            self.target = (self.np_random.uniform(length / 2, length), 0.0)
        else:
            x, y = self.np_random.uniform((-length, -width), (length, width))
            self.target = (0.5 * x, 0.5 * y)
        self.patience = self.PATIENCE
        if self.render_mode is not None:
            self.world.resetBasePositionAndOrientation(self._flag, (*self.target, 0.2), (0, 0, 0, 1))

    def _observe(self) -> Observation:
        self.patience -= 1
        observation = super()._observe()
        if self._distance < self.REACHED or self.patience <= 0:
            self._raise_flag(first=False)
            observation = super()._observe()
            self._potential = self._measure()
        return observation


class HumanoidFlagrunHarder(HumanoidFlagrun):
    """The flag run for a humanoid that is shot at and often starts on the ground.

    Starts: standing, on its front, on its back. A start that it fails more often is used more often: p(start) is
    proportional to 1 - survived / (1 + seen) over the last ten episodes with that start, where survived means
    truncated. This is all in these tasks that depends on earlier episodes; `reset(seed=...)` does not restore it.

    Every 30 steps after the hundredth a cube of 1.2 kg is thrown at the robot, unless it is or recently was on the
    ground. An episode that started standing ends when the torso is below 0.8 m; any other, when the torso has been
    below for 170 steps more than above.

    Alive: 0.5 + 1.5 clip(0.7 torso height + 0.3 pelvis height, 0, 0.7) / 0.7, of which progress also has 100 times the
    increase. Distance covered below 0.8 m is no progress, and is not lost when the robot stands up.
    """

    STARTS = (STANDING, ON_ITS_FRONT, ON_ITS_BACK)
    LOW = 0.8
    MOST_LOW_STEPS = 170

    def __init__(self, max_episode_steps: int | None = None, render_mode: str | None = None) -> None:
        self.survived: list[deque[bool]] = [deque(maxlen=10) for _ in self.STARTS]
        """Of the last episodes with each start, whether the robot survived until truncation."""
        super().__init__(max_episode_steps, render_mode)

    def _load(self, world: World) -> None:
        super()._load(world)
        half = (0.05, 0.05, 0.05)
        shape = world.createCollisionShape(world.GEOM_BOX, halfExtents=half)
        look = world.createVisualShape(world.GEOM_BOX, halfExtents=half, rgbaColor=(1, 1, 1, 1))
        self._cube = world.createMultiBody(1.2, shape, look, basePosition=(-1.5, 0.0, 0.05))

    def _place(self) -> None:
        failed = np.array([1 - sum(survived) / (1 + len(survived)) for survived in self.survived])
        self.start = int(self.np_random.choice(len(self.STARTS), p=failed / failed.sum()))
        self._lay(self.STARTS[self.start])
        self._raise_flag(first=True)
        self.low_steps = 0
        self._crawl_potential: float | None = None
        """The potential of the flag when the torso came below `LOW`."""
        self._crawled = 0.0
        """Potential of the flag gained or lost below `LOW`."""

    def _alive(self, height: float) -> float:
        frame = self.frame - 1  # Roboschool counts the step afterwards
        if frame % 30 == 0 and frame > 100 and self.low_steps == 0:
            self._shoot()
        if height < self.LOW:
            self.low_steps += 1 if self.STARTS[self.start] is not STANDING else 10_001
            self.work_cost = Walker.work_cost / 5
        else:
            self.low_steps = max(self.low_steps - 1, 0)
            self.work_cost = Walker.work_cost / 2
        return self._uprightness() if self.low_steps < self.MOST_LOW_STEPS else -1.0

    def _shoot(self) -> None:
        """Throw the cube to where the robot will be when it arrives."""
        angle = self.np_random.uniform(-3.14, 3.14)
        speed = self.np_random.uniform(20.0, 30.0)
        distance = 4.0
        aim = np.array(self.position) + np.array(self.velocity) * distance / speed
        origin = aim + np.array((distance * math.cos(angle), distance * math.sin(angle), 1.0))
        velocity = (aim - origin) * speed / math.dist(aim, origin) + self.np_random.uniform(-1.0, 1.0, 3)
        self.world.resetBasePositionAndOrientation(self._cube, origin.tolist(), (0, 0, 0, 1))
        self.world.resetBaseVelocity(self._cube, velocity.tolist(), (0, 0, 0))

    def _uprightness(self) -> float:
        pelvis: float = self._link_states[self.parts.links["pelvis"]][0][2]
        return 0.5 + 1.5 * min(max(0.7 * self.position[2] + 0.3 * pelvis, 0.0), 0.7) / 0.7

    def _measure(self) -> float:
        flag = super()._measure()
        if self.position[2] < self.LOW:
            if self._crawl_potential is None:
                self._crawl_potential = flag - self._crawled
            self._crawled = flag - self._crawl_potential
        else:
            self._crawl_potential = None
        return flag - self._crawled + 100 * self._uprightness()

    def _end(self) -> None:
        self.survived[self.start].append(self.frame == self.horizon)
