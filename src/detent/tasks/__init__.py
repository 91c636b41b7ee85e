"""Tasks: names -> environments.

A task is found, in this order, among those registered here or by the user, among Gymnasium's ids, and as
`module:factory`. `gymnasium/ID` is Gymnasium's implementation of an id that EnvPool has too.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium

from detent.environments import ActionSpace, Environment, Wanted
from detent.errors import BadInput, DetentError, NeedsImport, one_line
from detent.registry import Registry, nearest

Factory = Callable[..., "gymnasium.Env[Any, Any]"]
"""Makes one Gymnasium environment; gets the keyword arguments of `--env-kwargs`."""


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
    """Whether repeating its actions restores the task; if not, a resumed run starts new episodes."""
    size: Callable[[], Size | None] = lambda: None
    """Its size, if it can be known without making the task."""
    extra: str | None = None
    """The extra of Detent that it needs: `pip install 'detent-rl[EXTRA]'`."""
    factory: Callable[[Mapping[str, Any]], Factory] | None = None
    """Options -> a callable that makes one Gymnasium environment, if the task consists of such environments."""
    actions: Callable[[Mapping[str, Any]], ActionSpace] | None = None
    """Options -> the space of its actions, if that can be known without making the task."""
    envpool_id: str | None = None
    """EnvPool's name for it, if it is one of EnvPool's tasks."""
    _spaces: dict[str, ActionSpace] = field(default_factory=dict, init=False, repr=False, compare=False)

    def space(self, options: Mapping[str, Any]) -> ActionSpace:
        """The action space of one environment with these options; an environment is made to find out at most once."""
        key = repr(sorted(options.items()))
        if key not in self._spaces:
            self._spaces[key] = self.actions(options) if self.actions else self._space_of_one(options)
        return self._spaces[key]

    def _space_of_one(self, options: Mapping[str, Any]) -> ActionSpace:
        env = self.make(Wanted(seed=0, num_envs=1, options=options, bounded=False))
        env.close()
        return env.space


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
    """A task whose environments `factory` makes one by one; the other arguments are those of `Task`."""

    def with_options(options: Mapping[str, Any]) -> Factory:
        return functools.partial(factory, **options) if options else factory

    def make(wanted: Wanted) -> Environment:
        from detent.environments.host import Host

        # A file may ask for one; without a display, it can end the process.
        if wanted.options.get("render_mode") == "human":
            raise BadInput(
                f"{name} would open a window for every environment; leave render_mode out, and watch a policy with "
                "`detent play --window`."
            )
        return Host(with_options(wanted.options), name, wanted)

    return Task(name, suite, backend, make, replayable, size, extra, with_options)


def envpool_task(
    name: str,
    suite: str,
    replayable: bool = True,
    task_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> Task:
    """EnvPool's task `task_id` (default: `name`), made with these options, `without` these parts of its observation."""
    task_id = task_id or name

    def make(wanted: Wanted) -> Environment:
        if wanted.restarts:
            raise BadInput(
                f"{name} is an EnvPool task and cannot be restarted; --on-env-error restart is for Gymnasium tasks."
            )
        from detent.environments.pool import Pool  # imports EnvPool: two seconds

        together = {**(options or {}), **wanted.options}
        return Pool(task_id, replace(wanted, options=together), without)

    def size() -> Size:
        from detent.environments.pool import sizes

        return Size(*sizes(task_id, without))

    def actions(given: Mapping[str, Any]) -> ActionSpace:
        from detent.environments.pool import actions_of

        return actions_of(task_id, {**(options or {}), **given})

    return Task(name, suite, "envpool", make, replayable, size, actions=actions, envpool_id=task_id)


def name_of(factory: Factory) -> str:
    """`module:factory`, the name under which a callable is found again.

    What a script defines is in a module `__main__`, which the next program has too; there, the module is the file's.
    """
    module = factory.__module__
    return f"{_main_module() if module == MAIN else module}:{getattr(factory, '__qualname__', type(factory).__name__)}"


def _main_module() -> str:
    """The name under which the running script can be imported."""
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)  # of `python -m`
    name = spec.name.removesuffix(f".{MAIN}") if spec else Path(getattr(main, "__file__", None) or MAIN).stem
    return name if all(part.isidentifier() for part in name.split(".")) else MAIN


MAIN = "__main__"


def find_task(name: str, imports: Collection[str] | None = None) -> Task:
    """The task of this name.

    `imports` are given where the name was read from a file: the modules that the user named. None: the user gave the
    name itself.
    """
    if name in TASKS.names():
        return TASKS.get(name)
    if ":" in name:
        return gymnasium_task(name, _registered(name, imports) or _factory(name, imports), suite="user")
    env_id = name.removeprefix("gymnasium/")
    if env_id in gymnasium.registry:
        from detent.environments.host import make_factory

        return gymnasium_task(name, make_factory(env_id, {}))
    if imports is not None:
        raise NeedsImport(
            f"The run was trained on {name!r}, which is not a task here; name the module that registers it", "MODULE"
        )
    known = [*TASKS.names(), *gymnasium.registry]
    raise BadInput(
        f"There is no task named {name!r}.{nearest(name, known)} "
        "See `detent tasks`; your own environment is given as module:factory, and one that a module registers with "
        "Gymnasium as module:ID, or by its id and --import MODULE."
    )


def _registered(name: str, imports: Collection[str] | None) -> Factory | None:
    """What makes Gymnasium's `module:ID`, an id that the module registers; None if there is no such id."""
    module_name, _, env_id = name.partition(":")
    if env_id.isidentifier() or (imports is not None and module_name not in imports):
        return None  # an id has a version, which no callable's name has; and a file cannot have a module imported
    import_module(module_name)
    if env_id not in gymnasium.registry:
        return None
    from detent.environments.host import make_factory

    return make_factory(env_id, {})


def _factory(name: str, imports: Collection[str] | None) -> Factory:
    """The callable behind `module:factory`. What a file names is neither imported nor called on the file's word."""
    module_name, _, attribute = name.partition(":")
    if imports is not None and module_name == MAIN:
        raise BadInput(
            f"The run was trained on {name!r}, which a script defined; say where it is now with --task module:factory."
        )
    if imports is not None and module_name not in imports:
        if module_name.partition(".")[0] in sys.stdlib_module_names:
            raise BadInput(f"A file names {name!r} as the task: no environment is made there, and nothing was called.")
        raise NeedsImport(
            f"A file names {name!r} as the task, and Detent neither imports nor calls what a file names; "
            f"if you trust the file with that module, add --import {module_name}",
            module_name,
        )
    import_module(module_name)
    factory = getattr(sys.modules[module_name], attribute, None) if attribute.isidentifier() else None
    if not callable(factory):
        raise BadInput(
            f"The module {module_name!r} has no callable {attribute!r} and registers no such environment; "
            + ("TASK can be module:factory." if imports is None else "name the run's task with --task module:factory.")
        )
    if imports is not None and not _makes_environments(factory, module_name):
        raise BadInput(
            f"A file names {name!r} as the task, and {attribute} is not {module_name}'s own: from a file, only an "
            "environment class or a function that the module's package defines is taken. Register it with "
            "detent.register_task."
        )
    made: Factory = factory
    return made


def _makes_environments(factory: Callable[..., Any], module: str) -> bool:
    """Whether a callable is an environment class, or was defined in the package that the user trusts."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    if isinstance(factory, type) and issubclass(factory, gymnasium.Env):
        return True
    return str(getattr(factory, "__module__", "")).partition(".")[0] == module.partition(".")[0]


def import_module(name: str) -> None:
    """Import a module that the user named, from the current directory too."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadInput(f"{name!r} is not the name of a module; a module is named as in my_package.my_module.")
    if name in sys.modules:
        return
    here = os.getcwd()  # not "": an environment may change the current directory
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.import_module(name)
    except DetentError:
        raise  # as of a name that is taken
    except ImportError as error:
        raise BadInput(f"Cannot import the module {name!r}: {error}.") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"Cannot import the module {name!r}: {one_line(error)}.") from error
