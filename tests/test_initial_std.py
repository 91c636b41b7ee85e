"""`--initial-std`: the first policy of every head has the standard deviation that was asked for."""

from __future__ import annotations

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from scipy import stats

import host_tasks
from detent import register_head
from detent.agent import Agent
from detent.cli import main
from detent.critics.squared import Squared
from detent.distributions import Beta, Categorical, DiagGaussian, key_of
from detent.errors import BadInput
from detent.heads import HEADS, initial_outputs
from detent.heads.discrete import Discrete
from detent.heads.gaussian import Gaussian
from detent.initial_std import bell, bell_stds, bisect
from detent.options import options_of
from detent.rollout import begin, make_collect, normalized
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.training import make_agent, make_edge, make_environment
from detent.sweeps.plan import plan_from_file, run_name
from detent.trunks.mlp import MLP
from documented import ROOT
from marks import slow_unless
from updates import BOX_HEADS, bits

STDS = (0.2, 0.3, 0.45, 0.6, 1.0)
BINS = (3, 4, 11, 1001)
BOUNDS = [([-1.0], [1.0]), ([-3.0, 0.5, -0.1], [-1.0, 100.0, 0.7]), ([-0.4] * 17, [0.4] * 17)]
QUICK = {"batch_size": 128, "minibatch_size": 32, "epochs": 2, "envs": 8}


def has_bins(name):
    return any(f.name == "bins" for f in options_of(HEADS.get(name)))


def heads_with(stds, bins):
    """Every head with each of these standard deviations that it can have."""
    for name in BOX_HEADS:
        for std in stds:
            for options in [{"bins": k} for k in bins] if has_bins(name) else [{}]:
                try:
                    yield name, HEADS.get(name)(initial_std=std, **options)
                except BadInput:
                    assert std in (0.2, 0.3, 0.6, 1.0)  # those that test_what_cannot_be_is_refused is about


def unit_stds(distribution):
    """[*b, m] The standard deviations of the unit action, in float64, by the textbook."""
    match distribution:
        case DiagGaussian():
            return np.broadcast_to(np.exp(np.float64(distribution.log_std)), distribution.mean.shape)
        case Beta():
            return 2 * stats.beta(1 + np.float64(distribution.a), 1 + np.float64(distribution.b)).std()
        case Categorical():
            p = np.exp(np.float64(distribution.log_probs))
            x = np.linspace(-1, 1, p.shape[-1])
            return np.sqrt(p @ x**2 - (p @ x) ** 2)


def first_agent(head, low, high, size=17, gain=0.01):
    agent = Agent(head, MLP(), Squared(), Box(np.float32(low), np.float32(high)), size, gain)
    return agent, agent.init(jax.random.key(3))


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_the_first_policy_has_it_whatever_it_sees(low, high):
    """To float32's precision without the last layer's weights, and to a few percent with their usual gain."""
    seen = np.random.default_rng(4).normal(size=(50, 17)).astype(np.float32)
    for name, head in heads_with(STDS, BINS if len(low) == 1 else (11,)):
        agent, parameters = first_agent(head, low, high, gain=1e-9)
        found = unit_stds(agent.policy(parameters, seen))
        assert found.shape == (50, len(low))
        np.testing.assert_allclose(found, head.initial_std, rtol=1e-5, err_msg=f"{name} {head}")
        if getattr(head, "bins", 11) == 11:
            usual, parameters = first_agent(head, low, high)
            np.testing.assert_allclose(unit_stds(usual.policy(parameters, seen)), head.initial_std, rtol=0.06)


def test_every_head_of_real_actions_has_several():
    """The test above would pass if there were none."""
    found = {name: {head.initial_std for other, head in heads_with(STDS, (11,)) if other == name} for name in BOX_HEADS}
    assert set(found) == {"beta", "discrete", "gaussian", "gaussian_tanh", "ordinal", "ordinal_released"}
    for name, stds in found.items():
        most = {"beta": 0.575, "gaussian": 2, "gaussian_tanh": 2}.get(name, 0.632)
        assert stds == {std for std in STDS if std < most}


@pytest.mark.parametrize("name", BOX_HEADS)
def test_the_middle_of_the_bounds_is_the_likeliest_action(name):
    head = HEADS.get(name)(initial_std=0.3)
    out = jnp.float32(initial_outputs(head, Box(-1.0, 1.0, (2,))))
    mode = head.distribution(out, head.parameters(Box(-1.0, 1.0, (2,)))).mode()
    np.testing.assert_allclose(head.to_unit(mode), 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "name"),
    slow_unless(
        lambda task, name: task != "Humanoid-v5" or name == "discrete",
        itertools.product(["Humanoid-v5", host_tasks.Drift], BOX_HEADS),
    ),
)
def test_the_environment_sees_it(task, name):
    """Actions of a real rollout, in units of half the range of each dimension; bounds of +-0.4, and unequal ones."""
    run = Run(task, name, initial_std=0.3, envs=64, steps=1)
    env = make_environment(run, 0, 64)
    agent, edge = make_agent(run, env), make_edge(run)
    parameters = agent.init(key_of(1))
    state, observation = env.reset()
    _, _, _, trace = make_collect(agent, edge, env, 32)(parameters, begin(observation), state, key_of(2))
    half = (env.space.high - env.space.low) / 2
    taken = (np.asarray(trace.env_action) - (env.space.high + env.space.low) / 2) / half
    found = unit_stds(agent.policy(parameters, normalized(edge, begin(observation).observation_moments, observation)))
    env.close()
    np.testing.assert_allclose(found, 0.3, rtol=0.06)
    np.testing.assert_allclose(taken.reshape(-1, *env.space.shape).std(0), 0.3, rtol=5 / np.sqrt(2 * 64 * 32))


def test_a_bell_is_what_it_says():
    for k in (3, 4, 11, 100, 1001):
        least, most = bell_stds(k)
        assert most == pytest.approx(np.sqrt((k + 1) / (3 * (k - 1))))  # of the uniform distribution
        for std in np.linspace(least, most, 5):
            logits = bell(k, std)
            x = np.linspace(-1, 1, k)
            np.testing.assert_allclose(logits - logits.max(), -(x**2 - (x**2).min()) * -logits[0], atol=1e-9)
            p = np.exp(logits - logits.max())
            assert np.sqrt(p @ x**2 / p.sum()) == pytest.approx(std, rel=1e-9)
    np.testing.assert_allclose(bell(2, 1.0)[0], bell(2, 1.0)[1])


def test_bisection_finds_zeros_element_by_element():
    found = bisect(lambda x: np.array([2.0, 0.0, 5.0]) - x**3, np.zeros(3), np.array([2.0, 2.0, 5 ** (1 / 3)]))
    np.testing.assert_allclose(found, np.cbrt([2.0, 0.0, 5.0]), rtol=1e-15, atol=1e-29)


# --- what there cannot be ---


@pytest.mark.parametrize(
    ("name", "options", "possible"),
    [
        ("discrete", {"initial_std": 1.0}, "With --bins 11, --initial-std must be between 0.0295 and 0.632, not 1."),
        ("ordinal", {"initial_std": 0.02}, "With --bins 11, --initial-std must be between 0.0295 and 0.632, not 0.02."),
        ("ordinal", {"initial_std": 0.3, "bins": 4}, "With --bins 4, --initial-std must be between 0.334 and 0.745"),
        ("ordinal_released", {"initial_std": 0.3, "bins": 2}, "With --bins 2, --initial-std must be 1, not 0.3."),
        ("discrete", {"initial_std": 1e-3, "bins": 1001}, "between 0.01 and 0.577"),
        ("beta", {"initial_std": 0.6}, "With a Beta distribution, --initial-std must be between 0.0224 and 0.575"),
        ("beta", {"initial_std": 0.001}, "between 0.0224 and 0.575"),
        ("gaussian", {"initial_std": 149.0}, "With a normal distribution, --initial-std must be between 2.07e-09"),
        ("gaussian_tanh", {"initial_std": 1e-9}, "between 2.07e-09 and 148"),
        ("gaussian", {"initial_std": 0.0}, "--initial-std must be greater than 0"),
        ("beta", {"initial_std": float("nan")}, "--initial-std must be a finite number"),
        ("ordinal", {"initial_std": "wide"}, "--initial-std must be a finite number, not 'wide'"),
        ("gaussian", {"initial_std": 0.5, "initial_log_std": -1.0}, "--initial-std set the same thing; give only one"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name, options, possible):
    with pytest.raises(BadInput) as refused:
        Run("probe/action", name, **options)
    assert possible in str(refused.value)


@pytest.mark.parametrize("name", BOX_HEADS)
def test_the_limits_in_the_sentence_are_possible(name):
    with pytest.raises(BadInput) as refused:
        HEADS.get(name)(initial_std=1e-12)
    words = str(refused.value).replace(",", "").split()
    for limit in (words[words.index("between") + 1], words[words.index("and") + 1]):
        head = HEADS.get(name)(initial_std=float(limit))
        agent, parameters = first_agent(head, [-1.0], [1.0], gain=1e-9)
        found = unit_stds(agent.policy(parameters, np.zeros((1, 17), np.float32)))
        np.testing.assert_allclose(found, float(limit), rtol=1e-4)


def test_the_one_value_of_two_positions():
    for name in filter(has_bins, BOX_HEADS):
        head = HEADS.get(name)(bins=2, initial_std=1.0)
        outputs = jnp.float32(initial_outputs(head, Box(-1.0, 1.0, (3,))))
        np.testing.assert_allclose(unit_stds(head.distribution(outputs, {})), 1.0, rtol=1e-6)


def test_choices_have_no_such_option(tmp_path, capsys):
    with pytest.raises(BadInput, match=r"^The head 'categorical' has no --initial-std; it is an option of beta, "):
        Run("CartPole-v1", initial_std=0.3)
    assert main(["train", "Hopper-v5", "--head", "discrete", "--initial-std", "2", "--out", str(tmp_path / "run")]) == 2
    assert "must be between 0.0295 and 0.632, not 2." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --- beside what there was ---


@pytest.mark.parametrize("name", HEADS.names())
def test_without_it_nothing_has_changed(name):
    """tests/test_aging.py verifies runs of earlier versions bit by bit."""
    head = HEADS.get(name)()
    if name == "categorical":
        head, space = HEADS.get(name)((3, 2)), Box(0, np.array([2, 1]), dtype=np.int64)
    else:
        space = Box(-1.0, 1.0, (2,), np.float32)
    first = initial_outputs(head, space)
    assert first.tobytes() == np.zeros(head.outputs(space)).tobytes()
    last = Agent(head, MLP(), Squared(), space, 5).init(jax.random.key(0))["policy"][-1]
    assert bits(last["b"]) == bits(jnp.zeros(head.outputs(space), jnp.float32))


@pytest.mark.parametrize("name", BOX_HEADS)
def test_only_the_start_differs(name):
    """The random weights, the shapes and the deployment are those without it."""
    head, usual = HEADS.get(name)(initial_std=0.3), HEADS.get(name)()
    (_, some), (_, others) = (first_agent(h, [-1.0, -1.0], [1.0, 1.0]) for h in (head, usual))
    assert jax.tree.map(jnp.shape, some) == jax.tree.map(jnp.shape, others)
    assert bits(some["value"]) == bits(others["value"])
    assert bits([layer["w"] for layer in some["policy"]]) == bits([layer["w"] for layer in others["policy"]])
    assert (bits(some["policy"][-1]["b"]), bits(some["head"])) != (
        bits(others["policy"][-1]["b"]),
        bits(others["head"]),
    )
    assert head.deploy() == usual.deploy()


def test_one_of_two_options_displaces_the_presets_value_of_the_other():
    usual = Run("probe/action", "gaussian")
    assert (usual.head.initial_log_std, usual.head.initial_std) == (-0.5, None)
    for preset in ("modern", "modern-0.1", "paper"):
        run = Run("probe/action", "gaussian", preset=preset, initial_std=0.3)
        assert (run.head.initial_log_std, run.head.initial_std) == (0.0, 0.3)
        assert Run.from_configuration(run.configuration) == run
    plain = Run("probe/action", "gaussian", preset="paper", initial_std=0.3)
    assert "initial_log_std" not in plain.identity["options"]
    assert Run("probe/action", "gaussian", initial_log_std=-1.0).head == Gaussian(initial_log_std=-1.0)


def test_a_preset_that_sets_it_gives_way_to_the_other(monkeypatch):
    from detent.runs.presets import PRESETS

    monkeypatch.setitem(PRESETS["modern"], "ppo gaussian", {"initial_std": 0.45})
    assert Run("probe/action", "gaussian").head == Gaussian(initial_std=0.45)
    assert Run("probe/action", "gaussian", initial_log_std=-1.0).head == Gaussian(initial_log_std=-1.0)
    assert Run("probe/action", "gaussian", initial_std=0.2).head == Gaussian(initial_std=0.2)


def test_positional_arguments_are_the_same():
    assert Discrete(7).bins == 7
    assert Gaussian(-1.0).initial_log_std == -1.0


def test_a_head_without_it_and_a_head_that_inherits_it():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        bins: int = 5
        outputs, parameters, distribution = Discrete.outputs, Discrete.parameters, Discrete.distribution
        by_dimension, to_unit, diagnostics = Discrete.by_dimension, Discrete.to_unit, Discrete.diagnostics

    class Coarse(Discrete):
        """Nothing of its own."""

    assert not hasattr(Plain, "initial_outputs")
    try:
        register_head("plain_start", Plain)
        register_head("coarse_start", Coarse)
        with pytest.raises(BadInput, match=r"^The head 'plain_start' has no --initial-std"):
            Run("probe/action", "plain_start", initial_std=0.3)
        assert unit_stds(first_policy(Run("probe/action", "plain_start"))) == pytest.approx(np.sqrt(0.5), rel=1e-2)
        assert unit_stds(first_policy(Run("probe/action", "coarse_start", initial_std=0.3))) == pytest.approx(
            0.3, rel=0.06
        )
    finally:
        for name in ("plain_start", "coarse_start"):
            HEADS._entries.pop(name, None)


def first_policy(run):
    env = make_environment(run, 0, 1)
    agent = make_agent(run, env)
    return agent.policy(agent.init(key_of(0)), np.zeros((1, env.observation_layout.size), np.float32))


# --- runs ---


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "ordinal", BOX_HEADS))
def test_a_run_is_resumed_and_verified(name, tmp_path):
    run = Run("probe/follow", name, initial_std=0.3, steps=512, **QUICK)
    list(execute(run, tmp_path / "whole", Execution()))
    stop = iter([None, None, "enough", "enough", "enough"])
    list(execute(run, tmp_path / "parts", Execution(stop=lambda: next(stop))))
    assert RunDirectory(tmp_path / "parts").status() == "stopped"
    assert RunDirectory(tmp_path / "parts").run() == run
    assert main(["resume", str(tmp_path / "parts"), "--quiet"]) == 0
    policies = [(tmp_path / part / "policy.safetensors").read_bytes() for part in ("whole", "parts")]
    assert policies[0] == policies[1]
    assert main(["verify", str(tmp_path / "parts"), "--all"]) == 0
    written = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert (written["options"]["initial_std"], written["baselines"]["initial_std"]) == (0.3, None)


def test_its_value_is_part_of_a_runs_identity():
    names = {run_name(Run("probe/action", "beta", initial_std=std)) for std in (None, 0.2, 0.3)}
    assert len(names) == 3


def test_the_sweep_for_the_figure_can_be_planned():
    runs = list(plan_from_file(ROOT / "results" / "initial-std.toml").runs())
    assert len({run_name(run) for run in runs}) == len(runs)
    spreads = {}
    for run in runs:
        spreads.setdefault(run.names.head, set()).add(run.head.initial_std)
    common = {0.2, 0.3, 0.45}
    assert spreads == {
        "gaussian": common | {0.6, 1.0},
        "gaussian_tanh": common | {0.6, 1.0},
        "beta": common | {0.57},
        "discrete": common | {0.6},
        "ordinal": common | {0.6},
    }
    assert {(run.names.task, run.names.algo, run.settings.steps) for run in runs} == {
        ("HalfCheetah-v5", "ppo", 1_000_000)
    }
    assert len(runs) == 8 * sum(map(len, spreads.values()))


def test_help_lists_it(capsys):
    for name in BOX_HEADS:
        with pytest.raises(SystemExit):
            main(["train", "--help", "--head", name])
        shown = capsys.readouterr().out
        assert "--initial-std X" in shown
        assert all(len(line) <= 80 for line in shown.splitlines())
