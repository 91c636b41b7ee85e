"""What every algorithm owes: invalid steps carry no weight, options are read, arithmetic is float32."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.algorithms import ALGORITHMS, Rollout
from detent.errors import BadInput
from detent.heads import HEADS
from detent.heads.gaussian import Gaussian
from detent.options import options_of
from detent.runs.run import DEFAULT_ALGO
from marks import slow_unless
from updates import BOX_HEADS, bits, distance, make_agent, random_rollout, small, update

every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS.names())


@pytest.fixture(scope="module")
def agent():
    return make_agent(Gaussian())


@pytest.fixture(scope="module")
def linear_agent():
    return make_agent(Gaussian(), hidden_sizes=())


@pytest.fixture(scope="module")
def rollout(agent):
    return random_rollout(agent, agent.init(jax.random.key(2)))


@every_algorithm
def test_a_rollout_without_a_valid_step_teaches_nothing(agent, rollout, algo):
    start = small(algo).init(agent, jax.random.key(2)).parameters
    state, metrics = update(small(algo), agent, rollout._replace(valid=np.zeros_like(rollout.valid)))
    assert bits(state.parameters) == bits(start)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        *[(algo, {}) for algo in ALGORITHMS.names()],
        ("ppo", {"clip_range_value": 0.1, "entropy_coef": 0.1, "recompute_advantages": False}),
        ("trpo", {"fisher_every": 2}),
        ("acktr", {"value_lambda": 1.0}),
    ],
)
def test_whatever_happens_in_an_invalid_step_changes_no_bit_of_the_parameters(agent, rollout, algo, changes):
    """Only its observation may matter, as the final one of a truncated episode."""
    invalid = ~rollout.valid
    after_termination = np.zeros_like(invalid)
    after_termination[1:] = rollout.terminated[:-1]
    assert after_termination.sum() > 1
    spoilt = Rollout(*[x.copy() for x in rollout])
    spoilt.observation[:-1][after_termination] = 3.0
    spoilt.action[invalid] = -2.5
    spoilt.log_prob[invalid] = -1e4  # a ratio that overflows
    spoilt.reward[invalid] = 50.0
    spoilt.terminated[invalid] = True
    spoilt.truncated[invalid] = True

    algorithm = small(algo, **changes)
    clean, metrics = update(algorithm, agent, rollout, times=2)
    dirty, other_metrics = update(algorithm, agent, spoilt, times=2)
    assert bits(clean) == bits(dirty)
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx({k: float(v) for k, v in other_metrics.items()})


@every_algorithm
def test_whatever_happens_in_a_valid_step_does_change_the_parameters(agent, rollout, algo):
    t, n = np.argwhere(rollout.valid)[3]
    clean, _ = update(small(algo), agent, rollout)
    # ACKTR's one step has no ratio of probabilities.
    for name in ("action", "log_prob", "reward") if algo != "acktr" else ("action", "reward"):
        changed = getattr(rollout, name).copy()
        changed[t, n] += 0.1
        dirty, _ = update(small(algo), agent, rollout._replace(**{name: changed}))
        assert distance(clean.parameters, dirty.parameters) > 1e-6, name


@every_algorithm
def test_an_update_is_deterministic(agent, rollout, algo):
    first, again = [bits(update(small(algo), agent, rollout, times=2)) for _ in range(2)]
    assert first == again


def other_values(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2]
    return [10.0 * value, 0.1 * value] if value else [0.01, 1e-6]


BASES = {
    "ppo": {"learning_rate": 0.01},
    "trpo": {"cg_iterations": 3},
    "acktr": {"learning_rate": 1.0, "value_clip_kl": 0.01},
}
"""Options under which all the others count: an option may hide another."""
TESTED_ELSEWHERE = {
    # By the number of gradient steps, and by the epochs that are left.
    "ppo": {"batch_size", "divide_target_kl", "kl_from"},
    # With the line search alone.
    "trpo": {"batch_size", "kl_tolerance", "line_search_steps", "line_search_factor"},
    # By the step size of the next update.
    "acktr": {"batch_size", "target_kl"},
}


@pytest.mark.parametrize(
    ("algo", "name"),
    slow_unless(
        lambda algo, name: algo == DEFAULT_ALGO,
        (
            (algo, field.name)
            for algo in ALGORITHMS.names()
            for field in options_of(ALGORITHMS.get(algo))
            if field.name not in TESTED_ELSEWHERE.get(algo, ())
        ),
    ),
)
def test_every_hyper_parameter_changes_the_update(linear_agent, algo, name):
    rollout = random_rollout(linear_agent, linear_agent.init(jax.random.key(2)))
    base = small(algo, **BASES.get(algo, {}))
    for value in other_values(getattr(base, name)):
        try:
            other = dataclasses.replace(base, **{name: value})
        except BadInput:
            continue
        before, after = [update(each, linear_agent, rollout, times=2)[0].parameters for each in (base, other)]
        # Two programs may differ in rounding alone, by about 1e-7.
        if distance(before, after) > 1e-5:
            return
    raise AssertionError(f"no other value of {name} changes anything")


@every_algorithm
@pytest.mark.parametrize("name", BOX_HEADS)
def test_the_update_is_float32_throughout_where_float64_is_enabled(algo, name):
    """Scalars made of Python's numbers do not count: they are float64 only until they meet an array."""
    agent = make_agent(HEADS.get(name)())
    changes = {"clip_range_value": 0.1, "entropy_coef": 0.1, "target_kl": 0.1} if algo == "ppo" else {}
    algorithm = small(algo, **changes)
    state = algorithm.init(agent, jax.random.key(2))
    observation = jnp.zeros((17, 2, 3))
    action = jax.eval_shape(lambda o: agent.policy(state.parameters, o).sample(jax.random.key(1)), observation[:-1])
    number, flag = jnp.zeros((16, 2)), jnp.zeros((16, 2), bool)
    rollout = Rollout(observation, jnp.zeros(action.shape, action.dtype), number, number, flag, flag, flag)
    with jax.enable_x64(True):
        args = state, rollout, np.float32(0.5), jax.random.key(1)
        program, result = jax.make_jaxpr(lambda *args: algorithm.update(agent, *args), return_shape=True)(*args)
    assert re.findall(r"f64\[\d[^\]]*\]", str(program)) == []
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} <= {np.dtype(np.float32), np.dtype(np.int32)}
