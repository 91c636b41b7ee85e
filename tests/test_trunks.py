"""Trunks: what their programs compute, and that everything else works with every one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import detent
from detent.agent import Agent
from detent.cli import main
from detent.critics.squared import Squared
from detent.errors import BadInput
from detent.heads import HEADS
from detent.heads.gaussian import Gaussian
from detent.networks import ACTIVATIONS, checked, layer_norm, linear, network, parameter_count
from detent.options import option
from detent.runs.pytrees import flatten
from detent.runs.run import Run
from detent.runs.training import train
from detent.trunks import TRUNKS, register_trunk
from detent.trunks.mlp import MLP
from detent.trunks.simba import SimBa
from marks import slow_unless
from updates import bits, make_agent, random_rollout, small, update

X = np.random.default_rng(0).normal(size=(5, 3))


def float64(parameters, seed=0):
    """The parameters with a little noise, so that scales are not 1 and shifts not 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: np.asarray(p, np.float64) + 0.3 * rng.normal(size=p.shape), parameters)


def outputs(trunk, parameters):
    with jax.enable_x64(True):
        return np.asarray(network(trunk.program(3, 2), jax.tree.map(jnp.asarray, parameters), jnp.asarray(X)))


def initial(trunk):
    return make_agent(Gaussian(), trunk=trunk).init(jax.random.key(0))["policy"]


# --- What they compute ---

BY_HAND = {
    "tanh": np.tanh,
    "relu": lambda x: np.where(x > 0, x, 0),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def normed(x, layer):
    spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / spread * layer["scale"] + layer["shift"]


def applied(x, layer):
    return x @ layer["w"] + layer["b"]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_perceptron(activation, norm):
    trunk = MLP((4, 6), activation, norm)
    layers = float64(initial(trunk))
    x, rest = X, list(layers)
    for _ in range(2):
        x = applied(x, rest.pop(0))
        x = normed(x, rest.pop(0)) if norm else x
        x = BY_HAND[activation](x)
    np.testing.assert_allclose(outputs(trunk, layers), applied(x, *rest), rtol=1e-12)


def test_simba():
    """Lee et al. 2024, Section 4: x + W2 relu(W1 LN(x)), W1 four times as wide, and a layer norm in the end."""
    trunk = SimBa(trunk_width=4, trunk_blocks=2)
    layers = float64(initial(trunk))
    first, *blocks, norm, last = layers
    x = applied(X, first)
    for before, up, down in (blocks[:3], blocks[3:]):
        assert up["w"].shape == (4, 16)
        x = x + applied(np.maximum(applied(normed(x, before), up), 0), down)
    np.testing.assert_allclose(outputs(trunk, layers), applied(normed(x, norm), last), rtol=1e-12)


@pytest.mark.parametrize("trunk", [MLP((8, 4)), MLP((8, 4), layer_norm=True), SimBa(8, 1)], ids=str)
def test_initial_parameters(trunk):
    layers = initial(trunk)
    for number, layer in enumerate(layers):
        if "scale" in layer:
            np.testing.assert_array_equal(layer["scale"], 1.0)
            np.testing.assert_array_equal(layer["shift"], 0.0)
            continue
        gain = 0.01 if number == len(layers) - 1 else math.sqrt(2)
        w = np.asarray(layer["w"] if layer["w"].shape[0] >= layer["w"].shape[1] else layer["w"].T)
        np.testing.assert_allclose(w.T @ w, gain**2 * np.eye(w.shape[1]), atol=1e-6)
        np.testing.assert_array_equal(layer["b"], 0.0)
    assert parameter_count(trunk.program(3, 2)) == sum(leaf.size for leaf in jax.tree.leaves(layers))


def test_a_perceptrons_parameters_have_the_names_that_they_always_had():
    assert sorted(flatten("policy", initial(MLP((8, 4))))) == [f"policy/{i}/{name}" for i in range(3) for name in "bw"]


def test_a_layer_norm_of_equal_numbers_is_its_shift_and_has_a_gradient():
    trunk = MLP((4,), layer_norm=True)
    layers = initial(trunk)
    layers[0]["w"] = jnp.zeros_like(layers[0]["w"])
    value, gradient = jax.value_and_grad(lambda layers: network(trunk.program(3, 2), layers, jnp.ones(3)).sum())(layers)
    assert value == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# --- Every trunk with everything else ---

VARIANTS = {
    "mlp": MLP((6, 5), "elu", layer_norm=True),
    "simba": SimBa(trunk_width=6, trunk_blocks=1),
}


def test_every_trunk_is_tried():
    assert list(VARIANTS) == TRUNKS.names()


PAIRS = [("ppo", "ordinal"), ("trpo", "beta"), ("acktr", "gaussian")]


@pytest.mark.parametrize(
    ("trunk", "algo", "head"),
    slow_unless(
        lambda *case: case == ("simba", "ppo", "ordinal"),
        [(trunk, algo, head) for trunk in VARIANTS for algo, head in PAIRS],
    ),
)
def test_every_algorithm_moves_every_parameter(trunk, algo, head):
    agent = make_agent(HEADS.get(head)(), trunk=VARIANTS[trunk])
    start = agent.init(jax.random.key(2))
    state, metrics = update(small(algo), agent, random_rollout(agent, start))
    assert all(np.isfinite(value) for value in metrics.values())
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(state.parameters), strict=True):
        assert np.isfinite(after).all()
        assert (np.asarray(before) != np.asarray(after)).any()


@pytest.mark.slow
def test_training_resumes_to_the_same_bits():
    options = {"steps": 192, "envs": 4, "batch_size": 64, "minibatch_size": 32, "epochs": 1, "trunk_width": 6}
    run = Run("probe/action", "gaussian", trunk="simba", **options)
    snapshots = [record.snapshot() for record in train(run)]
    *_, resumed = train(run, start=snapshots[0])
    assert bits(dict(resumed.snapshot().tensors)) == bits(dict(snapshots[-1].tensors))


# --- A trunk of one's own ---


@dataclass(frozen=True)
class Bottleneck:
    """A residual block within a residual block."""

    neck: int = option(3, "width of the inner block", at_least=1)

    def program(self, inputs, outputs):
        inner = [{"op": "keep"}, linear(self.neck, self.neck), {"op": "silu"}, {"op": "add"}]
        outer = [{"op": "keep"}, linear(inputs, self.neck), *inner, linear(self.neck, inputs), {"op": "add"}]
        return [*outer, layer_norm(inputs), {"op": "relu"}, linear(inputs, outputs)]


def test_a_trunk_of_ones_own_trains_is_saved_and_acts(tmp_path, monkeypatch):
    TRUNKS.names()
    monkeypatch.setattr(TRUNKS, "_entries", dict(TRUNKS._entries))  # what is registered here stays here
    register_trunk("bottleneck", Bottleneck)
    run = Run("probe/action", "beta", "acktr", trunk="bottleneck", neck=2, steps=128, envs=4, batch_size=64)
    assert run.options["neck"] == 2
    *_, last = detent.train(run, tmp_path / "run")
    policy = detent.load(tmp_path / "run")
    assert policy(np.ones(1)) == pytest.approx(last.policy()(np.ones(1)))
    assert [op["op"] for op in policy.ops].count("keep") == 2


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ([{"op": "conv"}, linear(3, 2)], "A trunk cannot use the op 'conv'; it can use linear, layer_norm, tanh"),
        ([linear(4, 2)], r"Op 0 of the trunk \(linear\) takes 4 numbers but gets 3"),
        ([linear(3, 4), layer_norm(5), linear(4, 2)], r"Op 1 of the trunk \(layer_norm\) takes 5 numbers but gets 4"),
        ([{"op": "keep"}, linear(3, 4), {"op": "add"}, linear(4, 2)], r"\(add\) takes 3 numbers but gets 4"),
        ([{"op": "add"}, linear(3, 2)], r"\(add\) takes 0 numbers but gets 3"),
        ([{"op": "keep"}, linear(3, 2)], "an `add` for every `keep`"),
        ([linear(3, 5)], "end with a linear op that has 2 outputs"),
        ([linear(3, 2), {"op": "tanh"}], "end with a linear op that has 2 outputs"),
        ([], "end with a linear op that has 2 outputs"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(program, sentence):
    with pytest.raises(BadInput, match=sentence):
        checked(program, 3, 2)

    class Wrong:
        def program(self, inputs, outputs):
            return program

    agent = Agent(Gaussian(), Wrong(), Squared(), make_agent(Gaussian()).space, 3)
    with pytest.raises(BadInput, match=sentence):
        agent.init(jax.random.key(0))


# --- Flags ---


def test_the_command_line_trains_a_trunk(tmp_path, capsys):
    flags = ["--steps", "128", "--batch-size", "64", "--minibatch-size", "64", "--epochs", "1", "--envs", "4"]
    words = ["--quiet", "--trunk", "simba", "--trunk-width", "5", "--trunk-blocks", "2", "--out", str(tmp_path / "run")]
    assert main(["train", "probe/action", *words, *flags]) == 0
    assert "policy/8/w" in detent.load(tmp_path / "run").tensors
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--activation", "sigmoid"], "--activation must be one of tanh, relu, elu, silu, not sigmoid."),
        (["--trunk", "simba", "--trunk-width", "0"], "--trunk-width must be at least 1, not 0."),
        (
            ["--trunk", "simba", "--hidden-sizes", "8"],
            "The trunk 'simba' has no --hidden-sizes",
        ),
        (["--trunk", "simbad"], "There is no trunk named 'simbad'. Did you mean simba?"),
    ],
)
def test_bad_flags_get_a_sentence(words, sentence, tmp_path, capsys):
    assert main(["train", "probe/action", *words, "--steps", "64", "--out", str(tmp_path / "run")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_presets_leave_out_what_is_another_trunks():
    assert Run("probe/action", "gaussian", "trpo", "paper").trunk == MLP((32, 32))
    assert Run("probe/action", "gaussian", "trpo", "paper", "simba").trunk == SimBa()
