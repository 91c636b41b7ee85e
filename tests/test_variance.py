"""The variance of policy gradients: the estimator against one gradient at a time, and against its expectation."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from detent.algorithms.ppo import PPO
from detent.errors import BadInput
from detent.files import Corrupt, read_json, write_json
from detent.heads.discrete import Discrete
from detent.heads.gaussian import Gaussian
from detent.heads.ordinal import Ordinal
from detent.paper import variance
from detent.paper.experiments import experiments
from detent.paper.variance import Measurement, measure, normalised
from documented import ROOT
from updates import make_agent, random_rollout

RESULTS = ROOT / "results" / "variance.json"


def gradients(agent, parameters, observation, action):
    """[b, p] Each sample's gradient of log pi in the hidden layers, one after the other."""
    *hidden, last = parameters["policy"]

    def log_prob(hidden, one, taken):
        return agent.policy(parameters | {"policy": [*hidden, last]}, one).log_prob(taken)

    gradient = jax.jit(lambda one, taken: ravel_pytree(jax.grad(log_prob)(hidden, one, taken))[0])
    return np.stack([gradient(one, taken) for one, taken in zip(observation, action, strict=True)])


def trace(samples):
    """Of the covariance over rows."""
    return np.trace(np.cov(np.asarray(samples, np.float64), rowvar=False))


# --- The estimator ---


@pytest.mark.parametrize("head", [Discrete(bins=3), Ordinal(bins=4), Gaussian()], ids=lambda head: type(head).__name__)
def test_the_variance_is_that_of_gradients_taken_one_by_one(head):
    agent = make_agent(head, hidden_sizes=(6, 5))
    parameters = jax.tree.map(lambda x: x + 0.3, agent.init(jax.random.key(0)))
    rng = np.random.default_rng(1)
    observation = rng.normal(size=(12, 3)).astype(np.float32)
    action = agent.policy(parameters, observation).sample(jax.random.key(2))
    factor = rng.normal(size=12).astype(np.float32)
    valid = np.arange(12) % 5 != 3

    scores = jax.jit(partial(variance.hidden_scores, agent))(parameters, observation, action)
    assert [seen.scores.shape[1] for seen in scores] == [6, 5]
    written_out = np.concatenate(
        [np.einsum("bi,bo->bio", seen.inputs, seen.scores).reshape(12, -1) for seen in scores], axis=1
    )
    one_by_one = gradients(agent, parameters, observation, action)
    # The same numbers in another order: there a layer's bias stands before its weights.
    np.testing.assert_allclose(np.sort(written_out, axis=1), np.sort(one_by_one, axis=1), rtol=2e-4, atol=1e-6)

    found = variance.total_variance(scores, jnp.asarray(factor), jnp.asarray(valid))
    assert float(found) == pytest.approx(trace((factor[:, None] * one_by_one)[valid]), rel=1e-4)


def test_advantages_are_those_of_ppo():
    agent = make_agent(Discrete(bins=5))
    parameters = agent.init(jax.random.key(0))
    rollout = random_rollout(agent, parameters)
    ppo = PPO(batch_size=32, minibatch_size=8, bootstrap_truncated=False)
    key = jax.random.key(3)
    found = jax.jit(partial(variance.rollout_variances, agent, ppo))(parameters, rollout, key)

    value = agent.value(parameters, rollout.observation)
    batch = variance.samples(ppo, rollout, value, value)
    weight = np.zeros(32)
    order = np.asarray(jax.random.permutation(key, 32))
    for chosen in order.reshape(4, 8):
        counted = chosen[np.asarray(batch.valid)[chosen]]
        advantage = np.asarray(batch.advantage, np.float64)[counted]
        weight[counted] = (advantage - advantage.mean()) / advantage.std()
    valid = np.asarray(batch.valid)
    g = gradients(agent, parameters, batch.observation, batch.action)
    assert float(found["constant"]) == pytest.approx(trace(g[valid]), rel=1e-3)
    assert float(found["advantages"]) == pytest.approx(trace((weight[:, None] * g)[valid]), rel=1e-3)


# --- The expectation ---


@pytest.mark.parametrize(
    ("head", "size"), [(Discrete, lambda k: (k - 1) / k), (Ordinal, lambda k: (k * k - 1) / 6 / k)]
)
@pytest.mark.parametrize("bins", [2, 3, 11, 50])
def test_the_size_of_a_score(head, size, bins):
    assert variance.score_size(head(bins=bins)) == pytest.approx(size(bins), rel=1e-5)


@pytest.mark.parametrize("output_init", ["iid", "preset"])
@pytest.mark.parametrize(("head", "dims"), [(Discrete(2), 1), (Discrete(3), 2), (Discrete(8), 2), (Ordinal(8), 2)])
def test_the_mean_over_initialisations_is_what_the_derivation_says(head, dims, output_init):
    """A bandit with one state and the reward R: E_init[V] = R^2 m score_size sigma^2, as the docstring has it.

    16 outputs are twice the hidden units, so that with orthogonal weights half of the variance must be missing.
    """
    reward, count, hidden = 3.0, 150, 8
    agent = make_agent(head, dims=dims, hidden_sizes=(hidden,))
    parameters = agent.init(jax.random.key(0))
    observation = jnp.array([0.5, -1.0, 0.2])
    # sigma^2 = E|J^T w|^2 = gain^2 / H |J|^2 with J the derivative of the hidden vector in the hidden layer.
    layer = parameters["policy"][0]
    jacobian = jax.jacobian(lambda layer: jnp.tanh(observation @ layer["w"] + layer["b"]))(layer)
    sigma2 = agent.policy_gain**2 / hidden * sum(float((x**2).sum()) for x in jax.tree.leaves(jacobian))

    def initialised(number):
        key = jax.random.key(number)
        last = agent.init(key)["policy"][-1]
        if output_init == "iid":
            last = variance.with_iid_outputs(agent, parameters, key)["policy"][-1]
        return parameters | {"policy": [layer, last]}

    @jax.jit
    def estimated(parameters, key):
        state = jnp.broadcast_to(observation, (64, 3))
        action = agent.policy(parameters, state).sample(key)
        scores = variance.hidden_scores(agent, parameters, state, action)
        return variance.total_variance(scores, jnp.full(64, reward), jnp.ones(64, bool))

    found = np.array([estimated(initialised(n), jax.random.key(n + 1000)) for n in range(count)])
    share = variance.output_share(output_init, hidden, dims * head.bins)
    assert share == (0.5 if output_init == "preset" and dims * head.bins == 16 else 1.0)
    expected = reward**2 * dims * variance.score_size(head) * share * sigma2
    error = found.std(ddof=1) / np.sqrt(count)
    assert error < 0.08 * expected  # or the next line would say little
    assert abs(found.mean() - expected) < 4 * error


# --- Measuring ---


def test_a_measurement_repeats_itself():
    options = {"initialisations": 2, "samples": 64, "seed": 3}
    one, two = (measure("probe/follow", bins, **options) for bins in ([5, 2], [2]))
    assert one.bins == (2, 5)
    assert (one.dimensions, one.width, one.samples) == (1, 64, 64)
    assert one.constant[0] == two.constant[0]
    assert one.advantages[0] == two.advantages[0]
    assert len(set(one.constant[0])) == 2


def test_the_committed_results_are_what_is_measured():
    results = variance.from_json(read_json(RESULTS))
    assert {result.task for result in results} == set(experiments()["figure5a"].todays_tasks())
    assert {(result.head, result.output_init) for result in results} >= {("discrete", "preset"), ("discrete", "iid")}
    committed = next(result for result in results if result.task == "Reacher-v5" and result.output_init == "iid")
    found = measure(
        committed.task,
        committed.bins[:1],
        head=committed.head,
        initialisations=2,
        samples=committed.samples,
        seed=committed.seed,
        output_init=committed.output_init,
    )
    # The same bits on the same machine and versions; elsewhere episodes drift apart.
    np.testing.assert_allclose(found.constant[0], committed.constant[0][:2], rtol=0.1)
    np.testing.assert_allclose(found.advantages[0], committed.advantages[0][:2], rtol=0.2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "Nowhere-v5"}, "Nowhere-v5"),
        ({"bins": []}, "bins must name at least one K"),
        ({"bins": [1, 5]}, "--bins must be at least 2, not 1"),
        ({"head": "gaussian"}, "The head 'gaussian' has no --bins"),
        ({"head": "categorical"}, "categorical"),
        ({"initialisations": 0}, "initialisations must be at least 1, not 0"),
        ({"samples": 50}, "--batch-size 50 is not a multiple of --minibatch-size 64"),
        ({"preset": "old"}, "There is no preset named 'old'"),
        ({"output_init": "zero"}, "There is no output_init named 'zero'. Known: preset, iid."),
    ],
)
def test_bad_input_gets_a_sentence(changes, sentence):
    options = {"task": "probe/follow", "bins": [3], "initialisations": 1, "samples": 64, "seed": 0} | changes
    with pytest.raises(BadInput) as told:
        measure(options.pop("task"), options.pop("bins"), **options)
    assert sentence in str(told.value)


# --- Normalising, recording, drawing ---


def made_up(**changes):
    values = {
        "task": "Hopper-v5",
        "head": "discrete",
        "preset": "paper",
        "output_init": "preset",
        "seed": 0,
        "samples": 64,
        "dimensions": 3,
        "width": 64,
        "bins": (2, 11, 50),
        "constant": ((1.0, 2.0, 4.0), (2.0, 4.0, 8.0), (0.5, 1.0, 2.0)),
        "advantages": ((1.0, 2.0, 3.0), (2.0, 2.0, 2.0), (4.0, 1.0, 1.0)),
    }
    return Measurement(**values | changes)


def test_normalised_to_the_largest_k():
    few, some, many = normalised(made_up())
    assert [point.bins for point in (few, some, many)] == [2, 11, 50]
    # Each initialisation is compared with itself: where one K always has twice the variance, nothing varies.
    assert (few.constant.value, few.constant.why) == (pytest.approx(2.0), "needs runs that differ")
    nearly = normalised(made_up(constant=((1.0, 2.0, 4.1), (2.0, 4.0, 8.0), (0.5, 1.0, 2.0))))[0].constant
    assert 1.9 < nearly.low < nearly.value < nearly.high < 2.2
    assert (many.constant.value, many.constant.low, many.constant.high) == (1.0, 1.0, 1.0)
    assert few.advantages.value == pytest.approx(1.0)
    assert few.advantages.low < 0.5
    assert few.advantages.high > 1.5
    assert few.theory == pytest.approx((1 / 2) / (49 / 50), rel=1e-5)
    assert some.theory == pytest.approx((10 / 11) / (49 / 50), rel=1e-5)
    # 6 and 33 outputs have orthonormal weights; of 150 only 64 can.
    assert some.expected == pytest.approx(some.theory * 150 / 64, rel=1e-5)
    assert normalised(made_up(output_init="iid"))[0].expected == few.theory


def test_records_come_back(tmp_path):
    results = [made_up(), made_up(task="Ant-v5", constant=((1 / 3,) * 2,) * 3, advantages=((1e-7, 2.0),) * 3)]
    write_json(tmp_path / "variance.json", variance.as_json(results))
    back = variance.from_json(read_json(tmp_path / "variance.json"))
    assert back[0] == results[0]
    np.testing.assert_allclose(back[1].constant, results[1].constant, rtol=1e-5)
    assert variance.from_json(variance.as_json(back)) == back


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"constant": [[1.0], [2.0]]}, "constant does not have one variance for each K"),
        ({"constant": [[1.0, 2.0], [2.0], [3.0]]}, "constant does not have one variance for each K"),
        ({"advantages": [[], [], []]}, "advantages does not have one variance for each K"),
        ({"advantages": [[1.0], [float("nan")], [1.0]]}, "advantages has a variance that is not a positive number"),
        ({"output_init": "zero"}, "no output_init named 'zero'"),
        ({"bins": 3}, "not iterable"),
    ],
)
def test_damaged_records_get_a_sentence(changes, sentence):
    (good,) = variance.as_json([made_up()])["measurements"]
    with pytest.raises(Corrupt, match=sentence):
        variance.from_json({"measurements": [good | changes]})
    with pytest.raises(Corrupt, match="'task' is missing"):
        variance.from_json({"measurements": [{k: v for k, v in good.items() if k != "task"}]})
    with pytest.raises(Corrupt, match="'measurements' is missing"):
        variance.from_json({})


def test_the_figure(tmp_path):
    results = [made_up(), made_up(task="Ant-v5"), made_up(output_init="iid"), made_up(head="ordinal")]
    files = variance.draw(results, tmp_path / "deep" / "variance")
    assert [file.name for file in files] == ["variance.png", "variance.pdf"]
    first = [file.read_bytes() for file in files]
    assert first[0].startswith(b"\x89PNG")
    assert first[1].startswith(b"%PDF")
    assert [file.read_bytes() for file in variance.draw(results, tmp_path / "again.png")] == first
    with pytest.raises(BadInput, match="nothing to draw"):
        variance.draw([], tmp_path / "nothing")
