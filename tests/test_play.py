"""Films of policies, really drawn and read back."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
from gymnasium.spaces import Box
from PIL import Image

from detent.cli import main
from detent.environments.spaces import action_space
from detent.errors import BadInput, EnvironmentFailed
from detent.play import BAR, Film, choose_backend, factory_of, heights, make_env, play, with_overlay
from detent.policy import load
from detent.runs.identity import without_free
from detent.runs.run import Run
from detent.tasks import TASKS, find_task
from policies import random_policy


@pytest.fixture(autouse=True)
def drawing_is_undecided(monkeypatch):
    """Each test finds out anew how to draw, as each process does."""
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER"):
        os.environ.pop(name, None)


def random_player(task, **options):
    """A run of this task and a policy for it that was never trained."""
    run = Run(task, **options)
    env = factory_of(run.task, run.settings.env_kwargs or {})()
    space, shape, size = env.action_space, env.action_space.shape, env.observation_space.shape[0]
    env.close()
    policy = random_policy(
        run.head,
        action_space(task, space, bounded=True),
        size,
        shape=list(shape),
        configuration=without_free(run.configuration),
    )
    return run, policy


def film_of(task, tmp_path, steps):
    """What `detent play` records of an episode cut after so many steps."""
    run, policy = random_player(task, env_kwargs={"max_episode_steps": steps})
    path = tmp_path / "policy.safetensors"
    policy.save(path)
    assert main(["play", str(path), "--seed", "3"]) == 0
    return run, policy, iio.imread(tmp_path / "play.mp4")


def test_a_film_shows_the_episode_that_gymnasium_plays(tmp_path, capsys):
    _, policy, pictures = film_of("Pendulum-v1", tmp_path, 40)
    env = gymnasium.make("Pendulum-v1", max_episode_steps=40, render_mode="rgb_array")
    observation, _ = env.reset(seed=3)
    total, over = 0.0, False
    while not over:
        observation, reward, _, over, _ = env.step(policy(observation))
        total += float(reward)
    last = env.render()
    env.close()
    out = capsys.readouterr().out
    assert f"episode 1: return {total:,.1f} in 40 steps" in out
    assert pictures.shape == (40, 500, 500, 3)
    # Beneath the overlay the last picture is the environment's, and the first was another.
    below = pictures[:, 120:].astype(int)
    assert np.abs(below[-1] - last[120:]).mean() < 4
    assert np.abs(below[0] - below[-1]).max() > 100
    with Image.open(tmp_path / "play.gif") as gif:
        assert gif.width == 320
        assert gif.n_frames == 20
        assert gif.info["duration"] >= 1000 / 15
        assert gif.info["loop"] == 0


@pytest.mark.parametrize("task", ["Hopper-v5", "roboschool/Reacher", "CartPole-v1"])
def test_tasks_of_every_kind_are_drawn(task, tmp_path):
    run, policy = random_player(task, env_kwargs={"max_episode_steps": 6})
    env = make_env(run)
    with Film(env, tmp_path / "a.mp4", None) as film:
        [episode] = play(run, policy, env, 1, seed=0, choose="sample", film=film)
    env.close()
    assert 0 < episode.length <= 6
    pictures = iio.imread(tmp_path / "a.mp4")
    assert len(pictures) == -(-episode.length // film.every)
    # A picture of something, not of one colour.
    assert pictures[-1][150:].std() > 5
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_a_program_finds_out_how_to_draw(tmp_path):
    """In a process of its own: MuJoCo decides when it is imported, which tests before this one have done."""
    _, policy = random_player("rllab/SimpleHumanoid", env_kwargs={"horizon": 3})
    policy.save(tmp_path / "policy.safetensors")
    command = [sys.executable, "-m", "detent.cli", "play", tmp_path, "--out", tmp_path / "a.mp4"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert iio.imread(tmp_path / "a.mp4")[-1][150:].std() > 5


def test_which_tasks_can_be_watched():
    seen = {name: _watchable(TASKS.get(name)) for name in TASKS.names()}
    for name, watchable in seen.items():
        task = TASKS.get(name)
        if task.suite == "mujoco":
            assert watchable == name.endswith(("v4", "v5")), name
        elif task.suite in ("dm_control", "probe"):
            assert not watchable, name
        elif task.suite in ("classic", "rllab", "roboschool"):
            assert watchable, name
    assert seen["BipedalWalker-v3"]
    assert seen["paper/BipedalWalker"]
    assert not seen["paper/LunarLanderContinuous"]
    for name, sentence in {
        "Ant-v3": r"EnvPool, which draws nothing.*trained on Ant-v5 can be watched",
        "paper/Reacher": r"trained on Reacher-v5 can be watched",
        "dm_control/cheetah-run": r"`detent tasks mujoco` with version 4 or 5",
        "probe/value": "nothing to see",
    }.items():
        with pytest.raises(BadInput, match=sentence):
            factory_of(find_task(name), {})


def _watchable(task):
    try:
        factory_of(task, {})
    except BadInput:
        return False
    return True


def test_mujoco_draws_with_what_works_and_a_users_choice_stands(monkeypatch):
    monkeypatch.setattr("detent.play.BACKENDS", ("nonsense", "egl"))
    choose_backend()
    assert os.environ["MUJOCO_GL"] == os.environ["PYOPENGL_PLATFORM"] == "egl"
    monkeypatch.setattr("detent.play.BACKENDS", ("nonsense",))
    choose_backend()
    monkeypatch.delenv("MUJOCO_GL")
    with pytest.raises(BadInput, match="neither EGL nor OSMesa works; install one"):
        choose_backend()


def overlay_columns(bars, middle, shape=(240, 320, 3)):
    """[(top, bottom)] Of the bars, from left to right."""
    picture = with_overlay(np.zeros(shape, np.uint8), -12.3, 45, np.array(bars), middle)
    assert picture.shape == shape
    is_bar = (picture == BAR[:3]).all(-1)
    columns = np.flatnonzero(is_bar.any(0))
    groups = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return [(np.flatnonzero(is_bar[:, g[0]]).min(), np.flatnonzero(is_bar[:, g[0]]).max()) for g in groups]


def test_bars_show_the_action():
    (top, bottom), (low_top, low_bottom), half = overlay_columns([1.0, 0.0, 0.75], middle=True)
    tall = 240 // 9
    assert abs((bottom - top) - tall / 2) <= 2
    assert abs((low_bottom - low_top) - tall / 2) <= 2
    assert bottom <= low_top + 2
    assert abs((half[1] - half[0]) - tall / 4) <= 2
    (top, bottom), (third, foot) = overlay_columns([1.0, 1 / 3], middle=False)
    assert abs((bottom - top) - tall) <= 2
    assert abs((foot - third) - tall / 3) <= 2
    # However many dimensions and however small the picture, nothing is left out.
    assert with_overlay(np.zeros((48, 64, 3), np.uint8), 1e6, 10**6, np.ones(38), True).shape == (48, 64, 3)


def test_heights_are_positions_within_the_bounds():
    _, policy = random_player("Pendulum-v1")
    np.testing.assert_allclose(heights(policy, np.array([2.0])), [1.0])
    np.testing.assert_allclose(heights(policy, np.array([-1.0])), [0.25])
    _, policy = random_player("CartPole-v1")
    np.testing.assert_allclose([heights(policy, np.int64(i)) for i in (0, 1)], [[0.5], [1.0]])


class Plain(gymnasium.Env):
    """An environment without pictures."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (2, 3), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        return np.zeros(2, np.float32), 1.0, False, True, {}


class Failing(Plain):
    """Draws well and breaks in its third step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode, self.taken = render_mode, 0

    def render(self):
        return np.zeros((31, 33, 3), np.uint8)

    def step(self, action):
        self.taken += 1
        if self.taken == 3:
            raise RuntimeError("a wheel came off")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_environments_that_cannot_be_drawn_are_told_why(tmp_path):
    run, policy = random_player(Plain)
    with pytest.raises(BadInput, match=r"TypeError: .*; to be drawn, an environment must take `render_mode`"):
        make_env(run)
    with pytest.raises(BadInput, match=r"its render\(\) gives no picture"):
        env = Plain()
        env.render = lambda: None
        list(play(run, policy, env, 1, 0, film=Film(env, None, tmp_path / "a.gif")))
    assert [episode.total for episode in play(run, policy, Plain(), 2, 0)] == [1.0, 1.0]
    with pytest.raises(BadInput, match="they are not the same task"):
        list(play(run, random_player("Pendulum-v1")[1], Plain(), 1, 0))


def test_a_film_is_whole_or_absent(tmp_path):
    run, policy = random_player(Failing)
    env = make_env(run)
    with (
        pytest.raises(EnvironmentFailed, match="raised RuntimeError: a wheel came off"),
        Film(env, tmp_path / "a.mp4", tmp_path / "a.gif") as film,
    ):
        list(play(run, policy, env, 1, 0, film=film))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--window"], "There is no display for a window"),
        (["--window", "--out", "x"], "records nothing"),
        (["--episodes", "0"], "--episodes must be a whole number of at least 1"),
        (["--best"], "--best needs a run directory"),
    ],
)
def test_bad_input_gets_a_sentence(words, sentence, tmp_path, capsys):
    _, policy = random_player("Pendulum-v1")
    policy.save(tmp_path / "policy.safetensors")
    assert main(["play", str(tmp_path / "policy.safetensors"), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_task_without_pictures_and_a_file_without_a_task(tmp_path, capsys):
    run, policy = random_player("Hopper-v5")
    path = tmp_path / "p.safetensors"
    old = {**without_free(run.configuration), "task": "Hopper-v3"}
    type(policy)(policy.tensors, {**policy.meta, "configuration": old}).save(path)
    assert main(["play", str(path)]) == 2
    assert "trained on Hopper-v5 can be watched" in capsys.readouterr().err
    type(policy)(policy.tensors, {k: v for k, v in policy.meta.items() if k != "configuration"}).save(path)
    assert load(path)
    assert main(["play", str(path)]) == 2
    assert re.search(r"configuration of the run is incomplete", capsys.readouterr().err)


def test_one_file_alone(tmp_path, capsys):
    _, policy = random_player("Pendulum-v1", env_kwargs={"max_episode_steps": 4})
    policy.save(tmp_path / "policy.safetensors")
    assert main(["play", str(tmp_path / "policy.safetensors"), "--out", str(tmp_path / "new" / "x.gif")]) == 0
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.gif"]
