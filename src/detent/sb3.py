"""Detent's heads as policies of Stable-Baselines3, for its PPO and A2C and for sb3-contrib's TRPO.

from detent.sb3 import OrdinalPolicy
from stable_baselines3 import PPO

model = PPO(OrdinalPolicy, "Pendulum-v1", policy_kwargs={"bins": 11})

Stable-Baselines3 stores the action that it samples and later asks for its probability. Here that action is real-valued
and inside the environment's bounds, so the clipping that Stable-Baselines3 does before every step changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium.spaces import Space
from jaxtyping import Float, Int

from detent.errors import BadInput
from detent.package import import_optional
from detent.wrappers import bounds, checked_bins, grid

try:
    import torch
    from stable_baselines3.common.distributions import Distribution
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.type_aliases import Schedule
    from torch import Tensor, nn
    from torch.distributions import Beta, Categorical, Independent
    from torch.distributions.kl import register_kl
except ImportError:
    import_optional("stable_baselines3", "sb3")  # raises with the command to install it
    raise


class Choice(Categorical):
    """One of K. Unlike PyTorch's, its KL divergence is finite even if a probability is 0 in float32.

    An ordinal policy with many bins always has such bins far from its peak, and every step of TRPO that made one of
    them slightly more probable would be rejected.
    """


def _kl(p: Choice, q: Choice) -> Float[Tensor, "*b"]:
    return (p.logits.exp() * (p.logits - q.logits)).sum(-1)


register_kl(Choice, Choice)(_kl)


class BoundedDistribution(Distribution):
    """A distribution over actions inside the bounds of a Box, set by the outputs of one linear layer.

    `distribution` is a distribution of PyTorch over *native* actions (a bin index, a number in (0, 1)), independent
    over the m action dimensions; PyTorch knows the KL divergence between two of them, which is what TRPO asks for.
    """

    distribution: Independent[Any]

    def __init__(self, outputs: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outputs = outputs

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        return nn.Linear(latent_dim, self.outputs)

    def actions_from_params(self, out: Float[Tensor, "b o"], deterministic: bool = False) -> Float[Tensor, "b m"]:
        return self.proba_distribution(out).get_actions(deterministic=deterministic)

    def log_prob_from_params(self, out: Float[Tensor, "b o"]) -> tuple[Float[Tensor, "b m"], Float[Tensor, " b"]]:
        actions = self.actions_from_params(out)
        return actions, self.log_prob(actions)


class DiscreteDistribution(BoundedDistribution):
    """K equally spaced positions per dimension, from `low` to `high` inclusive, chosen by a softmax."""

    def __init__(self, space: Space[Any], bins: int) -> None:
        self.bins = checked_bins(bins)
        ends = zip(*bounds(space), strict=True)
        positions = np.stack([grid(*limits, self.bins, np.float32) for limits in ends])
        self.positions: Float[Tensor, "m k"] = torch.from_numpy(positions)
        # In float64 there is a number between any two float32 numbers, so the bin of a stored action is found again.
        wide = self.positions.double()
        self._midpoints: Float[Tensor, "m k-1"] = (wide[:, :-1] + wide[:, 1:]) / 2
        super().__init__(outputs=positions.size)

    def logits(self, out: Float[Tensor, "b m k"]) -> Float[Tensor, "b m k"]:
        return out

    def proba_distribution(self, out: Float[Tensor, "b mk"]) -> Self:
        logits = self.logits(out.reshape(-1, *self.positions.shape))
        self.distribution = Independent(Choice(logits=logits, validate_args=False), 1, validate_args=False)
        return self

    def to_action(self, index: Int[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        return self.positions.to(index.device).gather(1, index.T).T

    def to_index(self, actions: Float[Tensor, "b m"]) -> Int[Tensor, "b m"]:
        """The nearest position."""
        columns = actions.double().T.contiguous()
        return torch.searchsorted(self._midpoints.to(actions.device), columns).T

    def log_prob(self, actions: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
        log_prob: Tensor = self.distribution.log_prob(self.to_index(actions))
        return log_prob

    def entropy(self) -> Float[Tensor, " b"]:
        entropy: Tensor = self.distribution.entropy()
        return entropy

    def sample(self) -> Float[Tensor, "b m"]:
        return self.to_action(self.distribution.sample())

    def mode(self) -> Float[Tensor, "b m"]:
        return self.to_action(self.distribution.base_dist.logits.argmax(-1))


class OrdinalDistribution(DiscreteDistribution):
    """K positions per dimension that know their order: softmax(cumsum(L)), which is the paper's Eq. 4.

    `detent.heads.ordinal` has the proof.
    """

    def logits(self, out: Float[Tensor, "b m k"]) -> Float[Tensor, "b m k"]:
        return out.cumsum(-1)


class BetaDistribution(BoundedDistribution):
    """Beta(1 + a, 1 + b) between the bounds, one peak; a, b = softplus(first, second half of the outputs).

    With x = (action - low) / (high - low), the density of the action is that of x divided by the product of
    (high - low) over dimensions. x is kept `edge` away from 0 and 1, where the log-density would be infinite.
    """

    edge = 1e-6

    def __init__(self, space: Space[Any]) -> None:
        low, high = bounds(space)
        self.low, self.high = (torch.as_tensor(end, dtype=torch.float32) for end in (low, high))
        self.log_volume = float(np.log(high - low).sum())
        super().__init__(outputs=2 * low.size)

    def proba_distribution(self, out: Float[Tensor, "b o"]) -> Self:
        self.a, self.b = nn.functional.softplus(out).chunk(2, dim=-1)
        self.distribution = Independent(Beta(1 + self.a, 1 + self.b, validate_args=False), 1, validate_args=False)
        return self

    def to_action(self, x: Float[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        low, high = self.low.to(x.device), self.high.to(x.device)
        return torch.clamp(low + x * (high - low), low, high)

    def to_unit(self, actions: Float[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        low, high = self.low.to(actions.device), self.high.to(actions.device)
        return ((actions - low) / (high - low)).clamp(self.edge, 1 - self.edge)

    def log_prob(self, actions: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
        log_prob: Tensor = self.distribution.log_prob(self.to_unit(actions)) - self.log_volume
        return log_prob

    def entropy(self) -> Float[Tensor, " b"]:
        entropy: Tensor = self.distribution.entropy() + self.log_volume
        return entropy

    def sample(self) -> Float[Tensor, "b m"]:
        return self.to_action(self.distribution.sample().clamp(self.edge, 1 - self.edge))

    def mode(self) -> Float[Tensor, "b m"]:
        """At x = a / (a + b)."""
        total = self.a + self.b
        flat = total == 0
        return self.to_action(torch.where(flat, 0.5, self.a / torch.where(flat, 1.0, total)))


class BoundedPolicy(ActorCriticPolicy):
    """Stable-Baselines3's actor and critic with a distribution that stays inside the bounds.

    It takes the same arguments, of which `use_sde` must be False and `log_std_init` has no effect.
    """

    action_dist: BoundedDistribution
    _GAIN: ClassVar[float] = 0.01
    """Initial gain of the last layer, as for Stable-Baselines3's own distributions."""

    @abstractmethod
    def distribution_for(self, space: Space[Any]) -> BoundedDistribution:
        """The distribution that the policy has in this action space."""

    def _build(self, lr_schedule: Schedule) -> None:
        if self.use_sde:
            raise BadInput(f"{type(self).__name__} has no state-dependent exploration: use_sde must be False.")
        distribution = self.distribution_for(self.action_space)
        # Stable-Baselines3 builds the networks with a Gaussian, whose layer and standard deviation are then replaced.
        super()._build(lr_schedule)
        del self.log_std
        self.action_dist = distribution
        self.action_net = distribution.proba_distribution_net(self.mlp_extractor.latent_dim_pi)
        if self.ortho_init:
            self.action_net.apply(partial(self.init_weights, gain=self._GAIN))
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]  # every optimiser has one
            **self.optimizer_kwargs,
        )

    def _get_action_dist_from_latent(self, latent_pi: Float[Tensor, "b h"]) -> BoundedDistribution:
        return self.action_dist.proba_distribution(self.action_net(latent_pi))


class DiscretePolicy(BoundedPolicy):
    """Actor and critic with `bins` positions per action dimension: `policy_kwargs={"bins": 11}`."""

    def __init__(self, *args: Any, bins: int = 11, **kwargs: Any) -> None:
        self.bins = bins
        super().__init__(*args, **kwargs)

    def distribution_for(self, space: Space[Any]) -> DiscreteDistribution:
        return DiscreteDistribution(space, self.bins)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "bins": self.bins}


class OrdinalPolicy(DiscretePolicy):
    """Actor and critic with `bins` ordered positions per action dimension: `policy_kwargs={"bins": 11}`."""

    def distribution_for(self, space: Space[Any]) -> OrdinalDistribution:
        return OrdinalDistribution(space, self.bins)


class BetaPolicy(BoundedPolicy):
    """Actor and critic with a Beta distribution for each action dimension."""

    def distribution_for(self, space: Space[Any]) -> BetaDistribution:
        return BetaDistribution(space)
