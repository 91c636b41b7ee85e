"""`detent train`: one run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detent import configuration as c
from detent import loggers
from detent.algorithms import ALGORITHMS
from detent.directory import RunDirectory
from detent.errors import BadInput
from detent.heads import HEADS
from detent.options import flag, options_of
from detent.presets import PRESETS
from detent.progress import follow, rounded
from detent.runs import Execution, execute
from detent.tasks import find_task
from detent.training import Record
from detent.verbs.flags import Parser, import_flag, import_modules, positive_number
from detent.verbs.stopping import Stop


def main(argv: list[str]) -> int:
    first = Parser("train", add_help=False)
    import_flag(first)
    for name, default in (("head", None), ("algo", c.DEFAULT_ALGO), ("preset", c.DEFAULT_PRESET)):
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
            raise BadInput(c.unknown_option(name, chosen.head, chosen.algo))
        parser.error(f"unexpected argument {unknown[0]!r}")
    given = vars(args)
    options = {f.name: given[f.name] for part in c.option_parts(chosen.head, chosen.algo) for f in options_of(part)}
    run = c.Run(task, chosen.head, chosen.algo, chosen.preset, **options)
    return carry_out(run, args.out or os.path.join("runs", run.slug), args, resume=args.resume, init=args.init_from)


def _parser(chosen: argparse.Namespace) -> Parser:
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
    import_flag(parser)
    where = parser.add_argument_group("the run directory")
    where.add_argument("--out", help="where to (default: runs/<task>-<algo>-<head>-<seed>)")
    where.add_argument("--resume", action="store_true", help="continue the run in --out, if there is one")
    where.add_argument("--init-from", metavar="RUN", help="start from the parameters of another run")
    execution_flags(where)
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
    """Train in a run directory, with everything that watches."""
    # XLA's thread pool would only get in the way of the environments' threads: our matrices are small.
    os.environ.setdefault("NPROC", "1")
    stopped = Stop()
    how = Execution(
        resume=resume,
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
    return _told_end(RunDirectory(out), last, stopped.signal)


def _told_end(directory: RunDirectory, last: Record | None, caught: int | None) -> int:
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
