"""The command line. Verbs import what they need, so that `detent --help` is quick."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from detent.errors import BadInput, DetentError, NeedsImport

if TYPE_CHECKING:
    from pathlib import Path

    from detent.configuration import Run
    from detent.directory import RunDirectory
    from detent.paper.experiments import Experiment
    from detent.training import Record
    from detent.verification import Finding


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, verb: str = "", **options: Any) -> None:
        super().__init__(
            prog=f"detent {verb}".strip(),
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=80),
            **options,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 done, 1 verified and found different, 2 bad input, 3 stopped or diverged, 130/143 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except NeedsImport as error:
        print(f"detent: {error}: {shlex.join(['detent', *words, '--import', error.module])}", file=sys.stderr)
        return error.exit_code
    except DetentError as error:
        print(f"detent: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader (head, less) went away; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    verbs = "\n".join(f"  {name:<8} {about}" for name, (about, _) in VERBS.items())
    parser = Parser(
        usage="detent VERB ...",
        description=f"On-policy training for continuous actions.\n\nverbs:\n{verbs}",
        epilog="`detent VERB --help` tells more.",
    )
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    args, _ = parser.parse_known_args(argv[:1])
    if args.version:
        from importlib.metadata import version

        print(f"detent {version('detent')}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    if args.verb not in VERBS:
        from detent.registry import nearest

        raise BadInput(f"There is no verb {args.verb!r}.{nearest(args.verb, VERBS)} See `detent --help`.")
    return VERBS[args.verb][1](argv[1:])


def _import_flag(parser: Parser) -> None:
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="MODULE",
        help="import this module first, for heads, algorithms and tasks of your own; may be repeated",
    )  # fmt: skip


def _import(modules: Sequence[str]) -> None:
    if modules:
        from detent.tasks import import_module

        for module in modules:
            import_module(module)


# --- train and resume ---


def _train(argv: list[str]) -> int:
    from detent import configuration as c
    from detent.options import options_of
    from detent.tasks import find_task

    first = Parser("train", add_help=False)
    _import_flag(first)
    for name, default in (("head", None), ("algo", c.DEFAULT_ALGO), ("preset", c.DEFAULT_PRESET)):
        first.add_argument(f"--{name}", default=default)
    chosen, _ = first.parse_known_args(argv)
    _import(chosen.imports)

    # The flags depend on the head, and the head, if it is not named, on the task.
    named, chosen.head = chosen.head, chosen.head or c.DEFAULT_HEAD
    parser = _train_parser(chosen)
    args, unknown = parser.parse_known_args(argv)
    task = find_task(args.task)
    if named is None:
        chosen.head = c.fitting_head(task, args.env_kwargs)
        parser = _train_parser(chosen)
        args, unknown = parser.parse_known_args(argv)
    if unknown:
        if unknown[0].startswith("--"):
            name = unknown[0].split("=")[0].removeprefix("--").replace("-", "_")
            raise BadInput(c.unknown_option(name, chosen.head, chosen.algo))
        parser.error(f"unexpected argument {unknown[0]!r}")
    given = vars(args)
    options = {f.name: given[f.name] for part in c.option_parts(chosen.head, chosen.algo) for f in options_of(part)}
    run = c.Run(task, chosen.head, chosen.algo, chosen.preset, **options)
    return _carry_out(run, args.out or os.path.join("runs", run.slug), args, resume=args.resume, init=args.init_from)


def _train_parser(chosen: argparse.Namespace) -> Parser:
    from detent import configuration as c
    from detent.algorithms import ALGORITHMS
    from detent.heads import HEADS
    from detent.options import flag, options_of
    from detent.presets import PRESETS

    parser = Parser("train", usage="detent train TASK [flags]", description="Train a policy.")
    parser.add_argument("task", metavar="TASK", help="a name (see `detent tasks`) or module:factory")
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--head",
        help=f"policy head: {', '.join(HEADS.names())} (default: {c.DEFAULT_HEAD}; {c.CHOOSING_HEAD} where the task's "
        "actions are choices)",
    )
    what.add_argument("--algo", help=f"algorithm: {', '.join(ALGORITHMS.names())} (default: {c.DEFAULT_ALGO})")
    what.add_argument("--preset", help=f"settings: {', '.join(PRESETS)} (default: {c.DEFAULT_PRESET})")
    _import_flag(parser)
    where = parser.add_argument_group("the run directory")
    where.add_argument("--out", help="where to (default: runs/<task>-<algo>-<head>-<seed>)")
    where.add_argument("--resume", action="store_true", help="continue the run in --out, if there is one")
    where.add_argument("--init-from", metavar="RUN", help="start from the parameters of another run")
    _execution_flags(where)
    preset = c.checked_preset(chosen.preset, chosen.algo, chosen.head)
    titles = (f"the head ({chosen.head})", f"the algorithm ({chosen.algo})", "the training")
    for title, part in zip(titles, c.option_parts(chosen.head, chosen.algo), strict=True):
        group = parser.add_argument_group(title)
        for declared in options_of(part):
            default = preset.get(declared.name, declared.default)
            about = declared.metadata["help"].replace("%", "%%")
            shown = "" if default is None else f" (default: {_shown(default)})"
            extra: dict[str, Any] = {"metavar": "X"}
            if isinstance(declared.default, bool):
                extra = {"action": argparse.BooleanOptionalAction}
            group.add_argument(flag(declared.name), dest=declared.name, help=about + shown, **extra)
    return parser


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _execution_flags(group: Any) -> None:
    group.add_argument("--max-minutes", metavar="X", help="stop, resumable, after this many minutes")
    group.add_argument(
        "--checkpoint-minutes", metavar="X", default="1", help="minutes between checkpoints (default: 1)"
    )
    group.add_argument(
        "--keep",
        choices=("last", "all"),
        default="last",
        help="which checkpoints to keep (default: the first and the last two)",
    )
    group.add_argument("--tensorboard", action="store_true", help="log to TensorBoard, into the run directory")
    group.add_argument("--wandb", action="store_true", help="log to Weights & Biases")
    group.add_argument("--quiet", action="store_true", help="show no progress")


def _resume(argv: list[str]) -> int:
    from detent.configuration import FREE_OPTIONS, Settings
    from detent.directory import RunDirectory
    from detent.options import flag, options_of

    parser = Parser("resume", description="Continue a run where its last checkpoint left it.")
    parser.add_argument("run", metavar="RUN", help="a run directory")
    _import_flag(parser)
    _execution_flags(parser)
    changeable = ("steps", *FREE_OPTIONS)
    for declared in options_of(Settings):
        if declared.name in changeable:
            about = "make the run longer" if declared.name == "steps" else declared.metadata["help"]
            parser.add_argument(flag(declared.name), dest=declared.name, metavar="X", help=about)
    args = parser.parse_args(argv)
    _import(args.imports)
    changes = {name: vars(args)[name] for name in changeable if vars(args)[name] is not None}
    run = RunDirectory(args.run).run(**changes)
    if not args.quiet and not run.task.replayable:
        print(f"{run.names[0]} cannot be brought back to where it was: the run resumes with new episodes.")
    return _carry_out(run, args.run, args, resume=True)


# --- verify ---


def _verify(argv: list[str]) -> int:
    from detent import verification as v
    from detent.directory import RunDirectory

    parser = Parser(
        "verify",
        description="Execute stretches of a run again and compare every bit with what the run wrote\n"
        "down. Default: the first stretch and the last. Exit code 1: something differs.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory; nothing in it is changed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--link", metavar="N", help="the stretch that ends in this link of the hash chain")
    which.add_argument("--sample", metavar="M", help="so many stretches, chosen at random")
    which.add_argument("--all", action="store_true", help="the whole run")
    parser.add_argument("--seed", metavar="N", default="0", help="seed of the choice (default: 0)")
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    link = None if args.link is None else _whole("--link", args.link, 1)
    sample = None if args.sample is None else _whole("--sample", args.sample, 1)
    seed = _whole("--seed", args.seed, 0)

    os.environ.setdefault("NPROC", "1")  # as in training
    directory = RunDirectory(args.run)
    run = directory.run()
    found = v.stretches(directory, run)
    elsewhere = v.foreign(directory)
    if elsewhere:
        print(f"Bits may differ, because this is another machine or other versions: {elsewhere}.")
    print(f"{directory.path} has {found[-1].numbers[-1]} checkpoints, in {len(found)} stretches that can be repeated.")
    alike = True
    for stretch in v.chosen(found, link, sample, args.all, seed):
        finding = v.check(directory, run, stretch)
        if elsewhere and finding.difference:
            finding = v.check_elsewhere(directory, run, stretch)
        alike &= finding.difference is None
        print(f"{stretch}: {_verdict(finding, elsewhere is not None)}", flush=True)
        for note in finding.notes:
            print(f"  {note}")
    return 0 if alike else 1


def _verdict(finding: Finding, elsewhere: bool) -> str:
    if finding.difference:
        return f"DIFFERENT: {finding.difference}"
    if finding.notes:
        return "not identical, but the first steps and the first update agree within the tolerances"
    return "identical" + " all the same" * elsewhere


def _carry_out(run: Run, out: str, args: argparse.Namespace, resume: bool, init: str | None = None) -> int:
    """Train in a run directory, with everything that watches."""
    from pathlib import Path

    from detent import loggers, progress
    from detent.directory import RunDirectory
    from detent.runs import Execution, execute

    # XLA's thread pool would only get in the way of the environments' threads: our matrices are small.
    os.environ.setdefault("NPROC", "1")
    stopped = _Stop()
    how = Execution(
        resume=resume,
        max_minutes=_positive("--max-minutes", args.max_minutes),
        checkpoint_seconds=60 * (_positive("--checkpoint-minutes", args.checkpoint_minutes) or 1.0),
        keep_all=args.keep == "all",
        init_from=init,
        stop=stopped.why,
    )
    records: Iterator[Record] = execute(run, out, how)
    if args.tensorboard:
        records = loggers.to_tensorboard(records, Path(out))
    if args.wandb:
        records = loggers.to_wandb(records, Path(out), run.configuration)
    if not args.quiet:
        records = progress.follow(records, os.path.basename(os.path.normpath(out)), run.settings.steps)
    last = None
    with stopped:
        for record in records:
            last = record
    return _told_end(RunDirectory(out), last, stopped.signal)


def _told_end(directory: RunDirectory, last: Record | None, caught: int | None) -> int:
    from detent.progress import rounded

    status = directory.status()
    if last is None:
        print(f"{directory.path} is {status} already; there is nothing to do.")
        return 0
    value = last["rollout/ep_rew_mean"]
    told = "no episode has ended" if value is None else f"mean return of the last 100 episodes {rounded(value)}"
    print(f"{status} after {int(last['time/total_timesteps'] or 0):,} steps: {told}; {directory.path}")
    if status == "finished":
        return 0
    print(f"Continue with: detent resume {directory.path}")
    return 3 if caught is None else 128 + caught


def _positive(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be a number greater than 0, not {text!r}.")
    return value


class _Stop:
    """SIGINT and SIGTERM end the run after the current iteration; a second one ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def why(self) -> str | None:
        return None if self.signal is None else f"received {signal.Signals(self.signal).name}"

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._caught)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


# --- sweep ---

MANY_RUNS = 1_000
"""A sweep of more asks before it starts."""


def _sweep(argv: list[str]) -> int:
    first = Parser("sweep", add_help=False)
    _import_flag(first)
    _import(first.parse_known_args([word for word in argv if word != "--help"])[0].imports)
    args = _sweep_parser().parse_args(argv)

    from detent import sweeps

    keys = (*sweeps.NAMES, *sweeps.OWN_KEYS, *sweeps.option_kinds())
    # Of an option that is true or false, the flag alone is enough.
    flags = {key: vars(args)[key] or ["true"] for key in keys if vars(args)[key] is not None}
    plan = sweeps.plan_from_file(args.file, flags) if args.file else sweeps.plan_from_flags(flags)
    if args.out is None and args.file is None:
        raise BadInput("Say where the runs are to go with --out, e.g. --out sweeps/first.")
    out = args.out or os.path.join("sweeps", os.path.splitext(os.path.basename(args.file))[0])
    if args.ray and args.ray.endswith(".toml"):
        raise BadInput(f"--ray {args.ray}: name the file first, as in `detent sweep {args.ray} --ray`.")
    if plan.count() > MANY_RUNS and not args.yes:
        _ask(f"This is a sweep of {plan.count():,} runs.")
    return _carry_out_sweep(plan.runs(), out, args, ["sweep", *argv])


def _carry_out_sweep(planned: Sequence[Run], out: str, args: argparse.Namespace, command: Sequence[str]) -> int:
    """List the runs or carry them out, and tell how they ended."""
    from pathlib import Path

    from detent import progress, sweeps
    from detent.scheduling import sweep

    jobs = None if args.jobs is None else _whole("--jobs", args.jobs, 1)
    nice, minutes = _whole("--nice", args.nice, 0), _positive("--checkpoint-minutes", args.checkpoint_minutes)
    runs = sweeps.by_name(planned)
    total = sum(run.settings.steps for run in runs.values())
    if args.dry_run:
        print("\n".join(sweeps.listed(runs, Path(out))))
        print(f"{len(runs):,} runs, {total:,} steps; {out}")
        return 0
    stopped = _Stop()
    events = sweep(
        list(runs.values()), out, jobs=jobs, ray=args.ray, nice=nice, imports=args.imports,
        checkpoint_seconds=60 * (minutes or 1.0), stop=stopped.why,
    )  # fmt: skip
    if not args.quiet:
        events = progress.follow_sweep(events, len(runs), total)
    status = {}
    with stopped:
        for event in events:
            status[event.name] = event.status
    known = ("finished", "diverged", "failed", "stopped")
    told = [f"{n} {kind}" for kind in known if (n := list(status.values()).count(kind))]
    waiting = len(runs) - len(status)
    print(f"{', '.join(told + [f'{waiting} not begun'] * bool(waiting))}; {out}")
    if stopped.signal is None:
        return 3 if "failed" in status.values() else 0
    print(f"Continue with the same command: {shlex.join(['detent', *command])}")
    return 128 + stopped.signal


def _sweep_parser() -> Parser:
    from detent import configuration as c
    from detent.algorithms import ALGORITHMS
    from detent.heads import HEADS
    from detent.options import flag
    from detent.presets import PRESETS
    from detent.sweeps import option_kinds

    parser = Parser(
        "sweep",
        usage="detent sweep [FILE.toml] [flags]",
        description="Train many policies, one single-threaded run per core. What has finished is\n"
        "skipped, what was interrupted continues: repeat the command at any time.",
        epilog="Every option of `detent train` is a flag here too, with one or more values; one\n"
        "that a head or an algorithm does not have is not applied to it. Values can be\n"
        "ranges (--seed 0-4) or, with --draws, drawn at random: uniform:LOW,HIGH,\n"
        "log-uniform:LOW,HIGH or choice:A,B,C. In a file the same keys are used with\n"
        "underscores; flags take the place of its keys. docs/sweeps.md tells more.\n\n"
        "Exit code 0: every run is finished or diverged; 3: some failed.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE.toml", help="a sweep as a file")
    what = parser.add_argument_group("what to train: several values make a grid")
    for name, known, default in (
        ("task", None, None),
        ("head", HEADS.names(), f"{c.DEFAULT_HEAD}; {c.CHOOSING_HEAD} where the task's actions are choices"),
        ("algo", ALGORITHMS.names(), c.DEFAULT_ALGO),
        ("preset", PRESETS, c.DEFAULT_PRESET),
    ):
        about = f"{', '.join(known)} (default: {default})" if known else "names (see `detent tasks`) or module:factory"
        what.add_argument(flag(name), nargs="+", metavar="X", help=about)
    what.add_argument("--seeds", metavar="N", help="the seeds from 0 to N-1")
    what.add_argument("--draws", metavar="N", help="random draws of the options that are drawn")
    what.add_argument("--draw-seed", metavar="N", help="seed of the draws (default: 0)")
    _import_flag(parser)
    for name, kind in option_kinds().items():
        # Listing them all would bury the rest: `detent train --help` does.
        what.add_argument(flag(name), dest=name, nargs="*" if kind == "bool" else "+", help=argparse.SUPPRESS)
        if kind == "bool":
            what.add_argument(f"--no-{flag(name)[2:]}", dest=name, action="store_const", const=["false"],
                              help=argparse.SUPPRESS)  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--out", metavar="DIR", help="where to: DIR/<run>/... (default for a file: sweeps/<its name>)")
    _sweep_flags(how)
    return parser


def _sweep_flags(how: Any) -> None:
    """How runs are carried out."""
    how.add_argument("--jobs", metavar="N", help="runs at a time (default: one per core)")
    how.add_argument("--nice", metavar="N", default="0", help="how far to give way to others, 0 to 19 (default: 0)")
    how.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS",
        help="run on the Ray cluster at this address (auto: the one of this machine; default: a new one here)",
    )  # fmt: skip
    how.add_argument("--checkpoint-minutes", metavar="X", default="1", help="minutes between checkpoints (default: 1)")
    how.add_argument("--dry-run", action="store_true", help="list the runs and leave")
    how.add_argument("--yes", action="store_true", help=f"do not ask, even for more than {MANY_RUNS:,} runs")
    how.add_argument("--quiet", action="store_true", help="show no progress")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"{question} If that is what you want, add --yes.")
    if input(f"{question} Start? [y/N] ").strip().lower() not in ("y", "yes"):
        raise BadInput("Nothing was started.")


# --- eval, tasks, heads ---


def _eval(argv: list[str]) -> int:
    import numpy as np

    from detent.directory import RunDirectory
    from detent.policy import load
    from detent.progress import rounded
    from detent.runs import evaluate_run

    parser = Parser(
        "eval", description="Play episodes with a trained policy: its most probable actions, and sampled ones."
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    _episode_flags(parser, 20)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    episodes, seed = _whole("--episodes", args.episodes, 1), _whole("--seed", args.seed, 0)
    directory = RunDirectory(args.run)
    run = directory.run()
    policy = load(_policy_path(args.run, args.best))
    results = {
        "mode": evaluate_run(run, policy, episodes, seed),
        "stochastic": evaluate_run(run, policy, episodes, seed, np.random.default_rng(seed)),
    }
    if args.json:
        print(json.dumps({"run": str(directory.path), "steps": policy.meta["steps"], **results}, indent=2))
        return 0
    for kind, summary in results.items():
        success = f", success rate {summary['success_rate']:.2f}" if "success_rate" in summary else ""
        print(
            f"{kind:<10}  return {rounded(summary['mean_reward'])} ± {rounded(summary['std_reward'])} (sd over "
            f"{episodes} episodes), length {summary['mean_ep_length']:,.1f}{success}"
        )
    return 0


def _best_flag(parser: Parser) -> None:
    parser.add_argument("--best", action="store_true", help="the best policy that --eval-every kept, not the last")


def _episode_flags(parser: Parser, episodes: int) -> None:
    parser.add_argument("--episodes", default=str(episodes), metavar="N", help=f"how many (default: {episodes})")
    parser.add_argument("--seed", default="0", metavar="N", help="seed of the episodes (default: 0)")
    _best_flag(parser)


def _policy_path(run: str, best: bool) -> Path:
    """The policy file that RUN means: a run directory's last or best one, or RUN itself."""
    from pathlib import Path

    path = Path(run)
    if not best:
        return path / "policy.safetensors" if path.is_dir() else path
    if not path.is_dir():
        raise BadInput(f"--best is for a run directory, which {run} is not.")
    if not (path / "best_policy.safetensors").exists():
        raise BadInput(f"{run} has no best policy: training keeps one with --eval-every only.")
    return path / "best_policy.safetensors"


def _whole(name: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise BadInput(f"{name} must be a whole number of at least {least}, not {text!r}.")
    return int(text)


def _tasks(argv: list[str]) -> int:
    parser = Parser("tasks", description="List the tasks.")
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="only those of this suite")
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    from detent.registry import nearest
    from detent.tasks import TASKS

    tasks = sorted((TASKS.get(name) for name in TASKS.names()), key=lambda task: task.suite)
    suites = sorted({task.suite for task in tasks})
    if args.suite not in (None, *suites):
        raise BadInput(
            f"There is no suite named {args.suite!r}.{nearest(args.suite, suites)} Known: {', '.join(suites)}."
        )
    for suite, members in itertools.groupby(tasks, key=lambda task: task.suite):
        if args.suite not in (None, suite):
            continue
        listed = list(members)
        print(f"{f'{suite} ({listed[0].backend})':<46} obs  act  horizon  resumes")
        for task in listed:
            size = task.size()
            obs, act, horizon = ("?", "?", "?") if size is None else (str(number or "-") for number in size)
            resumes = "exactly" if task.replayable else "new episodes"
            print(f"  {task.name:<44} {obs:>3}  {act:>3}  {horizon:>7}  {resumes}")
        print(f"needs: pip install 'detent[{listed[0].extra}]'\n" if listed[0].extra else "")
    print(
        "obs, act: how many numbers; horizon: steps after which an episode is cut.\n"
        "Also any Gymnasium id (gymnasium/ID where EnvPool has it too), and your own\n"
        "environment as module:factory, which `detent check` looks over."
    )
    return 0


def _check(argv: list[str]) -> int:
    from detent.tasks import find_task

    parser = Parser(
        "check",
        usage="detent check TASK [flags]",
        description="Tell whether an environment of your own can be trained on, and what is wrong\n"
        "with it. Exit code 1: it has a problem.",
    )
    parser.add_argument("task", metavar="TASK", help="module:factory or a Gymnasium id")
    parser.add_argument("--env-kwargs", metavar="X", help="keyword arguments of the environment, as JSON")
    parser.add_argument("--steps", metavar="N", help="random steps to take (default: 3000, or 20 seconds)")
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    from detent import checking
    from detent.configuration import read_env_kwargs

    task = find_task(args.task)
    if task.factory is None:
        raise BadInput(
            f"{task.name} is not a Gymnasium environment but one of Detent's own tasks, which its tests check; give "
            "module:factory or a Gymnasium id."
        )
    steps = checking.STEPS if args.steps is None else _whole("--steps", args.steps, 1)
    worst = "fine"
    for finding in checking.check(task.factory(read_env_kwargs(args.env_kwargs)), task.name, steps):
        print(_wrapped(finding.kind, finding.sentence), flush=True)
        worst = max(worst, finding.kind, key=("fine", "warning", "problem").index)
    verdict = {
        "fine": "It fits.",
        "warning": "It can be trained on; the warnings say at what cost.",
        "problem": "It cannot be trained on like this.",
    }
    print(verdict[worst] + (f" Train with: detent train {args.task}" if worst != "problem" else ""))
    return 1 if worst == "problem" else 0


def _wrapped(kind: str, sentence: str) -> str:
    import textwrap

    return textwrap.fill(sentence, 80, initial_indent=f"{kind:<8} ", subsequent_indent=" " * 9)


def _heads(argv: list[str]) -> int:
    parser = Parser("heads", description="List the policy heads.")
    _import_flag(parser)
    _import(parser.parse_args(argv).imports)
    from detent.heads import HEADS

    for name in HEADS.names():
        about = (HEADS.get(name).__doc__ or "").strip().splitlines()
        print(f"{name:<17} {about[0] if about else ''}")
    return 0


# --- export, play, card ---


def _export(argv: list[str]) -> int:
    from pathlib import Path

    from detent.export import TARGETS, export, file_name
    from detent.policy import load

    parser = Parser("export", description="Write a trained policy as one file that acts without Detent.")
    parser.add_argument("run", metavar="RUN", help="a run directory or a policy file")
    parser.add_argument("--to", required=True, metavar="X", help=f"what to write: {', '.join(TARGETS)}")
    parser.add_argument("--out", metavar="FILE", help="where (default: beside the policy)")
    _best_flag(parser)
    parser.add_argument("--mean", action="store_true", help="the expected action, not the most probable one")
    args = parser.parse_args(argv)
    source = _policy_path(args.run, args.best)
    path = Path(args.out) if args.out else source.with_name(file_name(args.to))
    if path.is_dir():
        raise BadInput(f"--out {path} is a directory; name a file in it.")
    export(load(source), args.to, path, "mean" if args.mean else "mode")
    print(f"{path}  {path.stat().st_size / 1024:,.0f} KB")
    return 0


def _play(argv: list[str]) -> int:
    import contextlib
    from pathlib import Path

    from detent.configuration import Run
    from detent.play import Film, make_env, play
    from detent.policy import load
    from detent.progress import rounded

    parser = Parser(
        "play",
        description="Watch a trained policy: record play.mp4 and play.gif, or open a window.\n"
        "Policies trained in EnvPool play in the Gymnasium environment of the same id.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory or a policy file")
    _episode_flags(parser, 1)
    parser.add_argument("--out", metavar="X", help="FILE.mp4, FILE.gif, or a directory for both (default: RUN)")
    parser.add_argument("--sample", action="store_true", help="sampled actions, not the most probable ones")
    parser.add_argument("--window", action="store_true", help="show a window and record nothing")
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    if args.window and args.out:
        raise BadInput("With --window nothing is recorded; leave --out or --window out.")
    episodes, seed = _whole("--episodes", args.episodes, 1), _whole("--seed", args.seed, 0)
    source = _policy_path(args.run, args.best)
    policy = load(source)
    run = Run.from_configuration(policy.meta.get("configuration", {}))
    out = Path(args.out) if args.out else source.parent
    whole = {} if args.window else {"mp4": out / "play.mp4", "gif": out / "play.gif"}
    files = {out.suffix[1:]: out} if out.suffix in (".mp4", ".gif") else whole
    with contextlib.closing(make_env(run, args.window)) as env, contextlib.ExitStack() as stack:
        film = stack.enter_context(Film(env, files.get("mp4"), files.get("gif"))) if files else None
        for number, episode in enumerate(play(run, policy, env, episodes, seed, args.sample, film), 1):
            print(f"episode {number}: return {rounded(episode.total)} in {episode.length:,} steps", flush=True)
    for path in files.values():
        print(f"{path}  {path.stat().st_size / 1024:,.0f} KB")
    return 0


def _card(argv: list[str]) -> int:
    from pathlib import Path

    from detent.directory import RunDirectory
    from detent.policy import load
    from detent.report.card import write_card

    parser = Parser(
        "card",
        description="Evaluate a trained policy and write its model card: Markdown with the metadata\n"
        "of Hugging Face's model-index, and the learning curve beside it.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("--out", metavar="FILE", help="where (default: README.md in RUN)")
    _episode_flags(parser, 20)
    _import_flag(parser)
    args = parser.parse_args(argv)
    _import(args.imports)
    episodes, seed = _whole("--episodes", args.episodes, 1), _whole("--seed", args.seed, 0)
    directory = RunDirectory(args.run)
    directory.configuration()
    source = _policy_path(args.run, args.best)
    path = Path(args.out) if args.out else directory.path / "README.md"
    if path.is_dir():
        raise BadInput(f"--out {path} is a directory; name a file in it.")
    for written in write_card(directory, source.name, load(source), path, episodes, seed):
        print(written)
    return 0


# --- report ---


def _report(argv: list[str]) -> int:
    parser = Parser(
        "report",
        usage="detent report DIR... [flags]",
        description="Show all runs below some directories on one HTML page: learning curves,\n"
        "comparisons, action distributions, configurations. See docs/report.md.",
    )
    parser.add_argument(
        "dirs", nargs="+", metavar="DIR", help="run directories, directories above them, or files of --compact"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write the page (default: report.html)")
    parser.add_argument("--figures", metavar="DIR", help="draw the learning curves as PNG and PDF into this directory")
    parser.add_argument("--compact", metavar="FILE", help="write all runs into one small file, or add them to it")
    parser.add_argument(
        "--reference", metavar="FILE", help="printed numbers to show beside: paper, or a TOML file (docs/report.md)"
    )
    parser.add_argument("--serve", action="store_true", help="serve a page that refreshes itself, to this machine only")
    parser.add_argument("--port", metavar="N", default="8000", help="port for --serve; 0: any (default: 8000)")
    args = parser.parse_args(argv)
    port = _whole("--port", args.port, 0)
    if args.serve and (args.out or args.figures or args.compact):
        raise BadInput("--serve writes no files; leave out --out, --figures and --compact, or --serve.")
    from detent import report

    reference = None
    if args.reference == "paper":
        from detent.paper.experiments import reference as papers_reference

        reference = papers_reference()
    elif args.reference:
        reference = report.read_reference(args.reference)
    if args.serve:
        from detent.report.serving import Server, Watch

        with Server(Watch(args.dirs, reference), port) as server:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            print(f"Serving {server.address}; Ctrl-C ends it.", flush=True)
            server.serve_forever()
    runs = report.load_runs(args.dirs)
    damaged = [run for run in runs if run.status == "damaged"]
    if args.compact:
        held, damaged = report.write_compact(runs, args.compact)
        print(f"{held:,} run{'s' * (held != 1)}: {os.path.abspath(args.compact)}")
    if args.out or not (args.figures or args.compact):
        out = args.out or "report.html"
        report.write_page(runs, out, reference)
        print(f"{len(runs):,} run{'s' * (len(runs) != 1)}: {os.path.abspath(out)}")
    for path in report.draw_figures(runs, args.figures) if args.figures else ():
        print(path)
    if damaged:
        print(f"{len(damaged):,} of them cannot be read, for example: {damaged[0].why}", file=sys.stderr)
    return 0


# --- paper ---

PAPER_RUNS = os.path.join("runs", "paper")


def _paper(argv: list[str]) -> int:
    parts = {"run": _paper_run, "show": _paper_show}
    if argv and argv[0] in parts:
        return parts[argv[0]](argv[1:])
    parser = Parser(
        "paper",
        usage="detent paper [run NAME | show NAME] [flags]",
        description="List the paper's figures and tables; `run` one, or `show` what has been run of it\n"
        "beside what the paper prints. `detent paper run --help` tells more.",
    )
    parser.parse_args(argv)
    from detent.paper.experiments import experiments

    print(f"{'name':<10}{'what':<58}{'runs':>5}{'steps':>7}")
    for name, experiment in experiments().items():
        count, steps = ("-", "-") if experiment.measure else (len(experiment.runs()), f"{experiment.steps:.0e}")
        print(f"{name:<10}{experiment.title:<58}{count:>5}{str(steps).replace('e+0', 'e'):>7}")
    print("\nruns, steps: at the paper's scale, with all that it tuned. Smaller, for example:")
    print("  detent paper run table2 --task HalfCheetah --steps 1e6 --seeds 3 --bins 11")
    return 0


def _paper_run(argv: list[str]) -> int:
    parser = Parser(
        "paper run",
        usage="detent paper run NAME [flags]",
        description="Run a figure or table of the paper, whole or in part. What has finished is\n"
        "skipped, also if it was run for another one; repeat the command at any time.",
        epilog="The paper reports the best of K and, for every head but Beta, of two learning\n"
        "rates (PPO) or KLs (TRPO, ACKTR). All of them are run unless you say otherwise;\n"
        "--no-tuning keeps the preset's. `detent paper show NAME` says what was best.",
    )
    parser.add_argument("name", metavar="NAME", help="see `detent paper`")
    what = parser.add_argument_group("which part of it, at which scale (default: all, as in the paper)")
    what.add_argument("--task", nargs="+", metavar="X", default=[], help="tasks, by the paper's name or ours")
    what.add_argument("--algo", nargs="+", metavar="X", default=[], help="of its algorithms, only these")
    what.add_argument("--head", nargs="+", metavar="X", default=[], help="these heads instead")
    what.add_argument("--bins", nargs="+", metavar="K", default=[], help="these numbers of bins instead")
    what.add_argument("--preset", nargs="+", metavar="X", default=["paper"], help="settings (default: paper)")
    what.add_argument("--steps", metavar="N", help="steps of every run")
    what.add_argument("--seeds", metavar="N", help="the seeds from 0 to N-1")
    what.add_argument("--draws", metavar="N", help="random settings, where the paper draws them (figure11)")
    what.add_argument("--no-tuning", dest="tuning", action="store_false", help="the preset's learning rate or KL only")
    how = parser.add_argument_group("how")
    how.add_argument("--out", metavar="DIR", default=PAPER_RUNS, help=f"where to (default: {PAPER_RUNS})")
    _import_flag(parser)
    _sweep_flags(how)
    args = parser.parse_args(argv)
    _import(args.imports)
    from detent.paper.experiments import find

    found = find(args.name)
    code = 0
    for experiment in found:
        if experiment.measure:
            _measure(experiment, args, asked_for=len(found) == 1)
            continue
        runs = experiment.runs(
            tasks=args.task, algos=args.algo, heads=args.head, bins=args.bins, presets=args.preset, steps=args.steps,
            seeds=args.seeds, draws=args.draws, tuning=args.tuning,
        )  # fmt: skip
        if len(runs) > MANY_RUNS and not args.yes and not args.dry_run:
            _ask(f"{experiment.name} has {len(runs):,} runs.")
        if experiment.alone:
            if args.ray or args.jobs not in (None, "1"):
                raise BadInput(f"{experiment.name} measures time: its runs are made one at a time, on this machine.")
            args.jobs = "1"
        code = code or _carry_out_sweep(runs, args.out, args, ["paper", "run", *argv])
    if not args.dry_run and code < 128:
        place = [] if args.out == PAPER_RUNS else [args.out]
        print(f"Look at it with: {shlex.join(['detent', 'paper', 'show', args.name, *place])}")
    return code


def _measure(experiment: Experiment, args: argparse.Namespace, asked_for: bool) -> None:
    """Carry out an experiment that trains nothing; flags about training are refused where it alone was asked for."""
    if args.dry_run:
        print(f"{experiment.name} is measured without training; {args.out}")
        return
    if asked_for and (args.steps or args.draws or args.algo or args.preset != ["paper"]):
        raise BadInput(f"{experiment.name} trains nothing; of its scale, --task, --head, --bins and --seeds count.")
    from pathlib import Path

    from detent.paper.measuring import measure

    seeds = None if args.seeds is None else _whole("--seeds", args.seeds, 1)
    for line in measure(experiment, Path(args.out), args.task, args.head, args.bins, seeds):
        print(line, flush=True)


def _paper_show(argv: list[str]) -> int:
    parser = Parser(
        "paper show",
        usage="detent paper show NAME [DIR_OR_FILE...] [flags]",
        description="Show what has been run of a figure or table beside what the paper prints: as\n"
        "text, as figures, and as a page with every run.",
    )
    parser.add_argument("name", metavar="NAME", help="see `detent paper`")
    parser.add_argument(
        "places", nargs="*", metavar="DIR_OR_FILE",
        help=f"directories with runs, or compact records (default: {PAPER_RUNS})",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", default="paper", help="where figures and page go (default: paper)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, with the intervals of differences")
    args = parser.parse_args(argv)
    from detent.paper.experiments import find
    from detent.paper.showing import show

    places = args.places or ([PAPER_RUNS] if os.path.isdir(PAPER_RUNS) else [])
    for experiment in find(args.name):
        for line in show(experiment, places, args.out, args.markdown):
            print(line)
    return 0


VERBS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "train": ("train a policy on a task", _train),
    "sweep": ("train many policies: grids, random draws, Ray", _sweep),
    "resume": ("continue a run, or make it longer", _resume),
    "verify": ("execute a run again and compare the bits", _verify),
    "eval": ("play episodes with a trained policy", _eval),
    "export": ("write a policy as ONNX, NumPy or C", _export),
    "play": ("record a film of a trained policy", _play),
    "card": ("write the model card of a run", _card),
    "report": ("show runs on one HTML page, and in figures", _report),
    "paper": ("run and show the paper's figures and tables", _paper),
    "check": ("tell whether your own environment fits", _check),
    "tasks": ("list the tasks", _tasks),
    "heads": ("list the policy heads", _heads),
}


if __name__ == "__main__":
    sys.exit(main())
