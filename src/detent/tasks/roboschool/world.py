"""What the tasks share: a Bullet simulation, and an environment whose episodes all start from the same world."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from detent.package import import_optional
from detent.tasks import Size

Observation = NDArray[np.float32]
Stepped = tuple[Observation, float, bool, bool, dict[str, Any]]

SPEED_SCALE = 0.1
"""10 rad/s of a joint are shown as 1."""


@contextlib.contextmanager
def silent_import(module: str) -> Iterator[None]:
    """Hide what C code prints to stderr when `module` is first imported; pybullet prints its build time."""
    if module in sys.modules:
        yield
        return
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


class World:
    """A separate Bullet simulation. Its attributes are those of pybullet, with functions bound to this simulation."""

    def __init__(self) -> None:
        with silent_import("pybullet"):
            self._bullet = import_optional("pybullet", "roboschool")
        self._client: int = self._bullet.connect(self._bullet.DIRECT)
        self.close = weakref.finalize(self, self._bullet.disconnect, self._client)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._bullet, name)
        if callable(value):
            value = functools.partial(value, physicsClientId=self._client)
        setattr(self, name, value)  # found directly from now on
        return value

    def load(self, model: str) -> Sequence[int]:
        """The bodies of one of the MuJoCo models that come with pybullet, as Roboschool loads them."""
        folder: str = importlib.import_module("pybullet_data").getDataPath()
        flags = self.URDF_USE_SELF_COLLISION | self.URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS
        bodies: Sequence[int] = self.loadMJCF(os.path.join(folder, "mjcf", model), flags=flags)
        return bodies


class Parts:
    """The links and the joints of a body, by name."""

    def __init__(self, world: World, body: int) -> None:
        infos = [world.getJointInfo(body, k) for k in range(world.getNumJoints(body))]
        self.links = {info[12].decode(): k for k, info in enumerate(infos)}
        movable = (world.JOINT_REVOLUTE, world.JOINT_PRISMATIC)
        self.joints = {info[1].decode(): k for k, info in enumerate(infos) if info[2] in movable}
        self.limits = {info[1].decode(): (info[8], info[9]) for info in infos}


class Roboschool(gymnasium.Env[Observation, NDArray[np.float32]], ABC):
    """Base class of the tasks: a world that every reset restores to its state when loaded, and a camera.

    The episode is truncated after `max_episode_steps` steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012  as Gymnasium has it
    size: ClassVar[Size]
    bound: ClassVar[float] = np.inf
    """Bound of the observations."""
    gravity: ClassVar[float] = 9.8
    substeps: ClassVar[int] = 4
    dt: ClassVar[float] = 0.0165
    """Seconds of a step."""

    def __init__(self, max_episode_steps: int | None = None, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode can be 'rgb_array' or None, not {render_mode!r}")
        self.render_mode = render_mode
        self.horizon = self.size.horizon if max_episode_steps is None else max_episode_steps
        self.frame = 0
        """Steps since the reset."""
        self.observation_space = Box(-self.bound, self.bound, (self.size.observation,), np.float32)
        self.action_space = Box(-1.0, 1.0, (self.size.action,), np.float32)
        self.world = World()
        self._build()
        # A state saved without contacts would be restored without removing those of the episode before.
        self.world.performCollisionDetection()
        self._loaded = self.world.saveState()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        # Nothing of an earlier episode may remain, and loading the world again would take as long as twenty steps.
        self._forget_contacts()
        self.world.restoreState(self._loaded)
        self.frame = 0
        return self._begin(), {}

    def render(self) -> NDArray[np.uint8] | None:
        if self.render_mode is None:
            return None
        eye, target = self._camera()
        width, height = 600, 400
        view = self.world._bullet.computeViewMatrix(eye, target, (0, 0, 1))
        projection = self.world._bullet.computeProjectionMatrixFOV(60, width / height, 0.01, 100.0)
        *_, pixels, _, _ = self.world.getCameraImage(
            width,
            height,
            view,
            projection,
            renderer=self.world.ER_TINY_RENDERER,
            flags=self.world.ER_NO_SEGMENTATION_MASK,
        )
        return np.reshape(pixels, (height, width, 4))[:, :, :3].astype(np.uint8)

    def close(self) -> None:
        self.world.close()

    def _build(self) -> None:
        """Build the world from scratch."""
        world = self.world
        # The usual broadphase is a tree whose shape depends on everything that ever moved in it, and hence so do the
        # order of contacts and the last bits. The simple one has no memory, and is as fast for so few bodies.
        world.resetSimulation(world.RESET_USE_SIMPLE_BROADPHASE)
        world.setGravity(0, 0, -self.gravity)
        world.setPhysicsEngineParameter(
            fixedTimeStep=self.dt,
            numSubSteps=self.substeps,
            numSolverIterations=5,
            contactERP=0.9,
            # Roboschool does not set these two; both make results reproducible. Otherwise Bullet ends its iterations
            # early according to a residual that was seen to depend on the contents of uninitialised memory.
            deterministicOverlappingPairs=1,
            solverResidualThreshold=0,
        )
        self._load(world)

    def _advance(self, body: int, joints: Sequence[int], torques: list[float]) -> None:
        """Apply torques to joints for the length of a step."""
        if not math.isfinite(sum(torques)):
            raise ValueError("the action is not finite")
        self.world.setJointMotorControlArray(body, joints, self.world.TORQUE_CONTROL, forces=torques)
        self.world.stepSimulation()
        self.frame += 1

    def _release(self, body: int, joints: Sequence[int]) -> None:
        """Switch off the brakes that Bullet puts on every joint."""
        self.world.setJointMotorControlArray(body, joints, self.world.POSITION_CONTROL, forces=[0.0] * len(joints))

    def _pose(self, body: int, joints: Sequence[int], positions: NDArray[np.float64]) -> None:
        """Place joints at these positions, at rest."""
        self.world.resetJointStatesMultiDof(body, joints, positions[:, None].tolist(), [[0.0]] * len(joints))

    def _forget_contacts(self) -> None:
        """Make Bullet forget which bodies were near each other: it keeps the order in which it found them."""

    @abstractmethod
    def _load(self, world: World) -> None:
        """Fill the world."""

    @abstractmethod
    def _begin(self) -> Observation:
        """Start an episode in a world as it was loaded."""

    @abstractmethod
    def _camera(self) -> tuple[Sequence[float], Sequence[float]]:
        """Where the camera is and what it looks at."""


def clipped(values: NDArray[np.float32], bound: float) -> NDArray[np.float32]:
    """`np.clip` without its overhead."""
    return np.minimum(np.maximum(values, -bound), bound)
