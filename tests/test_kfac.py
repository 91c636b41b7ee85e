"""K-FAC against exact Fisher matrices, and on batches that tell next to nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from detent.algorithms.acktr import policy_matrices, policy_seen
from detent.heads import HEADS, output_blocks
from detent.heads.discrete import Discrete
from detent.heads.gaussian import Gaussian
from detent.kfac import (
    KFAC,
    Curvature,
    Seen,
    as_matrices,
    damped_inverse,
    factors,
    inputs_and_scores,
    natural_gradient,
    one_block,
    share_within,
)
from detent.trunks.mlp import MLP
from detent.trunks.simba import SimBa
from updates import BOX_HEADS, bits, make_agent

every_head = pytest.mark.parametrize("head", BOX_HEADS)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def uniform(count):
    return jnp.full(count, 1.0 / count)


def kronecker(factor, blocks):
    """[i o, i o] A x S with the outputs in the order of the layer, W flattened by rows."""
    outputs = np.zeros((blocks.size, blocks.size))
    for block, s in zip(blocks, factor.outputs, strict=True):
        outputs[np.ix_(block, block)] = s
    return np.kron(factor.inputs, outputs)


def scores_of(agent, parameters, observation, action):
    """[b, p] Each sample's gradient of log pi in the flattened matrices of the policy's layers."""
    matrices, with_matrices = policy_matrices(parameters)

    def log_prob(matrices, observation, action):
        return agent.policy(with_matrices(matrices), observation).log_prob(action)

    each = jax.vmap(jax.grad(log_prob), (None, 0, 0))(matrices, observation, action)
    return np.concatenate([g.reshape(len(observation), -1) for g in each], axis=1)


def float64_parameters(agent, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape), agent.init(jax.random.key(seed)))


@every_head
def test_one_linear_layer_and_one_input_are_exact(head):
    """The mean of score score^T, from the same actions; without blocks, which hold only in expectation."""
    agent = make_agent(HEADS.get(head)(), hidden_sizes=())
    parameters = float64_parameters(agent)
    observation = jnp.tile(np.random.default_rng(1).normal(size=3), (50, 1))
    key = jax.random.key(4)
    seen = jax.jit(lambda: policy_seen(agent, parameters, observation, key))()
    exact = scores_of(agent, parameters, observation, agent.policy(parameters, observation).sample(key))
    start = 0
    for layer, matrix in zip(seen, policy_matrices(parameters)[0], strict=True):
        block = one_block(matrix.shape[1])
        own = exact[:, start : start + matrix.size]
        start += matrix.size
        found = kronecker(factors(layer, uniform(50), block), block)
        np.testing.assert_allclose(found, own.T @ own / 50, atol=1e-10)


def test_a_gaussian_of_unit_variance_is_exact():
    """E[s s^T] = I whatever the input, so F = E[a a^T] x I: with actions one deviation to either side, exactly."""
    agent = make_agent(Gaussian(), hidden_sizes=())
    parameters = agent.init(jax.random.key(0)) | {"head": {"log_std": jnp.zeros(2)}}
    x = np.random.default_rng(1).normal(size=(40, 3))
    signs = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    observation = np.repeat(x, 4, axis=0)
    action = np.asarray(agent.policy(parameters, observation).mean) + np.tile(signs, (40, 1))
    seen, _ = inputs_and_scores(
        agent.policy_program,
        parameters["policy"],
        jnp.asarray(observation),
        lambda out, _: agent.head.distribution(out, parameters["head"]).log_prob(action).sum(),
    )
    found = factors(seen[0], uniform(160), output_blocks(agent.head, agent.space))
    a = np.concatenate([x, np.ones((40, 1))], axis=1)
    np.testing.assert_allclose(found.inputs, a.T @ a / 40, atol=1e-6)
    np.testing.assert_allclose(found.outputs, np.ones((2, 1, 1)), atol=1e-6)


def test_the_gaussians_log_std_is_a_layer_with_fisher_information_2():
    agent = make_agent(Gaussian(), hidden_sizes=(4,))
    seen = policy_seen(agent, float64_parameters(agent), jnp.zeros((20_000, 3)), jax.random.key(0))
    own = factors(seen[-1], uniform(20_000), one_block(2))
    np.testing.assert_allclose(own.inputs, [[1.0]])
    np.testing.assert_allclose(own.outputs[0], 2.0 * np.eye(2), atol=0.15)


@pytest.mark.parametrize("trunk", [MLP((4,), "silu", layer_norm=True), SimBa(4, 1)], ids=str)
def test_inputs_and_scores_are_the_gradient_of_every_sample(trunk):
    """Also of scales and shifts, and of layers that a residual passes by."""
    agent = make_agent(Gaussian(), trunk=trunk)
    parameters = float64_parameters(agent)
    observation = jnp.asarray(np.random.default_rng(1).normal(size=(6, 3)))
    key = jax.random.key(4)
    seen = jax.jit(lambda: policy_seen(agent, parameters, observation, key))()
    found = [np.einsum("bi,bo->bio", layer.inputs, layer.scores).reshape(6, -1) for layer in seen]
    action = agent.policy(parameters, observation).sample(key)
    np.testing.assert_allclose(np.concatenate(found, axis=1), scores_of(agent, parameters, observation, action))


def test_a_layer_norms_fisher_information_is_exact():
    """It has no inputs that its scores could depend on: E[s s^T], whatever the observations."""
    agent = make_agent(Discrete(3), trunk=MLP((4,), layer_norm=True))
    parameters = float64_parameters(agent)
    observation = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)))
    key = jax.random.key(4)
    seen = jax.jit(lambda: policy_seen(agent, parameters, observation, key))()
    exact = scores_of(agent, parameters, observation, agent.policy(parameters, observation).sample(key))
    own = exact[:, 16:24]  # after 4 x 4 of the first layer: 4 scales and 4 shifts
    found = factors(seen[1], uniform(50), one_block(8))
    np.testing.assert_allclose(found.inputs, [[1.0]])
    np.testing.assert_allclose(found.outputs[0], own.T @ own / 50, atol=1e-12)
    assert np.linalg.norm(own) > 0.1


@every_head
def test_outputs_of_different_blocks_are_uncorrelated(head):
    """So that leaving out what lies between the blocks changes nothing."""
    head, space = HEADS.get(head)(), Box(-1.0, 1.0, (3,), np.float32)
    blocks = output_blocks(head, space)
    assert sorted(blocks.ravel()) == list(range(head.outputs(space)))
    assert len(blocks) == 3
    rng = np.random.default_rng(0)
    out = jnp.asarray(rng.normal(size=head.outputs(space)))
    own = jax.tree.map(jnp.asarray, head.parameters(space))
    old = head.distribution(out, own)
    hessian = np.asarray(jax.jit(jax.hessian(lambda new: old.kl(head.distribution(new, own))))(out))
    between = np.ones_like(hessian, bool)
    for block in blocks:
        between[np.ix_(block, block)] = False
    assert np.abs(hessian[between]).max() < 1e-10 < np.abs(hessian[~between]).max()


def test_a_head_that_does_not_group_its_outputs_is_one_block():
    class Plain:
        def outputs(self, space):
            return 5

    np.testing.assert_array_equal(output_blocks(Plain(), Box(-1.0, 1.0, (2,))), [[0, 1, 2, 3, 4]])


def test_natural_gradient_solves_with_the_kronecker_product():
    rng = np.random.default_rng(0)
    blocks = np.array([[0, 3], [1, 4], [2, 5]])  # as the Beta head has them
    factor = factors(Seen(rng.normal(size=(60, 4)), jnp.asarray(rng.normal(size=(60, 6)))), uniform(60), blocks)
    gradient = rng.normal(size=(4, 6))
    inverted = Curvature(*map(np.linalg.inv, factor))
    found = natural_gradient(inverted, gradient, blocks)
    np.testing.assert_allclose(kronecker(factor, blocks) @ found.ravel(), gradient.ravel(), atol=1e-10)


def degenerate_batches():
    rng = np.random.default_rng(0)
    inputs, scores = rng.normal(size=(32, 4)), rng.normal(size=(32, 6))
    yield "all actions equal", inputs, np.tile(scores[:1], (32, 1)), np.full(32, 1 / 32)
    yield "constant observations", np.tile(inputs[:1], (32, 1)), scores, np.full(32, 1 / 32)
    yield "a single sample", inputs, scores, np.eye(32)[0]
    yield "no sample at all", inputs, scores, np.zeros(32)
    yield "scores of 0", inputs, 0 * scores, np.full(32, 1 / 32)
    yield "huge inputs and tiny scores", 1e4 * inputs, 1e-6 * scores, np.full(32, 1 / 32)


@pytest.mark.parametrize(
    ("inputs", "scores", "weight"), [pytest.param(*rest, id=name) for name, *rest in degenerate_batches()]
)
@pytest.mark.parametrize("damping", [1e-4, 0.1])
def test_inverses_are_positive_definite_after_a_degenerate_batch(inputs, scores, weight, damping):
    blocks = np.array([[0, 1, 2], [3, 4, 5]])
    with jax.enable_x64(False):
        seen = Seen(jnp.asarray(inputs, jnp.float32), jnp.asarray(scores, jnp.float32))
        inverted = damped_inverse(factors(seen, jnp.asarray(weight, jnp.float32), blocks), damping)
    for m in inverted:
        m = np.asarray(m, np.float64)
        assert np.isfinite(m).all()
        assert np.linalg.eigvalsh((m + m.swapaxes(-1, -2)) / 2).min() > 0


def small_kfac(**changes):
    return KFAC(**{"blocks": [one_block(2)], "decay": 0.9, "damping": 0.01, "max_kl": 0.02, "momentum": 0.0} | changes)


def test_curvature_is_a_plain_mean_at_first_and_a_running_one_later():
    kfac = small_kfac(decay=0.75)
    state = kfac.init([jnp.zeros((1, 2))])
    expected = np.zeros(1)
    for number, size in enumerate([1.0, 2.0, 5.0, 3.0, 7.0, 1.0]):
        seen = Seen(jnp.full((4, 1), size), jnp.ones((4, 2)))
        state = kfac.observe(state, [seen], uniform(4))
        share = max(1.0 / (number + 1), 0.25)
        expected = (1 - share) * expected + share * size**2
        assert state.curvature[0].inputs[0, 0] == pytest.approx(expected[0])
    untouched = kfac.observe(state, [seen], jnp.zeros(4))
    assert untouched.batches == state.batches
    np.testing.assert_array_equal(untouched.curvature[0].inputs, state.curvature[0].inputs)


IDENTITY = [Curvature(jnp.eye(1), jnp.eye(2)[None])]
NOTHING, GRADIENT = [jnp.zeros((1, 2))], [jnp.array([[3.0, 4.0]])]


def test_a_step_is_as_long_as_the_learning_rate_says_and_the_trust_region_allows():
    """F = I: u = g, and half the squared length of a step is its KL."""
    (short,) = small_kfac().step(NOTHING, IDENTITY, GRADIENT, 0.001)
    np.testing.assert_allclose(short, 0.001 * GRADIENT[0])
    (long,) = small_kfac().step(NOTHING, IDENTITY, GRADIENT, 1.0)
    assert 0.5 * jnp.sum(long**2) == pytest.approx(0.02)
    (none,) = small_kfac().step(NOTHING, IDENTITY, NOTHING, 1.0)
    np.testing.assert_array_equal(none, 0.0)


def test_momentum_is_a_running_mean_of_steps():
    steps = NOTHING
    for number in range(1, 50):
        steps = small_kfac(momentum=0.9).step(steps, IDENTITY, GRADIENT, 0.001)
        np.testing.assert_allclose(steps[0], 0.001 * (1 - 0.9**number) * GRADIENT[0], rtol=1e-5)


@pytest.mark.parametrize(("kl", "share"), [(0.02, 1.0), (0.05, 0.5), (1.0, 0.125), (1e9, 0.0), (jnp.nan, 0.0)])
def test_a_step_is_halved_until_its_true_kl_is_within_the_trust_region(kl, share):
    whole = jnp.asarray(kl)
    found, kept = jax.jit(lambda: share_within(lambda s: jnp.where(s > 0, whole * s**2, 0.0), whole, 0.02))()
    assert found == share
    assert kept == pytest.approx(share**2 * kl if share else 0.0)


def test_layers_as_matrices_and_back():
    layers = make_agent(Discrete(3), trunk=SimBa(4, 1)).init(jax.random.key(0))["policy"]
    matrices, as_layers = as_matrices(layers)
    assert [matrix.shape for matrix in matrices] == [(4, 4), (1, 8), (5, 16), (17, 4), (1, 8), (5, 6)]
    assert bits(as_layers(matrices)) == bits(layers)
    assert jax.tree.structure(as_layers(matrices)) == jax.tree.structure(layers)
