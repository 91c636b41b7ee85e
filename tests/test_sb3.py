"""Our heads as policies of Stable-Baselines3: the same mathematics as ours, learned, saved and loaded for real."""

from __future__ import annotations

import copy
import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from sb3_contrib import TRPO
from scipy import integrate
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.distributions import kl_divergence
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from detent.errors import BadInput
from detent.heads import HEADS
from detent.sb3 import (
    BetaDistribution,
    BetaPolicy,
    DiscreteDistribution,
    DiscretePolicy,
    OrdinalDistribution,
    OrdinalPolicy,
)
from detent.wrappers import DiscretizeActions

LOW, HIGH = np.array([-2.0, 0.0, -0.4], np.float32), np.array([2.0, 1.0, 0.1], np.float32)
SPACE = Box(LOW, HIGH)
POLICIES = [DiscretePolicy, OrdinalPolicy, BetaPolicy]
every_policy = pytest.mark.parametrize("policy", POLICIES)
BINS = 11


@pytest.fixture(autouse=True)
def one_thread():
    """The networks are tiny; more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pairs():
    """Our distribution in PyTorch and the head it must agree with."""
    for bins in (2, 11, 200):
        yield pytest.param(DiscreteDistribution(SPACE, bins), HEADS.get("discrete")(bins=bins), id=f"discrete-{bins}")
        yield pytest.param(OrdinalDistribution(SPACE, bins), HEADS.get("ordinal")(bins=bins), id=f"ordinal-{bins}")
    yield pytest.param(BetaDistribution(SPACE), HEADS.get("beta")(), id="beta")


every_pair = pytest.mark.parametrize(("distribution", "head"), list(pairs()))


def random_outputs(distribution, seed, batch=64):
    scale = min(2.0, 10.0 / getattr(distribution, "bins", 1))
    return (scale * np.random.default_rng(seed).normal(size=(batch, distribution.outputs))).astype(np.float32)


def both(distribution, head, seed):
    out = random_outputs(distribution, seed)
    return distribution.proba_distribution(torch.from_numpy(out)), head.distribution(jnp.asarray(out), {})


def in_bounds(head, native):
    """A native action of our head in the environment's units."""
    unit = np.asarray(head.to_unit(jnp.asarray(native)), np.float64)
    return LOW + (unit + 1.0) / 2.0 * (HIGH - LOW)


def volume(distribution):
    """What log-densities of real-valued actions differ by from those on (0, 1)."""
    return np.log(np.float64(HIGH) - LOW).sum() if isinstance(distribution, BetaDistribution) else 0.0


@every_pair
def test_agrees_with_our_head(distribution, head):
    theirs, ours = both(distribution, head, seed=0)
    assert theirs.outputs == head.outputs(SPACE)
    native = ours.sample(jax.random.key(1))
    actions = torch.as_tensor(in_bounds(head, native), dtype=torch.float32)
    np.testing.assert_allclose(
        theirs.log_prob(actions), ours.log_prob(native) - volume(distribution), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(theirs.entropy(), ours.entropy() + volume(distribution), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(theirs.mode(), in_bounds(head, ours.mode()), rtol=1e-5, atol=1e-5)


@every_pair
def test_kl_agrees_with_our_head(distribution, head):
    old, our_old = both(distribution, head, seed=2)
    old = copy.copy(old)  # as TRPO does: one object, whose parameters are then set anew
    new, our_new = both(distribution, head, seed=3)
    np.testing.assert_allclose(kl_divergence(old, new), our_old.kl(our_new), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kl_divergence(old, old), 0.0, atol=1e-6)


@pytest.mark.parametrize("kind", [DiscreteDistribution, OrdinalDistribution])
def test_kl_is_finite_where_probabilities_vanish(kind):
    distribution, head = kind(SPACE, 11), HEADS.get("ordinal" if kind is OrdinalDistribution else "discrete")(bins=11)
    sharp = torch.full((1, distribution.outputs), 150.0)
    sharp[:, ::2] = -150.0
    old = copy.copy(distribution.proba_distribution(sharp))
    new = distribution.proba_distribution(0.5 * sharp)
    our_old, our_new = (head.distribution(jnp.asarray(out), {}) for out in (sharp, 0.5 * sharp))
    assert (old.distribution.base_dist.probs == 0).any()
    np.testing.assert_allclose(kl_divergence(old, new), our_old.kl(our_new), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kl_divergence(new, old), our_new.kl(our_old), rtol=1e-5, atol=1e-5)


@every_pair
def test_samples_have_the_distribution_and_stay_inside(distribution, head):
    torch.manual_seed(0)
    out = torch.from_numpy(random_outputs(distribution, seed=4, batch=1)).repeat(20_000, 1)
    actions, log_prob = distribution.log_prob_from_params(out)
    assert actions.dtype == torch.float32
    assert (actions >= torch.from_numpy(LOW)).all()
    assert (actions <= torch.from_numpy(HIGH)).all()
    # The mean of -log p over samples is the entropy.
    standard_error = float(log_prob.std()) / len(log_prob) ** 0.5
    assert abs(float(-log_prob.mean() - distribution.entropy()[0])) < 5 * standard_error + 1e-4
    best = distribution.actions_from_params(out[:1], deterministic=True)
    assert (distribution.log_prob(best) >= log_prob.max() - 1e-4).all()


def test_a_beta_density_is_one_of_the_action():
    distribution = BetaDistribution(Box(-3.0, 1.0, (1,))).proba_distribution(torch.tensor([[0.5, 2.0]]))
    density = lambda action: float(distribution.log_prob(torch.tensor([[action]])).exp())
    assert integrate.quad(density, -3.0, 1.0)[0] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("space", "bins"),
    [
        (Box(-1.0, 1.0, (2,)), 2),
        (Box(-0.4, 0.4, (17,)), 11),
        (Box(-0.1, 0.7, (3,), np.float64), 10_001),
        (Box(1000.0, 1001.0, (1,)), 1_001),
        (Box(1e-30, 3e-30, (1,)), 50),
        (Box(-3e38, 3e38, (1,)), 7),
        (Box(np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0)), (1,)), 2),
    ],
    ids=str,
)
def test_every_position_is_its_own_bin(space, bins):
    """A stored action is found again exactly, even where two positions are neighbours in float32."""
    distribution = DiscreteDistribution(space, bins)
    index = torch.arange(bins)[:, None].expand(-1, space.shape[0])
    actions = distribution.to_action(index)
    assert actions.dtype == torch.float32
    assert torch.equal(distribution.to_index(actions), index)
    np.testing.assert_array_equal(actions[0], space.low.astype(np.float32))
    np.testing.assert_array_equal(actions[-1], space.high.astype(np.float32))


def test_an_action_beside_the_grid_belongs_to_the_nearest_position():
    distribution = DiscreteDistribution(Box(0.0, 10.0, (1,)), 11)
    actions = torch.tensor([[-5.0], [0.49], [0.51], [3.9], [99.0]])
    assert distribution.to_index(actions).flatten().tolist() == [0, 0, 1, 4, 10]


class Aim(gymnasium.Env):
    """One step: -1 or 1 is seen, and the best action is 0.8 times it in the first dimension and 0.3 in the second."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign], np.float32), {}

    def step(self, action):
        assert np.asarray(action) in self.action_space
        missed = (action - [0.8 * self.sign, 0.3]) / [4.0, 1.0]
        return np.array([self.sign], np.float32), -float(missed @ missed), True, False, {}


SEEN, BEST = np.array([[-1.0], [1.0]], np.float32), np.array([[-0.8, 0.3], [0.8, 0.3]])
ALGORITHMS = {
    PPO: ({"learning_rate": 3e-3, "n_epochs": 5}, 6_144),
    TRPO: ({"target_kl": 0.1, "cg_damping": 0.01, "cg_max_steps": 5, "n_critic_updates": 2}, 8_192),
}


def learner(algorithm, policy, env=Aim, **options):
    env = make_vec_env(env, n_envs=32, seed=0)
    return algorithm(policy, env, n_steps=16, batch_size=64, seed=0, device="cpu", **options)


@every_policy
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learns_the_known_answer_and_loads_what_it_saved(algorithm, policy, tmp_path):
    options, steps = ALGORITHMS[algorithm]
    has_bins = policy is not BetaPolicy
    model = learner(algorithm, policy, policy_kwargs={"bins": 21} if has_bins else {}, **options)
    model.learn(steps)
    found, _ = model.predict(SEEN, deterministic=True)
    # The 21 positions are 0.2 and 0.05 apart.
    assert (abs(found - BEST) < ([0.21, 0.051] if has_bins else [0.3, 0.075])).all(), found

    model.save(tmp_path / "model.zip")
    model.policy.save(tmp_path / "policy.pt")
    for loaded in (algorithm.load(tmp_path / "model.zip", device="cpu"), policy.load(tmp_path / "policy.pt")):
        actor = getattr(loaded, "policy", loaded)
        assert type(actor) is policy
        assert not has_bins or actor.bins == actor.action_dist.bins == 21
        np.testing.assert_array_equal(loaded.predict(SEEN, deterministic=True)[0], found)
        sampled = []
        for one in (model, loaded):
            torch.manual_seed(7)
            sampled.append(one.predict(np.repeat(SEEN, 50, axis=0))[0])
        np.testing.assert_array_equal(*sampled)
    continued = algorithm.load(tmp_path / "model.zip", env=model.get_env(), device="cpu").learn(512)
    assert continued.num_timesteps == 512


class Wide(Aim):
    """Bounds that float32 does not have, several axes, and a limit of time."""

    observation_space = Box(-1.0, 1.0, (3,))
    action_space = Box(np.full((2, 2), -0.1), np.array([[0.7, 0.3], [0.1, 0.9]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        assert np.asarray(action) in self.action_space
        self.taken += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action.sum()), False, self.taken == 5, {}


@every_policy
def test_what_the_buffer_stores_has_the_probability_it_was_sampled_with(policy):
    # Trained a little: a new policy is close to uniform, and would say the same of every action.
    model = learner(PPO, policy, Wide, learning_rate=3e-3).learn(1_024)
    _, callback = model._setup_learn(10_000)
    assert model.collect_rollouts(model.get_env(), callback, model.rollout_buffer, 16)
    (batch,) = model.rollout_buffer.get()
    with torch.no_grad():
        _, log_prob, entropy = model.policy.evaluate_actions(batch.observations, batch.actions)
    assert batch.actions.dtype == torch.float32
    np.testing.assert_allclose(log_prob, batch.old_log_prob, rtol=1e-5, atol=1e-5)
    assert float(batch.old_log_prob.std()) > 0.01
    assert entropy.shape == (512,)
    if policy is not BetaPolicy:
        grid = model.policy.action_dist.positions
        assert (batch.actions[:, :, None] == grid[None]).any(-1).all()


@every_policy
def test_begins_as_stable_baselines_policies_do(policy):
    model = learner(PPO, policy)
    weight = model.policy.action_net.weight.detach().numpy()
    np.testing.assert_allclose(np.linalg.svd(weight, compute_uv=False), 0.01, rtol=1e-4)
    assert not hasattr(model.policy, "log_std")
    optimized = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in model.policy.parameters()}
    assert model.policy.optimizer.defaults["eps"] == 1e-5
    gaussian = learner(PPO, "MlpPolicy")
    shapes = lambda model: {
        name: value.shape
        for name, value in model.policy.state_dict().items()
        if not name.startswith(("action_net", "log_std"))
    }
    assert shapes(model) == shapes(gaussian)


def test_a_normalised_environment_and_a2c():
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=4, seed=0))
    model = A2C(OrdinalPolicy, env, policy_kwargs={"bins": 5}, seed=0, device="cpu").learn(200)
    action, _ = model.predict(env.reset())
    assert set(action.flatten().tolist()) <= {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_the_wrapper_trains_with_their_own_multidiscrete_policy():
    model = learner(PPO, "MlpPolicy", lambda: DiscretizeActions(Aim(), [21, 11]), learning_rate=3e-3, n_epochs=5)
    model.learn(6_144)
    found, _ = model.predict(SEEN, deterministic=True)
    np.testing.assert_allclose(found, [[6, 3], [14, 3]], atol=1)


@every_policy
@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Discrete(3), "must be a Box of real numbers, not Discrete"),
        (Box(-np.inf, 1.0, (2,)), "A grid needs bounds"),
        (Box(0, 3, (2,), np.int64), "must be a Box of real numbers"),
        (
            Box(np.array([0.0, 1.0]), np.array([1.0, 1.0]), dtype=np.float64),
            "In dimension 1 of .* high is not above low",
        ),
    ],
    ids=["discrete", "infinite", "integers", "empty"],
)
def test_refuses_a_space_without_bounds(policy, space, sentence):
    with pytest.raises(BadInput, match=sentence):
        policy(Aim.observation_space, space, lr_schedule=lambda _: 3e-4)


def test_refuses_bad_options():
    for bins in (1, 0, -3, 2.5, "11", True, None, [11]):
        with pytest.raises(BadInput, match="whole numbers of at least 2"):
            PPO(OrdinalPolicy, Aim(), policy_kwargs={"bins": bins}, device="cpu")
    with pytest.raises(BadInput, match="are not all distinct in float32"):
        DiscreteDistribution(Box(1000.0, 1001.0, (1,)), 100_000)
    with pytest.raises(BadInput, match="use_sde must be False"):
        PPO(BetaPolicy, Aim(), use_sde=True, device="cpu")


def test_says_what_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import detent.sb3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'detent-rl[sb3]'" in done.stderr.splitlines()[-1]
