"""Properties that every head must have. A head is found by its registration, never by its name.

Integer actions are enumerated; real ones are integrated by quadrature where there is one dimension and by
Monte Carlo where there are more.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from jax.flatten_util import ravel_pytree
from scipy import special, stats

from detent.errors import BadInput
from detent.heads import HEADS
from detent.options import options_of
from detent.rollout import Edge

STANDARD_ERRORS = 5.0
P_VALUE = 1e-4


def has_bins(name):
    return any(field.name == "bins" for field in dataclasses.fields(HEADS.get(name)))


def cases(bins=(2, 11), dims=(1, 3)) -> Iterator:
    for name in HEADS.names():
        for m in dims:
            if not has_bins(name):
                yield pytest.param(HEADS.get(name)(), m, id=f"{name}-{m}d")
                continue
            for k in bins:
                yield pytest.param(HEADS.get(name)(bins=k), m, id=f"{name}-{m}d-{k}bins")


def fine_grids() -> Iterator:
    """One dimension of 1001 bins, for the heads that have bins."""
    for name in filter(has_bins, HEADS.names()):
        yield pytest.param(HEADS.get(name)(bins=1001), 1, id=f"{name}-1d-1001bins")


every_head = pytest.mark.parametrize("head, dims", [*cases()])
every_head_and_fine_grids = pytest.mark.parametrize("head, dims", [*cases(), *fine_grids()])
every_default_head = pytest.mark.parametrize("head, dims", [*cases(bins=(11,), dims=(3,))])


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def space(dims):
    return Box(-1.0, 1.0, (dims,), np.float32)


def draw(head, dims, seed, batch=(), scale=1.0):
    """Random network outputs and head parameters, in JAX's default precision of the moment."""
    rng = np.random.default_rng(seed)
    # Sums over many bins of unit logits would leave one likely bin, and nothing to test.
    scale = scale * min(1.0, 10.0 / getattr(head, "bins", 1))
    out = jnp.asarray(scale * rng.normal(size=(*batch, head.outputs(space(dims)))), float)
    parameters = jax.tree.map(
        lambda p: jnp.asarray(p + 0.3 * rng.normal(size=p.shape), float), head.parameters(space(dims))
    )
    return out, parameters


@partial(jax.jit, static_argnums=0)
def log_probs(head, inputs, actions):
    """Of many actions under one distribution."""
    return jax.vmap(head.distribution(*inputs).log_prob)(actions)


@partial(jax.jit, static_argnums=(0, 3))
def samples(head, inputs, key, n):
    """n draws from one distribution, made as one batch."""
    out, parameters = inputs
    return head.distribution(jnp.broadcast_to(out, (n, *out.shape)), parameters).sample(key)


@partial(jax.jit, static_argnums=0)
def mode(head, inputs):
    return head.distribution(*inputs).mode()


@partial(jax.jit, static_argnums=0)
def entropy(head, inputs):
    return head.distribution(*inputs).entropy()


@partial(jax.jit, static_argnums=0)
def kl(head, old, new):
    return head.distribution(*old).kl(head.distribution(*new))


def is_integer(head):
    return jnp.issubdtype(mode(head, draw(head, 1, 0)).dtype, jnp.integer)


def quadrature(low, high, panels=200, order=20):
    """Gauss-Legendre nodes and weights, crowded at the ends, where a density may have a kink."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    left = np.arange(panels)[:, None] / panels
    u = (left + (nodes + 1.0) / (2 * panels)).ravel()
    du = np.tile(weights / (2 * panels), panels)
    return low + (high - low) * u**2 * (3 - 2 * u), (high - low) * 6 * u * (1 - u) * du


@lru_cache
def native_range(head):
    """Where the density of a real action lives: the range over which it integrates to nearly 1."""

    def mass(low, high):
        x, weight = quadrature(low, high)
        return [
            np.sum(weight * np.exp(log_probs(head, draw(head, 1, seed), jnp.asarray(x[:, None], float))))
            for seed in range(3)
        ]

    ranges = [(0.0, 1.0), (-1.0, 1.0), (-40.0, 40.0)]
    return min(ranges, key=lambda r: np.max(np.abs(np.array(mass(*r)) - 1.0)))


def is_bounded(head):
    return is_integer(head) or native_range(head) != (-40.0, 40.0)


def native_ends(head, dims):
    """The first and last action; of an unbounded head, two ordinary ones."""
    if is_integer(head):
        return [jnp.full(dims, i, jnp.int32) for i in (0, head.bins - 1)]
    low, high = native_range(head)
    return [jnp.full(dims, x, jnp.float32) for x in ((low, high) if is_bounded(head) else (-1.0, 1.0))]


class Support(NamedTuple):
    """Actions and their weights: sum(weight f(action)) is E[f], exactly or within the error of sampling."""

    action: jax.Array
    weight: np.ndarray
    exact: bool

    def mean(self, f):
        return np.tensordot(self.weight, np.asarray(f, np.float64), 1)

    def tolerance(self, f):
        if self.exact:
            return 0.0
        return STANDARD_ERRORS * np.asarray(f, np.float64).std(0) / np.sqrt(len(self.weight))


def grid(head, dims):
    """Every action, or quadrature nodes, with the measure of each."""
    if is_integer(head):
        every = np.stack(np.meshgrid(*[np.arange(head.bins)] * dims, indexing="ij"), -1).reshape(-1, dims)
        return jnp.asarray(every, jnp.int32), np.ones(len(every))
    assert dims == 1
    x, weight = quadrature(*native_range(head))
    return jnp.asarray(x[:, None], float), weight


def support(head, dims, inputs, n=50_000):
    if not is_integer(head) and dims > 1:
        return Support(samples(head, inputs, jax.random.key(17), n), np.full(n, 1.0 / n), exact=False)
    actions, measure = grid(head, dims)
    return Support(actions, measure * np.exp(log_probs(head, inputs, actions)), exact=True)


def slices(head, dims, inputs):
    """Along each dimension of a real action, the others at the mode: nodes, their weights and the density."""
    x, weight = quadrature(*native_range(head))
    centre = np.asarray(mode(head, inputs))
    for d in range(dims):
        actions = np.tile(centre, (len(x), 1))
        actions[:, d] = x
        yield x, weight, np.exp(np.asarray(log_probs(head, inputs, jnp.asarray(actions)), np.float64))


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(leaf).all(), (jax.tree_util.keystr(path), leaf)


# The distribution is one, and its closed forms are those of its density.


@every_head_and_fine_grids
def test_probabilities_sum_or_integrate_to_one(head, dims, x64):
    for seed in (3, 4):
        inputs = draw(head, dims, seed)
        if is_integer(head):
            total = np.exp(log_probs(head, inputs, grid(head, dims)[0])).sum()
        else:
            # Dimensions are independent: the product over d of the integral of p(x_d, others) is p(mode)^(m - 1).
            masses = [np.sum(weight * density) for _, weight, density in slices(head, dims, inputs)]
            total = np.prod(masses) / np.exp(log_probs(head, inputs, mode(head, inputs)[None])[0]) ** (dims - 1)
        assert total == pytest.approx(1.0, abs=1e-5)


@every_head_and_fine_grids
def test_entropy_is_the_mean_of_minus_log_p(head, dims, x64):
    inputs = draw(head, dims, 5)
    actions = support(head, dims, inputs)
    surprise = -log_probs(head, inputs, actions.action)
    assert entropy(head, inputs) == pytest.approx(
        actions.mean(surprise), abs=1e-5 + actions.tolerance(surprise), rel=1e-9
    )


@every_head_and_fine_grids
def test_kl_is_the_mean_log_ratio(head, dims, x64):
    old, new = draw(head, dims, 6), draw(head, dims, 7)
    actions = support(head, dims, old)
    log_ratio = log_probs(head, old, actions.action) - log_probs(head, new, actions.action)
    assert actions.mean(log_ratio) > 1e-6
    assert kl(head, old, new) == pytest.approx(
        actions.mean(log_ratio), abs=1e-5 * actions.mean(log_ratio) + actions.tolerance(log_ratio), rel=1e-4
    )


@every_head_and_fine_grids
def test_kl_is_zero_to_itself_and_never_negative(head, dims):
    near, far = [draw(head, dims, seed, batch=(16,), scale=3.0) for seed in (8, 9)]
    nearby = near[0] + 0.01 * far[0], near[1]
    same = np.asarray(kl(head, near, near))
    np.testing.assert_allclose(same, 0.0, atol=1e-6)
    assert (np.asarray(kl(head, near, far)) > 1e-4).all()
    assert (np.asarray(kl(head, near, nearby)) > -1e-5).all()


@every_head
def test_hessian_of_kl_is_the_fisher_information(head, dims, x64):
    """d^2 KL(old || new) / d new^2 at new = old is E[score score^T], in the outputs and the head's parameters."""
    inputs = draw(head, dims, 10)
    flat, unravel = ravel_pytree(inputs)
    old = head.distribution(*inputs)
    hessian = jax.jit(jax.hessian(lambda x: old.kl(head.distribution(*unravel(x)))))(flat)

    actions = support(head, dims, inputs, n=100_000)
    score = jax.jit(jax.vmap(jax.grad(lambda x, a: head.distribution(*unravel(x)).log_prob(a)), (None, 0)))
    scores = np.asarray(score(flat, actions.action))
    outer = scores[:, :, None] * scores[:, None, :]
    np.testing.assert_array_less(np.abs(hessian - actions.mean(outer)), 1e-4 + actions.tolerance(outer))
    assert np.abs(hessian).max() > 1e-2
    np.testing.assert_array_less(np.abs(actions.mean(scores)), 1e-4 + actions.tolerance(scores))


# Nothing overflows.


@every_head_and_fine_grids
def test_values_and_gradients_are_finite_at_huge_outputs(head, dims):
    width = head.outputs(space(dims))
    parameters = head.parameters(space(dims))
    sign = np.random.default_rng(11).choice([-1.0, 1.0], width)
    alternating = np.resize([1.0, -1.0], width)
    patterns = jnp.asarray(1e4 * np.stack([np.ones(width), -np.ones(width), alternating, -alternating, sign]), float)
    ends = jnp.stack(native_ends(head, dims))

    @jax.jit
    def of_actions(out, key):
        distribution = head.distribution(out, parameters)
        actions = jnp.concatenate([jnp.stack([distribution.sample(key), distribution.mode()]), ends])

        def log_prob(inputs, action):
            return head.distribution(*inputs).log_prob(action)

        return jax.vmap(jax.value_and_grad(log_prob), (None, 0))((out, parameters), actions)

    @jax.jit
    def of_pairs(out, other):
        def divergence(old, new):
            return head.distribution(*old).kl(head.distribution(*new))

        def own_entropy(inputs):
            return head.distribution(*inputs).entropy()

        inputs, others = (out, parameters), (other, parameters)
        return (
            jax.value_and_grad(own_entropy)(inputs),
            jax.value_and_grad(divergence, argnums=(0, 1))(inputs, others),
        )

    keys = jax.random.split(jax.random.key(12), len(patterns))
    assert_finite(jax.vmap(of_actions)(patterns, keys))
    assert_finite(jax.vmap(jax.vmap(of_pairs, (None, 0)), (0, None))(patterns, patterns))


# What is sampled.


@every_head_and_fine_grids
def test_sampled_frequencies_match_the_probabilities(head, dims):
    """Chi-square over all joint actions, or Kolmogorov-Smirnov along each dimension."""
    inputs = draw(head, dims, 13)
    n = min(50_000, 20_000_000 // head.outputs(space(dims)))
    drawn = np.asarray(samples(head, inputs, jax.random.key(14), n))
    assert drawn.shape == (n, dims)
    if is_integer(head):
        probability = np.exp(np.asarray(log_probs(head, inputs, grid(head, dims)[0]), np.float64))
        observed = np.bincount(np.ravel_multi_index(drawn.T, [head.bins] * dims), minlength=head.bins**dims)
        expected = n * probability / probability.sum()
        rare = expected < 5
        assert (~rare).sum() > 1
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum() + 1e-9)
        statistic = np.sum((observed - expected) ** 2 / np.maximum(expected, 5.0))
        assert stats.chi2.sf(statistic, len(expected) - 1) > P_VALUE
        return
    for d, (x, weight, density) in enumerate(slices(head, dims, inputs)):
        mass = weight * density
        cumulative = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
        assert stats.kstest(drawn[:, d], lambda a, x=x, c=cumulative: np.interp(a, x, c)).pvalue > P_VALUE


@every_head
def test_samples_of_different_rows_and_dimensions_are_uncorrelated(head, dims):
    n = 20_000
    unit = np.asarray(head.to_unit(samples(head, draw(head, dims, 15), jax.random.key(16), n)))
    rows_and_dimensions = np.concatenate([unit[:-1], unit[1:]], axis=1)
    correlation = np.corrcoef(rows_and_dimensions.T)
    off_diagonal = correlation[~np.eye(2 * dims, dtype=bool)]
    assert np.abs(off_diagonal).max() < STANDARD_ERRORS / np.sqrt(n)


@every_head_and_fine_grids
def test_no_sample_is_likelier_than_the_mode(head, dims):
    for seed in (17, 18):
        inputs = draw(head, dims, seed, scale=2.0)
        drawn = samples(head, inputs, jax.random.key(seed), 1000)
        best = log_probs(head, inputs, mode(head, inputs)[None])[0]
        assert np.max(log_probs(head, inputs, drawn)) <= best + 1e-5


@every_head
def test_one_key_gives_one_sample_and_another_key_another(head, dims):
    inputs = draw(head, dims, 19)
    first, again, other = [samples(head, inputs, jax.random.key(seed), 64) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()


# Batches, transformations and types.


@every_default_head
def test_a_batch_is_the_same_as_its_rows(head, dims):
    (old, parameters), (new, _) = draw(head, dims, 20, (2, 3)), draw(head, dims, 21, (2, 3))

    def numbers(old, new, action):
        p, q = head.distribution(old, parameters), head.distribution(new, parameters)
        return p.mode(), p.log_prob(action), p.entropy(), p.kl(q), head.to_unit(action)

    action = head.distribution(old, parameters).sample(jax.random.key(22))
    assert action.shape == (2, 3, dims)
    batched = jax.jit(numbers)(old, new, action)
    assert [x.shape for x in batched] == [(2, 3, dims), (2, 3), (2, 3), (2, 3), (2, 3, dims)]
    for i, j in np.ndindex(2, 3):
        for whole, row in zip(batched, numbers(old[i, j], new[i, j], action[i, j]), strict=True):
            np.testing.assert_allclose(whole[i, j], row, rtol=1e-5, atol=1e-6)
    for whole, mapped in zip(batched, jax.vmap(jax.vmap(numbers))(old, new, action), strict=True):
        np.testing.assert_allclose(whole, mapped, rtol=1e-5, atol=1e-6)


@every_default_head
def test_a_distribution_passes_through_jit_and_vmap(head, dims):
    out, parameters = draw(head, dims, 23, (4,))
    direct = head.distribution(out, parameters)
    returned = jax.jit(head.distribution)(out, parameters)
    key = jax.random.key(24)
    np.testing.assert_array_equal(direct.sample(key), returned.sample(key))
    keys = jax.random.split(key, 4)
    mapped = jax.vmap(lambda o, k: head.distribution(o, parameters).sample(k))(out, keys)
    rows = np.stack([head.distribution(o, parameters).sample(k) for o, k in zip(out, keys, strict=True)])
    np.testing.assert_allclose(mapped, rows, rtol=1e-5)


@every_default_head
def test_float32_stays_float32_where_float64_is_enabled(head, dims):
    """Rollouts are traced under x64, for the environments' sake; the policy's numbers must not change for it."""
    out, parameters = draw(head, dims, 25, (4,))
    with jax.enable_x64(True):
        distribution = head.distribution(out, parameters)
        action = distribution.sample(jax.random.key(26))
        unit = head.to_unit(action)
        edge = Edge("scale", True, True, 10.0, 0.99).action(unit, space(dims))
        found = {
            "sample": action,
            "mode": distribution.mode(),
            "log_prob": distribution.log_prob(action),
            "entropy": distribution.entropy(),
            "kl": distribution.kl(distribution),
            "to_unit": unit,
            "edge": edge,
            **head.diagnostics(distribution),
        }
    assert {name: x.dtype for name, x in found.items() if x.dtype not in (jnp.float32, jnp.int32)} == {}


# From the native action to the environment's.


@every_head_and_fine_grids
def test_unit_actions_of_bounded_heads_lie_between_minus_one_and_one(head, dims):
    unit = np.asarray(head.to_unit(samples(head, draw(head, dims, 27, scale=5.0), jax.random.key(28), 1000)))
    assert unit.shape == (1000, dims)
    first, last = [np.asarray(head.to_unit(action)) for action in native_ends(head, dims)]
    np.testing.assert_allclose(first, -1.0, atol=1e-6)
    np.testing.assert_allclose(last, 1.0, atol=1e-6)
    if is_bounded(head):
        assert np.abs(unit).max() <= 1.0 + 1e-6


@pytest.mark.parametrize("head, dims", [*cases(bins=(2, 11, 1001), dims=(1,))])
def test_to_unit_increases_evenly(head, dims):
    if is_integer(head):
        native = np.arange(head.bins)
    else:
        first, last = np.concatenate(native_ends(head, 1))
        native = np.linspace(first, last, 101)
    unit = np.asarray(head.to_unit(jnp.asarray(native)[:, None]))[:, 0]
    np.testing.assert_allclose(unit, np.linspace(-1.0, 1.0, len(native)), atol=1e-6)
    assert (np.diff(unit) > 0).all()


LOW = np.array([-3.0, 0.5, -0.1], np.float32)
HIGH = np.array([-1.0, 100.0, 0.7], np.float32)
BOUNDS = Box(LOW, HIGH, dtype=np.float32)


def to_environment(actions, unit):
    edge = Edge(actions=actions, normalize_observations=True, normalize_rewards=True, clip=10.0, gamma=0.99)
    return np.asarray(edge.action(jnp.asarray(unit), BOUNDS))


@pytest.mark.parametrize("actions", ["scale", "clip"])
@pytest.mark.parametrize("head, dims", [*cases(bins=(2, 11, 1001), dims=(3,))])
def test_the_environment_gets_actions_inside_its_bounds(head, dims, actions):
    huge, parameters = draw(head, dims, 29, (4,), scale=1e4)
    native = [samples(head, draw(head, dims, 30, scale=3.0), jax.random.key(31), 1000)]
    native += [head.distribution(huge, parameters).mode(), jnp.stack(native_ends(head, dims))]
    unit = np.asarray(head.to_unit(jnp.concatenate(native)))
    given = to_environment(actions, unit)
    assert given.shape == unit.shape
    assert (given >= LOW).all()
    assert (given <= HIGH).all()
    if actions == "clip":
        inside = (unit >= LOW) & (unit <= HIGH)
        np.testing.assert_array_equal(given[inside], unit[inside])


@every_default_head
def test_raw_actions_are_left_alone(head, dims):
    unit = 3.0 * np.asarray(head.to_unit(samples(head, draw(head, dims, 32), jax.random.key(33), 100)))
    np.testing.assert_array_equal(to_environment("raw", unit), unit)


def test_scaling_hits_the_bounds_exactly_and_is_linear_between():
    unit = np.repeat(np.linspace(-1.0, 1.0, 201, dtype=np.float32)[:, None], 3, axis=1)
    given = to_environment("scale", unit)
    np.testing.assert_array_equal(given[0], LOW)
    np.testing.assert_array_equal(given[-1], HIGH)
    np.testing.assert_allclose(given, LOW + (unit + 1.0) / 2.0 * (HIGH - LOW), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(to_environment("scale", 1.5 * unit[[0, -1]]), np.stack([LOW, HIGH]))


# Options, deployment, diagnostics.


def candidates(default):
    if isinstance(default, bool):
        return [not default]
    return [default + 3, default - 3] if isinstance(default, int) else [default + 0.5, default - 0.5]


def character(head):
    """All that can be seen of a head from outside, as numbers."""
    out, parameters = draw(head, 2, 34)
    drawn = samples(head, (out, parameters), jax.random.key(35), 8)
    initial = head.parameters(space(2))
    return json.dumps([len(out), jax.tree.map(np.ndarray.tolist, jax.device_get([initial, drawn])), head.deploy()])


@pytest.mark.parametrize(
    "name, declared", [pytest.param(n, f, id=f"{n}-{f.name}") for n in HEADS.names() for f in options_of(HEADS.get(n))]
)
def test_every_option_changes_something(name, declared):
    make = HEADS.get(name)
    limits = declared.metadata["limits"]
    for value in limits["choices"] or candidates(declared.default):
        try:
            other = make(**{declared.name: value})
        except BadInput:
            continue
        if value != declared.default:
            assert character(other) != character(make())
            return
    pytest.fail(f"no other value of {declared.name} is allowed")


@pytest.mark.parametrize("bins", [1, 0, -5])
@pytest.mark.parametrize("name", filter(has_bins, HEADS.names()))
def test_fewer_than_two_bins_are_refused(name, bins):
    with pytest.raises(BadInput, match="--bins"):
        HEADS.get(name)(bins=bins)


@every_head
def test_deployment_is_a_list_of_named_operations(head, dims):
    operations = head.deploy()
    assert operations
    assert all(isinstance(operation["op"], str) for operation in operations)
    assert json.loads(json.dumps(operations)) == operations


@every_head
def test_diagnostics_are_finite_scalars_and_std_is_that_of_the_unit_action(head, dims):
    out, parameters = inputs = draw(head, dims, 36)
    diagnostics = head.diagnostics(head.distribution(out[None], parameters))
    assert all(jnp.shape(x) == () for x in diagnostics.values())
    assert_finite(diagnostics)
    if "std" in diagnostics:
        unit = head.to_unit(samples(head, inputs, jax.random.key(37), 50_000))
        assert diagnostics["std"] == pytest.approx(np.asarray(unit).std(0).mean(), rel=0.02)


# Other people's implementations.


def oracle(name, dims=3, batch=(5,), scale=2.0):
    head = HEADS.get(name)()
    out, parameters = draw(head, dims, 38, batch, scale)
    distribution = head.distribution(out, parameters)
    return np.asarray(out), parameters, distribution, np.asarray(distribution.sample(jax.random.key(39)))


@pytest.mark.parametrize("name, mean", [("gaussian", np.copy), ("gaussian_tanh", np.tanh)])
def test_gaussians_agree_with_scipy(name, mean, x64):
    out, parameters, distribution, action = oracle(name)
    reference = stats.norm(mean(out), np.exp(np.asarray(parameters["log_std"])))
    np.testing.assert_allclose(distribution.log_prob(action), reference.logpdf(action).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(distribution.entropy(), reference.entropy().sum(-1), rtol=1e-9)
    np.testing.assert_allclose(distribution.mode(), mean(out), rtol=1e-9)


def test_beta_agrees_with_scipy(x64):
    out, _, distribution, action = oracle("beta")
    alpha, beta = 1.0 + np.split(np.logaddexp(0.0, out), 2, axis=-1)[0], 1.0 + np.logaddexp(0.0, out[..., 3:])
    reference = stats.beta(alpha, beta)
    np.testing.assert_allclose(distribution.log_prob(action), reference.logpdf(action).sum(-1), rtol=1e-7)
    np.testing.assert_allclose(distribution.entropy(), reference.entropy().sum(-1), rtol=1e-7)
    np.testing.assert_allclose(distribution.mode(), (alpha - 1) / (alpha + beta - 2), rtol=1e-7)


def test_discrete_agrees_with_scipy(x64):
    out, _, distribution, action = oracle("discrete")
    log_p = special.log_softmax(out.reshape(5, 3, 11), axis=-1)
    chosen = np.take_along_axis(log_p, action[..., None], -1)[..., 0].sum(-1)
    np.testing.assert_allclose(distribution.log_prob(jnp.asarray(action)), chosen, rtol=1e-9)
    np.testing.assert_allclose(distribution.entropy(), special.entr(np.exp(log_p)).sum((-2, -1)), rtol=1e-9)
    np.testing.assert_array_equal(distribution.mode(), log_p.argmax(-1))
