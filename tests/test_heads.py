"""Properties that every head must have. A head is found by its registration, never by its name.

Integer actions are enumerated; real ones are integrated by quadrature where there is one dimension and by
Monte Carlo where there are more. Sampling is tested in float32, mathematics in float64.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from jax.flatten_util import ravel_pytree
from scipy import special, stats

from detent.distributions import log_gamma_variable
from detent.errors import BadInput
from detent.heads import HEADS, initial_outputs
from detent.options import options_of
from detent.rollout import Edge
from updates import BOX_HEADS

STANDARD_ERRORS = 5.0
P_VALUE = 1e-4
FAST_COMPILATION = {"xla_backend_optimization_level": 1}
"""Nearly all the time here is spent compiling."""


def has_bins(name):
    return any(field.name == "bins" for field in dataclasses.fields(HEADS.get(name)))


def cases(bins, dims):
    """Every head, for these numbers of bins (where it has bins) and of action dimensions."""
    for name in BOX_HEADS:
        for m in dims:
            if has_bins(name):
                for k in bins:
                    yield pytest.param(HEADS.get(name)(bins=k), m, id=f"{name}-{m}d-{k}bins")
            else:
                yield pytest.param(HEADS.get(name)(), m, id=f"{name}-{m}d")


def grids(bins):
    """The heads that have bins, in one dimension."""
    for name in filter(has_bins, BOX_HEADS):
        yield pytest.param(HEADS.get(name)(bins=bins), 1, id=f"{name}-1d-{bins}bins")


HEAD_AND_DIMS = ("head", "dims")
IN_ONE_DIMENSION, IN_THREE = [*cases(bins=(2, 11), dims=(1,))], [*cases(bins=(11,), dims=(3,))]
every_head = pytest.mark.parametrize(HEAD_AND_DIMS, IN_ONE_DIMENSION + IN_THREE)
every_head_and_fine_grids = pytest.mark.parametrize(HEAD_AND_DIMS, [*IN_ONE_DIMENSION, *IN_THREE, *grids(1001)])
every_default_head = pytest.mark.parametrize(HEAD_AND_DIMS, IN_THREE)


def space(dims):
    return Box(-1.0, 1.0, (dims,), np.float32)


def draw(head, dims, seed, batch=(), scale=1.0):
    """Random network outputs and head parameters, in float64; JAX rounds them where float64 is not enabled."""
    rng = np.random.default_rng(seed)
    # Sums over many bins of unit logits would leave one likely bin, and nothing to test.
    scale = scale * min(1.0, 10.0 / getattr(head, "bins", 1))
    out = scale * rng.normal(size=(*batch, head.outputs(space(dims))))
    return out, jax.tree.map(lambda p: np.float64(p) + 0.3 * rng.normal(size=p.shape), head.parameters(space(dims)))


def in_float64(function):
    """Compile `function(head, ...)` and run it in float64."""
    compiled = jax.jit(function, static_argnums=0, compiler_options=FAST_COMPILATION)

    @functools.wraps(function)
    def call(*args):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, compiled(*args))

    return call


SAMPLES = 10_000


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST_COMPILATION)
def sample_batch(head, inputs, seed):
    out, parameters = inputs
    batch = head.distribution(jnp.broadcast_to(out, (SAMPLES, *out.shape)), parameters)
    return batch.sample(jax.random.key(seed))


def samples(head, inputs, seed):
    """[SAMPLES, m] Draws from one distribution, in the native type, float32 or int32."""
    return np.array(sample_batch(head, inputs, seed))


def to_unit(head, actions):
    return np.asarray(head.to_unit(jnp.asarray(actions)))


@functools.lru_cache
def is_integer(head):
    action = jax.eval_shape(lambda inputs: head.distribution(*inputs).mode(), draw(head, 1, 0))
    return jnp.issubdtype(action.dtype, jnp.integer)


class Numbers(NamedTuple):
    log_prob: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray
    mode: np.ndarray


@in_float64
def numbers(head, old, new, actions):
    p, q = head.distribution(*old), head.distribution(*new)
    return Numbers(jax.vmap(p.log_prob)(actions), p.entropy(), p.kl(q), p.mode())


def all_actions(head, dims):
    every = np.meshgrid(*[np.arange(head.bins, dtype=np.int32)] * dims, indexing="ij")
    return np.stack(every, -1).reshape(-1, dims)


def some_actions(head, inputs):
    """As many as `numbers` is always given, so that it is compiled once for each head and number of dimensions."""
    dims = len(inputs[0]) // head.outputs(space(1))
    return all_actions(head, dims) if is_integer(head) else np.full((SAMPLES, dims), 0.5)


def log_probs(head, inputs, actions):
    """Of many actions under one distribution."""
    if is_integer(head):
        table = numbers(head, inputs, inputs, some_actions(head, inputs)).log_prob
        return table[np.ravel_multi_index(actions.T, [head.bins] * actions.shape[1])]
    repeated = np.resize(np.float64(actions), (SAMPLES, actions.shape[1]))
    return numbers(head, inputs, inputs, repeated).log_prob[: len(actions)]


def mode(head, inputs):
    return numbers(head, inputs, inputs, some_actions(head, inputs)).mode


def entropy(head, inputs):
    return numbers(head, inputs, inputs, some_actions(head, inputs)).entropy


def kl(head, old, new):
    return numbers(head, old, new, some_actions(head, old)).kl


def quadrature(low, high, order=20):
    """Gauss-Legendre nodes and weights, crowded at the ends, where a density may have a kink."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    panels = SAMPLES // order
    u = ((np.arange(panels)[:, None] + (nodes + 1.0) / 2.0) / panels).ravel()
    du = np.tile(weights / (2 * panels), panels)
    return low + (high - low) * u**2 * (3 - 2 * u), (high - low) * 6 * u * (1 - u) * du


RANGES = [(0.0, 1.0), (-1.0, 1.0), (-20.0, 20.0)]
"""Where real actions may live; the last stands for the whole line."""


@functools.lru_cache
def native_range(head):
    """The range over which the density of a real action comes closest to integrating to 1."""

    def error(limits):
        x, weight = quadrature(*limits)
        return max(
            abs(np.sum(weight * np.exp(log_probs(head, draw(head, 1, seed), x[:, None]))) - 1.0) for seed in range(3)
        )

    return min(RANGES, key=error)


def is_bounded(head):
    return is_integer(head) or native_range(head) != RANGES[-1]


def native_ends(head, dims):
    """[2, m] The first and the last action; of an unbounded head, -1 and 1."""
    if is_integer(head):
        ends = np.array([0, head.bins - 1], np.int32)
    else:
        ends = np.array(native_range(head) if is_bounded(head) else (-1.0, 1.0), np.float32)
    return np.repeat(ends[:, None], dims, axis=1)


def slices(head, dims, inputs):
    """Along each dimension of a real action, the others at the mode: nodes, their weights and the density."""
    x, weight = quadrature(*native_range(head))
    for d in range(dims):
        actions = np.tile(mode(head, inputs), (len(x), 1))
        actions[:, d] = x
        yield x, weight, np.exp(log_probs(head, inputs, actions))


class Support(NamedTuple):
    """Actions and their weights: sum(weight f(action)) is E[f], exactly or within the error of sampling."""

    action: np.ndarray
    weight: np.ndarray
    exact: bool

    def mean(self, f):
        return np.tensordot(self.weight, f, 1)

    def tolerance(self, f):
        return 0.0 if self.exact else STANDARD_ERRORS * f.std(0) / np.sqrt(len(f))


def support(head, dims, inputs):
    if is_integer(head):
        actions = all_actions(head, dims)
        return Support(actions, np.exp(log_probs(head, inputs, actions)), exact=True)
    if dims == 1:
        ((x, weight, density),) = slices(head, dims, inputs)
        return Support(x[:, None], weight * density, exact=True)
    actions = samples(head, inputs, 17).astype(np.float64)
    return Support(actions, np.full(SAMPLES, 1.0 / SAMPLES), exact=False)


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(leaf).all(), (jax.tree_util.keystr(path), leaf)


# The distribution is one, and its closed forms are those of its density.


@every_head_and_fine_grids
def test_probabilities_sum_or_integrate_to_one(head, dims):
    for seed in (3, 4):
        inputs = draw(head, dims, seed)
        if is_integer(head):
            total = np.exp(log_probs(head, inputs, all_actions(head, dims))).sum()
        else:
            # Dimensions are independent: the product over d of the integral of p(x_d, others) is p(mode)^(m - 1).
            masses = [np.sum(weight * density) for _, weight, density in slices(head, dims, inputs)]
            total = np.prod(masses) / np.exp(log_probs(head, inputs, mode(head, inputs)[None])[0]) ** (dims - 1)
        assert total == pytest.approx(1.0, abs=1e-5)


@every_head_and_fine_grids
def test_entropy_is_the_mean_of_minus_log_p(head, dims):
    inputs = draw(head, dims, 5)
    actions = support(head, dims, inputs)
    surprise = -log_probs(head, inputs, actions.action)
    assert entropy(head, inputs) == pytest.approx(actions.mean(surprise), abs=1e-5 + actions.tolerance(surprise))


@every_head_and_fine_grids
def test_kl_is_the_mean_log_ratio(head, dims):
    old, new = draw(head, dims, 6), draw(head, dims, 7)
    actions = support(head, dims, old)
    log_ratio = log_probs(head, old, actions.action) - log_probs(head, new, actions.action)
    expected = actions.mean(log_ratio)
    assert expected > 1e-6
    assert kl(head, old, new) == pytest.approx(expected, abs=1e-4 * expected + actions.tolerance(log_ratio))


@pytest.mark.parametrize(HEAD_AND_DIMS, [*IN_THREE, *grids(1001)])
def test_kl_is_zero_to_itself_and_never_negative(head, dims):
    """In float32, the precision of training."""
    (old, parameters), (other, _) = [draw(head, dims, seed, batch=(16,), scale=3.0) for seed in (8, 9)]
    new = np.stack([old, old + 0.01 * other, other])
    old, new, parameters = jax.tree.map(jnp.asarray, (old, new, parameters))

    @functools.partial(jax.jit, compiler_options=FAST_COMPILATION)
    def divergence(old, new):
        return head.distribution(old, parameters).kl(head.distribution(new, parameters))

    same, near, far = np.asarray(divergence(old, new))
    np.testing.assert_allclose(same, 0.0, atol=2e-5)
    assert (near > -2e-5).all()
    assert (far > near).all()


@every_head
def test_hessian_of_kl_is_the_fisher_information(head, dims):
    """d^2 KL(old || new) / d new^2 at new = old is E[score score^T], in the outputs and the head's parameters."""
    inputs = draw(head, dims, 10)
    actions = support(head, dims, inputs)

    @in_float64
    def hessian_and_scores(head, inputs, actions):
        flat, unravel = ravel_pytree(inputs)

        def at(x):
            return head.distribution(*unravel(x))

        hessian = jax.hessian(lambda x: at(flat).kl(at(x)))(flat)
        return hessian, jax.vmap(jax.grad(lambda x, action: at(x).log_prob(action)), (None, 0))(flat, actions)

    hessian, scores = hessian_and_scores(head, inputs, actions.action)
    outer = scores[:, :, None] * scores[:, None, :]
    assert np.abs(hessian).max() > 1e-2
    np.testing.assert_array_less(np.abs(hessian - actions.mean(outer)), 1e-4 + actions.tolerance(outer))
    np.testing.assert_array_less(np.abs(actions.mean(scores)), 1e-4 + actions.tolerance(scores))


# Nothing overflows.


@pytest.mark.parametrize(HEAD_AND_DIMS, [*IN_THREE, *grids(1001)])
def test_values_and_gradients_are_finite_at_huge_outputs(head, dims):
    width = head.outputs(space(dims))
    parameters = jax.tree.map(np.float64, head.parameters(space(dims)))
    same, alternating = np.ones(width), np.resize([1.0, -1.0], width)
    signs = np.random.default_rng(11).choice([-1.0, 1.0], width)
    patterns = 1e4 * np.stack([same, -same, alternating, -alternating, signs])

    @functools.partial(jax.jit, compiler_options=FAST_COMPILATION)
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    @functools.partial(jax.vmap, in_axes=(None, 0, None))
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def values_and_gradients(old, new, action):
        def total(old, new):
            p, q = head.distribution(*old), head.distribution(*new)
            values = jnp.stack([p.log_prob(action), p.entropy(), p.kl(q)])
            # A gradient that is not finite makes that of the sum not finite.
            return values.sum(), values

        return jax.grad(total, argnums=(0, 1), has_aux=True)((old, parameters), (new, parameters))

    drawn, modes = [], []
    for pattern in patterns:
        inputs = pattern, parameters
        actions = samples(head, inputs, 12)
        assert log_probs(head, inputs, actions).min() > -100.0
        drawn.append(actions[0])
        modes.append(mode(head, inputs).astype(actions.dtype))
    assert_finite(values_and_gradients(patterns, patterns, np.stack([*drawn, *modes, *native_ends(head, dims)])))


# What is sampled.


@every_head_and_fine_grids
def test_sampled_frequencies_match_the_probabilities(head, dims):
    """Chi-square over all joint actions, or Kolmogorov-Smirnov along each dimension."""
    inputs = draw(head, dims, 13)
    drawn = samples(head, inputs, 14)
    assert drawn.shape == (SAMPLES, dims)
    if is_integer(head):
        expected = SAMPLES * np.exp(log_probs(head, inputs, all_actions(head, dims)))
        observed = np.bincount(np.ravel_multi_index(drawn.T, [head.bins] * dims), minlength=len(expected))
        common = expected >= 5
        assert common.sum() > 1
        statistic = np.sum((observed - expected)[common] ** 2 / expected[common])
        if not common.all():
            rest = expected[~common].sum()
            statistic += (observed[~common].sum() - rest) ** 2 / max(rest, 5.0)
        assert stats.chi2.sf(statistic, common.sum() - common.all()) > P_VALUE
        return
    for d, (x, weight, density) in enumerate(slices(head, dims, inputs)):
        mass = weight * density
        cumulative = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
        assert stats.kstest(drawn[:, d], functools.partial(np.interp, xp=x, fp=cumulative)).pvalue > P_VALUE


@every_head
def test_samples_of_different_rows_and_dimensions_are_uncorrelated(head, dims):
    unit = to_unit(head, samples(head, draw(head, dims, 15), 16))
    correlation = np.corrcoef(np.concatenate([unit[:-1], unit[1:]], axis=1).T)
    assert np.abs(correlation[~np.eye(2 * dims, dtype=bool)]).max() < STANDARD_ERRORS / np.sqrt(SAMPLES)


@every_head_and_fine_grids
def test_no_sample_is_likelier_than_the_mode(head, dims):
    for seed in (17, 18):
        inputs = draw(head, dims, seed, scale=2.0)
        actions = samples(head, inputs, seed).astype(mode(head, inputs).dtype)
        actions[0] = mode(head, inputs)
        log_p = log_probs(head, inputs, actions)
        assert log_p.min() < log_p[0]
        assert log_p.max() <= log_p[0] + 1e-9


@every_head
def test_one_key_gives_one_sample_and_another_key_another(head, dims):
    first, again, other = [samples(head, draw(head, dims, 19), seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# Batches, transformations and types.


@every_default_head
def test_a_batch_gives_the_same_as_its_rows(head, dims):
    (old, parameters), (new, _) = jax.tree.map(jnp.asarray, [draw(head, dims, seed, (2, 3)) for seed in (20, 21)])
    action = samples(head, (old[0, 0], parameters), 22)[:6].reshape(2, 3, dims)

    def numbers(old, new, action):
        p, q = head.distribution(old, parameters), head.distribution(new, parameters)
        return p.mode(), p.log_prob(action), p.entropy(), p.kl(q), head.to_unit(action)

    both_ways = jax.jit(lambda *x: (numbers(*x), jax.vmap(jax.vmap(numbers))(*x)), compiler_options=FAST_COMPILATION)
    batched, mapped = both_ways(old, new, action)
    assert [x.shape for x in batched] == [(2, 3, dims), (2, 3), (2, 3), (2, 3), (2, 3, dims)]
    for whole, rows in zip(batched, mapped, strict=True):
        np.testing.assert_allclose(whole, rows, rtol=1e-5, atol=1e-6)
    keys = jax.random.split(jax.random.key(22), 2)
    drawn = jax.eval_shape(jax.vmap(lambda out, key: head.distribution(out, parameters).sample(key)), old, keys)
    assert (drawn.shape, drawn.dtype) == ((2, 3, dims), action.dtype)


@every_default_head
def test_a_distribution_is_a_pytree_that_jit_returns(head, dims):
    out, parameters = draw(head, dims, 23)
    returned = jax.jit(head.distribution)(out, parameters)
    assert type(returned) is type(head.distribution(jnp.asarray(out), parameters))
    assert jax.tree.leaves(returned)
    assert returned.entropy() == pytest.approx(entropy(head, (out, parameters)), rel=1e-4)


@every_default_head
def test_float32_stays_float32_where_float64_is_enabled(head, dims):
    """Rollouts are traced under x64, for the environments' sake; the policy's numbers must not change for it."""

    def numbers(out, parameters, key):
        distribution = head.distribution(out, parameters)
        action = distribution.sample(key)
        unit = head.to_unit(action)
        return {
            "sample": action,
            "mode": distribution.mode(),
            "log_prob": distribution.log_prob(action),
            "entropy": distribution.entropy(),
            "kl": distribution.kl(distribution),
            "to_unit": unit,
            "edge": Edge("scale", True, True, 10.0, 0.99).action(unit, space(dims)),
            **head.diagnostics(distribution),
        }

    inputs = jax.tree.map(jnp.float32, draw(head, dims, 25, (4,)))
    with jax.enable_x64(True):
        found = jax.eval_shape(numbers, *inputs, jax.random.key(26))
    assert {name: x.dtype for name, x in found.items() if x.dtype not in (jnp.float32, jnp.int32)} == {}


# From the native action to the environment's.


@every_head_and_fine_grids
def test_unit_actions_of_bounded_heads_lie_between_minus_one_and_one(head, dims):
    unit = to_unit(head, samples(head, draw(head, dims, 27, scale=5.0), 28))
    assert unit.shape == (SAMPLES, dims)
    assert not is_bounded(head) or np.abs(unit).max() <= 1.0 + 1e-6


@pytest.mark.parametrize(HEAD_AND_DIMS, [*cases(bins=(2, 11, 1001), dims=(1,))])
def test_to_unit_increases_evenly_from_minus_one_to_one(head, dims):
    first, last = native_ends(head, dims)[:, 0]
    native = np.arange(head.bins) if is_integer(head) else np.linspace(first, last, 101)
    unit = to_unit(head, native[:, None])[:, 0]
    np.testing.assert_allclose(unit, np.linspace(-1.0, 1.0, len(native)), atol=1e-6)
    assert (np.diff(unit) > 0).all()


LOW = np.array([-3.0, 0.5, -0.1], np.float32)
HIGH = np.array([-1.0, 100.0, 0.7], np.float32)


def to_environment(actions, unit, low=LOW, high=HIGH):
    edge = Edge(actions=actions, normalize_observations=True, normalize_rewards=True, clip=10.0, gamma=0.99)
    return np.asarray(edge.action(jnp.asarray(unit), Box(low, high, dtype=np.float32)))


@pytest.mark.parametrize("actions", ["scale", "clip"])
@every_default_head
def test_the_environment_gets_actions_inside_its_bounds(head, dims, actions):
    native = [samples(head, draw(head, dims, seed, scale=scale), 31) for seed, scale in [(29, 3.0), (30, 1e4)]]
    unit = to_unit(head, np.concatenate([*native, native_ends(head, dims)]))
    given = to_environment(actions, unit)
    assert given.shape == unit.shape
    assert (given >= LOW).all()
    assert (given <= HIGH).all()
    if actions == "clip":
        inside = (unit >= LOW) & (unit <= HIGH)
        assert inside.any()
        np.testing.assert_array_equal(given[inside], unit[inside])


@every_default_head
def test_raw_actions_are_left_alone(head, dims):
    unit = 3.0 * to_unit(head, samples(head, draw(head, dims, 32), 33))
    np.testing.assert_array_equal(to_environment("raw", unit), unit)


def test_scaling_hits_the_bounds_exactly_and_is_linear_between():
    rng = np.random.default_rng(40)
    low, high = np.sort(rng.normal(size=(2, 200)), axis=0).astype(np.float32)
    unit = np.repeat(np.linspace(-1.0, 1.0, 201, dtype=np.float32)[:, None], 200, axis=1)
    given = to_environment("scale", unit, low, high)
    np.testing.assert_array_equal(given[0], low)
    np.testing.assert_array_equal(given[-1], high)
    np.testing.assert_allclose(given, low + (unit + 1.0) / 2.0 * (high - low), rtol=1e-5, atol=1e-6)
    outside = to_environment("scale", 1.5 * unit[[0, -1]], low, high)
    np.testing.assert_array_equal(outside, np.stack([low, high]))


# Options, deployment, diagnostics.


def other_values(declared):
    default = declared.default
    if declared.metadata["limits"]["choices"]:
        return [choice for choice in declared.metadata["limits"]["choices"] if choice != default]
    if isinstance(default, bool):
        return [not default]
    if default is None:
        return [0.5, 0.2]
    return [default + 3, default - 3] if isinstance(default, int) else [default + 0.5, default - 0.5]


def character(head):
    """What can be seen of a head from outside, as text."""
    parameters = head.parameters(space(1))
    inputs = np.resize([1.0, -2.0, 0.5], head.outputs(space(1))), parameters
    first = initial_outputs(head, space(1)).tolist()
    return json.dumps([first, jax.tree.map(np.ndarray.tolist, jax.device_get(parameters)), head.deploy()]) + str(
        [entropy(head, inputs), mode(head, inputs)]
    )


@pytest.mark.parametrize(
    ("name", "declared"),
    [pytest.param(n, f, id=f"{n}-{f.name}") for n in BOX_HEADS for f in options_of(HEADS.get(n))],
)
def test_every_option_changes_something(name, declared):
    make = HEADS.get(name)
    for value in other_values(declared):
        try:
            other = make(**{declared.name: value})
        except BadInput:
            continue
        assert character(other) != character(make())
        return
    pytest.fail(f"no other value of {declared.name} is allowed")


@pytest.mark.parametrize("bins", [1, 0, -5])
@pytest.mark.parametrize("name", [*filter(has_bins, BOX_HEADS)])
def test_fewer_than_two_bins_are_refused(name, bins):
    with pytest.raises(BadInput, match="--bins"):
        HEADS.get(name)(bins=bins)


@pytest.mark.parametrize(HEAD_AND_DIMS, IN_ONE_DIMENSION)
def test_deployment_is_a_list_of_named_operations(head, dims):
    operations = head.deploy()
    assert operations
    assert all(isinstance(operation["op"], str) for operation in operations)
    assert json.loads(json.dumps(operations)) == operations


@every_default_head
def test_diagnostics_are_finite_scalars_and_std_is_that_of_the_unit_action(head, dims):
    out, parameters = inputs = draw(head, dims, 36)
    diagnostics = jax.jit(lambda out: head.diagnostics(head.distribution(out, parameters)))(out[None])
    assert all(jnp.shape(x) == () for x in diagnostics.values())
    assert_finite(diagnostics)
    if "std" in diagnostics:
        unit = to_unit(head, samples(head, inputs, 37))
        assert diagnostics["std"] == pytest.approx(unit.std(0).mean(), rel=0.02)


# Other people's implementations.


def oracle(name, dims=3):
    """A head's numbers at random outputs: outputs, parameters, actions and their log-densities, entropy, mode."""
    head = HEADS.get(name)()
    out, parameters = inputs = draw(head, dims, 38, scale=2.0)
    actions = samples(head, inputs, 39)
    actions = actions.astype(np.float64) if actions.dtype == np.float32 else actions
    return out, parameters, actions, log_probs(head, inputs, actions), entropy(head, inputs), mode(head, inputs)


@pytest.mark.parametrize(("name", "mean_of"), [("gaussian", np.copy), ("gaussian_tanh", np.tanh)])
def test_gaussians_agree_with_scipy(name, mean_of):
    out, parameters, actions, log_p, own_entropy, own_mode = oracle(name)
    reference = stats.norm(mean_of(out), np.exp(parameters["log_std"]))
    np.testing.assert_allclose(log_p, reference.logpdf(actions).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(own_entropy, reference.entropy().sum(-1), rtol=1e-9)
    np.testing.assert_allclose(own_mode, mean_of(out), rtol=1e-9)


def test_beta_agrees_with_scipy():
    out, _, actions, log_p, own_entropy, own_mode = oracle("beta")
    alpha, beta = 1.0 + np.log1p(np.exp(out)).reshape(2, 3)
    reference = stats.beta(alpha, beta)
    np.testing.assert_allclose(log_p, reference.logpdf(actions).sum(-1), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(own_entropy, reference.entropy().sum(-1), rtol=1e-7)
    np.testing.assert_allclose(own_mode, (alpha - 1) / (alpha + beta - 2), rtol=1e-7)


@pytest.mark.parametrize("shape", [1.0, 1.01, 1.7, 30.0, 1e4])
def test_gamma_variables_agree_with_scipy(shape):
    drawn = np.exp(log_gamma_variable(jax.random.key(40), jnp.full(20_000, shape, jnp.float32)))
    assert stats.kstest(drawn, stats.gamma(shape).cdf).pvalue > 1e-3


@every_default_head
def test_sampling_has_no_loop(head, dims):
    """A rejection loop made a rollout hang: see `log_gamma_variable`."""
    out, parameters = jax.tree.map(jnp.float32, draw(head, dims, 42))
    traced = jax.make_jaxpr(lambda key: head.distribution(out, parameters).sample(key))(jax.random.key(0))
    assert "while" not in str(traced) and "random_gamma" not in str(traced)


def test_beta_samples_stay_off_the_ends_where_a_density_may_be_infinite():
    head = HEADS.get("beta")()
    drawn = samples(head, (1e4 * np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0]), {}), 41)
    assert drawn.min() >= np.float32(1e-6)
    assert drawn.max() <= np.float32(1.0 - 1e-6)


def test_discrete_agrees_with_scipy():
    out, _, actions, log_p, own_entropy, own_mode = oracle("discrete")
    reference = special.log_softmax(out.reshape(3, 11), axis=-1)
    np.testing.assert_allclose(log_p, reference[np.arange(3), actions].sum(-1), rtol=1e-9)
    np.testing.assert_allclose(own_entropy, special.entr(np.exp(reference)).sum(), rtol=1e-9)
    np.testing.assert_array_equal(own_mode, reference.argmax(-1))
