"""Tasks: names -> environments.

A task is found, in this order, among those registered here or by the user, among Gymnasium's ids, and as
`module:factory`. `gymnasium/ID` takes Gymnasium's implementation of an id that EnvPool has too.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from detent.environments import Environment
from detent.errors import BadInput, NeedsImport
from detent.registry import Registry, nearest

Factory = Callable[..., "gymnasium.Env[Any, Any]"]
"""Makes one Gymnasium environment; gets the keyword arguments of `--env-kwargs`."""


@dataclass(frozen=True)
class Wanted:
    """How many environments of a task, and how they are to be run. Only `seed` and `options` change results."""

    seed: int
    num_envs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0
    threads: int | None = None
    timeout: float = 60.0
    bounded: bool = True
    """Whether the bounds of the actions must be finite."""
    restarts: int = 0
    """How often an environment that failed may be replaced by a new one."""

    @property
    def small_seed(self) -> int:
        """31 bits for simulators that number their environments' seeds upwards from one.

        Neighbouring run seeds would otherwise share nearly all of their environments.
        """
        return int(np.random.SeedSequence(self.seed).generate_state(1)[0] >> 1)


class Make(Protocol):
    def __call__(self, wanted: Wanted) -> Environment: ...


class Size(NamedTuple):
    """How large a task is."""

    observation: int
    action: int
    horizon: int | None
    """Steps after which an episode is truncated."""


@dataclass(frozen=True)
class Task:
    """A name, where it comes from, and how to make it."""

    name: str
    suite: str
    backend: str
    make: Make
    replayable: bool = True
    """Whether repeating its actions brings a task back; a resumed run of one that is not starts new episodes."""
    size: Callable[[], Size | None] = lambda: None
    """Its size, where it can be told without making it."""
    extra: str | None = None
    """The extra of this package that it needs: `pip install 'detent[EXTRA]'`."""
    factory: Callable[[Mapping[str, Any]], Factory] | None = None
    """With these options, what makes one Gymnasium environment, if the task is made of such."""
    choices: Callable[[Mapping[str, Any]], tuple[int, ...] | None] = lambda options: None
    """With these options, the numbers of choices per action dimension; None where actions are real."""
    envpool_id: str | None = None
    """EnvPool's name for it, if it is EnvPool's."""


TASKS: Registry[Task] = Registry("task", __name__)


def register_task(name: str, factory: Factory) -> None:
    """Make the Gymnasium environment that `factory` builds available as the task NAME."""
    TASKS.register(name, gymnasium_task(name, factory, suite="user"))


def gymnasium_task(
    name: str,
    factory: Factory,
    suite: str = "gymnasium",
    backend: str = "gymnasium",
    replayable: bool = True,
    size: Callable[[], Size | None] = lambda: None,
    extra: str | None = None,
) -> Task:
    """A task whose environments `factory` makes one by one; the rest is as in `Task`."""

    def with_options(options: Mapping[str, Any]) -> Factory:
        return functools.partial(factory, **options) if options else factory

    def make(wanted: Wanted) -> Environment:
        from detent.environments.host import Host

        return Host(
            with_options(wanted.options),
            name,
            wanted.seed,
            wanted.num_envs,
            workers=wanted.workers,
            timeout=wanted.timeout,
            bounded=wanted.bounded,
            restarts=wanted.restarts,
        )

    def choices(options: Mapping[str, Any]) -> tuple[int, ...] | None:
        from detent.environments.host import choices_of
        from detent.environments.workers import close_all, make_all

        envs = make_all(with_options(options), name, 1)
        try:
            return choices_of(envs[0].action_space)
        finally:
            close_all(envs)

    return Task(name, suite, backend, make, replayable, size, extra, with_options, choices)


def envpool_task(
    name: str,
    suite: str,
    replayable: bool = True,
    task_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    choices: tuple[int, ...] | None = None,
    without: Collection[str] = (),
) -> Task:
    """EnvPool's task `task_id` (default: `name`), made with these options, `without` these parts of its observation."""
    task_id = task_id or name

    def make(wanted: Wanted) -> Environment:
        if wanted.restarts:
            raise BadInput(
                f"{name} is EnvPool's and cannot be restarted; --on-env-error restart is for Gymnasium's environments."
            )
        from detent.environments.pool import Pool  # imports EnvPool: two seconds

        together = {**(options or {}), **wanted.options}
        return Pool(task_id, wanted.small_seed, wanted.num_envs, together, wanted.threads, without)

    def size() -> Size:
        from detent.environments.pool import sizes

        return Size(*sizes(task_id, without))

    return Task(name, suite, "envpool", make, replayable, size, choices=lambda _: choices, envpool_id=task_id)


def find_task(name: str, may_import: bool = True) -> Task:
    """The task of this name; `may_import` is False where the name was read from a file."""
    if name in TASKS.names():
        return TASKS.get(name)
    if ":" in name:
        return gymnasium_task(name, _imported(name, may_import), suite="user")
    env_id = name.removeprefix("gymnasium/")
    if env_id in gymnasium.registry:
        from detent.environments.host import make_factory

        return gymnasium_task(name, make_factory(env_id, {}))
    if not may_import:
        raise NeedsImport(
            f"The run was trained on {name!r}, which is not a task here; name the module that registers it", "MODULE"
        )
    known = [*TASKS.names(), *gymnasium.registry]
    raise BadInput(
        f"There is no task named {name!r}.{nearest(name, known)} "
        "See `detent tasks`; your own environment is given as module:factory."
    )


def _imported(name: str, may_import: bool) -> Factory:
    """The callable behind `module:factory`."""
    module_name, _, attribute = name.partition(":")
    if not may_import and module_name not in sys.modules:
        raise NeedsImport(
            f"The run was trained on {name!r}, and Detent imports nothing that a file names; "
            f"if you trust that module, add --import {module_name}",
            module_name,
        )
    if module_name not in sys.modules:
        import_module(module_name)
    factory = getattr(sys.modules[module_name], attribute, None)
    if not callable(factory):
        raise BadInput(f"The module {module_name!r} has no callable {attribute!r}; TASK can be module:factory.")
    made: Factory = factory
    return made


def import_module(name: str) -> None:
    """Import a module that the user named, from the current directory too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"Cannot import the module {name!r}: {error}.") from error
