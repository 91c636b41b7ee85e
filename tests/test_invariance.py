"""Natural gradients do not see Eq. 4: from one policy, discrete and ordinal step to one policy; Adam's do not.

`pytest -s` prints the numbers of docs/algorithms.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from detent import kfac
from detent.algorithms.acktr import policy_matrices, policy_seen
from detent.algorithms.ppo import PPO
from detent.algorithms.samples import samples, standardized, weights
from detent.algorithms.trpo import TRPO, policy_vector
from detent.heads import output_blocks
from detent.heads.discrete import Discrete
from detent.heads.ordinal import Ordinal
from marks import slow_unless
from updates import make_agent, random_rollout

BINS, MAX_KL = 5, 0.02
STEPS = 64
"""Samples enough that the Fisher matrix lacks rank only in the directions that the softmax ignores."""


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def same_policies():
    """Agent and parameters of a discrete and an ordinal policy that are one, W_ordinal = T^-1 W_discrete; a rollout."""
    discrete, ordinal = (make_agent(head(BINS), hidden_sizes=(4,)) for head in (Discrete, Ordinal))
    rng = np.random.default_rng(0)
    parameters = jax.tree.map(lambda p: p + 0.5 * rng.normal(size=p.shape), discrete.init(jax.random.key(2)))
    first, last = parameters["policy"]

    def differences(x):
        grouped = x.reshape(*x.shape[:-1], -1, BINS)
        return jnp.diff(grouped, axis=-1, prepend=0.0).reshape(x.shape)

    transformed = parameters | {"policy": [first, jax.tree.map(differences, last)]}
    rollout = random_rollout(discrete, parameters, steps=STEPS)
    rollout = jax.tree.map(lambda x: jnp.asarray(x, float if x.dtype == np.float32 else x.dtype), rollout)
    return (discrete, parameters), (ordinal, transformed), rollout


def log_probs(agent, parameters, rollout):
    return np.asarray(agent.policy(parameters, rollout.observation[:-1]).log_probs)


def objective(agent, parameters, batch):
    """E[r A], the objective of TRPO; where r = 1, its gradient is that of ACKTR's E[A log pi] too."""
    log_prob = agent.policy(parameters, batch.observation).log_prob(batch.action)
    return weights(batch.valid) @ (standardized(batch) * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob)))


def batch_of(agent, parameters, rollout):
    value = agent.value(parameters, rollout.observation)
    return samples(TRPO(), rollout, value, value)


def natural_gradient_step(agent, parameters, rollout):
    """theta + sqrt(2 max_kl / g^T F^+ g) F^+ g, nothing damped or truncated."""
    batch = batch_of(agent, parameters, rollout)
    theta, with_theta = policy_vector(parameters)
    fisher = jax.jit(jax.vmap(TRPO().fisher_product(agent, parameters, batch)))(jnp.eye(theta.size))
    gradient = jax.jit(jax.grad(lambda t: objective(agent, with_theta(t), batch)))(theta)
    direction, _, rank, _ = np.linalg.lstsq(fisher, gradient, rcond=1e-10)
    ignored = agent.space.shape[0] * (agent.trunk.hidden_sizes[-1] + 1)  # shifts of each dimension's logits
    assert rank == theta.size - ignored
    return with_theta(theta + np.sqrt(2 * MAX_KL / (gradient @ direction)) * direction)


def kfac_step(agent, parameters, rollout):
    """A^+ G S^+ for every layer, as long as its trust region."""
    batch = batch_of(agent, parameters, rollout)
    matrices, with_matrices = policy_matrices(parameters)
    gradient = jax.jit(jax.grad(lambda m: objective(agent, with_matrices(m), batch)))(matrices)
    blocks = [kfac.one_block(4), output_blocks(agent.head, agent.space)]
    seen = policy_seen(agent, parameters, batch.observation, jax.random.key(3))
    steps = []
    for layer, block, g in zip(seen, blocks, gradient, strict=True):
        factor = kfac.factors(layer, weights(batch.valid), block)
        inverted = kfac.Curvature(*(np.linalg.pinv(f, rcond=1e-10, hermitian=True) for f in factor))
        steps.append(kfac.natural_gradient(inverted, g, block))
    squared = sum(jnp.vdot(s, g) for s, g in zip(steps, gradient, strict=True))
    moved = [m + np.sqrt(2 * MAX_KL / squared) * s for m, s in zip(matrices, steps, strict=True)]
    return with_matrices(moved)


def adam_step(agent, parameters, rollout):
    ppo = PPO(batch_size=2 * STEPS, minibatch_size=2 * STEPS, epochs=1, learning_rate=0.01)
    state = ppo.init(agent, jax.random.key(2))._replace(parameters=parameters)
    state = state._replace(optimizer=jax.tree.map(lambda x: x.astype(float) if x.ndim else x, state.optimizer))
    step = jax.jit(lambda s: ppo.update(agent, s, rollout, jnp.float32(0.0), jax.random.key(1))[0])
    return step(state).parameters


def difference(step):
    """Between the two new policies, relative to the largest change."""
    discrete, ordinal, rollout = same_policies()
    before = [log_probs(*each, rollout) for each in (discrete, ordinal)]
    np.testing.assert_allclose(*before, atol=1e-12)
    after = [log_probs(agent, step(agent, p, rollout), rollout) for agent, p in (discrete, ordinal)]
    change = np.abs(after[0] - before[0]).max()
    assert change > 0.01
    relative = np.abs(after[0] - after[1]).max() / change
    print(f"{step.__name__}: {relative:.1e}")
    return relative


@pytest.mark.parametrize("step", slow_unless(lambda step: step is kfac_step, [natural_gradient_step, kfac_step]))
def test_a_natural_gradient_step_is_the_same_for_discrete_and_ordinal(step):
    assert difference(step) < 1e-8


def test_an_adam_step_is_not():
    assert difference(adam_step) > 0.1
