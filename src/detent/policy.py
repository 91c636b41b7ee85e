"""The trained artefact: a policy that acts with NumPy alone, from one file that executes nothing when read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Policy:
    """Observation -> action, with normaliser, network, head and bounds inside.

    `policy(obs)` is the most probable action; `policy.sample(obs, rng)` draws one. Both take one observation
    or a batch and give actions inside the environment's bounds: real numbers, or integers where they are choices.
    """

    tensors: Mapping[str, Floats]
    """`observation/mean`, `observation/var`, `policy/<i>/w`, `policy/<i>/b`, `head/<name>`, `space/low`,
    `space/high`, `observations`: a few hundred normalised observations of the last rollout."""
    meta: Mapping[str, Any]
    """JSON: `ops`, `actions`, `normalize_observations`, `clip`, and where the policy comes from."""
    _layers: list[tuple[Floats, Floats]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [name for name in self.tensors if name.startswith("policy/") and name.endswith("/w")]
        layers = [(self.tensors[f"policy/{i}/w"], self.tensors[f"policy/{i}/b"]) for i in range(len(names))]
        object.__setattr__(self, "_layers", layers)

    def __call__(self, observation: ArrayLike) -> Floats:
        """The mode: what to deploy."""
        return self._act(observation, "mode")

    def mean(self, observation: ArrayLike) -> Floats:
        """The expected action: smoother than the mode, but between the peaks of a policy that has two."""
        return self._act(observation, "mean")

    def sample(self, observation: ArrayLike, rng: np.random.Generator) -> Floats:
        """A random action, as in training."""
        return self._act(observation, "sample", rng)

    @property
    def observation_size(self) -> int:
        return int(self._layers[0][0].shape[0])

    def save(self, path: Path) -> None:
        write_tensors(path, dict(self.tensors), {"schema": SCHEMA, "kind": "policy", **self.meta})

    def outputs(self, normalized: ArrayLike) -> Floats:
        """The network's outputs, which `ops` turn into actions, for *normalised* observations."""
        x = np.asarray(normalized, np.float32)
        for w, b in self._layers[:-1]:
            x = np.tanh(x @ w + b)
        w, b = self._layers[-1]
        outputs: Floats = x @ w + b
        return outputs

    def _act(self, observation: ArrayLike, choose: Choose, rng: np.random.Generator | None = None) -> Floats:
        x = np.asarray(observation, np.float32)
        if x.ndim == 0 or x.shape[-1] != self.observation_size:
            raise BadInput(f"The policy takes observations of {self.observation_size} numbers, not of shape {x.shape}.")
        if self.meta["normalize_observations"]:
            mean, var = self.tensors["observation/mean"], self.tensors["observation/var"]
            x = np.clip((x - mean) / np.sqrt(var + np.float32(EPSILON)), -self.meta["clip"], self.meta["clip"])
        x = self.outputs(x)
        for op in self.meta["ops"]:
            x = OPS[op["op"]](x, op, self.tensors, choose, rng)
        return self.bounded(x)

    def bounded(self, unit: Floats) -> Floats:
        """Actions in units where the bounds are -1 and 1, as the environment takes them."""
        low, high = self.tensors["space/low"], self.tensors["space/high"]
        if self.meta["actions"] == "scale":
            half = np.float32(0.5) * (high - low)
            unit = np.where(unit < 0, low + (unit + 1) * half, high - (1 - unit) * half)
        if np.issubdtype(low.dtype, np.integer):
            unit = np.rint(unit)
        return np.clip(unit, low, high).astype(low.dtype)


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
        unknown = [op["op"] for op in meta["ops"] if op["op"] not in OPS]
        if unknown:
            raise BadInput(f"{path} needs the operation {unknown[0]!r}, which this version of Detent does not have.")
        policy = Policy(tensors, meta)
        policy(np.zeros(policy.observation_size))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"{path} is not a whole policy: its parts do not fit together.") from error
    return policy


# --- The vocabulary of `Head.deploy`: every op takes the running value and gives the next one. -------------

Apply = Callable[[Floats, Mapping[str, Any], Mapping[str, Floats], Choose, np.random.Generator | None], Floats]


def _by_bins(x: Floats, op: Mapping[str, Any]) -> Floats:
    """[..., m K] -> [..., m, K]."""
    by_bins: Floats = x.reshape(*x.shape[:-1], -1, op["bins"])
    return by_bins


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(x, np.float32(0.0))


def _running_sum(x: Floats, op: Mapping[str, Any], *_: Any) -> Floats:
    return np.cumsum(_by_bins(x, op), axis=-1).reshape(x.shape)


def _released_ladder(x: Floats, op: Mapping[str, Any], *_: Any) -> Floats:
    logits, bins = _by_bins(x, op), int(op["bins"])
    i = np.arange(bins, dtype=np.float32)
    return (-(bins - i) * _softplus(-logits) - i * _softplus(logits)).reshape(x.shape)


def _categorical(x: Floats, op: Mapping[str, Any], _: Any, choose: Choose, rng: np.random.Generator | None) -> Floats:
    logits, bins = _by_bins(x, op), int(op["bins"])
    grid: Floats = np.linspace(-1.0, 1.0, bins, dtype=np.float32)
    if choose == "mode":
        chosen: Floats = grid[np.argmax(logits, axis=-1)]
        return chosen
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    if choose == "mean":
        mean: Floats = (weight @ grid) / weight.sum(-1)
        return mean
    assert rng is not None
    cumulative = np.cumsum(weight, axis=-1)
    threshold = (1.0 - rng.random((*logits.shape[:-1], 1))) * cumulative[..., -1:]
    drawn: Floats = grid[np.sum(cumulative < threshold, axis=-1)]
    return drawn


def _choices(x: Floats, op: Mapping[str, Any], _: Any, choose: Choose, rng: np.random.Generator | None) -> Floats:
    """The mean of choices makes no sense: it is the mode."""
    counts = [int(count) for count in op["counts"].split(",")]
    chosen = []
    for logits in np.split(x, np.cumsum(counts)[:-1], axis=-1):
        if choose == "sample":
            assert rng is not None
            chosen.append(np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1))
        else:
            chosen.append(np.argmax(logits, axis=-1))
    last = np.maximum(1, np.array(counts) - 1)
    unit: Floats = np.stack(chosen, axis=-1) * (2 / last) - 1
    return unit


def _normal(
    x: Floats, op: Mapping[str, Any], tensors: Mapping[str, Floats], choose: Choose, rng: np.random.Generator | None
) -> Floats:
    if choose != "sample":
        return x
    assert rng is not None
    return x + np.exp(tensors[f"head/{op['log_std']}"]) * rng.standard_normal(x.shape, np.float32)


def _beta(x: Floats, op: Mapping[str, Any], _: Any, choose: Choose, rng: np.random.Generator | None) -> Floats:
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


OPS: dict[str, Apply] = {
    "tanh": lambda x, *_: np.tanh(x),
    "softplus": lambda x, *_: _softplus(x),
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": _normal,
    "beta": _beta,
}
"""`categorical`, `choices`, `normal` and `beta` end the list: they take the action from the distribution, in units
where the bounds are -1 and 1."""
