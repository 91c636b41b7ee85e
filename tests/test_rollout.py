"""Collecting: scanned inside one program or stepped from Python, a rollout is the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent.distributions import key_of
from detent.rollout import Packing, _programs, begin, make_collect
from detent.runs.run import Run
from detent.runs.training import make_agent, make_edge, make_environment

RUN = Run("probe/follow", "gaussian", envs=4)


@pytest.fixture
def env():
    return make_environment(RUN, 0, RUN.settings.envs)


def test_packing_keeps_every_bit():
    tree = {
        "count": jnp.asarray(2**31 - 1, jnp.int32),  # float32 has no such number
        "mean": jnp.asarray([[1.5, -0.0], [np.inf, np.nan]], jnp.float32),
        "word": jnp.asarray([2**32 - 1], jnp.uint32),
    }
    packing = Packing.like(jax.eval_shape(lambda: tree))
    packed = packing.pack(tree)
    assert packed.shape == (6,)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), packing.unpack(packed), tree)
    assert np.signbit(packing.unpack(packed)["mean"][0, 1])


def test_loop_and_scan_collect_the_same(env):
    agent, edge = make_agent(RUN, env), make_edge(RUN)
    parameters = agent.init(key_of(1))
    results = []
    for traceable in (True, False):
        env.traceable = traceable
        state, observation = env.reset()
        memory, state, rollout, trace = make_collect(agent, edge, env, 7)(
            parameters, begin(observation), state, key_of(2)
        )
        results.append((memory, rollout, trace, state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)


def test_programs_do_not_depend_on_which_is_traced_first(env):
    """Absorbing knows what a choice looks like before anything has been decided."""
    agent, edge = make_agent(RUN, env), make_edge(RUN)
    state, observation = env.reset()
    parameters, memory = agent.init(key_of(1)), begin(observation)
    pack, decide, _ = _programs(agent, edge, parameters, memory, key_of(2))
    size = jax.eval_shape(
        decide, *pack(parameters, memory.observation_moments), jnp.zeros((4, 2)), jax.random.split(key_of(2), 3), 0
    )[1].shape
    _, step = env.step(state, jnp.zeros((4, 1), np.float32))
    programs = _programs(agent, edge, parameters, memory, key_of(2))
    row = jax.tree.map(lambda x: np.asarray(x)[None], step)
    _, rollout, _ = programs.absorb(memory, np.zeros((1, *size), np.uint32), row)
    assert rollout.action.shape == (1, 4, 1)
