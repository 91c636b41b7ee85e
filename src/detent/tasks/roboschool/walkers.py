"""Robots that walk, and the two simplest of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.tasks import Size
from detent.tasks.roboschool.world import SPEED_SCALE, Observation, Parts, Roboschool, Stepped, World, clipped


class WalkerRewards(NamedTuple):
    """The terms of a step's reward."""

    alive: float
    progress: float
    electricity: float
    joints_at_limit: float
    feet_collision: float


class Walker(Roboschool):
    """A robot that is to walk to a target, far ahead along x.

    Observation, clipped to ±5: torso height less `initial_height`; sin and cos of the angle to the target; 0.3 x
    velocity, seen in the direction the torso faces; roll; pitch; for each joint its position, ±1 at its limits, and
    0.1 x its speed; for each foot whether it touched the floor *after the step before*.

    Reward: `alive`, negative when the episode is over; the decrease of the distance to the target / dt; electricity,
    `work_cost` x mean|action x shown joint speed| + `stall_cost` x mean(action^2); -0.2 for each joint within 1% of a
    limit; -1 for each foot that touches anything but the floor.
    """

    bound = 5.0
    model: ClassVar[str]
    feet: ClassVar[tuple[str, ...]]
    power: ClassVar[float]
    strengths: ClassVar[Mapping[str, float]] = {}
    """Strengths of joints, if not 100; a joint's largest torque is `power` x strength."""
    work_cost = -2.0
    stall_cost = -0.1
    joint_at_limit_cost: ClassVar[float] = -0.2
    foot_collision_cost: ClassVar[float] = -1.0
    start_height: ClassVar[float | None] = None
    """The height that observed heights are relative to; None for the height at the reset."""

    def _load(self, world: World) -> None:
        [self._floor] = world.load("ground_plane.xml")
        [self._robot] = world.load(self.model)
        self.parts = parts = Parts(world, self._robot)
        ignored = [joint for name, joint in parts.joints.items() if name.startswith("ignore")]
        names = [name for name in parts.joints if not name.startswith("ignore")]
        self._joints = [parts.joints[name] for name in names]
        self._links = list(parts.links.values())
        self._feet = [parts.links[foot] for foot in self.feet]
        self._torso = parts.links.get("torso", -1)
        """-1, the base, where the robot floats freely."""
        self._strength = self.power * np.array([self.strengths.get(name, 100.0) for name in names])
        limits = np.array([parts.limits[name] for name in names])
        # Position and speed of the first joint, of the second, ...
        self._joint_middle = np.stack([limits.mean(axis=1), np.zeros(len(names))], axis=1).ravel()
        self._joint_scale = np.stack(
            [2 / (limits[:, 1] - limits[:, 0]), np.full(len(names), SPEED_SCALE)], axis=1
        ).ravel()
        self._release(self._robot, ignored + self._joints)

    def _forget_contacts(self) -> None:
        # Torso and floor collide anyway; saying so makes Bullet forget all contact pairs of these two bodies.
        self.world.setCollisionFilterPair(self._robot, self._floor, -1, -1, 1)

    def _begin(self) -> Observation:
        self._feet_on_floor = [0.0] * len(self._feet)
        self.target = (1000.0, 0.0)
        self._pose(self._robot, self._joints, self.np_random.uniform(-0.1, 0.1, len(self._joints)))
        self._place()
        self._look()
        self.initial_height = self.position[2] if self.start_height is None else self.start_height
        observation = self._observe()
        self._potential = self._measure()
        return observation

    def step(self, action: NDArray[np.float32]) -> Stepped:
        self._advance(self._robot, self._joints, (self._strength * clipped(action, 1.0)).tolist())
        self._look()
        observation = self._observe()
        alive = self._alive(float(observation[0]) + self.initial_height)
        before, self._potential = self._potential, self._measure()
        size, speed, count = np.abs(action), np.abs(self._shown_joints[1::2]), len(self._joints)
        self.rewards = WalkerRewards(
            alive,
            self._potential - before,
            (self.work_cost * float(size @ speed) + self.stall_cost * float(size @ size)) / count,
            self.joint_at_limit_cost * int(np.count_nonzero(np.abs(self._shown_joints[::2]) > 0.99)),
            self.foot_collision_cost * self._touch(),
        )
        terminated = alive < 0 or not math.isfinite(np.add.reduce(observation))
        truncated = self.frame == self.horizon
        if terminated or truncated:
            self._end()
        return observation, sum(self.rewards), terminated, truncated, {}

    def _look(self) -> None:
        """Query Bullet for the state of the robot."""
        world, robot = self.world, self._robot
        joints = np.array([value for state in world.getJointStates(robot, self._joints) for value in state[:2]])
        self._shown_joints = ((joints - self._joint_middle) * self._joint_scale).astype(np.float32)
        # Forward kinematics must be recomputed, because joints may just have been moved.
        self._link_states = states = world.getLinkStates(robot, self._links, self._torso >= 0, 1)
        if self._torso < 0:
            torso, orientation = world.getBasePositionAndOrientation(robot)
            self.velocity, _ = world.getBaseVelocity(robot)
        else:
            torso, orientation, *_, self.velocity, _ = states[self._torso]
        x = sum([state[0][0] for state in states]) / len(states)
        y = sum([state[0][1] for state in states]) / len(states)
        self.position: tuple[float, float, float] = (x, y, torso[2])
        """The mean of all links in x and y, the torso's height in z."""
        self.roll, self.pitch, self.yaw = roll_pitch_yaw(*orientation)

    def _observe(self) -> Observation:
        """The observation, from the state last queried."""
        ahead, aside = self.target[0] - self.position[0], self.target[1] - self.position[1]
        self._distance = math.hypot(ahead, aside)
        angle = math.atan2(aside, ahead) - self.yaw
        vx, vy, vz = self.velocity
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        velocity = (0.3 * (cos * vx + sin * vy), 0.3 * (cos * vy - sin * vx), 0.3 * vz)
        height = self.position[2] - self.initial_height
        observation = np.empty(self.size.observation, np.float32)
        observation[:8] = (height, math.sin(angle), math.cos(angle), *velocity, self.roll, self.pitch)
        observation[8 : -len(self._feet)] = self._shown_joints
        observation[-len(self._feet) :] = self._feet_on_floor
        return clipped(observation, self.bound)

    def _measure(self) -> float:
        """The potential whose increase is progress."""
        return -self._distance / self.dt

    def _touch(self) -> int:
        """Record which feet touch the floor, and return how many touch anything else."""
        on_floor: set[int] = set()
        on_others: set[int] = set()
        for point in self.world.getContactPoints(self._robot):
            _, _, other, link = point[:4]
            # Of two parts of the robot that touch, Bullet has one here and one in `point[4]`. As in Roboschool, the
            # second one does not count.
            (on_floor if other == self._floor else on_others).add(link)
        self._feet_on_floor = [float(foot in on_floor) for foot in self._feet]
        return sum([foot in on_others for foot in self._feet])

    def _place(self) -> None:
        """Put the robot where an episode begins, if that is not where its model is."""

    @abstractmethod
    def _alive(self, height: float) -> float:
        """The reward for being in a good state, negative when the episode is over."""

    def _end(self) -> None:
        """The episode is over."""

    def _camera(self) -> tuple[Sequence[float], Sequence[float]]:
        x, y, _ = self.position
        return (x, y - 2.5, 1.4), (x, y, 0.8)


class Ant(Walker):
    """Four legs with two joints each; the episode ends when the torso comes near the ground."""

    size = Size(28, 8, 1000)
    model = "ant.xml"
    feet = ("front_left_foot", "front_right_foot", "left_back_foot", "right_back_foot")
    power = 2.5

    def _alive(self, height: float) -> float:
        return 1.0 if height > 0.26 else -1.0


class Walker2d(Walker):
    """Two legs that move in a plane; the episode ends when the torso is low or leans too much."""

    size = Size(22, 6, 1000)
    model = "walker2d.xml"
    feet = ("foot", "foot_left")
    power = 0.4
    strengths: ClassVar[Mapping[str, float]] = {"foot_joint": 30.0, "foot_left_joint": 30.0}

    def _alive(self, height: float) -> float:
        return 1.0 if height > 0.8 and abs(self.pitch) < 1.0 else -1.0


def roll_pitch_yaw(x: float, y: float, z: float, w: float) -> tuple[float, float, float]:
    """The angles of a quaternion's rotation about x, then y, then z."""
    xx, yy, zz, ww = x * x, y * y, z * z, w * w
    roll = math.atan2(2 * (y * z + x * w), zz + ww - xx - yy)
    pitch = math.asin(min(max(2 * (y * w - x * z) / (xx + yy + zz + ww), -1.0), 1.0))
    yaw = math.atan2(2 * (x * y + z * w), xx + ww - yy - zz)
    return roll, pitch, yaw
