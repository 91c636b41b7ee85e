"""rllab's two humanoids (https://github.com/rll/rllab, MIT), rewritten for today's MuJoCo.

    rllab/Humanoid          142 observations, 21 actions
    rllab/SimpleHumanoid    102 observations, 10 actions

Observation: qpos, qvel, the external forces on every body clipped to [-1, 1], and the centre of mass, unscaled.
With v the velocity of the centre of mass, a the action, s half the width of its bounds and f the clipped forces, the
reward of a step is

    v_x + 0.2 - 0.5e-3 |a / s|^2 - 0.5e-5 |f|^2 - 0.5e-2 (v_y^2 + v_z^2),

all of the state it led to. The episode terminates when the torso leaves heights of 0.8 to 2.0.

n simulations are stepped by `mujoco.batch`, whose threads run without Python. Results do not depend on their number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from detent.environments import ActionSpace, Environment, Replay, Step, Wanted
from detent.environments.seeds import episode_seed
from detent.errors import BadInput
from detent.observations import Layout, Numbers
from detent.registry import nearest
from detent.tasks import TASKS, Size, Task

ASSETS = Path(__file__).parent / "assets"

ALIVE_BONUS = 0.2
CONTROL_COST = 0.5e-3
IMPACT_COST = 0.5e-5
DEVIATION_COST = 0.5e-2
LOWEST, HIGHEST = 0.8, 2.0
POSITION_NOISE, VELOCITY_NOISE = 0.01, 0.1
ROOT_QUATERNION = slice(3, 7)


@dataclass(frozen=True)
class Robot:
    """A model, how many of its steps an action lasts, and its size."""

    file: str
    frame_skip: int
    observation_size: int
    action_size: int


ROBOTS = {
    "rllab/Humanoid": Robot("rllab_humanoid.xml", 4, 142, 21),
    "rllab/SimpleHumanoid": Robot("rllab_simple_humanoid.xml", 1, 102, 10),
}


@dataclass(frozen=True)
class Options:
    """The options that `--env-kwargs` can set."""

    inertia: str = "exact"
    """`exact`, or `1.31` to treat a capsule as MuJoCo 1.31 did: as a cylinder one radius longer, which is lighter.
    SimpleHumanoid's model states its inertias, so it makes no difference there."""
    horizon: int = 1000
    """Steps after which an episode is truncated."""
    action_noise: float = 0.0
    """Standard deviation of normal noise on the torques, in units of half the width of the actions' bounds."""

    @classmethod
    def checked(cls, name: str, given: Mapping[str, Any]) -> Options:
        known = list(cls.__dataclass_fields__)
        for key in given:
            if key not in known:
                raise BadInput(f"{name} has no option {key!r}.{nearest(key, known)} It has {', '.join(known)}.")
        options = cls(**given)
        if options.inertia not in ("exact", "1.31"):
            raise BadInput(f'{name}: inertia must be "exact" or "1.31", not {options.inertia!r}.')
        if type(options.horizon) is not int or options.horizon < 1:
            raise BadInput(f"{name}: horizon must be a whole number of at least 1, not {options.horizon!r}.")
        if type(options.action_noise) not in (int, float) or not 0 <= options.action_noise < np.inf:
            raise BadInput(f"{name}: action_noise must be a number of at least 0, not {options.action_noise!r}.")
        return options


def load_model(robot: Robot, inertia: str = "exact") -> Any:
    """The compiled model, a `mujoco.MjModel`."""
    import mujoco  # here and below, so that only simulations pay for the import

    spec = mujoco.MjSpec.from_file(str(ASSETS / robot.file))
    if inertia == "1.31":  # the inertias stated in the file, where there are any
        spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO
    return spec.compile()


class Simulations:
    """n simulations of one robot, with rllab's observation, reward and termination. Masks [n] select simulations."""

    def __init__(self, robot: Robot, options: Options, count: int, threads: int | None = None) -> None:
        import mujoco
        from mujoco.batch import Batch

        self.model = load_model(robot, options.inertia)
        self.low, self.high = self.model.actuator_ctrlrange.T
        self._half = 0.5 * (self.high - self.low)
        self._noise = options.action_noise
        self._frame_skip = robot.frame_skip
        self._generators: list[np.random.Generator | None] = [None] * count
        self._batch = Batch(self.model, count, min(count, threads or len(os.sched_getaffinity(0))))
        # Live arrays of all simulations, indexed [simulation, ...].
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(field) for field in ("qpos", "qvel", "ctrl"))
        torso = self.model.body("torso").id
        self._forces = self._batch.bind("cfrc_ext").reshape(count, -1)
        self._com = self._batch.bind("subtree_com")[:, torso]
        self._com_velocity = self._batch.bind("subtree_linvel")[:, torso]
        of = mujoco.mjtWarning
        self._unstable = [int(kind) for kind in (of.mjWARN_BADQPOS, of.mjWARN_BADQVEL, of.mjWARN_BADQACC)]
        self._nothing, self._everything = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_ACC)

    def begin(self, which: NDArray[np.bool_], generators: Sequence[np.random.Generator]) -> None:
        """Put simulations, each with its generator, near the upright state: noise on all of qpos and qvel."""
        self._batch.reset(which, stage=self._nothing)
        for index, generator in zip(np.flatnonzero(which), generators, strict=True):
            self._generators[index] = generator
            self._qpos[index] += POSITION_NOISE * generator.standard_normal(self.model.nq)
            self._qvel[index] = VELOCITY_NOISE * generator.standard_normal(self.model.nv)
            # As rllab's MuJoCo did in the state itself; today's normalises only where it uses the quaternion.
            self._qpos[index, ROOT_QUATERNION] /= np.linalg.norm(self._qpos[index, ROOT_QUATERNION])
        self._batch.forward(which)

    def advance(self, which: NDArray[np.bool_], action: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Reward and termination of one step of some simulations; those of the others are meaningless.

        A state that is not finite or too large is reset by MuJoCo, which counts it; it terminates the episode too.
        """
        action = np.asarray(action, np.float64)
        self._ctrl[which] = action[which]
        if self._noise:
            drawn = [g.standard_normal(self.model.nu) for g, w in zip(self._generators, which, strict=True) if w and g]
            self._ctrl[which] += self._noise * self._half * np.stack(drawn)
        # All stages once more after the last step, so that what is derived belongs to the state it led to.
        self._batch.step(which, self._frame_skip, stage=self._everything)
        v_x, v_y, v_z = self._com_velocity.T
        reward = (
            v_x
            + ALIVE_BONUS
            - CONTROL_COST * np.square(action / self._half).sum(1)
            - IMPACT_COST * np.square(np.clip(self._forces, -1.0, 1.0)).sum(1)
            - DEVIATION_COST * (v_y**2 + v_z**2)
        )
        height = self._qpos[:, 2]
        reset_by_mujoco = self._batch.warning[:, self._unstable, 1].any(1)  # how often, since the last reset
        return reward, (height < LOWEST) | (height > HIGHEST) | reset_by_mujoco

    def observation(self) -> Any:
        """[n, d] in float32."""
        parts = (self._qpos, self._qvel, np.clip(self._forces, -1.0, 1.0), self._com)
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def data(self, index: int = 0) -> Any:
        """A copy of one simulation's state, a `mujoco.MjData` from which MuJoCo can go on."""
        return self._batch.get_data(index)


class Rllab:
    """n environments of one of rllab's tasks."""

    traceable = x64 = saved = False

    def __init__(self, name: str, wanted: Wanted) -> None:
        robot, options = ROBOTS[name], Options.checked(name, wanted.options)
        self.num_envs = wanted.num_envs
        self.observation_layout: Layout = Numbers((robot.observation_size,))
        self._simulations = Simulations(robot, options, wanted.num_envs, wanted.threads)
        self.space = _box(self._simulations)
        self.action_shape = self.space.shape
        self._seed = wanted.seed
        self._horizon = options.horizon
        self._episode = np.full(wanted.num_envs, -1)
        self._time = np.zeros(wanted.num_envs, np.int64)
        self._ended = np.zeros(wanted.num_envs, np.bool_)

    def reset(self) -> tuple[None, Float[NDArray[Any], "n d"]]:
        return self.replay(Replay(np.ones(self.num_envs, np.int64), [np.empty((0, 0), np.float32)] * self.num_envs))

    def step(self, state: object, action: ArrayLike) -> tuple[None, Step]:
        valid = ~self._ended
        reward, terminated = self._advance(valid, np.asarray(action))
        self._begin(~valid, self._episode + 1)
        taken: tuple[Any, ...] = (
            self._simulations.observation(),
            np.where(valid, reward, 0.0).astype(np.float32),
            terminated & valid,
            self._time == self._horizon,
            valid,
            np.full(self.num_envs, np.nan, np.float32),
        )
        return None, Step(*taken)

    def replay(self, replay: Replay) -> tuple[None, Float[NDArray[Any], "n d"]]:
        """Restart each environment's current episode and repeat its actions."""
        self._begin(np.ones(self.num_envs, np.bool_), replay.resets - 1)
        lengths = np.array([len(actions) for actions in replay.actions])
        action = np.zeros((self.num_envs, *self.space.shape), np.float32)
        for t in range(lengths.max(initial=0)):
            which = lengths > t
            action[which] = [actions[t] for actions in replay.actions if len(actions) > t]
            self._advance(which, action)
        return None, self._simulations.observation()

    def close(self) -> None:
        """The threads end with the object."""

    def _begin(self, which: NDArray[np.bool_], episode: NDArray[np.int64]) -> None:
        if not which.any():
            return
        self._episode[which] = episode[which]
        self._time[which] = 0
        self._ended[which] = False
        seeds = [episode_seed(self._seed, int(i), int(self._episode[i])) for i in np.flatnonzero(which)]
        self._simulations.begin(which, [np.random.default_rng(seed) for seed in seeds])

    def _advance(
        self, which: NDArray[np.bool_], action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        if not which.any():
            return np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        reward, terminated = self._simulations.advance(which, action)
        self._time += which
        self._ended |= which & (terminated | (self._time == self._horizon))
        return reward, terminated


class RllabEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One of rllab's tasks as a Gymnasium environment, which can be rendered."""

    def __init__(self, name: str = "rllab/Humanoid", render_mode: str | None = None, **options: Any) -> None:
        if name not in ROBOTS:
            raise BadInput(f"There is no rllab task named {name!r}; there are {' and '.join(ROBOTS)}.")
        if render_mode not in (None, "rgb_array"):
            raise BadInput(f'{name}: render_mode must be "rgb_array" or nothing, not {render_mode!r}.')
        robot, checked = ROBOTS[name], Options.checked(name, options)
        self.render_mode = render_mode
        self._simulations = Simulations(robot, checked, 1)
        self.action_space = _box(self._simulations)
        self.observation_space = Box(-np.inf, np.inf, (robot.observation_size,), np.float32)
        rate = round(1.0 / (robot.frame_skip * self._simulations.model.opt.timestep))
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        self._horizon = checked.horizon
        self._time = 0
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._simulations.begin(np.ones(1, np.bool_), [self.np_random])
        return self._simulations.observation()[0], {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        [reward], [terminated] = self._simulations.advance(np.ones(1, np.bool_), action[None])
        self._time += 1
        truncated = self._time >= self._horizon
        return self._simulations.observation()[0], float(reward), bool(terminated), truncated, {}

    def render(self) -> Any:
        """The picture [480, 640, 3] of a camera that follows the robot."""
        import mujoco

        if self.render_mode is None:
            raise BadInput('To render an rllab environment, make it with render_mode="rgb_array".')
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._simulations.model, 480, 640)
        data = self._simulations.data()
        mujoco.mj_forward(self._simulations.model, data)
        self._renderer.update_scene(data, camera="track")
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _box(simulations: Simulations) -> ActionSpace:
    return Box(simulations.low.astype(np.float32), simulations.high.astype(np.float32), dtype=np.float32)


def _task(name: str, robot: Robot) -> Task:
    def make(wanted: Wanted) -> Environment:
        if wanted.restarts:
            raise BadInput(f"{name} cannot be restarted; --on-env-error restart is for Gymnasium tasks.")
        return Rllab(name, wanted)

    return Task(
        name,
        "rllab",
        "mujoco",
        make,
        size=lambda: Size(robot.observation_size, robot.action_size, Options.horizon),
        factory=lambda options: partial(RllabEnv, name, **options),
    )


for name, robot in ROBOTS.items():
    TASKS.register(name, _task(name, robot))
