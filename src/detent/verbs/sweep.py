"""`detent sweep`: many runs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent import configuration as c
from detent import sweeps
from detent.algorithms import ALGORITHMS
from detent.errors import BadInput
from detent.heads import HEADS
from detent.options import flag
from detent.presets import PRESETS
from detent.progress import follow_sweep
from detent.scheduling import sweep
from detent.verbs.flags import Parser, import_flag, import_modules, positive_number, whole_number
from detent.verbs.stopping import Stop

MANY_RUNS = 1_000
"""A sweep of more asks before it starts."""


def main(argv: list[str]) -> int:
    first = Parser("sweep", add_help=False)
    import_flag(first)
    import_modules(first.parse_known_args([word for word in argv if word != "--help"])[0].imports)
    args = _parser().parse_args(argv)
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
        ask(f"This is a sweep of {plan.count():,} runs.")
    return carry_out(plan.runs(), out, args, ["sweep", *argv])


def _parser() -> Parser:
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
    import_flag(parser)
    for name, kind in sweeps.option_kinds().items():
        # Listing them all would bury the rest: `detent train --help` does.
        what.add_argument(flag(name), dest=name, nargs="*" if kind == "bool" else "+", help=argparse.SUPPRESS)
        if kind == "bool":
            what.add_argument(f"--no-{flag(name)[2:]}", dest=name, action="store_const", const=["false"],
                              help=argparse.SUPPRESS)  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--out", metavar="DIR", help="where to: DIR/<run>/... (default for a file: sweeps/<its name>)")
    sweep_flags(how)
    return parser


def sweep_flags(how: Any) -> None:
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


def carry_out(planned: Sequence[c.Run], out: str, args: argparse.Namespace, command: Sequence[str]) -> int:
    """List the runs or carry them out, and tell how they ended."""
    jobs = None if args.jobs is None else whole_number("--jobs", args.jobs, 1)
    nice, minutes = (
        whole_number("--nice", args.nice, 0),
        positive_number("--checkpoint-minutes", args.checkpoint_minutes),
    )
    runs = sweeps.by_name(planned)
    total = sum(run.settings.steps for run in runs.values())
    if args.dry_run:
        print("\n".join(sweeps.listed(runs, Path(out))))
        print(f"{len(runs):,} runs, {total:,} steps; {out}")
        return 0
    stopped = Stop()
    events = sweep(
        list(runs.values()), out, jobs=jobs, ray=args.ray, nice=nice, imports=args.imports,
        checkpoint_seconds=60 * (minutes or 1.0), stop=stopped.why,
    )  # fmt: skip
    if not args.quiet:
        events = follow_sweep(events, len(runs), total)
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


def ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"{question} If that is what you want, add --yes.")
    if input(f"{question} Start? [y/N] ").strip().lower() not in ("y", "yes"):
        raise BadInput("Nothing was started.")
