"""Roboschool's tasks: every number is recomputed here from single queries of Bullet, by Roboschool's definitions."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from detent.environments import Wanted
from detent.environments.host import Host
from detent.errors import BadInput
from detent.tasks import TASKS
from detent.tasks.roboschool import (
    ENVIRONMENTS,
    Ant,
    Humanoid,
    HumanoidFlagrun,
    HumanoidFlagrunHarder,
    Reacher,
    Walker2d,
)

WALKERS = [Ant, Humanoid, HumanoidFlagrun, HumanoidFlagrunHarder, Walker2d]
every = pytest.mark.parametrize("kind", ENVIRONMENTS, ids=lambda kind: kind.__name__)
every_walker = pytest.mark.parametrize("kind", WALKERS, ids=lambda kind: kind.__name__)


@contextlib.contextmanager
def made(kind, **options):
    env = kind(**options)
    yield env
    env.close()


def random_action(env, rng, size=1.0):
    return rng.uniform(-size, size, env.action_space.shape).astype(np.float32)


def body_named(world, name):
    """Body and link of the part of this name."""
    for k in range(world.getNumBodies()):
        body = world.getBodyUniqueId(k)
        if world.getBodyInfo(body)[0].decode() == name:
            return body, -1
        for link in range(world.getNumJoints(body)):
            if world.getJointInfo(body, link)[12].decode() == name:
                return body, link
    raise KeyError(name)


def position_of(world, name):
    body, link = body_named(world, name)
    return world.getBasePositionAndOrientation(body)[0] if link < 0 else world.getLinkState(body, link, 0, 1)[0]


class Seen:
    """What Roboschool would have to know of a walker, one query at a time."""

    def __init__(self, env):
        world = env.world
        robot, torso = body_named(world, "torso")
        if torso < 0:
            position, orientation = world.getBasePositionAndOrientation(robot)
            velocity = world.getBaseVelocity(robot)[0]
        else:
            position, orientation, *_, velocity, _ = world.getLinkState(robot, torso, 1, 1)
        self.height, self.velocity = position[2], np.array(velocity)
        self.roll, self.pitch, self.yaw = env.world._bullet.getEulerFromQuaternion(orientation)
        links = [world.getLinkState(robot, k, 0, 1)[0] for k in range(world.getNumJoints(robot))]
        self.x, self.y = np.mean(links, axis=0)[:2]
        self.joints = []
        for k in range(world.getNumJoints(robot)):
            info = world.getJointInfo(robot, k)
            if info[2] != world.JOINT_FIXED and not info[1].startswith(b"ignore"):
                where, speed, *_ = world.getJointState(robot, k)
                self.joints.append((2 * (where - info[8]) / (info[9] - info[8]) - 1, 0.1 * speed))
        floor, _ = body_named(world, "floor")
        others = [
            {point[2] for point in world.getContactPoints(bodyA=robot, linkIndexA=body_named(world, foot)[1])}
            for foot in env.feet
        ]
        self.on_floor = [floor in touched for touched in others]
        self.colliding = sum(bool(touched - {floor}) for touched in others)

    def distance(self, target):
        return math.dist((self.x, self.y), target)

    def observation(self, initial_height, target, feet):
        to_target = math.atan2(target[1] - self.y, target[0] - self.x) - self.yaw
        turn = np.array([[math.cos(self.yaw), math.sin(self.yaw)], [-math.sin(self.yaw), math.cos(self.yaw)]])
        forward, aside = turn @ self.velocity[:2]
        body = [self.height - initial_height, math.sin(to_target), math.cos(to_target)]
        body += [0.3 * forward, 0.3 * aside, 0.3 * self.velocity[2], self.roll, self.pitch]
        return np.clip(np.concatenate([body, np.ravel(self.joints), feet]), -5, 5)


def hold_up(env, where=(0.0, 0.0)):
    """Put the humanoid upright in the air, at rest."""
    robot, _ = body_named(env.world, "torso")
    env.world.resetBasePositionAndOrientation(robot, (*where, 1.4), (0, 0, 0, 1))
    env.world.resetBaseVelocity(robot, (0, 0, 0), (0, 0, 0))


@every_walker
def test_what_a_walker_observes(kind):
    with made(kind) as env:
        observation, _ = env.reset(seed=4)
        seen = Seen(env)
        start = seen.height if kind in (Ant, Walker2d) else 0.8
        np.testing.assert_allclose(observation, seen.observation(start, env.target, [0] * len(env.feet)), atol=2e-6)
        rng = np.random.default_rng(0)
        for _ in range(15):
            feet = seen.on_floor if env.frame else [0] * len(env.feet)
            observation, *_ = env.step(random_action(env, rng))
            seen = Seen(env)
            # The feet are those after the step before.
            np.testing.assert_allclose(observation, seen.observation(start, env.target, feet), atol=5e-6)


ALIVE = {
    Ant: lambda seen: 1 if seen.height > 0.26 else -1,
    Walker2d: lambda seen: 1 if seen.height > 0.8 and abs(seen.pitch) < 1 else -1,
    Humanoid: lambda seen: 2 if seen.height > 0.78 else -1,
    HumanoidFlagrun: lambda seen: 2 if seen.height > 0.78 else -1,
}
WORK = {Ant: -2.0, Walker2d: -2.0, Humanoid: -8.5, HumanoidFlagrun: -4.25}
STALL = {Ant: -0.1, Walker2d: -0.1, Humanoid: -0.425, HumanoidFlagrun: -0.425}


@pytest.mark.parametrize("kind", list(ALIVE), ids=lambda kind: kind.__name__)
def test_the_reward_of_a_walker_term_by_term(kind):
    with made(kind) as env:
        rng = np.random.default_rng(1)
        at_limit = ends = 0
        env.reset(seed=5)
        seen = Seen(env)
        for _ in range(120):
            before, target = seen, env.target
            action = random_action(env, rng, 1.5)  # torques are clipped, costs are not
            _, reward, terminated, _, _ = env.step(action)
            seen = Seen(env)
            speeds = np.array([speed for _, speed in seen.joints])
            limit = sum(abs(position) > 0.99 for position, _ in seen.joints)
            same_flag = target == env.target
            terms = (
                ALIVE[kind](seen),
                (before.distance(target) - seen.distance(target)) / 0.0165 if same_flag else 0.0,
                WORK[kind] * np.abs(action * speeds).mean() + STALL[kind] * np.square(action).mean(),
                -0.2 * limit,
                -1.0 * seen.colliding,
            )
            np.testing.assert_allclose(env.rewards, terms, rtol=1e-4, atol=2e-5)
            assert reward == pytest.approx(sum(terms), abs=1e-3)
            assert terminated == (terms[0] < 0)
            at_limit += limit
            if terminated:
                ends += 1
                env.reset()
                seen = Seen(env)
        assert at_limit
        assert ends or kind is Ant


def test_feet_that_touch_something_else_cost():
    """Legs pressed together in the air, until a foot touches the other one."""
    with made(Humanoid) as env:
        env.reset(seed=0)
        press = np.zeros(17, np.float32)
        press[[3, 7]] = 1.0  # both hips, inward
        costs = set()
        for _ in range(40):
            hold_up(env)
            env.step(press)
            assert env.rewards.feet_collision == -Seen(env).colliding
            costs.add(env.rewards.feet_collision)
        assert {0.0, -1.0} <= costs


def test_an_ant_on_its_back_is_over():
    with made(Ant) as env:
        env.reset(seed=0)
        robot, _ = body_named(env.world, "torso")
        env.world.resetBasePositionAndOrientation(robot, (0, 0, 0.4), (1, 0, 0, 0))
        for _ in range(200):
            *_, terminated, _, _ = env.step(np.zeros(8, np.float32))
            assert terminated == (Seen(env).height <= 0.26)
            assert env.rewards.alive == (-1 if terminated else 1)
            if terminated:
                break
        assert terminated


def test_the_humanoid_begins_in_the_air_and_faces_ahead():
    with made(Humanoid) as env:
        yaws, joints = [], []
        for seed in range(60):
            env.reset(seed=seed)
            seen = Seen(env)
            assert seen.height == pytest.approx(1.4)
            yaws.append(seen.yaw)
            robot, _ = body_named(env.world, "torso")
            joints += [env.world.getJointState(robot, k)[0] for k in env._joints]
            assert env.target == (1000.0, 0.0)
        assert max(np.abs(yaws)) <= math.pi / 16 + 1e-6
        assert max(np.abs(yaws)) > 0.8 * math.pi / 16
        assert max(np.abs(joints)) <= 0.1
        assert np.std(joints) == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


def test_torques():
    """A joint's largest torque is power x strength, in the order of the actions."""
    strong = [100] * 3 + [100, 100, 300, 200] * 2 + [75] * 6
    with made(Humanoid) as env:
        np.testing.assert_allclose(env._strength, 0.41 * np.array(strong))
    with made(Walker2d) as env:
        np.testing.assert_allclose(env._strength, 0.4 * np.array([100, 100, 30, 100, 100, 30]))
    with made(Ant) as env:
        np.testing.assert_allclose(env._strength, np.full(8, 250.0))


def test_reacher():
    with made(Reacher) as env:
        rng = np.random.default_rng(2)
        stuck = 0
        for seed in range(8):
            observation, _ = env.reset(seed=seed)
            before = None
            for step in range(40):
                arm, _ = body_named(env.world, "fingertip")
                target, _ = body_named(env.world, "target")
                gap = np.subtract(position_of(env.world, "fingertip"), position_of(env.world, "target"))
                (theta, theta_speed, *_), (elbow, elbow_speed, *_) = (env.world.getJointState(arm, k) for k in (0, 2))
                x, y = (env.world.getJointState(target, k)[0] for k in (0, 1))
                gamma = elbow / 3
                expected = [x, y, *gap[:2], math.cos(theta), math.sin(theta)]
                expected += [0.1 * theta_speed, gamma, 0.1 * elbow_speed]
                np.testing.assert_allclose(observation, expected, atol=1e-6)
                if step:
                    a, b = np.abs(action)
                    terms = (
                        100 * (np.linalg.norm(before) - np.linalg.norm(gap)),
                        -0.1 * (a * abs(0.1 * theta_speed) + b * abs(0.1 * elbow_speed)) - 0.01 * (a + b),
                        -0.1 if abs(abs(gamma) - 1) < 0.01 else 0.0,
                    )
                    np.testing.assert_allclose(env.rewards, terms, atol=1e-6)
                    assert reward == pytest.approx(sum(terms), abs=1e-6)
                    stuck += terms[2] < 0
                before = gap
                action = random_action(env, rng) if seed % 2 else np.array([0.3, 1.0], np.float32)
                observation, reward, *ends, _ = env.step(action)  # noqa: RUF059  read in the next round
                assert ends == [False, False]
            assert max(abs(x), abs(y)) <= 0.27
        assert stuck


def test_the_first_flag_is_straight_ahead_half_of_the_time():
    with made(HumanoidFlagrun) as env:
        ahead = 0
        for seed in range(300):
            env.reset(seed=seed)
            x, y = env.target
            if y == 0.0:
                ahead += 1
                assert 26.25 / 2 <= x <= 26.25
            else:
                assert abs(x) <= 26.25 / 2
                assert abs(y) <= 12.5 / 2
        assert 120 < ahead < 180


def test_a_flag_moves_when_it_is_reached_or_out_of_time_and_gives_no_progress():
    nothing = np.zeros(17, np.float32)
    with made(HumanoidFlagrun) as env:
        env.reset(seed=1)
        flag = env.target
        hold_up(env, (flag[0] - 0.3, flag[1]))
        env.step(nothing)
        assert env.target != flag
        assert env.rewards.progress == 0.0
        assert env.target[1] != 0.0  # only the first one is straight ahead
        flag, steps = env.target, 0
        while env.target == flag:
            hold_up(env, (10.0, -10.0) if flag[1] > 0 else (10.0, 10.0))
            env.step(nothing)
            steps += 1
        assert steps == 150
        assert env.rewards.progress == 0.0
        env.reset(seed=1)  # the first flag's time begins with the reset's own observation
        flag, steps = env.target, 0
        while env.target == flag:
            hold_up(env, (0.0, 0.0))
            env.step(nothing)
            steps += 1
        assert steps == 149


def starts_in(env, start, seeds):
    """Reset until an episode begins so."""
    for seed in seeds:
        env.reset(seed=seed)
        if env.start == start:
            return
    raise AssertionError("no such start")


def test_the_three_starts_of_flagrun_harder():
    with made(HumanoidFlagrunHarder) as env:
        starts = []
        for seed in range(300):
            env.reset(seed=seed)
            starts.append(env.start)
            seen = Seen(env)
            assert seen.height == pytest.approx([1.4, 0.45, 0.22][env.start])
            pitch = [0.0, math.pi / 2, 1.5 * math.pi - 0.15][env.start]
            assert math.sin(seen.pitch) == pytest.approx(math.sin(pitch), abs=1e-3)
        assert all(70 < starts.count(k) < 130 for k in range(3))  # nothing known yet: alike
        env.survived[0].extend([True] * 10)
        env.survived[1].extend([False] * 3)
        env.survived[2].extend([True, False, True])
        weights = np.array([1 - 10 / 11, 1.0, 1 - 2 / 4])
        starts = []
        for seed in range(300):
            env.reset(seed=seed)
            starts.append(env.start)
        np.testing.assert_allclose(np.bincount(starts) / 300, weights / weights.sum(), atol=0.08)


def test_flagrun_harder_remembers_which_starts_it_survived():
    with made(HumanoidFlagrunHarder, max_episode_steps=100) as env:
        starts_in(env, 0, range(20))
        while not env.step(np.zeros(17, np.float32))[2]:
            pass
        assert list(env.survived[0]) == [False]
        starts_in(env, 2, range(20))
        for step in range(100):
            *_, terminated, truncated, _ = env.step(np.zeros(17, np.float32))
            assert not terminated
            assert truncated == (step == 99)
        assert list(env.survived[2]) == [True]


def uprightness(env, seen):
    z = 0.7 * seen.height + 0.3 * position_of(env.world, "pelvis")[2]
    return 0.5 + 1.5 * min(max(z, 0.0), 0.7) / 0.7


def test_the_rewards_of_flagrun_harder():
    """On the ground and above it: alive, the potential without crawling, electricity, the count of low steps."""
    with made(HumanoidFlagrunHarder) as env:
        rng = np.random.default_rng(0)
        starts_in(env, 1, range(20))
        seen, low, ignored, entered = Seen(env), 0, 0.0, None

        def potential():
            nonlocal ignored, entered
            flag = -seen.distance(env.target) / 0.0165
            if seen.height < 0.8:
                if entered is None:
                    entered = flag - ignored
                ignored = flag - entered
                flag = entered
            else:
                flag -= ignored
                entered = None
            return flag + 100 * uprightness(env, seen)

        before = potential()
        heights = set()
        for step in range(400):
            action = random_action(env, rng)
            if step in (30, 31, 32, 33, 34):
                hold_up(env, (seen.x, seen.y))
            _, _, terminated, _, _ = env.step(action)
            seen = Seen(env)
            is_low = seen.height < 0.8
            heights.add(is_low)
            low = low + 1 if is_low else max(low - 1, 0)
            assert env.low_steps == low
            if env.patience == 150:
                before = potential()
            after = potential()
            speeds = np.array([speed for _, speed in seen.joints])
            work = (-0.4 if is_low else -1.0) * np.abs(action * speeds).mean() - 0.425 * np.square(action).mean()
            alive = uprightness(env, seen) if low < 170 else -1.0
            np.testing.assert_allclose(env.rewards[:3], (alive, after - before, work), rtol=1e-4, atol=2e-3)
            assert terminated == (low >= 170)
            before = after
            if terminated:
                break
        assert terminated
        assert heights == {True, False}


def test_flagrun_harder_ends_at_once_when_it_began_standing_and_fell():
    with made(HumanoidFlagrunHarder) as env:
        starts_in(env, 0, range(20))
        for _ in range(200):
            *_, terminated, _, _ = env.step(np.zeros(17, np.float32))
            assert terminated == (Seen(env).height < 0.8)
            if terminated:
                break
        assert terminated
        assert env.rewards.alive == -1


def test_cubes():
    """Thrown in every thirtieth step after the hundredth, at whoever is not on the ground, from 4 m, to hit."""
    nothing = np.zeros(17, np.float32)
    with made(HumanoidFlagrunHarder) as env:
        env.reset(seed=3)
        cube = env._cube
        assert env.world.getBasePositionAndOrientation(cube)[0] == pytest.approx((-1.5, 0, 0.05))
        assert env.world.getDynamicsInfo(cube, -1)[0] == pytest.approx(1.2)
        assert env.world.getCollisionShapeData(cube, -1)[0][3] == pytest.approx((0.1, 0.1, 0.1))
        thrown = []
        for step in range(1, 215):
            hold_up(env)
            env.step(nothing)
            velocity = env.world.getBaseVelocity(cube)[0]
            aim = np.subtract(env.position, env.world.getBasePositionAndOrientation(cube)[0])
            if abs(math.hypot(*aim[:2]) - 4.0) < 0.05 and abs(aim[2] + 1.0) < 0.1:
                thrown.append(step)
                speed = math.hypot(*velocity)
                assert 18 < speed < 32
                assert np.dot(aim, velocity) > 0.98 * speed * np.linalg.norm(aim)
        assert thrown == [121, 151, 181, 211]  # Roboschool counts steps from 0


def test_no_cube_is_thrown_at_who_lies_on_the_ground():
    with made(HumanoidFlagrunHarder) as env:
        starts_in(env, 2, range(20))
        for _ in range(160):
            env.step(np.zeros(17, np.float32))
        assert math.hypot(*env.world.getBaseVelocity(env._cube)[0]) < 1


@every
def test_an_episode_is_a_function_of_its_seed_and_actions(kind):
    """To the bit, whatever was played before in the same environment."""

    def played(env, seed, steps):
        if kind is HumanoidFlagrunHarder:
            for survived in env.survived:
                survived.clear()
        rng = np.random.default_rng(seed)
        rows = [np.append(env.reset(seed=seed)[0], 0.0)]
        for _ in range(steps):
            observation, reward, terminated, truncated, _ = env.step(random_action(env, rng))
            rows.append(np.append(observation, reward))
            if terminated or truncated:
                break
        return np.array(rows)

    with made(kind) as used, made(kind, render_mode="rgb_array") as rendered, made(kind) as loaded:
        for seed in range(100, 103):
            played(used, seed, 150)
        for seed in range(3):
            with made(kind) as fresh:
                expected = played(fresh, seed, 150)
            np.testing.assert_array_equal(played(used, seed, 150), expected)
        np.testing.assert_array_equal(played(rendered, seed, 150), expected)
        # As Roboschool does it: the world is loaded again, and nothing is restored. With as many contacts as in Harder
        # their order can then be another one, and with it the last bits.
        loaded._forget_contacts = loaded._build
        loaded.world.restoreState = lambda state: None
        steps = 60 if kind is HumanoidFlagrunHarder else 150
        np.testing.assert_array_equal(played(loaded, seed, steps), expected[: steps + 1])


@pytest.mark.slow
def test_long_tumbles_are_a_function_of_seed_and_actions():
    """The case that needs more than restoring a saved state: many contacts, of parts with several shapes."""

    def tumbled(env, seed):
        for survived in env.survived:
            survived.clear()
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        rows = []
        for _ in range(1000):
            observation, _, terminated, _, _ = env.step(random_action(env, rng))
            rows.append(observation)
            if terminated:
                break
        return np.array(rows)

    with made(HumanoidFlagrunHarder) as used:
        for seed in range(40):
            with made(HumanoidFlagrunHarder) as fresh:
                np.testing.assert_array_equal(tumbled(used, seed), tumbled(fresh, seed))


@every
def test_a_thousand_steps_stay_within_the_spaces(kind):
    with made(kind) as env:
        rng = np.random.default_rng(0)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.shape == (kind.size.observation,)
        assert env.action_space.shape == (kind.size.action,)
        for _ in range(1000):
            assert observation.dtype == np.float32
            assert env.observation_space.contains(observation)
            observation, reward, terminated, truncated, _ = env.step(random_action(env, rng))
            assert math.isfinite(reward)
            if terminated or truncated:
                observation, _ = env.reset()


def test_gymnasium_finds_nothing_wrong():
    with made(Humanoid) as env:
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(("kind", "horizon"), [(Reacher, 150), (Humanoid, 20), (HumanoidFlagrunHarder, 25)])
def test_truncation(kind, horizon):
    with made(kind, **({} if horizon == kind.size.horizon else {"max_episode_steps": horizon})) as env:
        env.reset(seed=0)
        if kind is HumanoidFlagrunHarder:
            starts_in(env, 2, range(20))
        for step in range(1, horizon + 1):
            if kind is Humanoid:
                hold_up(env)
            *_, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape, np.float32))
            assert not terminated
            assert truncated == (step == horizon)


def test_an_action_that_is_no_number_is_refused():
    with made(Humanoid) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match="not finite"):
            env.step(np.full(17, np.nan, np.float32))


@every
def test_it_can_be_rendered(kind):
    with made(kind, render_mode="rgb_array") as env:
        env.reset(seed=0)
        picture = env.render()
        assert picture.shape == (400, 600, 3)
        assert picture.dtype == np.uint8
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    with pytest.raises(ValueError, match="rgb_array"):
        kind(render_mode="human")


def test_worker_processes_give_the_same_bits():
    def played(workers):
        task = TASKS.get("roboschool/Ant")
        env = task.make(Wanted(seed=7, num_envs=3, workers=workers))
        rng = np.random.default_rng(0)
        state, observation = env.reset()
        rows = [observation]
        for _ in range(25):
            state, step = env.step(state, rng.uniform(-1, 1, (3, 8)))
            rows.append(step.observation)
        env.close()
        return np.array(rows)

    np.testing.assert_array_equal(played(0), played(2))


def test_tasks_say_what_they_are():
    for kind in ENVIRONMENTS:
        task = TASKS.get(f"roboschool/{kind.__name__}")
        assert (task.suite, task.backend, task.extra) == ("roboschool", "pybullet", "roboschool")
        assert task.size() == kind.size
        assert task.replayable == (kind is not HumanoidFlagrunHarder)
        assert pickle.loads(pickle.dumps(kind)) is kind  # as a worker process gets it


def test_unknown_options_are_a_sentence():
    with pytest.raises(BadInput, match="no_such_option"):
        TASKS.get("roboschool/Ant").make(Wanted(seed=0, num_envs=1, options={"no_such_option": 1}))


def test_a_missing_pybullet_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(BadInput, match=r"pip install 'detent-rl\[roboschool\]'"):
        Host(Ant, "roboschool/Ant", Wanted(0, 1))
