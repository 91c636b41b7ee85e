"""Observations of every layout become the vectors that Gymnasium's `flatten` makes of them."""

from __future__ import annotations

import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import host_tasks
from detent.cli import main
from detent.environments.spaces import observation_layout
from detent.errors import BadInput
from detent.files import Corrupt
from detent.observations import Choices, DoesNotFit, Numbers, Parts, layout_of
from detent.play import play
from detent.policy import Policy, load
from detent.runs.execution import train
from detent.runs.run import Run

BOX = spaces.Box(-1.0, 1.0, (2, 3), np.float64)
SPACES = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": BOX,
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([[3, 2], [1, 4]], start=[[0, 5], [0, -1]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(3))),
    "dict": spaces.Dict(z=BOX, a=spaces.MultiBinary(2), m=spaces.Dict(y=spaces.Discrete(2), x=spaces.Tuple((BOX,)))),
    "unsorted": spaces.Dict([("z", BOX), ("a", spaces.Discrete(2))]),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def samples(space, count):
    space.seed(0)
    return [space.sample() for _ in range(count)]


def stacked(space, observations):
    """A batch, as vectorised environments give it."""
    return gymnasium.vector.utils.concatenate(
        space, observations, gymnasium.vector.utils.create_empty_array(space, len(observations))
    )


@every_space
def test_vectors_are_those_of_gymnasium(space):
    layout = observation_layout("own", space)
    for observation in samples(space, 20):
        vector = layout.flat(observation)
        assert vector.shape == (layout.size,)
        np.testing.assert_array_equal(vector, spaces.flatten(space, observation))


@every_space
def test_a_batch_is_a_matrix_in_numpy_and_in_jax(space):
    layout, observations = observation_layout("own", space), samples(space, 4)
    batch = stacked(space, observations)
    matrix = layout.flat(batch)
    np.testing.assert_array_equal(matrix, [layout.flat(observation) for observation in observations])
    traced = jax.jit(layout.flat)(jax.tree.map(jnp.asarray, batch))
    np.testing.assert_array_equal(traced, matrix.astype(traced.dtype))


@every_space
def test_a_layout_survives_json(space):
    layout = observation_layout("own", space)
    assert layout_of(json.loads(json.dumps(layout.described(), sort_keys=True))) == layout


@pytest.mark.parametrize(
    "described",
    [
        None, 3, "numbers", [], {}, {"numbers": [-2, -3]}, {"numbers": ["3"]}, {"numbers": 3}, {"numbers": [True]},
        {"choices": [3]}, {"choices": [3], "first": [0, 0], "shape": []}, {"parts": 1}, {"parts": [{}]},
        {"parts": [{"numbers": [1]}], "names": ["a", "b"]}, {"parts": [{"numbers": [1]}], "names": 7},
    ],
    ids=str,
)  # fmt: skip
def test_what_describes_no_layout_is_refused(described):
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        layout_of(described)


def test_descriptions_do_not_go_too_deep():
    described = {"numbers": [1]}
    for _ in range(10_000):
        described = {"parts": [described]}
    with pytest.raises(ValueError, match="too deep"):
        layout_of(described)


@pytest.mark.parametrize(
    ("layout", "observation", "because"),
    [
        (Numbers((2,)), [1.0, 2.0, 3.0], r"its shape is \(3,\) and should be \(2,\)"),
        (Numbers((2,)), 1.0, r"its shape is \(\)"),
        (Numbers((2,)), ["a", "b"], "its type, <U1"),
        (Numbers((2, 2)), [[1.0], [1.0, 2.0]], "rows of different lengths"),
        (Choices((3,), (1,), ()), 4, "4 is not among the choices from 1 to 3"),
        (Choices((3,), (1,), ()), 1.5, "not among the choices"),
        (Parts((Numbers((2,)),), ("a",)), {"b": [1.0, 2.0]}, "it has no part 'a'"),
        (Parts((Numbers((2,)),), ("a",)), [1.0, 2.0], "not a dictionary with the parts a"),
        (Parts((Numbers((2,)),), ("a",)), {"a": [1.0]}, r"of its part 'a', its shape is \(1,\)"),
        (Parts((Numbers((2,)),)), ([1.0], [2.0]), "not a tuple of 1 parts"),
        (Parts((Numbers(()), Numbers(()))), ([1.0], [1.0, 2.0]), "not batches of one size"),
    ],
)
def test_what_does_not_fit_says_why(layout, observation, because):
    with pytest.raises(DoesNotFit, match=because):
        layout.flat(observation)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on observations in parts."""
    out = tmp_path_factory.mktemp("parts") / "run"
    records = list(train(Run(host_tasks.Parts, "gaussian", steps=512, envs=8, batch_size=256), out))
    assert all(np.isfinite(record["train/loss"]) for record in records)
    return out


def test_a_policy_acts_on_what_the_environment_gives(trained):
    policy, env = load(trained), host_tasks.Parts()
    one, batch = samples(env.observation_space, 1)[0], samples(env.observation_space, 5)
    vectors = [spaces.flatten(env.observation_space, observation) for observation in batch]
    np.testing.assert_array_equal(policy(one), policy(spaces.flatten(env.observation_space, one)))
    np.testing.assert_array_equal(policy(stacked(env.observation_space, batch)), policy(vectors))
    assert env.action_space.contains(policy(one))
    with pytest.raises(BadInput, match="does not match the policy's task: it has no part 'goal'"):
        policy({key: part for key, part in one.items() if key != "goal"})
    with pytest.raises(BadInput, match="observations of 10 numbers, not of shape"):
        policy(np.zeros(4))


def test_it_is_evaluated_and_played(trained, capsys):
    assert main(["eval", str(trained), "--episodes", "3", "--import", "host_tasks"]) == 0
    assert "length 10.0" in capsys.readouterr().out
    run = Run(host_tasks.Parts, "gaussian")
    [episode] = play(run, load(trained), host_tasks.Parts(), episodes=1, seed=3)
    assert episode.length == 10


def test_a_policy_of_many_axes_or_choices_takes_both_kinds_of_observation(trained):
    policy = load(trained)

    def seeing(layout):
        return Policy(policy.tensors, {**policy.meta, "observation": layout.described()})

    vector = np.arange(10.0)
    matrix = seeing(Numbers((2, 5)))
    np.testing.assert_array_equal(matrix(vector.reshape(2, 5)), policy(vector))
    np.testing.assert_array_equal(matrix(vector), policy(vector))
    assert matrix(np.zeros((3, 2, 5))).shape == matrix(np.zeros((3, 10))).shape == (3, 2)
    row = seeing(Numbers((1, 10)))
    assert row(vector[None]).shape == (2,)
    choice = seeing(Choices((10,), (0,), ()))
    np.testing.assert_array_equal(choice(3), policy(np.eye(10)[3]))
    np.testing.assert_array_equal(choice(np.arange(10)), policy(np.eye(10)))
    np.testing.assert_array_equal(choice(np.eye(10)), policy(np.eye(10)))


def test_a_policy_file_whose_layout_is_not_its_networks_is_refused(trained, tmp_path):
    policy = load(trained)
    for number, described in enumerate(({"numbers": [9]}, {"parts": 3}, "vector")):
        path = tmp_path / f"{number}.safetensors"
        Policy(policy.tensors, {**policy.meta, "observation": described}).save(path)
        with pytest.raises(Corrupt, match=r"is not a valid policy|observation is not an object"):
            load(path)
    old = {key: value for key, value in policy.meta.items() if key != "observation"}
    Policy(policy.tensors, old).save(tmp_path / "old.safetensors")
    assert load(tmp_path / "old.safetensors").layout == Numbers((10,))
