"""Any Gymnasium environment, in this process or in workers."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import host_tasks
from detent.environments import Environment, Replay, Step, Wanted
from detent.environments.host import Host, make_factory
from detent.errors import BadInput, EnvironmentFailed

Actions = NDArray[np.float32]


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Callable[..., Host]:
    """Makes hosts that are closed after the test."""

    def make(factory: Callable[[], Any], num_envs: int, seed: int = 3, **options: Any) -> Host:
        made = Host(factory, "Task", Wanted(seed, num_envs, **options))
        request.addfinalizer(made.close)
        return made

    return make


def actions_for(host: Host, steps: int, seed: int = 0) -> Actions:
    uniform = np.random.default_rng(seed).random((steps, host.num_envs, host.space.shape[0]), np.float32)
    return (host.space.low + uniform * (host.space.high - host.space.low)).astype(np.float32)


def run(host: Host, actions: Actions) -> list[Step]:
    return [host.step(None, action)[1] for action in actions]


def assert_same(left: list[Step], right: list[Step]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for field in Step._fields:
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field, strict=True)


def ended(step: Step) -> NDArray[np.bool_]:
    return np.asarray(step.terminated | step.truncated)


def replay_of(actions: Actions, steps: list[Step]) -> Replay:
    """What the steps so far leave for whoever wants to come back to where they led."""
    resets, since = np.ones(len(actions[0]), np.int64), [list[Actions]() for _ in actions[0]]
    for action, step in zip(actions, steps, strict=True):
        for i, valid in enumerate(step.valid):
            if valid:
                since[i].append(action[i])
            else:
                resets[i] += 1
                since[i] = []
    return Replay(resets, [np.array(taken, np.float32).reshape(-1, actions.shape[-1]) for taken in since])


def one_sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_is_an_environment(host: Callable[..., Host]) -> None:
    env: Environment = host(host_tasks.Drift, 2)
    assert (env.observation_layout.size, env.num_envs, env.traceable) == (3, 2, False)
    _, observation = env.reset()
    _, step = env.step(None, np.zeros((2, 2)))  # type: ignore[arg-type]
    assert observation.shape == (2, 3)
    assert observation.dtype == np.float32
    assert [np.asarray(array).dtype.name for array in step] == ["float32"] * 2 + ["bool"] * 3 + ["float32"]
    assert [array.shape for array in step] == [(2, 3)] + [(2,)] * 5


@pytest.mark.parametrize("workers", [2, 9])
def test_workers_give_the_bits_of_one_process(host: Callable[..., Host], workers: int) -> None:
    here, there = host(host_tasks.Drift, 3), host(host_tasks.Drift, 3, workers=workers)
    assert len(multiprocessing.active_children()) == min(workers, 3)
    np.testing.assert_array_equal(here.reset()[1], there.reset()[1], strict=True)
    actions = actions_for(here, 60)
    steps = run(here, actions)
    assert_same(steps, run(there, actions))
    assert any(step.terminated.any() for step in steps)
    assert any(step.truncated.any() for step in steps)


def test_reset_starts_the_first_episodes_again(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Drift, 2)
    _, first = env.reset()
    steps = run(env, actions_for(env, 30))
    _, again = env.reset()
    np.testing.assert_array_equal(first, again)
    assert_same(steps, run(env, actions_for(env, 30)))


@pytest.mark.parametrize("workers", [0, 2])
def test_replay_brings_everything_back(host: Callable[..., Host], workers: int) -> None:
    env = host(host_tasks.Drift, 4)
    env.reset()
    actions, steps = actions_for(env, 80), list[Step]()
    for action in actions:
        steps += run(env, action[None])
        # Stop where one environment waits for its reset, one is in a later episode and one has just been reset.
        if len(steps) > 20 and ended(steps[-1]).any() and not steps[-1].valid.all():
            break
    replay = replay_of(actions[: len(steps)], steps)
    assert replay.resets.max() > 1
    assert len(steps) < 60
    back = host(host_tasks.Drift, 4, workers=workers)
    _, observation = back.replay(replay)
    np.testing.assert_array_equal(observation, steps[-1].observation)
    rest = actions[len(steps) :]
    continued = run(back, rest)
    np.testing.assert_array_equal(continued[0].valid, ~ended(steps[-1]))
    assert_same(run(env, rest), continued)


def test_the_step_after_an_end_only_resets(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Drift, 3)
    env.reset()
    actions = actions_for(env, 60)
    steps = run(env, actions)
    assert steps[0].valid.all()
    lengths, resets = np.zeros(3, int), np.ones(3, int)
    for before, after in itertools.pairwise(steps):
        np.testing.assert_array_equal(after.valid, ~ended(before))
    for step in steps:
        for i in range(3):
            if step.valid[i]:
                lengths[i] += 1
                # `Drift` rewards where it is, so the reward tells the final observation from a reset one.
                assert step.reward[i] == pytest.approx(float(np.sum(step.observation[i])), rel=1e-4)
            else:
                assert step.reward[i] == 0
                assert not ended(step)[i]
                lengths[i], resets[i] = 0, resets[i] + 1
            assert not step.truncated[i] or lengths[i] == 9
    assert (resets > 2).all()


def test_a_reset_ignores_its_action(host: Callable[..., Host]) -> None:
    seen = []
    for value in (0.0, 0.5):
        env = host(host_tasks.Seeded, 1)
        env.reset()
        seen.append(run(env, np.array([[[0.0, 0.0]], [[value, value]]], np.float32))[1].observation)
    np.testing.assert_array_equal(seen[0], seen[1])


def seeds_of(env: Host) -> list[list[int]]:
    """The seed of each environment in its first five episodes."""
    _, observation = env.reset()
    steps = run(env, np.zeros((8, env.num_envs, 2), np.float32))
    shown = [observation, *(step.observation for step in steps[1::2])]
    return [[int(low) + int(high) * 2**16 for low, high, _ in np.asarray(row)] for row in shown]


def test_every_episode_has_its_own_seed(host: Callable[..., Host]) -> None:
    seeds = seeds_of(host(host_tasks.Seeded, 4))
    assert len({seed for row in seeds for seed in row}) == 20
    assert all(0 <= seed < 2**31 for row in seeds for seed in row)
    assert seeds == seeds_of(host(host_tasks.Seeded, 4))
    # Environment i is the same one however many there are.
    assert [row[:2] for row in seeds] == seeds_of(host(host_tasks.Seeded, 2))
    other = seeds_of(host(host_tasks.Seeded, 4, seed=4))
    assert not {seed for row in seeds for seed in row} & {seed for row in other for seed in row}


def test_actions_with_several_axes_are_flattened_and_stay_inside(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Grid, 2)
    assert env.space.shape == (6,)
    assert env.space.dtype == np.float32
    np.testing.assert_allclose(env.space.low, [-0.1, -1.0, -2.0, 0.0, 0.1, 0.3], rtol=1e-6)
    np.testing.assert_allclose(env.space.high, [0.1, 1.0, 0.7, 5.0, 0.7, 0.9], rtol=1e-6)
    env.reset()
    # The environment asserts that an action is within its float64 bounds, which float32 cannot hold.
    action = np.stack([env.space.low, env.space.high]).astype(np.float32)
    [step] = run(env, action[None])
    np.testing.assert_array_equal(step.observation, action)


def test_an_environment_may_keep_its_action(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Smooth, 1)
    env.reset()
    steps = run(env, np.array([[[0.0, 0.0]], [[1.0, 0.5]], [[1.0, 0.0]]], np.float32))
    assert [float(step.reward[0]) for step in steps] == [0.0, 1.5, 0.5]


def test_what_a_step_gave_stays(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Drift, 2)
    _, first = env.reset()
    kept = np.array(first)
    steps = run(env, actions_for(env, 2))
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(steps[0].observation, steps[1].observation)


def test_success_is_reported_where_it_is_known(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Drift, 4)
    env.reset()
    seen = set()
    for step in run(env, actions_for(env, 60)):
        known = ended(step)
        np.testing.assert_array_equal(np.isnan(step.success), ~known)
        np.testing.assert_array_equal(step.success[known], step.terminated[known])
        seen |= {float(value) for value in np.asarray(step.success)[known]}
    assert seen == {0.0, 1.0}


class Spaced(host_tasks.Task):
    """A task with other spaces."""

    def __init__(self, **given: spaces.Space[Any]) -> None:
        super().__init__()
        vars(self).update(given)


SCALAR = spaces.Box(0.0, 1.0, ())
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
BOX = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        (IMAGE, r"images in its observations \(uint8, of shape \(8, 8, 3\)\). Images are not supported"),
        (spaces.Dict(arm=BOX, camera=IMAGE), "Images are not supported"),
        (spaces.Tuple((BOX, spaces.Dict(camera=IMAGE))), "Images are not supported"),
        (spaces.Box(0.0, 1.0, (0,)), "empty observations"),
        (spaces.Tuple(()), "empty observations"),
        (spaces.Text(5), "Text observations; Detent supports Box, Discrete, .*, and Dict and Tuple of these"),
        (spaces.Dict(arm=BOX, name=spaces.Text(5)), "Text observations"),
        (spaces.Sequence(BOX), "Sequence observations"),
        (spaces.Graph(BOX, None), "Graph observations"),
    ],
)
def test_observations_it_refuses(space: spaces.Space[Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=f"Task has .*{complaint}") as error:
        Host(lambda: Spaced(observation_space=space), "Task", Wanted(0, 2))
    one_sentence(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_observations_in_parts_become_vectors(host: Callable[..., Host], workers: int) -> None:
    env = host(host_tasks.Parts, 3, workers=workers)
    _, observation = env.reset()
    steps = run(env, actions_for(env, 30))
    whole = host_tasks.Parts()
    assert observation.shape == (3, env.observation_layout.size) == (3, 2 + 3 + 1 + 4)
    # Gymnasium's own flattening of the same episode.
    seed = int(str(np.random.SeedSequence((3, 1, 0)).generate_state(1)[0])) >> 1
    first, _ = whole.reset(seed=seed)
    np.testing.assert_array_equal(observation[1], spaces.flatten(whole.observation_space, first).astype(np.float32))
    second, *_ = whole.step(actions_for(env, 30)[0, 1])
    expected = spaces.flatten(whole.observation_space, second).astype(np.float32)
    np.testing.assert_array_equal(steps[0].observation[1], expected)


def test_an_observation_that_lacks_a_part_is_a_failure(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Forgetful, 1)
    env.reset()
    with pytest.raises(
        EnvironmentFailed, match="that the observation space does not allow: it has no part 'goal'"
    ) as error:
        run(env, actions_for(env, 3))
    one_sentence(error)


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        (
            spaces.MultiBinary(2),
            "Task has MultiBinary actions; Detent supports Box, Discrete and MultiDiscrete",
        ),
        (spaces.Dict(arm=BOX), "Task has Dict actions; Detent supports Box, Discrete and MultiDiscrete actions"),
        (spaces.Tuple((BOX,)), "Task has Tuple actions; Detent supports Box, Discrete and MultiDiscrete actions"),
        (SCALAR, "shape ()"),
        (spaces.Box(0.0, 1.0, (0,)), "shape (0,)"),
        (spaces.Box(0.0, 1.0, (2, 0)), "shape (2, 0)"),
        (spaces.Box(np.array([0.0, 1.0]), np.array([1.0, 1.0]), dtype=np.float64), "must be below"),
        (spaces.Box(-1.0, np.inf, (2,)), "without finite bounds"),
    ],
)
def test_actions_it_refuses(space: spaces.Space[Any], complaint: str) -> None:
    with pytest.raises(BadInput) as error:
        Host(lambda: Spaced(action_space=space), "Task", Wanted(0, 2))
    assert complaint in one_sentence(error)


def test_actions_passed_on_raw_need_no_finite_bounds(host: Callable[..., Host]) -> None:
    env = host(lambda: Spaced(action_space=spaces.Box(-np.inf, np.inf, (2,))), 1, bounded=False)
    assert np.isinf(env.space.low).all()
    assert np.isinf(env.space.high).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_raises(host: Callable[..., Host], workers: int) -> None:
    env = host(host_tasks.Raises, 2, workers=workers)
    env.reset()
    run(env, actions_for(env, 2))
    action = np.array([[0.25, 0.5], [0.0, 0.0]], np.float32)
    with pytest.raises(EnvironmentFailed) as error:
        env.step(None, action)
    text = one_sentence(error)
    assert text.startswith("Task: environment 0, in its episode 0 (seed ")
    told = r"\), at step 3 with action \[0.25, 0.5\], raised ValueError: the arm is broken \(\w+.py:\d+ in step\)$"
    assert re.search(told, text)
    seeds = seeds_of(host(host_tasks.Seeded, 2))
    assert f"(seed {seeds[0][0]})" in text


def test_an_environment_that_raises_in_its_reset(host: Callable[..., Host]) -> None:
    with pytest.raises(EnvironmentFailed, match=r"environment 0, .* in its reset, raised RuntimeError: no power") as e:
        host(host_tasks.RaisesInReset, 1).reset()
    one_sentence(e)


def test_a_worker_that_dies(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Dies, 2, workers=2)
    env.reset()
    run(env, actions_for(env, 1))
    with pytest.raises(
        EnvironmentFailed, match=r"environment 0, .*at step 2 with action .*lost its worker process .exit code 7"
    ) as error:
        env.step(None, actions_for(env, 1)[0])
    one_sentence(error)


def test_a_worker_that_is_killed_between_steps(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Drift, 2, workers=1)
    env.reset()
    [worker] = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(EnvironmentFailed, match=r"environments 0 to 1 .*exit code -9") as error:
        run(env, actions_for(env, 3))
    one_sentence(error)


def test_a_worker_that_hangs(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Hangs, 1, workers=1, timeout=0.5)
    env.reset()
    run(env, actions_for(env, 1))
    with pytest.raises(EnvironmentFailed, match=r"environment 0, .*at step 2 .*no answer within 0.5 s") as error:
        env.step(None, actions_for(env, 1)[0])
    one_sentence(error)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_failed_environment_is_restarted_with_a_new_episode(
    host: Callable[..., Host], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    env = host(host_tasks.Raises, 2, workers=workers, restarts=10)
    env.reset()
    steps = run(env, actions_for(env, 5))
    assert [step.valid.tolist() for step in steps] == [[t != 2] * 2 for t in range(5)]
    assert [float(step.observation[0, 0]) for step in steps] == [1, 2, 0, 1, 2]
    assert not any(ended(step).any() for step in steps)
    assert len(caplog.messages) == 2
    assert "at step 3 with action [" in caplog.messages[0]
    assert "raised ValueError: the arm is broken (" in caplog.messages[1]
    assert caplog.messages[1].endswith("in step); restarted (2 of at most 10).")


def test_restarts_are_capped(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Raises, 1, restarts=1)
    env.reset()
    with pytest.raises(
        EnvironmentFailed, match=r"the arm is broken .*, after 1 restarts.* --max-env-restarts"
    ) as error:
        run(env, actions_for(env, 6))
    one_sentence(error)


@pytest.mark.parametrize("workers", [1, 2])
def test_restarts_are_the_same_in_workers_and_can_be_replayed(host: Callable[..., Host], workers: int) -> None:
    """Environments that raise or return NaN as their seeds have it."""
    envs = [host(host_tasks.Fragile, 4, workers=w, restarts=1000) for w in (0, workers)]
    actions = actions_for(envs[0], 60)
    for env in envs:
        env.reset()
    one, other = (run(env, actions) for env in envs)
    assert_same(one, other)
    assert all(np.isfinite(step.observation).all() for step in one)
    restarts = sum(int(np.sum(~b.valid & ~ended(a))) for a, b in itertools.pairwise(one))
    assert restarts > 10
    again = host(host_tasks.Fragile, 4, workers=workers, restarts=1000)
    _, observation = again.replay(replay_of(actions, one))
    np.testing.assert_array_equal(observation, one[-1].observation)
    assert_same(run(again, actions_for(env, 20, seed=1)), run(envs[0], actions_for(env, 20, seed=1)))


def test_a_worker_that_died_is_replaced(host: Callable[..., Host], tmp_path: Path) -> None:
    env = host(functools.partial(host_tasks.DiesOnce, str(tmp_path / "marker")), 3, workers=2, restarts=1)
    env.reset()
    steps = run(env, actions_for(env, 4))
    # Environment 0 has a worker of its own, 1 and 2 share one; one of the two dies.
    lost, others = ([0], [1, 2]) if not steps[1].valid[0] else ([1, 2], [0])
    for t, (after_restart, undisturbed) in enumerate(zip([1, 0, 1, 2], [1, 2, 3, 4], strict=True)):
        assert (steps[t].observation[lost] == after_restart).all()
        assert (steps[t].observation[others] == undisturbed).all()
        assert steps[t].valid[others].all()
        assert (steps[t].valid[lost] == (t != 1)).all()


def test_a_worker_that_hangs_is_replaced(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Hangs, 2, workers=1, timeout=0.5, restarts=1)
    env.reset()
    steps = run(env, actions_for(env, 3))
    assert [step.valid.tolist() for step in steps] == [[True, True], [False, False], [True, True]]
    with pytest.raises(EnvironmentFailed, match=r"no answer within 0.5 s, after 1 restarts") as error:
        run(env, actions_for(env, 1))
    one_sentence(error)


def test_workers_need_a_factory_that_reaches_them() -> None:
    with pytest.raises(BadInput, match=r"--workers.* at the top level of an importable module") as error:
        Host(lambda: host_tasks.Drift(), "Task", Wanted(0, 2, workers=1))
    one_sentence(error)
    assert not multiprocessing.active_children()


def shared_memory_of(pid: int | None) -> set[str]:
    """The memory that a process shares with others, by inode; it has no name in any directory."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if line.endswith("/memfd:detent (deleted)")}


def test_workers_come_and_go(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Process, 2, workers=2)
    env.reset()
    workers = multiprocessing.active_children()
    pids = {worker.pid for worker in workers}
    [block] = set.union(*map(shared_memory_of, pids))
    before = shared_memory_of(os.getpid())
    assert block in before
    for worker in workers:
        os.kill(worker.pid or 0, signal.SIGINT)  # as Ctrl-C does
    [step] = run(env, actions_for(env, 1))
    assert {int(pid) for pid in step.observation[:, 0]} == pids
    env.close()
    env.close()
    assert not multiprocessing.active_children()
    assert shared_memory_of(os.getpid()) == before - {block}


def test_workers_do_not_import_jax(host: Callable[..., Host]) -> None:
    env = host(host_tasks.Process, 1, workers=1)
    env.reset()
    [step] = run(env, actions_for(env, 1))
    assert not step.observation[0, 1]


def test_close_closes_every_environment() -> None:
    made = list[host_tasks.Task]()

    def make() -> host_tasks.Task:
        made.append(host_tasks.Task())
        return made[-1]

    env = Host(make, "Task", Wanted(0, 3))
    env.close()
    env.close()
    assert [task.closed for task in made] == [True] * 3


def test_what_was_made_is_closed_when_the_rest_cannot_be() -> None:
    made = list[host_tasks.Task]()

    def make() -> host_tasks.Task:
        if len(made) == 2:
            raise OSError("no more\nlicences")
        made.append(host_tasks.Task())
        return made[-1]

    with pytest.raises(BadInput, match="Task could not be made: it raised OSError: no more licences") as error:
        Host(make, "Task", Wanted(0, 3))
    one_sentence(error)
    assert [task.closed for task in made] == [True] * 2


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGINT)"])
def test_nothing_is_left_of_a_program_that_did_not_close(ending: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import multiprocessing, os, signal
            if __name__ == "__main__":
                signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
                import host_tasks
                from detent.environments import Wanted
                from detent.environments.host import Host
                env = Host(host_tasks.Drift, "Task", Wanted(0, 2, workers=2))
                env.reset()
                for worker in multiprocessing.active_children():
                    print(worker.pid, flush=True)
                assert "/dev/shm" not in open("/proc/self/maps").read()
                {ending}
        """)
    )
    path = os.pathsep.join([*sys.path, str(Path(host_tasks.__file__).parent)])
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    # Of a traceback, the lines that are not indented.
    said = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert said == (["Traceback (most recent call last):", "KeyboardInterrupt"] if ending else [])
    pids = done.stdout.split()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_registered_environment_is_made_by_its_name(host: Callable[..., Host]) -> None:
    make = pickle.loads(pickle.dumps(make_factory("Pendulum-v1", {"g": 1.5})))
    env = make()
    assert env.unwrapped.g == 1.5
    assert not isinstance(env, gymnasium.wrappers.PassiveEnvChecker)
    assert env.spec.max_episode_steps == 200
    assert host(make, 2).observation_layout.size == 3


def test_a_registration_goes_along_to_processes_that_lack_it() -> None:
    gymnasium.register("DriftHere-v0", entry_point="host_tasks:Drift")
    pickled = pickle.dumps(make_factory("DriftHere-v0", {}))
    del gymnasium.registry["DriftHere-v0"]
    assert isinstance(pickle.loads(pickled)().unwrapped, host_tasks.Drift)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "complaint"),
    [
        ("Pendulum-v1", {"gravity": 1.5}, "unexpected keyword argument 'gravity'"),
        ("Pendulumm-v1", {}, "`Pendulumm` doesn't exist"),
        ("no_such_module:Pendulum-v1", {}, "no_such_module"),
    ],
)
def test_what_gymnasium_says_of_a_wrong_name_or_option(env_id: str, kwargs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=f"{env_id} could not be made") as error:
        Host(make_factory(env_id, kwargs), env_id, Wanted(0, 2))
    assert complaint in one_sentence(error)
