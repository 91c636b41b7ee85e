"""rllab's tasks: the models, and every step against MuJoCo called one simulation at a time."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy import stats

from detent.environments import Replay, Wanted
from detent.environments.host import Host
from detent.errors import BadInput
from detent.tasks import TASKS
from detent.tasks.rllab import ASSETS, ROBOTS, Options, RllabEnv, Simulations, load_model

NAMES = list(ROBOTS)
HUMANOID, SIMPLE = "rllab/Humanoid", "rllab/SimpleHumanoid"

# Body: mass by today's compiler, and by MuJoCo 1.31's.
MASSES = {
    "torso": (8.90746, 8.32208),
    "lwaist": (2.26195, 2.03575),
    "pelvis": (6.61619, 5.85279),
    "right_thigh": (4.75175, 4.52556),
    "right_shin": (2.75570, 2.63249),
    "right_foot": (1.13114, 1.08992),
    "left_thigh": (4.75175, 4.52556),
    "left_shin": (2.75570, 2.63249),
    "left_foot": (1.13114, 1.08992),
    "right_upper_arm": (1.66108, 1.59406),
    "right_lower_arm": (1.22954, 1.19834),
    "left_upper_arm": (1.66108, 1.59406),
    "left_lower_arm": (1.22954, 1.19834),
}
# Joint: range in degrees, stiffness, damping, armature, in the order of qpos.
HUMANOID_JOINTS = {
    "abdomen_z": (-45, 45, 20, 5, 0.02),
    "abdomen_y": (-75, 30, 10, 5, 0.02),
    "abdomen_x": (-35, 35, 10, 5, 0.02),
    "right_hip_x": (-25, 5, 10, 5, 0.01),
    "right_hip_z": (-60, 35, 10, 5, 0.01),
    "right_hip_y": (-110, 20, 20, 5, 0.008),
    "right_knee": (-160, -2, 0, 1, 0.006),
    "right_ankle_y": (-50, 50, 4, 1, 0.0008),
    "right_ankle_x": (-50, 50, 1, 1, 0.0006),
    "left_hip_x": (-25, 5, 10, 5, 0.01),
    "left_hip_z": (-60, 35, 10, 5, 0.01),
    "left_hip_y": (-120, 20, 20, 5, 0.01),
    "left_knee": (-160, -2, 1, 1, 0.006),
    "left_ankle_y": (-50, 50, 4, 1, 0.0008),
    "left_ankle_x": (-50, 50, 1, 1, 0.0006),
    "right_shoulder1": (-85, 60, 1, 1, 0.0068),
    "right_shoulder2": (-85, 60, 1, 1, 0.0051),
    "right_elbow": (-90, 50, 0, 1, 0.0028),
    "left_shoulder1": (-60, 85, 1, 1, 0.0068),
    "left_shoulder2": (-60, 85, 1, 1, 0.0051),
    "left_elbow": (-90, 50, 0, 1, 0.0028),
}
LEG = ((-0.15, 0.0872665, 10, 1, 1), (-1.91986, 0.174533, 20, 1, 1), (-1.3, -0.0349066, 0, 1, 1))
ARM = ((-1.0472, 0.785398, 1, 1, 1), (-0.785398, 0.785398, 1, 1, 1))
SIMPLE_JOINTS = dict(
    zip(
        (
            *("right_hip1", "right_hip3", "right_knee", "left_hip1", "left_hip3", "left_knee"),
            *("right_shoulder1", "right_shoulder2", "left_shoulder1", "left_shoulder2"),
        ),
        LEG + LEG + ARM + ARM,
        strict=True,
    )
)
# Joint: gear, in the order of actions.
HUMANOID_GEARS = {
    "abdomen_y": 200,
    "abdomen_z": 200,
    "abdomen_x": 200,
    "right_hip_x": 200,
    "right_hip_z": 200,
    "right_hip_y": 600,
    "right_knee": 400,
    "right_ankle_x": 100,
    "right_ankle_y": 100,
    "left_hip_x": 200,
    "left_hip_z": 200,
    "left_hip_y": 600,
    "left_knee": 400,
    "left_ankle_x": 100,
    "left_ankle_y": 100,
    "right_shoulder1": 100,
    "right_shoulder2": 100,
    "right_elbow": 200,
    "left_shoulder1": 100,
    "left_shoulder2": 100,
    "left_elbow": 200,
}


def test_masses():
    now, then = load_model(ROBOTS[HUMANOID]), load_model(ROBOTS[HUMANOID], "1.31")
    assert [now.body(i).name for i in range(1, now.nbody)] == list(MASSES)
    np.testing.assert_allclose(now.body_mass[1:], [m for m, _ in MASSES.values()], atol=6e-6)
    np.testing.assert_allclose(then.body_mass[1:], [m for _, m in MASSES.values()], atol=6e-6)
    assert now.body_mass.sum() == pytest.approx(40.8440, abs=6e-5)
    assert then.body_mass.sum() == pytest.approx(38.2914, abs=6e-5)


def cylinders(model, body):
    """Mass, centre and principal inertias of a body whose capsules are cylinders of their length plus one radius."""
    parts = []
    for i in np.flatnonzero(model.geom_bodyid == body):
        radius, half, _ = model.geom_size[i]
        if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_SPHERE:
            mass = 1000 * 4 / 3 * np.pi * radius**3
            across = along = 0.4 * mass * radius**2
        else:
            length = 2 * half + radius
            mass = 1000 * np.pi * radius**2 * length
            across, along = mass * (3 * radius**2 + length**2) / 12, mass * radius**2 / 2
        rotation = np.empty(9)
        mujoco.mju_quat2Mat(rotation, model.geom_quat[i])
        rotation = rotation.reshape(3, 3)
        parts.append((mass, model.geom_pos[i], rotation @ np.diag([across, across, along]) @ rotation.T))
    total = sum(mass for mass, _, _ in parts)
    centre = sum(mass * at for mass, at, _ in parts) / total
    inertia = sum(
        own + mass * ((at - centre) @ (at - centre) * np.eye(3) - np.outer(at - centre, at - centre))
        for mass, at, own in parts
    )
    return total, centre, np.linalg.eigvalsh(inertia)[::-1]


def test_the_inertias_of_131_follow_its_rule():
    shapes, model = load_model(ROBOTS[HUMANOID]), load_model(ROBOTS[HUMANOID], "1.31")
    for body in range(1, model.nbody):
        mass, centre, inertia = cylinders(shapes, body)
        np.testing.assert_allclose(model.body_mass[body], mass, rtol=1e-5)
        np.testing.assert_allclose(model.body_ipos[body], centre, atol=1e-6)
        np.testing.assert_allclose(model.body_inertia[body], inertia, rtol=1e-5)


def test_the_inertia_rule_makes_no_difference_to_the_simple_humanoid():
    now, then = load_model(ROBOTS[SIMPLE]), load_model(ROBOTS[SIMPLE], "1.31")
    for field in ("body_mass", "body_inertia", "body_ipos", "body_iquat"):
        np.testing.assert_array_equal(getattr(now, field), getattr(then, field))
    np.testing.assert_allclose(
        now.body_mass[1:],
        [8.32208, 7.88854, 5.37761, 3.10016, 1.76715, 5.37761, 3.10016, 1.76715, 1.59406, 1.59406],
        atol=6e-6,
    )


@pytest.mark.parametrize(("name", "joints"), [(HUMANOID, HUMANOID_JOINTS), (SIMPLE, SIMPLE_JOINTS)])
def test_joints(name, joints):
    model = load_model(ROBOTS[name])
    assert [model.joint(i).name for i in range(model.njnt)] == ["root", *joints]
    unit = np.pi / 180 if name == HUMANOID else 1
    for joint, (low, high, stiffness, damping, armature) in joints.items():
        found = model.joint(joint)
        np.testing.assert_allclose(found.range, [low * unit, high * unit])
        assert found.limited[0]
        assert (found.stiffness[0], found.damping[0], found.armature[0]) == (stiffness, damping, armature)
    assert not model.dof_damping[:6].any()
    assert not model.dof_armature[:6].any()


def test_motors():
    model = load_model(ROBOTS[HUMANOID])
    joints = [model.joint(i).name for i in model.actuator_trnid[:, 0]]
    assert dict(zip(joints, model.actuator_gear[:, 0], strict=True)) == HUMANOID_GEARS
    assert joints == list(HUMANOID_GEARS)
    np.testing.assert_array_equal(model.actuator_ctrlrange, [[-0.4, 0.4]] * 21)
    model = load_model(ROBOTS[SIMPLE])
    assert [model.joint(i).name for i in model.actuator_trnid[:, 0]] == list(SIMPLE_JOINTS)
    assert (model.actuator_gear[:, 0] == 1).all()
    np.testing.assert_array_equal(model.actuator_ctrlrange[:, 1], [100] * 6 + [20] * 4)
    assert model.actuator_ctrllimited.all()


def test_contacts_and_solvers():
    model = load_model(ROBOTS[HUMANOID])
    assert (model.opt.timestep, model.opt.integrator) == (0.002, mujoco.mjtIntegrator.mjINT_RK4)
    assert (model.opt.solver, model.opt.iterations) == (mujoco.mjtSolver.mjSOL_PGS, 50)
    assert model.geom_condim.tolist() == [3] + [1] * 19
    assert (model.geom_contype & model.geom_conaffinity).all()
    assert set(model.geom_margin) == {0.001}
    assert set(map(tuple, model.geom_solimp[:, :3])) == {(0.8, 0.8, 0.01)}
    model = load_model(ROBOTS[SIMPLE])
    assert (model.opt.timestep, model.opt.integrator) == (0.01, mujoco.mjtIntegrator.mjINT_RK4)
    assert model.geom_conaffinity.tolist() == [1] + [0] * 13
    assert set(model.geom_condim) == {3}
    assert set(model.geom_margin) == {0.1}
    assert set(map(tuple, model.geom_friction)) == {(1.0, 0.5, 0.5)}


@pytest.mark.parametrize("name", NAMES)
def test_qpos0(name):
    model = load_model(ROBOTS[name])
    np.testing.assert_array_equal(model.qpos0, [0, 0, 1.4, 1] + [0] * (model.nq - 4))


def without_sensors(name, inertia="exact"):
    """The model that a user of plain MuJoCo would step."""
    spec = mujoco.MjSpec.from_file(str(ASSETS / ROBOTS[name].file))
    if inertia == "1.31":
        spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO
    for sensor in list(spec.sensors):
        spec.delete(sensor)
    return spec.compile()


def parts_of(observation, model):
    return np.split(observation, np.cumsum([model.nq, model.nv, 6 * model.nbody]), axis=-1)


def momentum_velocity(model, data):
    """Velocity of the centre of mass: the bodies' momenta over their mass."""
    momentum, velocity = np.zeros(3), np.zeros(6)
    for body in range(1, model.nbody):
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, body, velocity, 0)
        momentum += model.body_mass[body] * velocity[3:]
    return momentum / model.body_mass.sum()


def reward_of(model, data, action):
    forward, sideways, upward = momentum_velocity(model, data)
    unit = action.astype(float) / model.actuator_ctrlrange[:, 1]
    control = 0.5 * 1e-3 * (unit**2).sum()
    impact = 0.5 * 1e-5 * (np.clip(data.cfrc_ext, -1, 1) ** 2).sum()
    deviation = 0.5 * 1e-2 * (sideways**2 + upward**2)
    return forward - control - impact - deviation + 0.2


@pytest.mark.parametrize(("name", "inertia"), [(HUMANOID, "exact"), (HUMANOID, "1.31"), (SIMPLE, "exact")])
def test_every_step_is_that_of_plain_mujoco(name, inertia):
    """Observations bit for bit, rewards up to the order of sums, with the robot falling to the ground and on it."""
    robot, model = ROBOTS[name], without_sensors(name, inertia)
    simulations, everyone = Simulations(robot, Options(inertia=inertia), 3), np.ones(3, bool)
    simulations.begin(everyone, [np.random.default_rng(i) for i in range(3)])
    datas = []
    for i in range(3):
        data, start = mujoco.MjData(model), simulations.data(i)
        data.qpos[:], data.qvel[:] = start.qpos, start.qvel
        datas.append(data)
    rng = np.random.default_rng(0)
    touched = ends = 0
    for _ in range(600 // robot.frame_skip):
        for data, seen in zip(datas, simulations.observation(), strict=True):
            mujoco.mj_forward(model, data)
            mujoco.mj_rnePostConstraint(model, data)
            qpos, qvel, forces, com = parts_of(seen, model)
            np.testing.assert_array_equal(qpos, data.qpos.astype(np.float32))
            np.testing.assert_array_equal(qvel, data.qvel.astype(np.float32))
            np.testing.assert_array_equal(forces, np.clip(data.cfrc_ext, -1, 1).ravel().astype(np.float32))
            np.testing.assert_array_equal(com, data.subtree_com[1].astype(np.float32))
            assert not forces[:6].any()
            touched += forces.any()
        # Beyond the bounds: MuJoCo clamps the torque, and the cost is that of the action as it was given.
        action = rng.uniform(1.5 * simulations.low, 1.5 * simulations.high, (3, model.nu)).astype(np.float32)
        reward, terminated = simulations.advance(everyone, action)
        for i, data in enumerate(datas):
            data.ctrl[:] = action[i]
            for _ in range(robot.frame_skip):
                mujoco.mj_step(model, data)
            mujoco.mj_forward(model, data)
            mujoco.mj_rnePostConstraint(model, data)
            assert reward[i] == pytest.approx(reward_of(model, data, action[i]), abs=1e-12)
            assert terminated[i] == (data.qpos[2] < 0.8 or data.qpos[2] > 2.0)
            ends += terminated[i]
    assert touched > 100
    assert 0 < ends < 3 * 600 // robot.frame_skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("height", "over"), [(0.6, True), (1.4, False), (2.4, True)])
def test_the_bonus_is_paid_on_the_last_step_too(name, height, over):
    simulations, model = Simulations(ROBOTS[name], Options(), 1), without_sensors(name)
    simulations.begin(np.ones(1, bool), [np.random.default_rng(0)])
    simulations._qpos[0, 2] = height
    action = np.full((1, model.nu), 0.1, np.float32)
    [reward], [terminated] = simulations.advance(np.ones(1, bool), action)
    data = simulations.data()
    mujoco.mj_forward(model, data)
    mujoco.mj_rnePostConstraint(model, data)
    assert terminated == over
    assert reward == pytest.approx(reward_of(model, data, action[0]), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_reset_noise(name):
    count = 400
    env = TASKS.get(name).make(Wanted(seed=5, num_envs=count))
    model = load_model(ROBOTS[name])
    qpos, qvel, _, _ = parts_of(env.reset()[1], model)
    noise = qpos - model.qpos0
    np.testing.assert_allclose(np.linalg.norm(qpos[:, 3:7], axis=1), 1, atol=1e-6)
    noise = np.delete(noise, 3, axis=1)  # the quaternion's first entry hardly moves once its length is 1
    for values, spread in ((noise, 0.01), (qvel, 0.1)):
        assert stats.kstest(values.ravel() / spread, "norm").pvalue > 0.01
        assert np.abs(values.std(0) / spread - 1).max() < 4 / np.sqrt(2 * count)
        assert len(np.unique(values[:, 0])) == count
        assert np.abs(np.corrcoef(values.T) - np.eye(values.shape[1])).max() < 5 / np.sqrt(count)


def played(env, steps, seed=0, state=None):
    """Steps of random actions, and the actions."""
    rng = np.random.default_rng(seed)
    rows, actions = [], []
    for _ in range(steps):
        action = rng.uniform(env.space.low, env.space.high, (env.num_envs, *env.space.shape)).astype(np.float32)
        state, taken = env.step(state, action)
        rows.append(taken)
        actions.append(action)
    return rows, actions


def assert_same(rows, others):
    for row, other in zip(rows, others, strict=True):
        for values, expected in zip(row, other, strict=True):
            np.testing.assert_array_equal(values, expected)
            assert values.dtype == expected.dtype


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_steps(name):
    task = TASKS.get(name)
    env, size, model = task.make(Wanted(seed=0, num_envs=5)), task.size(), load_model(ROBOTS[name])
    assert (env.observation_layout.size, *env.space.shape, 1000) == size
    _, observation = env.reset()
    assert observation.shape == (5, size.observation)
    rows, _ = played(env, 200)
    assert rows[0].valid.all()
    for row in rows:
        assert row.observation.shape == (5, size.observation)
        assert row.observation.dtype == row.reward.dtype == row.success.dtype == np.float32
        assert np.isfinite(row.observation).all()
        assert np.isfinite(row.reward).all()
        assert np.isnan(row.success).all()
        assert not row.truncated.any()
        assert np.abs(parts_of(row.observation, model)[2]).max() <= 1
    ends = 0
    for before, after in itertools.pairwise(rows):
        np.testing.assert_array_equal(after.valid, ~before.terminated)
        assert (after.reward[~after.valid] == 0).all()
        assert (np.abs(after.observation[~after.valid, 2] - 1.4) < 0.06).all()
        ends += before.terminated.sum()
    assert ends > 3
    env.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_threads_and_the_gymnasium_environment_give_the_same_bits(name, noise):
    """A batch on any number of threads is that many environments of one simulation each."""
    options = {"action_noise": noise, "horizon": 70}
    one = Host(functools.partial(RllabEnv, name, **options), name, Wanted(3, 5))
    first = one.reset()[1]
    expected, _ = played(one, 120)
    for threads in (1, 2, 3):
        env = TASKS.get(name).make(Wanted(seed=3, num_envs=5, options=options, threads=threads))
        np.testing.assert_array_equal(env.reset()[1], first)
        assert_same(played(env, 120)[0], expected)
    another = TASKS.get(name).make(Wanted(seed=4, num_envs=5, options=options))
    assert len(np.unique(np.concatenate([another.reset()[1], first]), axis=0)) == 10


def test_action_noise_has_its_spread():
    simulations, everyone = Simulations(ROBOTS[SIMPLE], Options(action_noise=0.2), 500), np.ones(500, bool)
    simulations.begin(everyone, [np.random.default_rng(i) for i in range(500)])
    simulations.advance(everyone, np.full((500, 10), 3.0))
    noise = (simulations._ctrl - 3.0) / (0.2 * simulations.high)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_replay_brings_environments_back(name):
    task, wanted = TASKS.get(name), Wanted(seed=1, num_envs=4, options={"horizon": 90, "action_noise": 0.1})
    env = task.make(wanted)
    env.reset()
    rows, actions = played(env, 120)
    first_end = next(t for t, row in enumerate(rows) if (row.terminated | row.truncated).any()) + 1
    for steps in (0, 7, first_end, first_end + 1, 110):
        past = rows[:steps]
        resets = 1 + sum(((~row.valid).astype(int) for row in past), np.zeros(4, int))
        current = []
        for i in range(4):
            began = max((t + 1 for t, row in enumerate(past) if not row.valid[i]), default=0)
            current.append(np.array([a[i] for a in actions[began:steps]], np.float32).reshape(-1, *env.space.shape))
        fresh = task.make(wanted)
        state, observation = fresh.replay(Replay(resets, current))
        if steps:
            np.testing.assert_array_equal(observation, rows[steps - 1].observation)
        for t in range(steps, steps + 10):
            state, taken = fresh.step(state, actions[t])
            assert_same([taken], [rows[t]])


@pytest.mark.parametrize("name", NAMES)
def test_the_horizon_truncates(name):
    env = TASKS.get(name).make(Wanted(seed=0, num_envs=2, options={"horizon": 10}))
    env.reset()
    rows = [env.step(None, np.zeros((2, *env.space.shape), np.float32))[1] for _ in range(12)]
    assert [row.truncated.all() for row in rows] == [t == 9 for t in range(12)]
    assert not any(row.terminated.any() for row in rows)
    assert [row.valid.all() for row in rows] == [t != 10 for t in range(12)]


def test_an_unstable_simulation_terminates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file there
    env = TASKS.get(HUMANOID).make(Wanted(seed=0, num_envs=3))
    env.reset()
    env._simulations._qvel[1] = 1e11
    still = np.zeros((3, 21), np.float32)
    _, row = env.step(None, still)
    assert row.terminated.tolist() == [False, True, False]
    assert np.isfinite(row.observation).all()
    assert np.isfinite(row.reward).all()
    _, row = env.step(None, still)
    assert row.valid.tolist() == [True, False, True]
    _, row = env.step(None, still)
    assert row.valid.all()
    assert not row.terminated.any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"horizn": 5}, "no option 'horizn'. Did you mean horizon"),
        ({"inertia": "1.32"}, 'inertia must be "exact" or "1.31"'),
        ({"inertia": 1.31}, 'inertia must be "exact" or "1.31"'),
        ({"horizon": 0}, "horizon must be a whole number of at least 1"),
        ({"horizon": 10.5}, "horizon must be a whole number of at least 1"),
        ({"horizon": True}, "horizon must be a whole number of at least 1"),
        ({"action_noise": -0.1}, "action_noise must be a number of at least 0"),
        ({"action_noise": float("nan")}, "action_noise must be a number of at least 0"),
        ({"action_noise": "much"}, "action_noise must be a number of at least 0"),
    ],
)
def test_bad_options_are_a_sentence(options, sentence):
    with pytest.raises(BadInput, match=sentence):
        TASKS.get(SIMPLE).make(Wanted(seed=0, num_envs=2, options=options))
    with pytest.raises(BadInput, match=sentence):
        RllabEnv(SIMPLE, **options)


def test_what_cannot_be_made_is_a_sentence():
    with pytest.raises(BadInput, match="cannot be restarted"):
        TASKS.get(SIMPLE).make(Wanted(seed=0, num_envs=2, restarts=3))
    with pytest.raises(BadInput, match="there are rllab/Humanoid and rllab/SimpleHumanoid"):
        RllabEnv("Humanoid")
    with pytest.raises(BadInput, match="render_mode"):
        RllabEnv(SIMPLE, render_mode="human")
    with pytest.raises(BadInput, match="render_mode"):
        RllabEnv(SIMPLE).render()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*WARN.*Box")  # that bounds are infinite, or not -1 and 1
def test_gymnasium_finds_nothing_wrong(name):
    check_env(RllabEnv(name), skip_render_check=True)


PICTURE = """
import sys
import mujoco
from detent.tasks.rllab import ROBOTS, RllabEnv
try:
    mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>")).close()
except Exception:
    sys.exit(77)
for name in ROBOTS:
    env = RllabEnv(name, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (480, 640, 3) and picture.std() > 10
    env.close()
"""


def test_rendering():
    """In a process of its own: MuJoCo chooses its OpenGL when it is imported."""
    found = subprocess.run([sys.executable, "-c", PICTURE], env={**os.environ, "MUJOCO_GL": "egl"}, timeout=60)
    if found.returncode == 77:
        pytest.skip("no OpenGL without a screen here")
    assert found.returncode == 0


def random_policy(name, episodes):
    """Returns and lengths of whole episodes of uniformly random actions."""
    simulations, running = Simulations(ROBOTS[name], Options(), episodes), np.ones(episodes, bool)
    simulations.begin(running, [np.random.default_rng((7, i)) for i in range(episodes)])
    rng = np.random.default_rng(0)
    returns, lengths = np.zeros(episodes), np.zeros(episodes)
    while running.any() and lengths.max() < 1000:
        action = rng.uniform(simulations.low, simulations.high, (episodes, len(simulations.low)))
        reward, terminated = simulations.advance(running, action)
        returns += np.where(running, reward, 0)
        lengths += running
        running = running & ~terminated
    return returns, lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "episodes", "mean", "spread", "length"),
    [(HUMANOID, 150, 14.0, 12.4, 58), (SIMPLE, 300, 29.2, 53.3, 140)],
)
def test_a_random_policy_gets_what_it_gets_in_the_original(name, episodes, mean, spread, length):
    """Reference: as many episodes in the original model files; within 3 standard errors of the difference."""
    returns, lengths = random_policy(name, episodes)
    assert abs(returns.mean() - mean) < 3 * np.sqrt((returns.var() + spread**2) / episodes)
    assert abs(lengths.mean() - length) < 3 * np.sqrt(2 * lengths.var() / episodes)
