"""`detent train`: one run."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.errors import BadInput
from detent.files import Corrupt
from detent.heads import HEADS
from detent.options import flag, options_of
from detent.runs import loggers
from detent.runs import run as c
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.presets import EARLIER, PRESETS
from detent.runs.progress import follow, rounded, say
from detent.runs.training import Record
from detent.tasks import find_task
from detent.trunks import TRUNKS
from detent.verbs.flags import Parser, ask, import_flag, import_modules, location, positive_number
from detent.verbs.stopping import Stop


def main(argv: list[str]) -> int:
    here = os.getcwd()  # which an environment may change as soon as it is made
    first = Parser("train", add_help=False)
    import_flag(first)
    for name, default in {**c.Names._field_defaults, "head": None}.items():
        first.add_argument(f"--{name}", default=default)
    chosen, _ = first.parse_known_args(argv)
    import_modules(chosen.imports)

    # The flags depend on the head, and the head, if it is not named, on the task.
    named, chosen.head = chosen.head, chosen.head or c.DEFAULT_HEAD
    parser = _parser(chosen)
    args, unknown = parser.parse_known_args(argv)
    task = find_task(args.task)
    if named is None:
        chosen.head = c.fitting_head(task, args.env_kwargs)
        parser = _parser(chosen)
        args, unknown = parser.parse_known_args(argv)
    if unknown:
        if unknown[0].startswith("--"):
            name = unknown[0].split("=")[0].removeprefix("--").replace("-", "_")
            raise BadInput(c.unknown_option(name, _names(chosen)))
        parser.error(f"unexpected argument {unknown[0]!r}")
    given = vars(args)
    options = {f.name: given[f.name] for part in _names(chosen).option_parts for f in options_of(part)}
    run = c.Run(task, *_names(chosen)[1:], **options)
    out = os.path.join(here, args.out or os.path.join("runs", run.slug))
    init = os.path.join(here, args.init_from) if args.init_from else None
    if args.overwrite and not args.yes:
        _ask_to_overwrite(RunDirectory(out))
    return carry_out(run, out, args, resume=args.resume, init=init)


def _ask_to_overwrite(directory: RunDirectory) -> None:
    """Ask before a run is deleted, unless it has not made a step."""
    if not (directory.exists and directory.begun):
        return
    steps = 0
    with contextlib.suppress(Corrupt):
        for record in directory.each_record():
            steps = int(record["time/total_timesteps"] or 0)
    told = f"a run of {steps:,} steps" if steps else "a run"
    ask(f"{directory.path} holds {told}, which --overwrite deletes.", "Delete it?", "Nothing was deleted.")


def _names(chosen: argparse.Namespace) -> c.Names:
    return c.Names("", *(vars(chosen)[name] for name in c.Names._fields[1:]))


def _parser(chosen: argparse.Namespace) -> Parser:
    parser = Parser("train", usage="detent train TASK [flags]", description="Train a policy.")
    parser.add_argument("task", metavar="TASK", help="a name (see `detent tasks`) or module:factory")
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--head",
        help=f"policy head: {', '.join(HEADS.names())} (default: {' or '.join(c.DEFAULT_HEADS)}, whichever fits the "
        "task)",
    )
    what.add_argument("--algo", help=f"algorithm: {', '.join(ALGORITHMS.names())} (default: {c.DEFAULT_ALGO})")
    what.add_argument("--trunk", help=f"network: {', '.join(TRUNKS.names())} (default: {c.DEFAULT_TRUNK})")
    what.add_argument("--critic", help=f"value function: {', '.join(CRITICS.names())} (default: {c.DEFAULT_CRITIC})")
    what.add_argument("--preset", help=preset_help())
    import_flag(parser)
    where = parser.add_argument_group("the run directory")
    where.add_argument("--out", type=location, help="the run directory (default: runs/<task>-<algo>-<head>-<seed>)")
    where.add_argument("--resume", action="store_true", help="continue the run in --out, if there is one")
    where.add_argument(
        "--overwrite", action="store_true", help="delete the run in --out, if there is one, after asking"
    )
    where.add_argument("--yes", action="store_true", help="with --overwrite, do not ask")
    where.add_argument("--init-from", type=location, metavar="RUN", help="start from the parameters of another run")
    execution_flags(where)
    preset, names = c.preset_values(_names(chosen)), _names(chosen)
    titles = [f"the {registry.kind} ({getattr(names, kind)})" for kind, registry in c.PARTS.items()]
    for title, part in zip([*titles, "the training"], names.option_parts, strict=True):
        if not any(options_of(part)):
            continue
        group = parser.add_argument_group(title)
        for declared in options_of(part):
            default = preset.get(declared.name, declared.default)
            about = declared.metadata["help"].replace("%", "%%")
            shown = "" if default is None else f" (default: {_shown(default)})"
            extra: dict[str, Any] = {"metavar": "X"}
            if isinstance(declared.default, bool):
                extra = {"action": argparse.BooleanOptionalAction}
            try:
                group.add_argument(flag(declared.name), dest=declared.name, help=about + shown, **extra)
                for old in declared.metadata["formerly"]:
                    group.add_argument(flag(old), dest=declared.name, help=argparse.SUPPRESS, **extra)
            except argparse.ArgumentError as error:
                raise BadInput(
                    f"{title[0].upper()}{title[1:]} has the option {flag(declared.name)}, which `detent train` has for "
                    "something else; give it another name."
                ) from error
    return parser


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def preset_help() -> str:
    earlier = f"; as they were in earlier versions: {', '.join(EARLIER)}"
    return f"settings: {', '.join(PRESETS)} or FILE.toml (default: {c.DEFAULT_PRESET}){earlier}"


def execution_flags(group: Any) -> None:
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


def carry_out(run: c.Run, out: str, args: argparse.Namespace, resume: bool, init: str | None = None) -> int:
    """Train in a run directory, with progress, loggers and signals."""
    out = os.path.abspath(out)
    # XLA's thread pool would only compete with the environments' threads: the matrices are small.
    os.environ.setdefault("NPROC", "1")
    stopped = Stop()
    how = Execution(
        resume=resume,
        overwrite=getattr(args, "overwrite", False),
        max_minutes=positive_number("--max-minutes", args.max_minutes),
        checkpoint_seconds=60 * (positive_number("--checkpoint-minutes", args.checkpoint_minutes) or 1.0),
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
        records = follow(records, os.path.basename(os.path.normpath(out)), run.settings.steps)
    last = None
    with stopped:
        for record in records:
            last = record
    return _print_end(RunDirectory(out), last, stopped.signal)


FEW = 10
"""Records with returns, of which fewer say nothing about a run."""


def _never_moved(directory: RunDirectory) -> bool:
    """Whether the mean return of a run is the same in all of its records."""
    lowest, highest, count = math.inf, -math.inf, 0
    for record in directory.each_record():
        value = record.get("rollout/ep_rew_mean")
        if value is not None:
            lowest, highest, count = min(lowest, value), max(highest, value), count + 1
    return count >= FEW and lowest == highest


def _print_end(directory: RunDirectory, last: Record | None, caught: int | None) -> int:
    """Print how the run ended, and return the exit code."""
    status = directory.status()
    if last is None:
        say(f"{directory.path} is already {status}; there is nothing to do.")
        return 0
    value = last["rollout/ep_rew_mean"]
    result = "no episode has ended" if value is None else f"mean return of the last 100 episodes {rounded(value)}"
    say(f"{status} after {int(last['time/total_timesteps'] or 0):,} steps: {result}; {directory.path}")
    if status == "finished":
        if _never_moved(directory):
            say(
                "The return was the same from beginning to end: the policy met no reward that depends on what it does. "
                "A larger --initial-std tries more, and a reward that tells how near success is teaches more."
            )
        return 0
    say(f"Continue with: detent resume {directory.path}")
    return 3 if caught is None else 128 + caught
