"""A run: everything that decides what training computes, as one flat set of options."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from detent.algorithms import ALGORITHMS, Algorithm
from detent.errors import BadInput, NeedsImport
from detent.heads import HEADS, Head
from detent.options import check_options, flag, option, options_of
from detent.presets import PRESETS, preset_options
from detent.registry import nearest
from detent.tasks import Factory, Task, find_task, gymnasium_task

DEFAULT_HEAD = "ordinal"
CHOOSING_HEAD = "categorical"
"""The default where actions are choices."""
DEFAULT_ALGO = "ppo"
DEFAULT_PRESET = "modern"
FREE_OPTIONS = ("workers", "threads", "env_timeout", "on_env_error", "max_env_restarts")
"""Options that change no result (while nothing fails), so that a resumed run may change them."""


@dataclass(frozen=True)
class Settings:
    """What belongs to neither head nor algorithm."""

    steps: int = option(1_000_000, "train for at least this many steps of the environment", at_least=1)
    seed: int = option(0, "seed of everything random", at_least=0, at_most=2**63 - 1)
    envs: int = option(64, "environments stepped together; must divide --batch-size", at_least=1, at_most=65_536)
    env_kwargs: dict[str, Any] | None = option(None, "keyword arguments of the environment, as JSON")
    workers: int = option(0, "processes for a Gymnasium environment; 0: this one. Does not change results", at_least=0)
    threads: int | None = option(
        None, "threads for an EnvPool or rllab task; default: one per core. Does not change results", at_least=1
    )
    env_timeout: float = option(60.0, "seconds after which a worker's environment counts as hung", above=0)
    on_env_error: str = option(
        "stop",
        "when a Gymnasium environment raises, hangs or returns NaN: stop, or restart it with a new episode",
        choices=("stop", "restart"),
    )
    max_env_restarts: int = option(10, "stop after so many restarts all the same", at_least=1)
    actions: str = option(
        "scale",
        "how [-1, 1] meets the environment's bounds: scale to them, clip to them, or raw",
        choices=("scale", "clip", "raw"),
    )
    normalize_observations: bool = option(True, "normalise observations by their running mean and spread")
    normalize_rewards: bool = option(True, "divide rewards by the running spread of the return")
    normalization_clip: float = option(10.0, "largest size of a normalised observation or reward", above=0)
    hidden_sizes: tuple[int, ...] = option((64, 64), "widths of the hidden layers of policy and value function")
    policy_gain: float = option(0.01, "gain of the policy's last layer at the start", above=0)
    anneal_steps: int | None = option(None, "steps over which schedules run; default: --steps", at_least=1)
    eval_every: int = option(0, "evaluate the deterministic policy every so many steps; 0: never", at_least=0)
    eval_episodes: int = option(10, "episodes per evaluation", at_least=1)

    def __post_init__(self) -> None:
        check_options(self)
        if not all(1 <= size <= 8192 for size in self.hidden_sizes):
            raise BadInput(f"--hidden-sizes must be from 1 to 8192, not {','.join(map(str, self.hidden_sizes))}.")


@dataclass(frozen=True, init=False)
class Run:
    """What to train: `Run(task="Humanoid-v5", head="ordinal", bins=11, steps=2_000_000, seed=1)`.

    Any option of the head, of the algorithm and of `Settings` is a keyword. `task` is a name (see
    `detent tasks`), `"module:factory"`, or a callable that makes one Gymnasium environment. Where the task's
    actions are choices (Discrete, MultiDiscrete), the head is `categorical` unless one is named.
    """

    task: Task = dataclasses.field(repr=False)
    names: tuple[str, str, str, str]
    """Of task, head, algorithm and preset."""
    head: Head
    algorithm: Algorithm
    settings: Settings

    def __init__(
        self,
        task: str | Factory | Task,
        head: str | None = None,
        algo: str = DEFAULT_ALGO,
        preset: str = DEFAULT_PRESET,
        **options: Any,
    ) -> None:
        if callable(task):
            name = f"{task.__module__}:{getattr(task, '__qualname__', type(task).__name__)}"
            task = gymnasium_task(name, task, suite="user")
        elif isinstance(task, str):
            task = find_task(task)
        head = head or fitting_head(task, options.get("env_kwargs"))
        if head == CHOOSING_HEAD and not options.get("choices"):
            options["choices"] = _choices(task, options.get("env_kwargs"))
        parts = option_parts(head, algo)
        values = checked_preset(preset, algo, head) | {k: v for k, v in options.items() if v is not None}
        unknown = sorted(set(values) - {f.name for part in parts for f in options_of(part)})
        if unknown:
            raise BadInput(unknown_option(unknown[0], head, algo))
        made = [
            part(**{f.name: coerced(f, values[f.name]) for f in options_of(part) if f.name in values}) for part in parts
        ]
        for field, value in zip(
            ("task", "names", "head", "algorithm", "settings"),
            (task, (task.name, head, algo, preset), *made),
            strict=True,
        ):
            object.__setattr__(self, field, value)
        self._check_sizes()

    def _check_sizes(self) -> None:
        batch, envs = self.algorithm.batch_size, self.settings.envs
        if batch % envs:
            near = min((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: abs(d - envs))
            raise BadInput(f"--batch-size {batch} is not a multiple of --envs {envs}; --envs {near} would do.")

    @property
    def options(self) -> dict[str, Any]:
        """Every option of this run, flat."""
        return {
            f.name: getattr(part, f.name)
            for part in (self.settings, self.head, self.algorithm)
            for f in options_of(part)
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """As JSON; `Run.from_configuration` gives the run back."""
        task, head, algo, preset = self.names
        flat = {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}
        return {"task": task, "head": head, "algo": algo, "preset": preset, "options": flat}

    @property
    def identity(self) -> dict[str, Any]:
        """The configuration without what changes no result: equal identities give equal bits."""
        whole = self.configuration
        return {**whole, "options": {k: v for k, v in whole["options"].items() if k not in FREE_OPTIONS}}

    @staticmethod
    def from_configuration(configuration: Mapping[str, Any], **changes: Any) -> Run:
        """A run read from a file: the task's name is looked up, and nothing is imported."""
        try:
            names = [str(configuration[k]) for k in ("task", "head", "algo", "preset")]
            options = dict(configuration["options"]) | changes
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"The configuration of the run is incomplete: {error}.") from error
        for kind, registry, name in (("head", HEADS, names[1]), ("algorithm", ALGORITHMS, names[2])):
            if name not in registry.names():
                raise NeedsImport(
                    f"The run has the {kind} {name!r}, which is not Detent's own; name the module that registers it",
                    "MODULE",
                )
        return Run(find_task(names[0], may_import=False), *names[1:], **options)

    @property
    def slug(self) -> str:
        """`<task>-<algo>-<head>-<seed>`, fit for a directory's name."""
        task, head, algo, _ = self.names
        return re.sub(r"[^\w.-]+", "_", f"{task}-{algo}-{head}-{self.settings.seed}")


def fitting_head(task: Task, env_kwargs: Any) -> str:
    """The head that is taken where none is named."""
    return DEFAULT_HEAD if _choices(task, env_kwargs) is None else CHOOSING_HEAD


def _choices(task: Task, env_kwargs: Any) -> tuple[int, ...] | None:
    return task.choices(read_env_kwargs(env_kwargs))


def read_env_kwargs(value: Any) -> dict[str, Any]:
    """What `--env-kwargs` says, from JSON or Python; nothing for None."""
    declared = next(f for f in options_of(Settings) if f.name == "env_kwargs")
    return {} if value is None else coerced(declared, value)


def option_parts(head: str, algo: str) -> tuple[type, type, type]:
    """The dataclasses whose options a run has; their names are disjoint."""
    return HEADS.get(head), ALGORITHMS.get(algo), Settings


def checked_preset(preset: str, algo: str, head: str) -> dict[str, Any]:
    if preset not in PRESETS:
        raise BadInput(f"There is no preset named {preset!r}. Known: {', '.join(PRESETS)}.")
    return preset_options(preset, algo, head)


def unknown_option(name: str, head: str, algo: str) -> str:
    """Why `name` is no option of this run: it belongs to another head or algorithm, or to nothing."""
    for kind, chosen, registry in (("head", head, HEADS), ("algorithm", algo, ALGORITHMS)):
        owners = [n for n in registry.names() if name in {f.name for f in options_of(registry.get(n))}]
        if owners:
            return f"The {kind} {chosen!r} has no {flag(name)}; it is an option of {', '.join(owners)}."
    known = [f.name for part in option_parts(head, algo) for f in options_of(part)]
    return f"There is no option {flag(name)}.{nearest(name, known)}"


def kind_of(declared: dataclasses.Field[Any]) -> str:
    """`int`, `float`, `bool`, `str`, `tuple` or `dict`; None may be possible too."""
    return str(getattr(declared.type, "__name__", declared.type)).removesuffix(" | None").split("[")[0]


def coerced(declared: dataclasses.Field[Any], value: Any) -> Any:
    """`value` as the option's type, from a string of the command line or a number of JSON or Python."""
    kind = kind_of(declared)
    try:
        return _READERS[kind](value)
    except (ValueError, TypeError, KeyError) as error:
        wanted = _WANTED.get(kind, kind)
        raise BadInput(f"{flag(declared.name)} must be {wanted}, not {value!r}.") from error


def _whole(value: Any) -> int:
    """An int; 1e6 is one, 1.5 and True are not."""
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise ValueError(value)
    return int(value) if isinstance(value, int) or str(value).lstrip("+-").isdigit() else int(float(value))


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]


def _wholes(value: Any) -> tuple[int, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(_whole(part) for part in parts)


def _object(value: Any) -> dict[str, Any]:
    made = json.loads(value) if isinstance(value, str) else value
    if not isinstance(made, Mapping):
        raise ValueError(value)
    return dict(made)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _whole, "float": _number, "bool": _truth, "str": str, "tuple": _wholes, "dict": _object,
}  # fmt: skip
_WANTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false",
    "tuple": "whole numbers such as 64,64", "dict": "a JSON object such as '{\"gravity\": -9.8}'",
}  # fmt: skip
