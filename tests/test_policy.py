"""The trained artefact: the same actions as the agent that was trained, with NumPy alone."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from safetensors.numpy import load_file

from detent.agent import Agent
from detent.critics.squared import Squared
from detent.environments.spaces import action_space, choices_of
from detent.errors import BadInput, DetentError
from detent.export import TARGETS, file_bytes
from detent.files import Corrupt, read_tensors, write_tensors
from detent.heads import HEADS
from detent.networks import ACTIVATIONS
from detent.ops import OPS
from detent.policy import Policy, load, whole_ops
from detent.report.actions import action_distributions
from detent.rollout import Edge
from detent.runs.execution import evaluate_run, train
from detent.runs.run import Run
from detent.trunks.mlp import MLP
from detent.trunks.simba import SimBa
from policies import random_policy
from updates import BOX_HEADS

LOW, HIGH = np.array([-0.4, 0.0, -3.0], np.float32), np.array([0.4, 5.0, 1.0], np.float32)
SIZE = 7


def agent_and_policy(head_name, actions="scale"):
    """An agent with wide-awake random weights, and its policy."""
    space = Box(LOW, HIGH, dtype=np.float32)
    agent = Agent(HEADS.get(head_name)(), MLP(), Squared(), space, SIZE, policy_gain=3.0)
    policy = random_policy(agent.head, space, SIZE, agent.trunk, scale=actions == "scale")
    return agent, agent.init(jax.random.key(1)), policy


def normalized(policy, observation):
    mean, var = policy.tensors["observation/mean"], policy.tensors["observation/var"]
    return np.clip((observation - mean) / np.sqrt(var + 1e-8), -10, 10).astype(np.float32)


OBSERVATIONS = np.random.default_rng(2).normal(scale=3.0, size=(200, SIZE)).astype(np.float32)


@pytest.mark.parametrize("head", BOX_HEADS)
@pytest.mark.parametrize("actions", ["scale", "clip"])
def test_the_mode_is_the_agents(head, actions):
    agent, parameters, policy = agent_and_policy(head, actions)
    distribution = agent.policy(parameters, normalized(policy, OBSERVATIONS))
    edge = Edge(actions, True, True, 10.0, 0.99)
    expected = edge.action(agent.head.to_unit(distribution.mode()), agent.space)
    np.testing.assert_allclose(policy(OBSERVATIONS), expected, atol=2e-5)


@pytest.mark.parametrize("head", BOX_HEADS)
def test_samples_are_distributed_as_the_agents(head):
    """Mean and spread of many samples for one observation, within five standard errors."""
    agent, parameters, policy = agent_and_policy(head)
    one, n = OBSERVATIONS[0], 20_000
    drawn = policy.sample(np.tile(one, (n, 1)), np.random.default_rng(3))
    distribution = agent.policy(parameters, np.tile(normalized(policy, one), (n, 1)))
    unit = agent.head.to_unit(distribution.sample(jax.random.key(5)))
    theirs = np.asarray(Edge("scale", True, True, 10.0, 0.99).action(unit, agent.space))
    error = 5 * np.sqrt((drawn.var(0) + theirs.var(0)) / n) + 1e-5
    assert (np.abs(drawn.mean(0) - theirs.mean(0)) < error).all()
    np.testing.assert_allclose(drawn.std(0), theirs.std(0), rtol=0.06, atol=1e-4)


@pytest.mark.parametrize("head", BOX_HEADS)
def test_one_observation_or_a_batch_and_always_inside_the_bounds(head):
    _, _, policy = agent_and_policy(head)
    rng = np.random.default_rng(0)
    for act in (policy, policy.mean, lambda o: policy.sample(o, rng)):
        batch = act(OBSERVATIONS * 100)
        assert batch.shape == (200, 3)
        assert batch.dtype == np.float32
        assert (batch >= LOW).all()
        assert (batch <= HIGH).all()
        assert act(OBSERVATIONS[0]).shape == (3,)
    # NumPy may sum a batch in another order than one observation.
    np.testing.assert_allclose(policy(OBSERVATIONS)[0], policy(OBSERVATIONS[0]), atol=1e-5)


def test_the_mean_of_bins_is_their_expectation():
    agent, parameters, policy = agent_and_policy("discrete")
    probs = np.exp(agent.policy(parameters, normalized(policy, OBSERVATIONS)).log_probs)
    unit = probs @ np.linspace(-1, 1, 11)
    np.testing.assert_allclose(policy.mean(OBSERVATIONS), LOW + (unit + 1) / 2 * (HIGH - LOW), atol=1e-4)


def test_a_saved_policy_acts_the_same(tmp_path):
    _, _, policy = agent_and_policy("ordinal")
    policy.save(tmp_path / "p.safetensors")
    policy.save(tmp_path / "q.safetensors")
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "q.safetensors").read_bytes()
    np.testing.assert_array_equal(load(tmp_path / "p.safetensors")(OBSERVATIONS), policy(OBSERVATIONS))


def test_acting_needs_numpy_and_safetensors_alone(tmp_path):
    """In a program that can import nothing else that is not Python's own."""
    _, _, policy = agent_and_policy("beta")
    policy.save(tmp_path / "p.safetensors")
    code = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        first = name.split(".")[0]
        if first not in {"detent", "numpy", "safetensors", *sys.stdlib_module_names}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import detent
from detent.policy import load
assert load is detent.load
policy = load(sys.argv[1])
print(policy([0.0] * 7).shape, policy.predict([[0.0] * 7], deterministic=False)[0].shape)
assert not {"jax", "gymnasium", "envpool", "optax"} & set(sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p.safetensors")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "(3,) (1, 3)"


def test_predict_is_stable_baselines3s():
    _, _, policy = agent_and_policy("ordinal")
    action, state = policy.predict(OBSERVATIONS, None, np.ones(200, bool), True)
    assert state is None
    np.testing.assert_array_equal(action, policy(OBSERVATIONS))
    assert policy.predict(OBSERVATIONS[0], deterministic=True)[0].shape == (3,)
    drawn, _ = policy.predict(OBSERVATIONS, deterministic=False)
    again, _ = policy.predict(OBSERVATIONS, deterministic=False)
    assert (drawn != again).any()
    np.testing.assert_array_equal(agent_and_policy("ordinal")[2].sample(OBSERVATIONS), drawn)


@pytest.mark.parametrize("space", [Discrete(3, start=2), MultiDiscrete([3, 2]), Box(-1, 1, (2, 3), np.float32)])
def test_actions_have_the_environments_own_shape(space):
    """So that `env.step(policy(observation))` works."""
    flat = action_space("own", space, bounded=True)
    counts = choices_of(space)
    head = HEADS.get("ordinal")() if counts is None else HEADS.get("categorical")(counts)
    policy = random_policy(head, flat, SIZE, shape=space.shape)
    for act in (policy, policy.mean, policy.sample, lambda o: policy.predict(o)[0]):
        single, batch = act(OBSERVATIONS[0]), act(OBSERVATIONS)
        assert single in space
        assert batch.shape == (200, *space.shape)
        assert all(action in space for action in batch)
    assert len(np.unique(policy(OBSERVATIONS).reshape(200, -1), axis=0)) > 1


class Rectangular(gymnasium.Env):
    """Wants actions of shape (2, 3)."""

    observation_space = Box(-1, 1, (SIZE,), np.float32)
    action_space = Box(-1, 1, (2, 3), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=SIZE).astype(np.float32), {}

    def step(self, action):
        assert action in self.action_space
        return np.zeros(SIZE, np.float32), float(action[1, 2]), False, True, {}


def test_actions_of_any_shape_can_be_evaluated_and_are_written_down():
    run = Run(Rectangular, head="gaussian", steps=32, envs=4, batch_size=32, minibatch_size=32, epochs=1)
    *_, last = train(run)
    policy = last.policy()
    assert policy.shape == (2, 3)
    env = Rectangular()
    observation, _ = env.reset(seed=0)
    env.step(policy(observation))
    assert -1 <= evaluate_run(run, policy, episodes=3, seed=0)["mean_reward"] <= 1


def test_a_policy_can_be_copied_and_sent_to_other_processes():
    _, _, policy = agent_and_policy("gaussian")
    policy(OBSERVATIONS)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(policy))(OBSERVATIONS), policy(OBSERVATIONS))


def test_any_type_of_number_will_do():
    _, _, policy = agent_and_policy("gaussian")
    whole = np.arange(7)
    for kind in (np.float64, np.float16, np.int64, np.uint8, np.float32):
        np.testing.assert_array_equal(policy(whole.astype(kind)), policy(whole.tolist()))
    assert policy(np.zeros((0, 7))).shape == (0, 3)
    assert agent_and_policy("ordinal")[2](np.zeros((0, 7))).shape == (0, 3)


@pytest.mark.parametrize(
    ("observation", "sentence"),
    [
        (np.zeros(5), "observations of 7 numbers, not of shape (5,)."),
        (np.zeros((2, 5)), "observations of 7 numbers, not of shape (2, 5)."),
        (1.0, "observations of 7 numbers, not of shape ()."),
        (["a"] * 7, "observations of 7 numbers, not of type <U1."),
        ([None] * 7, "observations of 7 numbers, not of type object."),
        (np.zeros(7, complex), "observations of 7 numbers, not of type complex128."),
        ({"position": 1.0}, "observations of 7 numbers, not of type object."),
        ([[0.0] * 7, [0.0] * 6], "observations of 7 numbers, not rows of different lengths."),
        ([0, 0, np.nan, 0, 0, 0, 0], "has nan at index 2;"),
        ([[0] * 7, [0, 0, 0, 0, 0, 0, -np.inf]], "has -inf at index (1, 6);"),
        ([1e300] * 7, "has inf at index 0;"),
    ],
)
def test_bad_observations_are_refused_in_a_sentence(observation, sentence):
    for head in ("gaussian", "ordinal"):
        _, _, policy = agent_and_policy(head)
        for act in (policy, policy.mean, policy.sample, policy.predict):
            with pytest.raises(BadInput, match=re.escape(sentence)) as raised:
                act(observation)
            assert "\n" not in str(raised.value)


def test_every_op_that_a_policy_can_have_is_known():
    heads = [op for name in HEADS.names() for op in HEADS.get(name)().deploy()]
    trunks = [*SimBa().program(3, 2), *(op for name in ACTIVATIONS for op in MLP(activation=name).program(3, 2))]
    used = whole_ops(trunks, heads, clip=1.0, scale=True, shape=[2])
    assert {op["op"] for op in used} == set(OPS)


def test_bad_files_are_refused_in_a_sentence(tmp_path):
    _, _, policy = agent_and_policy("gaussian")
    with pytest.raises(BadInput, match="does not exist"):
        load(tmp_path / "nothing")
    path = tmp_path / "p.safetensors"
    policy.save(path)
    data = path.read_bytes()
    for damaged in (b"", b"not safetensors at all", data[:100], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DetentError, match=r"p\.safetensors"):
            load(path)
    write_tensors(path, dict(policy.tensors), {"kind": "policy", "schema": 99})
    with pytest.raises(DetentError, match="schema is not that of a Detent policy of version 2 or earlier"):
        load(path)


def forged(policy, number, *ops, **changes):
    """The policy's ops with others in place of one, or that one with other constants."""
    whole = list(policy.ops)
    whole[number : number + 1 or None] = ops or [{**whole[number], **changes}]
    return Policy(policy.tensors, {**policy.meta, "ops": whole})


def test_forged_ops_are_refused_in_a_sentence_before_anything_is_computed(tmp_path):
    """Ops are normalize, linear, tanh, linear, tanh, linear, normal or running_sum and categorical, bounds."""
    _, _, gaussian = agent_and_policy("gaussian")
    _, _, ordinal = agent_and_policy("ordinal")
    keep, add = {"op": "keep"}, {"op": "add"}
    tensors = dict(gaussian.tensors)
    for policy, sentence in (
        (forged(gaussian, 6, {"op": "rm -rf"}), "'rm -rf', which this version of Detent does not have"),
        (forged(gaussian, 6, {"op": ["tanh"]}), "do not fit together"),
        (forged(gaussian, 6, "tanh"), "ops is not a list of ops"),
        (forged(gaussian, 6, {"op": "categorical", "bins": 2}), "3 numbers cannot be split into dimensions of 2 bins"),
        (forged(gaussian, 6, {"op": "categorical"}), "Op 6 of the policy, categorical, does not fit"),
        (forged(ordinal, 7, bins=10**12), "33 numbers cannot be split into dimensions of 1000000000000 bins"),
        (forged(ordinal, 7, bins=1), "cannot be split into dimensions of 1 bins"),
        (forged(ordinal, 7, bins=0), "cannot be split into dimensions of 0 bins"),
        (forged(ordinal, 7, bins=-3), "cannot be split into dimensions of -3 bins"),
        (forged(ordinal, 7, bins=11.0), "cannot be split into dimensions of 11.0 bins"),
        (forged(gaussian, 6, {"op": "choices", "counts": "3,-1,1"}), "3 numbers are not 3,-1,1 choices"),
        (forged(gaussian, 6, {"op": "choices", "counts": 3}), "Op 6 of the policy, choices, does not fit"),
        (forged(gaussian, 6, {"op": "beta"}), "3 numbers cannot be split in half"),
        (forged(gaussian, 6, {"op": "normal", "log_std": "nothing"}), "Op 6 of the policy, normal, does not fit"),
        (forged(gaussian, 0, clip=None), "Op 0 of the policy, normalize, does not fit"),
        (forged(gaussian, 0, clip=-1.0), "clip is -1.0 instead of a positive number"),
        (forged(gaussian, 0, clip=10**400), "a number is not finite or too large"),
        (forged(gaussian, 0, clip=10**300), "clip is 1000000000.* instead of a positive number"),
        (
            forged(gaussian, 3, parameters="policy/0"),
            r"policy/0/w is float32\[7, 64\] instead of 64 x any real numbers",
        ),
        (forged(gaussian, 3, parameters="../../etc"), "Op 3 of the policy, linear, does not fit"),
        (
            forged(gaussian, 3, {"op": "layer_norm", "parameters": "policy/0", "epsilon": 1e-5}),
            "layer_norm, does not fit",
        ),
        (forged(gaussian, 2, keep), "A network must have an `add` for every `keep`"),
        (forged(gaussian, 2, add), "nothing of this size was kept"),
        (forged(gaussian, 1, keep, gaussian.ops[1], add), "nothing of this size was kept"),
        (forged(gaussian, -1, shape=[2, 2]), r"3 numbers are not an action of shape \[2, 2\]"),
        (forged(gaussian, -1, shape=[-1, -3]), r"not an action of shape \[-1, -3\]"),
        (forged(gaussian, -1, shape=[3.0]), r"not an action of shape \[3.0\]"),
        (forged(gaussian, -1, shape="3"), "not an action of shape"),
        (forged(gaussian, -1, {"op": "tanh"}), "apply the bounds last"),
        (forged(gaussian, 2, gaussian.ops[0]), "normalize first"),
        (forged(gaussian, 2, *[{"op": "tanh"}] * 10_001), "at most 10000 ops, not 10008"),
        (Policy(tensors, {**gaussian.meta, "ops": []}), "apply the bounds last"),
        (Policy(tensors, {**gaussian.meta, "ops": [{"op": "bounds", "scale": True, "shape": [7]}]}), "one linear op"),
        (Policy(tensors, {**gaussian.meta, "ops": 3}), "ops is not a list of ops"),
        (Policy(tensors, {}), "ops is missing"),
        (Policy({**tensors, "space/low": np.zeros(2, np.float32)}, gaussian.meta), "are not 3 numbers each"),
        (Policy({**tensors, "policy/0/b": np.zeros(64, np.int64)}, gaussian.meta), r"int64\[64\] instead of 64 real"),
        (Policy({**tensors, "policy/2/b": np.full(3, np.nan, np.float32)}, gaussian.meta), "not have finite numbers"),
        (Policy({**tensors, "observation/mean": np.float32(0)}, gaussian.meta), "do not fit together"),
    ):
        write_tensors(tmp_path / "p.safetensors", dict(policy.tensors), {"schema": 2, "kind": "policy", **policy.meta})
        with pytest.raises(Corrupt, match=sentence) as raised:
            load(tmp_path / "p.safetensors")
        assert "\n" not in str(raised.value)


# --- Files of version 0.1.0 ---

BEFORE = Path(__file__).parent / "data" / "v0.1.0" / "policies"
"""Written by that version: policies, and what they did."""


@pytest.mark.parametrize("name", ["ordinal", "gaussian", "beta", "categorical"])
def test_a_policy_of_0_1_0_acts_as_it_did(name, tmp_path):
    policy, acted = load(BEFORE / f"{name}.safetensors"), load_file(BEFORE / "actions.safetensors")
    given = acted["observations"]
    load(BEFORE / f"{name}.safetensors").save(tmp_path / "again.safetensors")
    for one in (policy, load(tmp_path / "again.safetensors")):
        for choose, act in (("mode", one), ("mean", one.mean)):
            assert act(given).shape == acted[f"{name}/{choose}"].shape
            np.testing.assert_allclose(act(given), acted[f"{name}/{choose}"], rtol=1e-5, atol=1e-6)
        drawn = one.sample(given, np.random.default_rng(5))
        np.testing.assert_allclose(drawn, acted[f"{name}/sample"], rtol=1e-5, atol=1e-6)
    assert action_distributions(policy) is not None
    for target in TARGETS:
        assert file_bytes(policy, target) == file_bytes(load(tmp_path / "again.safetensors"), target)


def test_a_damaged_policy_of_0_1_0_is_refused(tmp_path):
    tensors, meta = read_tensors(BEFORE / "ordinal.safetensors")
    for key in ("ops", "clip", "actions", "normalize_observations"):
        write_tensors(tmp_path / "p.safetensors", tensors, {k: v for k, v in meta.items() if k != key})
        with pytest.raises(Corrupt, match="ops is missing" if key == "ops" else "do not fit together"):
            load(tmp_path / "p.safetensors")
    without = {k: v for k, v in tensors.items() if k != "policy/1/w"}
    write_tensors(tmp_path / "p.safetensors", without, meta)
    with pytest.raises(Corrupt, match="is not a valid policy"):
        load(tmp_path / "p.safetensors")
    write_tensors(tmp_path / "p.safetensors", tensors, {**meta, "ops": None})
    with pytest.raises(BadInput, match="has no method `deploy`"):
        load(tmp_path / "p.safetensors").ops  # noqa: B018
