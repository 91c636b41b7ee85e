"""Environments with K positions per action dimension, for any library."""

from __future__ import annotations

import pickle
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils.env_checker import check_env

from detent.errors import BadInput
from detent.wrappers import DiscretizeActions


class Echo(gymnasium.Env):
    """Gives back the sum of the action, and keeps the action."""

    observation_space = Box(-1.0, 1.0, (1,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.received = action
        return np.zeros(1, np.float32), float(action.sum()), False, False, {}


BOXES = [
    Box(-1.0, 1.0, (3,)),
    Box(-0.4, 0.4, (17,)),
    Box(np.array([-0.1, 0.0, -3.0]), np.array([0.7, 1e-3, 9.0]), dtype=np.float64),
    Box(np.full((2, 3), -0.1, np.float32), np.full((2, 3), 0.7, np.float32)),
    Box(-3e38, 3e38, (2,)),
]


@pytest.mark.parametrize("space", BOXES, ids=str)
@pytest.mark.parametrize("bins", [2, 7, 11, 1001])
def test_positions_are_the_papers_grid(space, bins):
    env = DiscretizeActions(Echo(space), bins)
    size = int(np.prod(space.shape))
    assert env.action_space == MultiDiscrete([bins] * size)
    low, high = np.float64(space.low).reshape(-1), np.float64(space.high).reshape(-1)
    for j, share in [(0, 0.0), (1, 1 / (bins - 1)), (bins // 2, (bins // 2) / (bins - 1)), (bins - 1, 1.0)]:
        action = env.action(np.full(size, j))
        assert action.dtype == space.dtype
        assert action.shape == space.shape
        assert action in space
        expected = low + (high - low) * share
        np.testing.assert_allclose(action.reshape(-1), expected, rtol=1e-6, atol=1e-7 * (high - low).max())
    np.testing.assert_array_equal(env.action(np.zeros(size, int)), space.low)
    np.testing.assert_array_equal(env.action(np.full(size, bins - 1)), space.high)


def test_each_dimension_may_have_its_own_number():
    env = DiscretizeActions(Echo(Box(0.0, 6.0, (3,))), bins=[2, 3, 7])
    np.testing.assert_array_equal(env.action_space.nvec, [2, 3, 7])
    assert [list(p) for p in env.positions] == [[0, 6], [0, 3, 6], [0, 1, 2, 3, 4, 5, 6]]
    env.reset()
    assert env.step(np.array([1, 1, 4]))[1] == 6 + 3 + 4
    np.testing.assert_array_equal(env.unwrapped.received, np.array([6, 3, 4], np.float32))


def test_several_axes_are_flattened_row_by_row():
    env = DiscretizeActions(Echo(Box(0.0, 1.0, (2, 2))), bins=(2, 3, 5, 11))
    np.testing.assert_allclose(env.action(np.array([1, 1, 1, 1])), [[1.0, 0.5], [0.25, 0.1]])


def test_every_sampled_action_is_one_of_the_environment():
    env = DiscretizeActions(Echo(BOXES[2]), bins=(3, 50, 4))
    env.action_space.seed(0)
    env.reset()
    for _ in range(200):
        env.step(env.action_space.sample())
        assert env.unwrapped.received in BOXES[2]


@pytest.mark.filterwarnings("ignore:.*WARN.*different from the unwrapped version")
def test_passes_gymnasiums_checks():
    check_env(DiscretizeActions(gymnasium.make("Pendulum-v1"), 11), skip_render_check=True)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorised(mode):
    envs = gymnasium.make_vec(
        "Pendulum-v1", num_envs=2, vectorization_mode=mode, wrappers=[lambda env: DiscretizeActions(env, 5)]
    )
    try:
        assert envs.single_action_space == MultiDiscrete([5])
        envs.reset(seed=0)
        single = gymnasium.make("Pendulum-v1")
        single.reset(seed=0)
        _, reward, _, _, _ = envs.step(np.array([[4], [0]]))
        assert reward[0] == pytest.approx(single.step(np.array([2.0], np.float32))[1])
    finally:
        envs.close()


def test_can_be_pickled_and_made_again_from_its_spec():
    env = DiscretizeActions(gymnasium.make("Pendulum-v1"), [7])
    for other in (pickle.loads(pickle.dumps(env)), gymnasium.make(env.spec)):
        assert other.action_space == MultiDiscrete([7])
        np.testing.assert_array_equal(other.get_wrapper_attr("action")(np.array([6])), [2.0])


@pytest.mark.parametrize(
    ("space", "bins", "sentence"),
    [
        (Box(-1.0, np.inf, (2,)), 11, "A grid needs bounds, and dimension 0"),
        (Box(np.array([0.0, -np.inf]), np.ones(2), dtype=np.float64), 11, "A grid needs bounds, and dimension 1"),
        (Box(-1.7e308, 1.7e308, (1,), np.float64), 11, "A grid needs bounds"),
        (Box(np.zeros(2), np.array([1.0, 0.0]), dtype=np.float64), 11, "In dimension 1 of .* not above low"),
        (Box(0, 5, (2,), np.int32), 3, "must be a Box of real numbers, not Box"),
        (Discrete(4), 3, "must be a Box of real numbers, not Discrete"),
        (Box(-1.0, 1.0, (2,)), 1, "at least 2, not 1"),
        (Box(-1.0, 1.0, (2,)), [11, 0], "at least 2, not 0"),
        (Box(-1.0, 1.0, (2,)), 2.0, "whole numbers"),
        (Box(-1.0, 1.0, (2,)), True, "whole numbers"),
        (Box(-1.0, 1.0, (2,)), [[3, 3], [3, 3]], "whole numbers"),
        (Box(-1.0, 1.0, (2,)), [3, 3, 3], "bins has 3 numbers, but an action has 2 dimensions"),
        (Box(1.0, 1.0 + 2**-20, (1,)), 11, "are not all distinct in float32"),
    ],
)
def test_refuses_what_has_no_grid(space, bins, sentence):
    with pytest.raises(BadInput, match=sentence):
        DiscretizeActions(Echo(space), bins)


@pytest.mark.parametrize("action", [[-1, 0], [0, 3], [0], [0, 0, 0], [0.0, 1.0], 1, [[0, 1]], [True, False], None])
def test_refuses_an_action_that_is_no_index(action):
    env = DiscretizeActions(Echo(Box(-1.0, 1.0, (2,))), 3)
    env.reset()
    with pytest.raises(BadInput, match="An action"):
        env.step(action)


def test_needs_neither_jax_nor_torch():
    code = "import sys, detent.wrappers; print({'jax', 'torch', 'envpool'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
