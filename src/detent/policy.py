"""The trained artefact: a policy that acts with NumPy alone, from one file that executes nothing when read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detent.errors import BadInput
from detent.files import Corrupt, read_tensors, write_tensors

SCHEMA = 1
EPSILON = 1e-8

Floats = NDArray[Any]
"""float32 on the way in and out; NumPy's own idea of precision in between."""
Choose = str
"""How one action is taken from a distribution: `mode`, `mean` or `sample`."""
Op = Mapping[str, Any]
Tensors = Mapping[str, Floats]
Step = Callable[[Floats, Choose, np.random.Generator | None], Floats]
"""One op with its constants in place: takes the running value [..., a] and gives the next one [..., b]."""


@dataclass(frozen=True)
class Normalizer:
    """clip((observation - mean) scale, -clip, clip), with scale = 1 / sqrt(var + 1e-8)."""

    mean: Floats
    scale: Floats
    clip: np.float32

    def __call__(self, x: Floats) -> Floats:
        # The mean is subtracted first, as in training: folded into one shift, it would cost digits.
        x = (x - self.mean) * self.scale
        return np.minimum(np.maximum(x, -self.clip, out=x), self.clip, out=x)


@dataclass(frozen=True)
class Policy:
    """Observation -> action, with normaliser, network, head and bounds inside.

    `policy(obs)` is the most probable action, `policy.mean(obs)` the expected one, `policy.sample(obs)` a random one.
    All take one observation or a batch and give actions inside the environment's bounds and of its shape: real
    numbers, or integers where they are choices.
    """

    tensors: Tensors
    """`observation/mean`, `observation/var`, `policy/<i>/w`, `policy/<i>/b`, `head/<name>`, `space/low`,
    `space/high`, `observations`: a few hundred normalised observations of the last rollout."""
    meta: Mapping[str, Any]
    """JSON: `ops`, `actions`, `shape`, `normalize_observations`, `clip`, and where the policy comes from."""

    def __call__(self, observation: ArrayLike) -> Floats:
        """The mode: what to deploy."""
        return self._act(observation, "mode")

    def mean(self, observation: ArrayLike) -> Floats:
        """The expected action: smoother than the mode, but between the peaks of a policy that has two."""
        return self._act(observation, "mean")

    def sample(self, observation: ArrayLike, rng: np.random.Generator | None = None) -> Floats:
        """A random action, as in training; without a generator, from the policy's own, which begins at seed 0."""
        return self._act(observation, "sample", rng or self._rng)

    def predict(
        self, observation: ArrayLike, state: object = None, episode_start: object = None, deterministic: bool = True
    ) -> tuple[Floats, None]:
        """The mode, or a random action if not `deterministic`, with Stable-Baselines3's signature.

        `state` and `episode_start` are for policies with a memory, which this one is not.
        """
        return (self(observation) if deterministic else self.sample(observation)), None

    def outputs(self, observation: ArrayLike) -> Floats:
        """[..., o] What the network's last layer gives."""
        x = self._checked(observation)
        return self.network(self.normalizer(x) if self.normalizer else x)

    def network(self, normalized: Floats) -> Floats:
        """[..., o] The same for an observation that is normalised already."""
        x = normalized
        for w, b in self.layers[:-1]:
            x = np.tanh(x @ w + b)
        w, b = self.layers[-1]
        last: Floats = x @ w + b
        return last

    def save(self, path: Path) -> None:
        write_tensors(path, dict(self.tensors), {"schema": SCHEMA, "kind": "policy", **self.meta})

    def __reduce__(self) -> tuple[Any, ...]:
        """What is prepared for acting is prepared again by whoever gets a copy."""
        return Policy, (self.tensors, self.meta)

    # --- What acting needs, prepared once. ---

    @cached_property
    def layers(self) -> list[tuple[Floats, Floats]]:
        """(w [in, out], b [out]) of each layer."""
        count = sum(name.startswith("policy/") and name.endswith("/w") for name in self.tensors)
        return [(self.tensors[f"policy/{i}/w"], self.tensors[f"policy/{i}/b"]) for i in range(count)]

    @cached_property
    def observation_size(self) -> int:
        return int(self.layers[0][0].shape[0])

    @cached_property
    def normalizer(self) -> Normalizer | None:
        if not self.meta["normalize_observations"]:
            return None
        mean, var = self.tensors["observation/mean"], self.tensors["observation/var"]
        return Normalizer(mean, 1 / np.sqrt(var + np.float32(EPSILON)), np.float32(self.meta["clip"]))

    @cached_property
    def ops(self) -> list[Op]:
        """What `Head.deploy` said."""
        if self.meta["ops"] is None:
            raise BadInput(
                f"The head {self.head!r} has no method `deploy`, so its policy can act in training only; add the "
                "method (docs/deploy.md lists the ops it may use) and train again."
            )
        return list(self.meta["ops"])

    @property
    def head(self) -> str:
        return str(self.meta.get("configuration", {}).get("head", "unknown"))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one action, as the environment has it; `()` for a Discrete space."""
        return tuple(int(size) for size in self.meta.get("shape", self.tensors["space/low"].shape))

    @cached_property
    def _steps(self) -> list[Step]:
        unknown = [op["op"] for op in self.ops if op["op"] not in OPS]
        if unknown:
            raise BadInput(
                f"The head {self.head!r} needs the op {unknown[0]!r}, which this version of Detent does not have; it "
                f"has {', '.join(OPS)}."
            )
        return [*(OPS[op["op"]](op, self.tensors) for op in self.ops), self.bounds()]

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def bounds(self) -> Step:
        """From units in which the bounds are -1 and 1 to the environment's own, never outside them."""
        low, high = self.tensors["space/low"], self.tensors["space/high"]
        half = np.float32(0.5) * (high - low)
        scaled, whole = self.meta["actions"] == "scale", np.issubdtype(low.dtype, np.integer)
        shape = None if self.shape == low.shape else self.shape

        def bounded(unit: Floats, *_: Any) -> Floats:
            if scaled:
                # From the nearer end, so that -1 and 1 give the bounds exactly.
                unit = np.where(unit < 0, low + (unit + 1) * half, high - (1 - unit) * half)
            if whole:
                unit = np.rint(unit)
            action = np.minimum(np.maximum(unit, low), high).astype(low.dtype, copy=False)
            # [()] makes a number of an array without axes, which is what a Discrete space has.
            return action if shape is None else action.reshape((*unit.shape[:-1], *shape))[()]

        return bounded

    def _act(self, observation: ArrayLike, choose: Choose, rng: np.random.Generator | None = None) -> Floats:
        x = self.outputs(observation)
        for step in self._steps:
            x = step(x, choose, rng)
        return x

    def _checked(self, observation: ArrayLike) -> NDArray[np.float32]:
        """[..., d] The observation as finite float32 numbers, or a sentence."""
        wanted = f"The policy takes observations of {self.observation_size} numbers, not"
        try:
            x = np.asarray(observation)
        except ValueError as error:
            raise BadInput(f"{wanted} rows of different lengths.") from error
        if x.dtype.kind not in "fiub":
            raise BadInput(f"{wanted} of type {x.dtype}.")
        if x.ndim == 0 or x.shape[-1] != self.observation_size:
            raise BadInput(f"{wanted} of shape {x.shape}.")
        if x.dtype != np.float32:
            with np.errstate(over="ignore"):
                x = x.astype(np.float32)
        if not np.isfinite(x).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
            where = place[0] if len(place) == 1 else place
            raise BadInput(f"The observation has {x[place]} at index {where}; a policy acts on finite numbers only.")
        return x


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy of a run directory or of a policy file. Nothing in it is executed."""
    path = Path(path)
    if path.is_dir():
        path = path / "policy.safetensors"
    if not path.exists():
        raise BadInput(f"There is no policy: {path} does not exist.")
    tensors, meta = read_tensors(path)
    if meta.get("kind") != "policy" or meta.get("schema") != SCHEMA:
        raise Corrupt(f"{path} is not a Detent policy of version {SCHEMA}; train or export it again.")
    try:
        policy = Policy(tensors, meta)
        nothing = np.zeros(policy.observation_size, np.float32)
        if policy(nothing).shape != policy.shape or not np.isfinite(policy.outputs(nothing)).all():
            raise ValueError("it does not give an action")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"{path} is not a whole policy: its parts do not fit together.") from error
    return policy


# --- The vocabulary of `Head.deploy`: each name with what makes a `Step` of an op and the policy's tensors. ----------


def _by_bins(x: Floats, bins: int) -> Floats:
    """[..., m K] -> [..., m, K]."""
    by_bins: Floats = x.reshape(*x.shape[:-1], x.shape[-1] // bins, bins)
    return by_bins


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(x, np.float32(0.0))


def _running_sum(op: Op, _: Tensors) -> Step:
    bins = int(op["bins"])

    def running_sum(x: Floats, *_: Any) -> Floats:
        summed: Floats = _by_bins(x, bins).cumsum(-1)
        return summed.reshape(x.shape)

    return running_sum


def _released_ladder(op: Op, _: Tensors) -> Step:
    bins = int(op["bins"])
    i = np.arange(bins, dtype=np.float32)

    def ladder(x: Floats, *_: Any) -> Floats:
        logits = _by_bins(x, bins)
        rungs: Floats = (i - bins) * _softplus(-logits) - i * _softplus(logits)
        return rungs.reshape(x.shape)

    return ladder


def positions(bins: int) -> NDArray[np.float32]:
    """[K] Where the bins are, in units where the bounds are -1 and 1."""
    return np.linspace(-1.0, 1.0, bins, dtype=np.float32)


def _categorical(op: Op, _: Tensors) -> Step:
    bins = int(op["bins"])
    grid = positions(bins)

    def categorical(x: Floats, choose: Choose, rng: np.random.Generator | None) -> Floats:
        logits = _by_bins(x, bins)
        if choose == "mode":
            chosen: Floats = grid[logits.argmax(-1)]
            return chosen
        weight = np.exp(logits - logits.max(-1, keepdims=True))
        if choose == "mean":
            mean: Floats = (weight @ grid) / weight.sum(-1)
            return mean
        assert rng is not None
        cumulative = weight.cumsum(-1)
        threshold = (1.0 - rng.random((*logits.shape[:-1], 1))) * cumulative[..., -1:]
        drawn: Floats = grid[np.sum(cumulative < threshold, axis=-1)]
        return drawn

    return categorical


def counts_of(op: Op) -> list[int]:
    """The numbers of choices per dimension of the op `choices`."""
    return [int(count) for count in op["counts"].split(",")]


def _choices(op: Op, _: Tensors) -> Step:
    """The mean of choices makes no sense: it is the mode."""
    counts = counts_of(op)
    borders = np.cumsum(counts)[:-1]
    spacing = 2 / np.maximum(1, np.array(counts) - 1)

    def choices(x: Floats, choose: Choose, rng: np.random.Generator | None) -> Floats:
        if choose == "sample":
            assert rng is not None
            x = x + rng.gumbel(size=x.shape)
        chosen = [logits.argmax(-1) for logits in np.split(x, borders, axis=-1)]
        unit: Floats = np.stack(chosen, axis=-1) * spacing - 1
        return unit

    return choices


def _normal(op: Op, tensors: Tensors) -> Step:
    std = np.exp(tensors[f"head/{op['log_std']}"])

    def normal(x: Floats, choose: Choose, rng: np.random.Generator | None) -> Floats:
        if choose != "sample":
            return x
        assert rng is not None
        return x + std * rng.standard_normal(x.shape, np.float32)

    return normal


def _beta(op: Op, _: Tensors) -> Step:
    def beta(x: Floats, choose: Choose, rng: np.random.Generator | None) -> Floats:
        a, b = np.split(x, 2, axis=-1)
        if choose == "mode":
            total = a + b
            position = np.where(total > 0, a / np.where(total > 0, total, 1), np.float32(0.5))
        elif choose == "mean":
            position = (1 + a) / (2 + a + b)
        else:
            assert rng is not None
            position = rng.beta(1 + a, 1 + b).astype(np.float32)
        return 2 * position - 1

    return beta


OPS: dict[str, Callable[[Op, Tensors], Step]] = {
    "tanh": lambda *_: lambda x, *_: np.tanh(x),
    "softplus": lambda *_: lambda x, *_: _softplus(x),
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": _normal,
    "beta": _beta,
}
"""`categorical`, `choices`, `normal` and `beta` end the list: they take the action from the distribution, in units
where the bounds are -1 and 1."""
