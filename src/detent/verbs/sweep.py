"""`detent sweep`: many runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.errors import BadInput, ClusterLost
from detent.heads import HEADS
from detent.options import flag, whole_number
from detent.report.listing import listing
from detent.report.loading import load_runs
from detent.runs import run as c
from detent.runs.presets import EARLIER, PRESETS
from detent.runs.progress import say
from detent.sweeps import plan as sweeps
from detent.sweeps.cores import sweep
from detent.sweeps.progress import follow_sweep
from detent.trunks import TRUNKS
from detent.verbs.flags import Parser, ask, import_flag, import_modules, location, positive_number
from detent.verbs.stopping import Stop

MANY_RUNS = 1_000
"""A larger sweep asks for confirmation before it starts."""


def main(argv: list[str]) -> int:
    here = os.getcwd()  # which an environment may change as soon as it is made
    first = Parser("sweep", add_help=False)
    import_flag(first)
    import_modules(first.parse_known_args([word for word in argv if word != "--help"])[0].imports)
    args = _parser().parse_args(argv)
    keys = (*sweeps.NAMES, *sweeps.OWN_KEYS, *sweeps.option_kinds())
    # For a boolean option, the flag alone means true.
    flags = {key: vars(args)[key] or ["true"] for key in keys if vars(args)[key] is not None}
    plan = sweeps.plan_from_file(args.file, flags, args.imports) if args.file else sweeps.plan_from_flags(flags)
    if args.out is None and args.file is None:
        raise BadInput("Give a directory for the runs with --out, for example --out sweeps/first.")
    out = os.path.join(here, args.out or os.path.join("sweeps", os.path.splitext(os.path.basename(args.file))[0]))
    if args.ray and args.ray.endswith(".toml"):
        raise BadInput(f"--ray {args.ray}: name the file first, as in `detent sweep {args.ray} --ray`.")
    if plan.count() > MANY_RUNS and not args.yes:
        ask(f"This is a sweep of {plan.count():,} runs.", "Start?", "Nothing was started.")
    return carry_out(plan.runs(), out, args, ["sweep", *argv])


def _parser() -> Parser:
    parser = Parser(
        "sweep",
        usage="detent sweep [FILE.toml] [flags]",
        description="Train many policies, one single-threaded run per core. Finished runs are\n"
        "skipped and interrupted runs continue: repeat the command at any time.",
        epilog="Every option of `detent train` is a flag here too, with one or more values. An\n"
        "option applies to the heads, algorithms, trunks and critics that have it.\n"
        "Values can be ranges (--seed 0-4) or, with --draws, drawn at random:\n"
        "uniform:LOW,HIGH, log-uniform:LOW,HIGH or choice:A,B,C. A file has the same\n"
        "keys, written with underscores; flags override it. See docs/sweeps.md.\n\n"
        "The exit code is 0 if every run finished or diverged, and 3 if some failed\n"
        "or the Ray cluster is gone.",
    )
    parser.add_argument("file", type=location, nargs="?", metavar="FILE.toml", help="a sweep as a file")
    what = parser.add_argument_group("what to train: several values make a grid")
    for name, known, default in (
        ("task", None, None),
        ("head", HEADS.names(), f"{' or '.join(c.DEFAULT_HEADS)}, whichever fits the task"),
        ("algo", ALGORITHMS.names(), c.DEFAULT_ALGO),
        ("trunk", TRUNKS.names(), c.DEFAULT_TRUNK),
        ("critic", CRITICS.names(), c.DEFAULT_CRITIC),
        ("preset", [*PRESETS, *EARLIER, "FILE.toml"], c.DEFAULT_PRESET),
    ):
        about = f"{', '.join(known)} (default: {default})" if known else "names (see `detent tasks`) or module:factory"
        what.add_argument(flag(name), nargs="+", metavar="X", help=about)
    what.add_argument("--seeds", metavar="N", help="the seeds from 0 to N-1")
    what.add_argument("--draws", metavar="N", help="number of random draws")
    what.add_argument("--draw-seed", metavar="N", help="seed of the draws (default: 0)")
    import_flag(parser)
    for name, kind in sweeps.option_kinds().items():
        # Listing them all would bury the rest: `detent train --help` does.
        what.add_argument(flag(name), dest=name, nargs="*" if kind == "bool" else "+", help=argparse.SUPPRESS)
        if kind == "bool":
            what.add_argument(f"--no-{flag(name)[2:]}", dest=name, action="store_const", const=["false"],
                              help=argparse.SUPPRESS)  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument(
        "--out", type=location, metavar="DIR", help="directory for the runs (default for a file: sweeps/<its name>)"
    )
    sweep_flags(how)
    return parser


def sweep_flags(how: Any) -> None:
    """Add the flags that say how runs are carried out."""
    how.add_argument("--jobs", metavar="N", help="runs at a time (default: one per core)")
    how.add_argument("--nice", metavar="N", default="0", help="niceness of the runs, 0 to 19 (default: 0)")
    how.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS",
        help="run on the Ray cluster at this address (auto: this machine's; default: a new local one)",
    )  # fmt: skip
    how.add_argument("--checkpoint-minutes", metavar="X", default="1", help="minutes between checkpoints (default: 1)")
    how.add_argument("--max-minutes", metavar="X", help="kill a run that takes longer than this, and mark it failed")
    how.add_argument("--dry-run", action="store_true", help="list the runs and exit")
    how.add_argument("--yes", action="store_true", help=f"do not ask, even for more than {MANY_RUNS:,} runs")
    how.add_argument("--quiet", action="store_true", help="show no progress")


def carry_out(planned: Sequence[c.Run], out: str, args: argparse.Namespace, command: Sequence[str]) -> int:
    """List the runs or carry them out, and print how they ended."""
    jobs = None if args.jobs is None else whole_number("--jobs", args.jobs, 1)
    nice, minutes = (
        whole_number("--nice", args.nice, 0),
        positive_number("--checkpoint-minutes", args.checkpoint_minutes),
    )
    runs = sweeps.by_name(planned, Path(out))
    total = sum(run.settings.steps for run in runs.values())
    if args.dry_run:
        print("\n".join(sweeps.listed(runs, Path(out))))
        print(f"{len(runs):,} runs, {total:,} steps; {out}")
        return 0
    stopped = Stop()
    events = sweep(
        list(runs.values()), out, jobs=jobs, ray=args.ray, nice=nice, imports=args.imports,
        checkpoint_seconds=60 * (minutes or 1.0), max_minutes=positive_number("--max-minutes", args.max_minutes),
        stop=stopped.why,
    )  # fmt: skip
    if not args.quiet:
        events = follow_sweep(events, len(runs), total)
    again = f"Continue with the same command: {shlex.join(['detent', *command])}"
    status = {}
    try:
        with stopped:
            for event in events:
                status[event.name] = event.status
                if args.quiet and event.status == "failed":
                    print(f"{event.name}: failed ({event.why})", file=sys.stderr)
    except ClusterLost as error:
        raise ClusterLost(f"{error} Nothing that its runs have written is lost. {again}") from error
    known = ("finished", "diverged", "failed", "stopped")
    counts = [f"{n} {kind}" for kind in known if (n := list(status.values()).count(kind))]
    waiting = len(runs) - len(status)
    _print_table(out)
    say(f"{', '.join(counts + [f'{waiting} not started'] * bool(waiting))}; {out}")
    if stopped.signal is None:
        say(f"For curves and comparisons: {shlex.join(['detent', 'report', out])}")
        return 3 if "failed" in status.values() else 0
    say(again)
    return 128 + stopped.signal


def _print_table(out: str) -> None:
    """The groups of a sweep with their means; nothing if there is no run to read."""
    with contextlib.suppress(BadInput):
        for line in listing(load_runs([out])):
            say(line)
