"""Trained policies, which act with NumPy alone. A policy is one file, and reading it executes nothing.

It is a list of named ops from an observation to an action: the normaliser, the network, the head and the bounds.
`detent.ops` defines the ops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.errors import BadInput
from detent.files import Corrupt, read_tensors, tensor_bytes, write_whole
from detent.observations import DoesNotFit, Layout, Numbers, layout_of
from detent.ops import OPS, Acting, Choose, Floats, Op, Place, Step, Tensors
from detent.schemas import OBJECT, WHOLE, Field, Schema, optional, or_null

SCHEMA = 2
"""Of policy files. Version 1, of Detent 0.1.0, has only the head's ops; `_completed` adds the others."""
MOST_OPS = 10_000
"""Files with more ops are refused; no real policy has so many."""


def _are_ops(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(op, dict) and "op" in op for op in value)


POLICY = Schema(
    "a policy",
    {
        "kind": Field(lambda value: value == "policy", f"that of a Detent policy of version {SCHEMA} or earlier"),
        "schema": Field(lambda value: value in (1, SCHEMA), f"that of a Detent policy of version {SCHEMA} or earlier"),
        "ops": Field(or_null(_are_ops), "a list of ops or null"),
        "steps": WHOLE,
        **dict.fromkeys(("observation", "configuration"), optional(OBJECT)),
    },
)
"""The metadata of a policy file."""


class Misfit(BadInput):
    """The ops of a policy are unknown, or do not match each other or its tensors."""


@dataclass(frozen=True, repr=False)
class Policy:
    """Observation -> action, with normaliser, network, head and bounds inside.

    `policy(obs)` is the most probable action, `policy.mean(obs)` the expected one, `policy.sample(obs)` a random one.
    All take one observation, as the environment returns it or flattened to a vector, or a batch. They return actions of
    the environment's shape and within its bounds: real numbers, or integers where actions are choices.
    """

    tensors: Tensors
    """`observation/mean`, `observation/var`, `policy/<i>/<name>`, `head/<name>`, `space/low`, `space/high`,
    `observations`: a few hundred normalised observations of the last rollout."""
    meta: Mapping[str, Any]
    """JSON: `ops`, `observation` (the layout of the environment's observations), and the policy's origin."""

    def __call__(self, observation: Any) -> Floats:
        """The most probable action (the mode), which is the one to deploy."""
        return self._act(observation, "mode")

    def mean(self, observation: Any) -> Floats:
        """The expected action: smoother than the mode, but for a policy with two peaks it lies between them."""
        return self._act(observation, "mean")

    def sample(self, observation: Any, rng: np.random.Generator | None = None) -> Floats:
        """A random action, as in training. Without a generator, the policy uses its own, seeded with 0."""
        return self._act(observation, "sample", rng or self._rng)

    def predict(
        self, observation: Any, state: object = None, episode_start: object = None, deterministic: bool = True
    ) -> tuple[Floats, None]:
        """The mode, or a random action if not `deterministic`, with Stable-Baselines3's signature.

        `state` and `episode_start` are ignored; they are for recurrent policies.
        """
        return (self(observation) if deterministic else self.sample(observation)), None

    def outputs(self, observation: Any) -> Floats:
        """[..., o] The outputs of the network's last layer."""
        return _run(self._steps[: self.network_end], self._checked(observation))

    def distribution(self, normalized: Floats) -> tuple[Op, Floats]:
        """The op that chooses an action from the distribution, and that distribution's parameters [..., o].

        It takes observations that are already normalised, like those among the tensors.
        """
        start = 1 if self.ops[0]["op"] == "normalize" else 0
        return self.ops[-2], _run(self._steps[start:-2], normalized)

    def to_bytes(self) -> bytes:
        """The policy file: the same policy always gives the same bytes."""
        return tensor_bytes(self.tensors, {"schema": SCHEMA, "kind": "policy", **self.meta})

    def save(self, path: Path) -> None:
        write_whole(path, self.to_bytes())

    def __repr__(self) -> str:
        low = self.tensors["space/low"]
        task = self.meta.get("configuration", {}).get("task", "an unknown task")
        return (
            f"<Policy for {task}, head {self.head}, after {self.meta['steps']:,} steps: {self.observation_size} "
            f"numbers observed, {low.size} {'chosen' if low.dtype.kind == 'i' else 'set'}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies recompute whatever is cached."""
        return Policy, (self.tensors, self.meta)

    # --- What acting needs, prepared once. ---

    @cached_property
    def observation_size(self) -> int:
        return int(self.tensors["observation/mean"].shape[0])

    @cached_property
    def layout(self) -> Layout:
        """The layout of the environment's observations; vectors, if the file has none."""
        vector = {"numbers": [self.observation_size]}
        return layout_of(self.meta.get("observation", vector))

    def refuse_misfits(self) -> None:
        """Raise `Misfit` where tensors, ops and layout do not match each other, or give no finite numbers."""
        place = Place(self.tensors, self.observation_size)
        for name in ("mean", "var"):
            place.tensor(f"observation/{name}", self.observation_size)
        if "observations" in self.tensors:
            place.tensor("observations", None, self.observation_size)
        if self.layout.size != self.observation_size:
            raise Misfit("Its observations do not match its network.")
        if not all(np.isfinite(t).all() for name, t in self.tensors.items() if not name.startswith("space/")):
            raise Misfit("It does not have finite numbers.")
        if self.meta["ops"] is None:  # it acts only through its head
            return
        nothing = np.zeros(self.observation_size, np.float32)
        with np.errstate(all="ignore"):
            if not all(np.isfinite(given).all() for given in (self.outputs(nothing), self(nothing))):
                raise Misfit("It does not give finite numbers.")

    def refuse_other_task(self, name: str, observation_size: int, low: NDArray[Any], high: NDArray[Any]) -> None:
        """Raise `BadInput` unless a task has as many observations, and as many actions or the same choices."""
        own, bounds = np.stack([self.tensors["space/low"], self.tensors["space/high"]]), np.stack([low, high])
        same = np.array_equal(own, bounds) if "i" in (own.dtype.kind, bounds.dtype.kind) else own.shape == bounds.shape
        if not same or observation_size != self.observation_size:
            raise BadInput(
                f"The policy takes observations of {self.observation_size} numbers and gives actions of "
                f"{own.shape[1]}, and {name} has {observation_size} and {bounds.shape[1]}, or other choices: they are "
                "not the same task."
            )

    @cached_property
    def _sees_vectors(self) -> bool:
        return self.layout == Numbers((self.observation_size,))

    def flat(self, observation: Any) -> Floats:
        """[..., d] An observation flattened to a vector; a vector stays as it is."""
        own = not self._sees_vectors and self.layout.fits(observation)
        vector: Floats = self.layout.flat(observation) if own else np.asarray(observation)
        return vector

    @cached_property
    def ops(self) -> list[Op]:
        """The ops from the observation to the action."""
        if self.meta["ops"] is None:
            raise BadInput(
                f"The head {self.head!r} has no method `deploy`, so its policy acts only in training, `detent "
                "eval` and `detent play`; add the method (docs/deploy.md lists the ops it may use) and train again."
            )
        return list(self.meta["ops"])

    @cached_property
    def network_end(self) -> int:
        """The number of ops up to and including the last layer of the network."""
        return max((number for number, op in enumerate(self.ops, 1) if op["op"] == "linear"), default=0)

    @property
    def head(self) -> str:
        return str(self.meta.get("configuration", {}).get("head", "unknown"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of the environment's actions; `()` for a Discrete space."""
        return tuple(self.ops[-1]["shape"])

    @property
    def scaled(self) -> bool:
        """Whether -1 and 1 are scaled to the environment's bounds."""
        return bool(self.ops[-1]["scale"])

    @property
    def widths(self) -> list[int]:
        """The width of each op's input."""
        return self._prepared[1]

    @property
    def bounds(self) -> Step:
        """The step to the environment's own units, from those where the bounds are -1 and 1 if `scaled`; it clips."""
        return self._steps[-1]

    @cached_property
    def _steps(self) -> list[Step]:
        return self._prepared[0]

    @cached_property
    def _prepared(self) -> tuple[list[Step], list[int]]:
        """Every op as a step, and the width of its input; nothing is computed before all ops are checked."""
        names = [op["op"] for op in self.ops]
        unknown = [name for name in names if name not in OPS]
        if unknown:
            raise Misfit(
                f"The head {self.head!r} needs the op {unknown[0]!r}, which this version of Detent does not have; it "
                f"has {', '.join(OPS)}."
            )
        if len(names) > MOST_OPS:
            raise Misfit(f"A policy has at most {MOST_OPS} ops, not {len(names)}.")
        if "normalize" in names[1:] or names[-1:] != ["bounds"] or "bounds" in names[:-1]:
            raise Misfit("A policy must normalize first, if at all, and apply the bounds last.")
        if not self.network_end:
            raise Misfit("A policy must have at least one linear op.")
        place = Place(self.tensors, self.observation_size)
        steps, widths = [], []
        for number, op in enumerate(self.ops):
            widths.append(place.width)
            try:
                with np.errstate(all="ignore"):  # what is not finite is refused
                    steps.append(OPS[op["op"]](op, place))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise Misfit(f"Op {number} of the policy, {op['op']}, does not fit: {error}.") from error
            if place.kept and number + 1 in (self.network_end, len(names)):
                raise Misfit("A network must have an `add` for every `keep`.")
        return steps, widths

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def _act(self, observation: Any, choose: Choose, rng: np.random.Generator | None = None) -> Floats:
        return _run(self._steps, self._checked(observation), choose, rng)

    def _checked(self, observation: Any) -> NDArray[np.float32]:
        """[..., d] The observation as finite float32 numbers; raises `BadInput` if it cannot be."""
        wanted = f"The policy takes observations of {self.observation_size} numbers, not"
        try:
            x = self.flat(observation)
        except DoesNotFit as error:
            raise BadInput(f"The observation does not match the policy's task: {error}.") from error
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
            raise BadInput(f"The observation has {x[place]} at index {where}; a policy needs finite numbers.")
        return x


def _run(steps: Sequence[Step], x: Floats, choose: Choose = "mode", rng: np.random.Generator | None = None) -> Floats:
    acting = Acting(choose, rng, [])
    for step in steps:
        x = step(x, acting)
    return x


def whole_ops(
    network: Sequence[Op], head: Sequence[Op], *, clip: float | None, scale: bool, shape: Sequence[int]
) -> list[Op]:
    """The ops from observation to action of this shape: normaliser (unless `clip` is None), network, head, bounds."""
    normalizer: list[Op] = [] if clip is None else [{"op": "normalize", "clip": clip}]
    return [*normalizer, *network, *head, {"op": "bounds", "scale": scale, "shape": list(shape)}]


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy of a run directory or of a policy file. Nothing in it is executed."""
    path = Path(path)
    inside = path.is_dir()
    path = path / "policy.safetensors" if inside else path
    if not path.exists():
        raise BadInput(f"There is no policy: {path} does not exist.")
    tensors, meta = read_tensors(
        path if inside else path.resolve(), POLICY
    )  # links are allowed, but not in run directories
    old, kept = meta["schema"] == 1, {key: value for key, value in meta.items() if key not in ("kind", "schema")}
    try:
        policy = Policy(tensors, _completed(tensors, kept) if old else kept)
        policy.refuse_misfits()
    except (Misfit, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = error if isinstance(error, Misfit) else "Its parts do not fit together."
        raise Corrupt(f"{path} is not a valid policy. {why}") from error
    return policy


def _completed(tensors: Tensors, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a file of version 1 in today's form; its network is a multi-layer perceptron with tanh."""
    layers = sum(name.startswith("policy/") and name.endswith("/w") for name in tensors)
    linear = [{"op": "linear", "parameters": f"policy/{i}"} for i in range(layers)]
    network = [op for layer in linear for op in ({"op": "tanh"}, layer)][1:]
    ops = (
        None
        if meta["ops"] is None
        else whole_ops(
            network,
            meta["ops"],
            clip=meta["clip"] if meta["normalize_observations"] else None,
            scale=meta["actions"] == "scale",
            shape=meta.get("shape", tensors["space/low"].shape),
        )
    )
    replaced = {"actions", "clip", "normalize_observations", "shape"}
    return {key: value for key, value in meta.items() if key not in replaced} | {"ops": ops}
