"""The trained artefact: the same actions as the agent that was trained, with NumPy alone."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box

from detent.agent import Agent
from detent.errors import BadInput, DetentError
from detent.files import write_tensors
from detent.heads import HEADS
from detent.policy import OPS, Policy, load
from detent.rollout import Edge
from detent.snapshot import flatten
from updates import BOX_HEADS

LOW, HIGH = np.array([-0.4, 0.0, -3.0], np.float32), np.array([0.4, 5.0, 1.0], np.float32)
SIZE = 7


def agent_and_policy(head_name, actions="scale"):
    """An agent with wide-awake random weights, and its policy."""
    agent = Agent(HEADS.get(head_name)(), Box(LOW, HIGH, dtype=np.float32), SIZE, policy_gain=3.0)
    parameters = agent.init(jax.random.key(1))
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=SIZE).astype(np.float32), rng.uniform(0.5, 2, SIZE).astype(np.float32)
    tensors = {
        **flatten("policy", parameters["policy"]),
        **flatten("head", parameters["head"]),
        "observation/mean": mean,
        "observation/var": var,
        "space/low": LOW,
        "space/high": HIGH,
    }
    meta = {"ops": agent.head.deploy(), "actions": actions, "normalize_observations": True, "clip": 10.0, "steps": 0}
    return agent, parameters, Policy(tensors, meta)


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


def test_acting_needs_no_jax(tmp_path):
    _, _, policy = agent_and_policy("beta")
    policy.save(tmp_path / "p.safetensors")
    code = (
        "import sys, detent; p = detent.load(sys.argv[1]); print(p([0.0] * 7).shape);"
        "assert not {'jax', 'gymnasium', 'envpool', 'optax'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p.safetensors")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "(3,)"


def test_every_op_that_a_head_deploys_is_known():
    assert {op["op"] for name in HEADS.names() for op in HEADS.get(name)().deploy()} == set(OPS)


def test_bad_files_and_observations_are_refused_in_a_sentence(tmp_path):
    _, _, policy = agent_and_policy("gaussian")
    with pytest.raises(BadInput, match="observations of 7 numbers"):
        policy(np.zeros(5))
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
    with pytest.raises(DetentError, match="not a Detent policy of version"):
        load(path)
    Policy(policy.tensors, {**policy.meta, "ops": [{"op": "rm -rf"}]}).save(path)
    with pytest.raises(BadInput, match="'rm -rf'"):
        load(path)
