"""Exported policies, run by other programs: onnxruntime, plain NumPy and a C compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium.spaces import Box

import detent
from detent.agent import Agent
from detent.cli import main
from detent.critics.squared import Squared
from detent.errors import BadInput
from detent.export import TARGETS, export, file_bytes, to_c, to_numpy, to_onnx
from detent.files import Corrupt
from detent.heads import HEADS
from detent.networks import ACTIVATIONS
from detent.ops import OPS, Place, normalizer_of
from detent.policy import Policy, load
from detent.runs.execution import evaluate_run
from detent.runs.training import train
from detent.trunks.mlp import MLP
from detent.trunks.simba import SimBa
from policies import random_policy
from updates import BOX_HEADS

LOW, HIGH = np.array([-0.4, 0.0, -3.0, -1.0], np.float32), np.array([0.4, 5.0, 1.0, 1.0], np.float32)
SIZE = 7
COUNTS = (3, 1, 5)


def policy_of(head_name, **meta):
    if head_name == "categorical":
        first = np.array([-1, 4, 0])
        head, space = HEADS.get(head_name)(COUNTS), Box(first, first + np.array(COUNTS) - 1, dtype=np.int64)
    else:
        head, space = HEADS.get(head_name)(), Box(LOW, HIGH, dtype=np.float32)
    configuration = {"task": "own:make", "head": head_name, "algo": "ppo"}
    return random_policy(head, space, SIZE, **{"steps": 5, "configuration": configuration, **meta})


def observations():
    """Ordinary ones, large ones, and the extremes."""
    rng = np.random.default_rng(2)
    ordinary = rng.normal(scale=3.0, size=(300, SIZE))
    extreme = [np.zeros(SIZE), np.full(SIZE, 1e30), np.full(SIZE, -1e30), np.full(SIZE, 1e-40), 1e4 * np.eye(SIZE)[2]]
    return np.vstack([ordinary, 1e3 * ordinary[:50], extreme]).astype(np.float32)


OBSERVATIONS = observations()


def normalized(policy, given):
    mean, scale, clip = normalizer_of(policy.ops[0], Place(policy.tensors, SIZE))
    return np.clip((given - mean) * scale, -clip, clip)


def clear(policy, given):
    """[n, m] Where the best of a dimension's bins leads by more than 1e-4, so that rounding cannot decide."""
    if policy.ops[-2]["op"] not in ("categorical", "choices"):
        return np.ones((len(given), policy.tensors["space/low"].size), bool)
    last, x = policy.distribution(normalized(policy, given))
    counts = COUNTS if last["op"] == "choices" else [last["bins"]] * (x.shape[1] // last["bins"])
    parts = [np.sort(part, axis=-1) for part in np.split(x, np.cumsum(counts)[:-1], axis=-1)]
    return np.stack([p[:, -1] - p[:, -2] > 1e-4 if p.shape[1] > 1 else p[:, 0] == p[:, 0] for p in parts], axis=1)


def assert_same_actions(policy, choose, given, actions):
    """The same bin wherever it is clear which, and the same number to 1e-5 of the bounds' width."""
    expected = (policy if choose == "mode" else policy.mean)(given).reshape(len(given), -1)
    decided = clear(policy, given) if choose == "mode" else np.ones(expected.shape, bool)
    assert decided.mean() > 0.9
    assert not (expected == expected[0]).all()
    width = np.ptp([policy.tensors["space/low"], policy.tensors["space/high"]], axis=0)
    # A mean and the sums of large logits carry their rounding with them.
    wrong = np.abs(np.asarray(actions, np.float64).reshape(expected.shape) - expected) > 2e-5 * np.maximum(width, 1)
    assert not (wrong & decided).any()


def in_onnxruntime(data, given):
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(["outputs", "action"], {"observation": given})


def in_python(data, given, tmp_path):
    """The actions of an exported file, in a program that has nothing but NumPy."""
    (tmp_path / "robot.py").write_bytes(data)
    np.save(tmp_path / "given.npy", given)
    code = (
        "import sys, numpy as np, robot; np.save('actions.npy', robot.act(np.load('given.npy')));"
        "np.save('outputs.npy', robot.outputs(np.load('given.npy'))); assert robot.test() == 0;"
        "assert not {'detent', 'safetensors', 'jax'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return np.load(tmp_path / "outputs.npy"), np.load(tmp_path / "actions.npy")


def in_c(data, given, tmp_path):
    (tmp_path / "robot.c").write_bytes(data)
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    program = tmp_path / "robot"
    built = subprocess.run(
        [shutil.which("cc") or "gcc", *flags, "-DDETENT_TEST", tmp_path / "robot.c", "-o", program, "-lm"],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    text = "\n".join(" ".join(float(x).hex() for x in row) for row in given)
    result = subprocess.run([program], input=text, capture_output=True, text=True)
    assert result.returncode == 0
    return np.array([[float(x) for x in line.split()] for line in result.stdout.splitlines()], np.float32)


@pytest.mark.parametrize("choose", ["mode", "mean"])
@pytest.mark.parametrize("head", HEADS.names())
def test_onnx(head, choose):
    policy = policy_of(head)
    outputs, actions = in_onnxruntime(file_bytes(policy, "onnx", choose), OBSERVATIONS)
    expected = policy.outputs(OBSERVATIONS)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert actions.dtype == policy(OBSERVATIONS).dtype
    assert actions.shape == policy(OBSERVATIONS).shape
    assert_same_actions(policy, choose, OBSERVATIONS, actions)
    for count in (0, 1):
        assert len(in_onnxruntime(file_bytes(policy, "onnx", choose), OBSERVATIONS[:count])[1]) == count


@pytest.mark.parametrize("choose", ["mode", "mean"])
@pytest.mark.parametrize("head", HEADS.names())
def test_numpy(head, choose, tmp_path):
    policy = policy_of(head)
    outputs, actions = in_python(file_bytes(policy, "numpy", choose), OBSERVATIONS, tmp_path)
    np.testing.assert_allclose(outputs, policy.outputs(OBSERVATIONS), rtol=1e-5, atol=1e-5)
    assert actions.dtype == policy(OBSERVATIONS).dtype
    assert_same_actions(policy, choose, OBSERVATIONS, actions)


@pytest.mark.parametrize("choose", ["mode", "mean"])
@pytest.mark.parametrize("head", HEADS.names())
def test_c(head, choose, tmp_path):
    policy = policy_of(head)
    actions = in_c(file_bytes(policy, "c", choose), OBSERVATIONS, tmp_path)
    assert_same_actions(policy, choose, OBSERVATIONS, actions)


@pytest.mark.parametrize("head", BOX_HEADS)
def test_a_policy_that_began_narrow_is_exported_like_any_other(head, tmp_path):
    made = HEADS.get(head)(initial_std=0.4)
    policy = random_policy(made, Box(LOW, HIGH, dtype=np.float32), SIZE)
    usual = policy_of(head)
    assert policy.ops == usual.ops
    changed = {name for name in usual.tensors if (policy.tensors[name] != usual.tensors[name]).any()}
    assert changed == ({"head/log_std"} if "head/log_std" in usual.tensors else {"policy/2/b"})
    by_onnx, onnx_actions = in_onnxruntime(file_bytes(policy, "onnx", "mean"), OBSERVATIONS)
    by_numpy, numpy_actions = in_python(file_bytes(policy, "numpy", "mean"), OBSERVATIONS, tmp_path)
    for outputs in (by_onnx, by_numpy):
        np.testing.assert_allclose(outputs, policy.outputs(OBSERVATIONS), rtol=1e-4, atol=3e-5)
    for actions in (onnx_actions, numpy_actions, in_c(file_bytes(policy, "c", "mean"), OBSERVATIONS, tmp_path)):
        assert_same_actions(policy, "mean", OBSERVATIONS, actions)


TRUNKS = [
    *(MLP((16, 8), name, layer_norm=True) for name in ACTIVATIONS),
    MLP((16, 8), "relu"),
    MLP(()),
    SimBa(trunk_width=8, trunk_blocks=2),
]


@pytest.mark.parametrize("trunk", TRUNKS, ids=str)
def test_every_target_has_the_network_of_the_agent(trunk, tmp_path):
    head, space = HEADS.get("ordinal")(), Box(LOW, HIGH, dtype=np.float32)
    policy = random_policy(head, space, SIZE, trunk)
    agent = Agent(head, trunk, Squared(), space, SIZE, policy_gain=3.0)
    trained = agent.outputs(agent.init(jax.random.key(1)), normalized(policy, OBSERVATIONS))[0]
    np.testing.assert_allclose(policy.outputs(OBSERVATIONS), trained, rtol=1e-4, atol=3e-5)
    by_onnx, onnx_actions = in_onnxruntime(file_bytes(policy, "onnx"), OBSERVATIONS)
    by_numpy, numpy_actions = in_python(file_bytes(policy, "numpy"), OBSERVATIONS, tmp_path)
    for outputs in (by_onnx, by_numpy):
        np.testing.assert_allclose(outputs, policy.outputs(OBSERVATIONS), rtol=1e-4, atol=3e-5)
    for actions in (onnx_actions, numpy_actions, in_c(file_bytes(policy, "c"), OBSERVATIONS, tmp_path)):
        assert_same_actions(policy, "mode", OBSERVATIONS, actions)


@pytest.mark.parametrize(("clip", "shape"), [(None, None), (10.0, (2, 2))])
def test_settings_other_than_the_usual(clip, shape, tmp_path):
    policy = policy_of("gaussian", scale=False, clip=clip, shape=shape)
    given = OBSERVATIONS if clip else OBSERVATIONS[:300]
    _, by_onnx = in_onnxruntime(file_bytes(policy, "onnx"), given)
    _, by_numpy = in_python(file_bytes(policy, "numpy"), given, tmp_path)
    assert by_onnx.shape == by_numpy.shape == (len(given), *(shape or (4,)))
    for acted in (by_onnx, by_numpy, in_c(file_bytes(policy, "c"), given, tmp_path)):
        assert_same_actions(policy, "mode", given, acted)


def test_bounds_that_are_not_finite_are_none(tmp_path):
    made = policy_of("gaussian", scale=False)
    unbounded = {"space/low": np.full(4, -np.inf, np.float32), "space/high": np.full(4, np.inf, np.float32)}
    policy = Policy({**made.tensors, **unbounded}, made.meta)
    given = OBSERVATIONS[:300]
    for acted in (
        in_onnxruntime(file_bytes(policy, "onnx"), given)[1],
        in_python(file_bytes(policy, "numpy"), given, tmp_path)[1],
        in_c(file_bytes(policy, "c"), given, tmp_path),
    ):
        np.testing.assert_allclose(acted, policy(given), rtol=1e-5, atol=1e-5)
        assert np.abs(acted).max() > 5


def test_the_self_test_of_a_numpy_file_can_fail(tmp_path):
    text = file_bytes(policy_of("ordinal"), "numpy").decode()
    assert text.count("np.tanh(") == 2
    path = tmp_path / "robot.py"
    path.write_text(text)
    tested = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert (tested.returncode, tested.stdout) == (0, "8 of 8 observations give the expected action.\n")
    path.write_text(text.replace("np.tanh(", "np.sin(", 1))
    tested = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert tested.returncode == 1
    path.write_text(text)
    refused = subprocess.run(
        [sys.executable, "-c", "import robot; robot.act([float('nan')] * 7)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "not finite" in refused.stderr


def test_c_stays_within_the_bounds_whatever_it_is_given(tmp_path):
    given = np.tile(np.array([np.nan, np.inf, -np.inf, 1.0])[:, None], SIZE)
    for head in HEADS.names():
        policy = policy_of(head)
        acted = in_c(file_bytes(policy, "c"), given, tmp_path)
        assert (acted >= policy.tensors["space/low"]).all()
        assert (acted <= policy.tensors["space/high"]).all()


def test_what_an_onnx_file_says_of_itself():
    model = onnx.load_from_string(file_bytes(policy_of("ordinal"), "onnx"))
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert told["task"] == "own:make"
    assert (told["head"], told["steps"], told["action"]) == ("ordinal", "5", "mode")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", to_onnx.OPSET)]


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_policy_gives_the_same_bytes_and_names_stay_names(target):
    policy = policy_of("ordinal")
    assert file_bytes(policy, target) == file_bytes(policy, target)
    configuration = {"task": '*/ """ \\ }{ \n#error', "head": "ordinal", "algo": "ppo"}
    hostile = Policy(policy.tensors, {**policy.meta, "configuration": configuration})
    data = file_bytes(hostile, target)
    assert b"#error" not in data
    assert b"_/ ___ _ __ __error" in data


@pytest.mark.parametrize("module", [to_onnx, to_numpy, to_c])
def test_every_target_knows_every_op(module):
    assert set(module.OPS) == set(OPS)


@dataclass(frozen=True)
class Foreign(HEADS.get("gaussian")):
    """A head that deploys what nobody knows."""

    def deploy(self):
        return [{"op": "frobnicate"}]


@dataclass(frozen=True)
class Undeployable:
    """A head that can be trained, and no more."""


for method in ("outputs", "parameters", "distribution", "to_unit", "by_dimension", "diagnostics"):
    setattr(Undeployable, method, getattr(HEADS.get("gaussian")(), method))


def test_a_head_that_cannot_be_deployed_trains_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(HEADS, "_entries", dict(HEADS._entries))  # what is registered here stays here
    for head, name, error, sentence in (
        (Undeployable, "mine", None, r"The head 'mine' has no method `deploy`"),
        (Foreign, "odd", Corrupt, r"The head 'odd' needs the op 'frobnicate'"),
    ):
        detent.register_head(name, head)
        run = detent.Run("probe/action", head=name, steps=64, envs=4, batch_size=64)
        *_, last = train(run)
        policy = last.policy()
        policy.save(tmp_path / "p.safetensors")
        if error:
            with pytest.raises(error, match=sentence):
                load(tmp_path / "p.safetensors")
        else:
            assert evaluate_run(run, load(tmp_path / "p.safetensors"), 2, 0)["episodes"] == 2
            with pytest.raises(BadInput, match=sentence):
                policy(np.zeros(policy.observation_size))
        for target in TARGETS:
            with pytest.raises(BadInput, match=sentence):
                file_bytes(policy, target)


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "run"
    flags = ["--steps", "256", "--batch-size", "128", "--envs", "8", "--quiet", "--out", str(out)]
    assert main(["train", "Pendulum-v1", *flags]) == 0
    return out


def test_the_command_line(run_directory, tmp_path, capsys, monkeypatch):
    for target, name in TARGETS.items():
        assert main(["export", str(run_directory), "--to", target]) == 0
        assert str(run_directory / name) in capsys.readouterr().out
    policy = load(run_directory)
    assert (run_directory / "policy.onnx").read_bytes() == file_bytes(policy, "onnx")
    out = tmp_path / "deep" / "robot.c"
    assert main(["export", str(run_directory / "policy.safetensors"), "--to", "c", "--mean", "--out", str(out)]) == 0
    assert out.read_bytes() == file_bytes(policy, "c", "mean")
    assert [p.name for p in out.parent.iterdir()] == ["robot.c"]
    shutil.copy(run_directory / "policy.safetensors", tmp_path)
    assert main(["export", str(tmp_path / "policy.safetensors"), "--to", "numpy"]) == 0
    assert (tmp_path / "policy.py").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--to"),
        (["--to", "onix"], "Did you mean onnx"),
        (["--to", "c", "--out", "."], "is a directory"),
        (["--to", "c", "--best"], "--eval-every"),
    ],
)
def test_bad_input_gets_a_sentence(words, sentence, run_directory, capsys):
    assert main(["export", str(run_directory), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_without_onnx_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=re.escape("pip install 'detent-rl[onnx]'")):
        file_bytes(policy_of("ordinal"), "onnx")


def test_the_file_is_whole_or_absent(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(detent.DetentError, match="Cannot write"):
        export(policy_of("beta"), "c", tmp_path / "file" / "policy.c")
