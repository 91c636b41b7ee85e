"""A planar arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.tasks import Size
from detent.tasks.roboschool.world import SPEED_SCALE, Observation, Parts, Roboschool, Stepped, World, clipped


class ReacherRewards(NamedTuple):
    """The terms of a step's reward."""

    progress: float
    electricity: float
    stuck_joint: float


class Reacher(Roboschool):
    """An arm with two joints whose fingertip must reach a target, in a plane and without gravity.

    Observation: target x, y; fingertip - target x, y; cos and sin of the central angle and its speed; the elbow's angle
    as a fraction of its limit, and its speed. Reward: 100 times the decrease of the distance, less electricity, less
    0.1 when the elbow is at its limit.
    """

    size = Size(9, 2, 150)
    gravity = 0.0
    substeps = 1

    TARGET_RANGE = 0.27
    ANGLE_RANGE = 3.14
    TORQUE = 0.05

    def _load(self, world: World) -> None:
        bodies = world.load("reacher.xml")
        parts = {body: Parts(world, body) for body in bodies}
        [self._arm] = [body for body in bodies if "fingertip" in parts[body].links]
        [self._target] = [body for body in bodies if "target" in parts[body].links]
        arm, target = parts[self._arm], parts[self._target]
        self._motors = [arm.joints["joint0"], arm.joints["joint1"]]
        self._sliders = [target.joints["target_x"], target.joints["target_y"]]
        self._fingertip_link, self._target_link = arm.links["fingertip"], target.links["target"]
        lowest, highest = arm.limits["joint1"]
        self._elbow_middle, self._elbow_scale = (lowest + highest) / 2, 2 / (highest - lowest)
        self._release(self._arm, self._motors)
        if self.render_mode is None:
            for body in bodies:  # frame and table, which touch nothing
                if not parts[body].joints:
                    world.removeBody(body)

    def _begin(self) -> Observation:
        self._pose(self._target, self._sliders, self.np_random.uniform(-self.TARGET_RANGE, self.TARGET_RANGE, 2))
        self._pose(self._arm, self._motors, self.np_random.uniform(-self.ANGLE_RANGE, self.ANGLE_RANGE, 2))
        # Nothing moves the target.
        self._target_shown = [state[0] for state in self.world.getJointStates(self._target, self._sliders)]
        self._target_position = self.world.getLinkState(self._target, self._target_link, 0, 1)[0]
        observation = self._observe()
        self._potential = self._measure()
        return observation

    def step(self, action: NDArray[np.float32]) -> Stepped:
        self._advance(self._arm, self._motors, (self.TORQUE * clipped(action, 1.0)).tolist())
        observation = self._observe()
        before, self._potential = self._potential, self._measure()
        first, second = abs(float(action[0])), abs(float(action[1]))
        self.rewards = ReacherRewards(
            self._potential - before,
            -0.10 * (first * abs(self._central_speed) + second * abs(self._elbow_speed)) - 0.01 * (first + second),
            -0.1 if abs(abs(self._elbow) - 1) < 0.01 else 0.0,
        )
        return observation, sum(self.rewards), False, self.frame == self.horizon, {}

    def _observe(self) -> Observation:
        world = self.world
        (angle, speed, *_), (elbow, elbow_speed, *_) = world.getJointStates(self._arm, self._motors)
        tip = world.getLinkState(self._arm, self._fingertip_link, 0, 1)[0]
        x, y, z = self._target_position
        self._to_target = (tip[0] - x, tip[1] - y, tip[2] - z)
        self._central_speed, self._elbow_speed = SPEED_SCALE * speed, SPEED_SCALE * elbow_speed
        self._elbow = (elbow - self._elbow_middle) * self._elbow_scale
        central = (math.cos(angle), math.sin(angle), self._central_speed)
        return np.array(
            (*self._target_shown, *self._to_target[:2], *central, self._elbow, self._elbow_speed), np.float32
        )

    def _measure(self) -> float:
        return -100 * math.hypot(*self._to_target)

    def _camera(self) -> tuple[Sequence[float], Sequence[float]]:
        x, y, z = self.world.getLinkState(self._arm, self._fingertip_link)[0]
        return (0.3, 0.3, 0.3), (x / 2, y / 2, z)
