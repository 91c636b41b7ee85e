"""A run: everything that decides what training computes, as one flat set of options."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from detent.algorithms import ALGORITHMS, Algorithm
from detent.critics import CRITICS, Critic
from detent.errors import BadInput, NeedsImport, in_file, quoted
from detent.heads import HEADS, Head, accepts, defaults
from detent.options import (
    FREE_OPTIONS,
    check_options,
    claim_names,
    flag,
    name_here,
    names_of,
    old_names,
    option,
    options_of,
    rivals,
    whole,
)
from detent.registry import Registry, nearest
from detent.runs.identity import as_json, identity, version_of, written_names
from detent.runs.presets import EARLIER, is_file, label, preset_options
from detent.tasks import Factory, Task, find_task, gymnasium_task, name_of
from detent.trunks import TRUNKS, Trunk

DEFAULT_HEAD = "ordinal"
DEFAULT_HEADS = (DEFAULT_HEAD, "categorical")
"""If no head is named, the first of these that accepts the task's actions is used."""
DEFAULT_ALGO = "ppo"
DEFAULT_PRESET = "modern"
DEFAULT_TRUNK = "mlp"
DEFAULT_CRITIC = "squared"
PARTS: dict[str, Registry[Any]] = {"head": HEADS, "algo": ALGORITHMS, "trunk": TRUNKS, "critic": CRITICS}
"""The parts of a run besides its task, and the registries in which their names are looked up."""


@dataclass(frozen=True)
class Settings:
    """The options that belong to no head, algorithm, trunk or critic."""

    steps: int = option(1_000_000, "train for at least this many environment steps", at_least=1)
    seed: int = option(0, "random seed", at_least=0, at_most=2**63 - 1)
    envs: int = option(64, "environments stepped in parallel; must divide --batch-size", at_least=1, at_most=65_536)
    env_kwargs: dict[str, Any] | None = option(None, "keyword arguments of the environment, as JSON")
    workers: int = option(0, "worker processes for a Gymnasium task; 0 for none. Does not change results", at_least=0)
    threads: int | None = option(
        None, "threads for an EnvPool or rllab task (default: one per core). Does not change results", at_least=1
    )
    env_timeout: float = option(60.0, "seconds before an environment in a worker counts as hung", above=0)
    on_env_error: str = option(
        "stop",
        "if a Gymnasium environment raises, hangs or returns NaN: stop, or restart it with a new episode",
        choices=("stop", "restart"),
    )
    max_env_restarts: int = option(10, "with --on-env-error restart, stop after this many restarts", at_least=1)
    actions: str = option(
        "scale",
        "scale [-1, 1] to the environment's bounds, only clip to the bounds, or pass actions on raw",
        choices=("scale", "clip", "raw"),
    )
    normalize_observations: bool = option(True, "normalise observations by their running mean and standard deviation")
    normalize_rewards: bool = option(True, "divide rewards by the running standard deviation of the return")
    normalization_clip: float = option(10.0, "clip normalised observations and rewards to this magnitude", above=0)
    least_variance: float = option(0.0, "normalise observations as if their variance were at least this", at_least=0)
    returns_across_episodes: bool = option(
        False, "continue the return that scales the rewards across episodes, instead of starting again at 0"
    )
    policy_gain: float = option(0.01, "initial gain of the policy's last layer", above=0)
    anneal_steps: int | None = option(None, "length of schedules, in steps (default: --steps)", at_least=1)
    eval_every: int = option(0, "evaluate the deterministic policy every this many steps; 0 for never", at_least=0)
    eval_episodes: int = option(10, "episodes per evaluation", at_least=1)

    def __post_init__(self) -> None:
        check_options(self)


class Names(NamedTuple):
    """The names of a run's task, parts and preset."""

    task: str
    head: str = DEFAULT_HEAD
    algo: str = DEFAULT_ALGO
    preset: str = DEFAULT_PRESET
    trunk: str = DEFAULT_TRUNK
    critic: str = DEFAULT_CRITIC

    @property
    def option_parts(self) -> list[type]:
        """The dataclasses whose options the run has; no two of them share an option's name."""
        return [*(registry.get(getattr(self, kind)) for kind, registry in PARTS.items()), Settings]


claim_names("run", "every run", [*Names._fields, *names_of(Settings)])


@dataclass(frozen=True, init=False)
class Run:
    """What to train: `Run(task="Humanoid-v5", head="ordinal", bins=11, steps=2_000_000, seed=1)`.

    Every option of the head, the algorithm, the trunk, the critic and `Settings` is a keyword. `task` is a name (see
    `detent tasks`), `"module:factory"`, or a callable that makes one Gymnasium environment. For tasks with Discrete or
    MultiDiscrete actions, the default head is `categorical`.
    """

    task: Task = dataclasses.field(repr=False)
    names: Names
    head: Head
    algorithm: Algorithm
    trunk: Trunk
    critic: Critic
    settings: Settings

    def __init__(
        self,
        task: str | Factory | Task,
        head: str | None = None,
        algo: str = DEFAULT_ALGO,
        preset: str = DEFAULT_PRESET,
        trunk: str = DEFAULT_TRUNK,
        critic: str = DEFAULT_CRITIC,
        **options: Any,
    ) -> None:
        if callable(task):
            task = gymnasium_task(name_of(task), task, suite="user")
        elif isinstance(task, str):
            task = find_task(task)
        head = head or fitting_head(task, options.get("env_kwargs"))
        options |= following_options(task, head, options)
        names = Names(task.name, head, algo, preset, trunk, critic)
        renamed = old_names(names.option_parts)
        given = {renamed.get(name, name): value for name, value in options.items() if value is not None}
        values = preset_values(names) | displaced(names, given) | given
        self._make(task, names._replace(preset=label(preset)), values)

    def _make(self, task: Task, names: Names, values: Mapping[str, Any]) -> None:
        """Fill in the fields; options without a value get their defaults."""
        parts = names.option_parts
        unknown = sorted(set(values) - {f.name for part in parts for f in options_of(part)})
        if unknown:
            raise BadInput(unknown_option(unknown[0], names))
        made = [
            part(**{f.name: coerced(f, values[f.name]) for f in options_of(part) if f.name in values}) for part in parts
        ]
        fields = ("task", "names", "head", "algorithm", "trunk", "critic", "settings")
        for field, value in zip(fields, (task, names, *made), strict=True):
            object.__setattr__(self, field, value)
        self._check_sizes()

    def _check_sizes(self) -> None:
        batch, envs = self.algorithm.batch_size, self.settings.envs
        if batch % envs:
            small = [d for d in range(1, math.isqrt(batch) + 1) if batch % d == 0]
            near = min([*small, *(batch // d for d in small)], key=lambda d: (abs(d - envs), d))
            raise BadInput(f"--batch-size {batch} is not a multiple of --envs {envs}; --envs {near} would do.")

    @property
    def options(self) -> dict[str, Any]:
        """Every option of this run, flat."""
        return {
            f.name: getattr(part, f.name)
            for part in (self.settings, self.head, self.algorithm, self.trunk, self.critic)
            for f in options_of(part)
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """The run as JSON; `Run.from_configuration` is the inverse."""
        return described(self.names, self.options)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides every bit of the run: equal identities give equal results."""
        return identity(self.configuration)

    @staticmethod
    def from_configuration(
        configuration: Mapping[str, Any], imports: Collection[str] | None = (), task: str | None = None, **changes: Any
    ) -> Run:
        """A run read from a file. Names are looked up; nothing is imported or called because a file says so.

        A task `module:factory` is accepted only if its module is in `imports`, the modules that the user trusts. None
        means that the configuration comes from the user and not from a file. `task` is the user's own word for where
        the task is found here, whatever its name in the file is.
        """
        names, options = read_configuration(configuration)
        return Run.made(find_task(task) if task else find_task(names.task, imports), names, options | changes)

    @staticmethod
    def made(task: Task, names: Names, values: Mapping[str, Any]) -> Run:
        """A run with exactly these values, regardless of the preset; the other options have their defaults."""
        run = object.__new__(Run)
        run._make(task, names, values)
        return run

    @property
    def slug(self) -> str:
        """`<task>-<algo>-<head>-<seed>`, usable as the name of a directory."""
        names = self.names
        return re.sub(r"[^\w.-]+", "_", f"{names.task}-{names.algo}-{names.head}-{self.settings.seed}")


def described(names: Names, options: Mapping[str, Any]) -> dict[str, Any]:
    """Names and options as JSON, with `baselines`, those of the options that differ from theirs, and `formerly`, old
    names -> new names.

    With these two, runs can be compared with older ones without knowing their heads or algorithms.
    """
    declared = [f for part in names.option_parts for f in options_of(part)]
    baselines = {f.name: as_json(f.metadata["baseline"]) for f in declared}
    formerly = {old: f.name for f in declared for old in f.metadata["formerly"]}
    flat = {name: as_json(value) for name, value in options.items()}
    differ = {name: baselines[name] for name in flat if flat[name] != baselines[name]}
    return {**names._asdict(), "options": flat, "baselines": differ, "formerly": formerly}


def read_configuration(configuration: Mapping[str, Any]) -> tuple[Names, dict[str, Any]]:
    """Names and a value for every option, from a file of any version; options that it lacks have their baselines."""
    try:
        names = Names(*written_names(configuration))
        written = dict(configuration["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"The configuration of the run is incomplete: {error}.") from error
    for kind, registry in PARTS.items():
        name = getattr(names, kind)
        if name not in registry.names():
            raise NeedsImport(
                f"The run has the {registry.kind} {name!r}, which is not part of Detent; name the module that "
                "registers it",
                "MODULE",
            )
    options = {}
    for part in names.option_parts:
        for declared in options_of(part):
            names_of_it = [name for name in (declared.name, *declared.metadata["formerly"]) if name in written]
            given = [written.pop(name) for name in names_of_it]
            options[declared.name] = coerced(declared, given[0] if given else declared.metadata["baseline"])
            if names_of_it:
                _refuse_forged(configuration, names_of_it[0], declared, options[declared.name])
        for name, without_effect in getattr(part, "RETIRED", {}).items():
            if written.get(name) == without_effect:
                del written[name]
    if written:
        version = version_of(configuration) or "another version"
        raise BadInput(
            f"The run has the option {flag(min(written))}, which this version of Detent does not have; it was made "
            f"by Detent {version}."
        )
    return names, options


def _refuse_forged(configuration: Mapping[str, Any], name: str, declared: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a file whose `baselines`, and so its identity and its hash chain, do not cover an option that differs."""
    baselines = configuration.get("baselines")
    if baselines is None or name == "steps" or name in FREE_OPTIONS:
        return
    differs = as_json(value) != as_json(declared.metadata["baseline"])
    if not isinstance(baselines, Mapping) or differs != (name in baselines):
        raise BadInput(
            f"The configuration does not belong to this run: {flag(name)} or its baseline was changed after it was "
            "written; use another copy of the run."
        )


def fitting_head(task: Task, env_kwargs: Any) -> str:
    """The head that is used if none is named."""
    space = task.space(read_env_kwargs(env_kwargs))
    fitting = (name for name in (*DEFAULT_HEADS, *HEADS.names()) if accepts(HEADS.get(name), space))
    return next(fitting)


def following_options(task: Task, head: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the head that are not given and are determined by the task's actions."""
    of_head = HEADS.get(head)
    missing = [f.name for f in options_of(of_head) if given.get(f.name) in (None, "", (), [])]
    if not missing or not hasattr(of_head, "defaults"):
        return {}  # most heads need not know the task, which may take long to make
    following = defaults(of_head, task.space(read_env_kwargs(given.get("env_kwargs"))))
    return {name: following[name] for name in missing if name in following}


def read_env_kwargs(value: Any) -> dict[str, Any]:
    """The value of `--env-kwargs`, as JSON or a mapping, as a dictionary; empty for None."""
    declared = next(f for f in options_of(Settings) if f.name == "env_kwargs")
    return {} if value is None else coerced(declared, value)


def preset_values(names: Names, earlier: bool = False) -> dict[str, Any]:
    """The options that the preset sets, without those of other trunks and critics.

    A preset of an `earlier` version sets every option. Those that it does not mention have their baselines, because
    their defaults may have changed since.
    """
    baselines = {f.name: f.metadata["baseline"] for part in names.option_parts for f in options_of(part)}
    options = preset_options(names.preset, names.algo, names.head)
    if is_file(names.preset):
        options = _checked(options, names)
    table = {name: value for name, value in options.items() if name in baselines}
    return table if not earlier and names.preset not in EARLIER else baselines | table


def _checked(options: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The options of a preset file by today's names; one that no part has, or a value that fits none, is refused."""
    every = [part for registry in PARTS.values() for part in map(registry.get, registry.names())] + [Settings]
    renamed, known = old_names(every), {f.name for part in every for f in options_of(part)}
    todays = {renamed.get(name, name): value for name, value in options.items()}
    with in_file(names.preset):
        for name in todays:
            if name not in known:
                raise BadInput(unknown_option(name, names))
        own = {f.name: f for part in names.option_parts for f in options_of(part)}
        return {name: coerced(own[name], value) for name, value in todays.items() if name in own}


def displaced(names: Names, given: Mapping[str, Any]) -> dict[str, Any]:
    """The baselines of options for which one is given that sets the same thing: the preset's value does not count."""
    others = {rival for name, rival in rivals(names.option_parts).items() if name in given}
    return {f.name: f.metadata["baseline"] for part in names.option_parts for f in options_of(part) if f.name in others}


def unknown_option(name: str, names: Names) -> str:
    """Why `name` is not an option of this run: it belongs to another head, algorithm, trunk or critic, or to none."""
    for kind, registry in PARTS.items():
        owners = [n for n in registry.names() if name in {f.name for f in options_of(registry.get(n))}]
        if owners:
            chosen = getattr(names, kind)
            return f"The {registry.kind} {chosen!r} has no {flag(name)}; it is an option of {', '.join(owners)}."
    known = [f.name for part in names.option_parts for f in options_of(part)]
    here = name_here(name)
    if here:
        of_others = any(here[0] in names_of(part) for r in PARTS.values() for part in map(r.get, r.names()))
        return f"{here[1]} {unknown_option(here[0], names)}" if of_others and here[0] not in known else here[1]
    return f"There is no option {flag(name)}.{nearest(name, known)}"


def kind_of(declared: dataclasses.Field[Any]) -> str:
    """`int`, `float`, `bool`, `str`, `tuple` or `dict`; None may be allowed too."""
    return str(getattr(declared.type, "__name__", declared.type)).removesuffix(" | None").split("[")[0]


def coerced(declared: dataclasses.Field[Any], value: Any) -> Any:
    """`value`, from the command line, JSON or Python, converted to the option's type."""
    kind = kind_of(declared)
    if value is None and str(declared.type).endswith("| None"):
        return None
    try:
        return _READERS[kind](value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        expected = _EXPECTED.get(kind, kind)
        raise BadInput(f"{flag(declared.name)} must be {expected}, not {quoted(value)}.") from error


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]


def _wholes(value: Any) -> tuple[int, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(whole(part) for part in parts)


def _object(value: Any) -> dict[str, Any]:
    made = json.loads(value) if isinstance(value, str) else value
    if not isinstance(made, Mapping):
        raise ValueError("not a JSON object")
    _refuse_deep(made)
    json.dumps(dict(made), allow_nan=False)  # raises if a file could not hold it
    return dict(made)


def _refuse_deep(value: Any, levels: int = 64) -> None:
    """Refuse what is nested so deeply that reading it again might fail."""
    if not levels:
        raise ValueError("nested too deeply")
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _refuse_deep(part, levels - 1)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": whole, "float": _number, "bool": _truth, "str": str, "tuple": _wholes, "dict": _object,
}  # fmt: skip
_EXPECTED = {
    "int": "a whole number", "float": "a finite number", "bool": "true or false",
    "tuple": "whole numbers such as 64,64", "dict": "a JSON object such as '{\"gravity\": -9.8}'",
}  # fmt: skip
