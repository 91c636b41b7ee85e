"""`detent paper`: the paper's figures and tables."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from detent.errors import BadInput
from detent.options import whole_number
from detent.paper.experiments import Experiment, experiments, find
from detent.paper.measuring import measure
from detent.paper.showing import show
from detent.runs.presets import is_file
from detent.verbs.flags import Parser, ask, location, parse
from detent.verbs.sweep import MANY_RUNS, carry_out, sweep_flags

PAPER_RUNS = os.path.join("runs", "paper")


def main(argv: list[str]) -> int:
    parts = {"run": _run, "show": _show}
    if argv and argv[0] in parts:
        return parts[argv[0]](argv[1:])
    parser = Parser(
        "paper",
        usage="detent paper [run NAME | show NAME] [flags]",
        description="List the paper's figures and tables; `run` one, or `show` its results beside\n"
        "the paper's. For details: `detent paper run --help`.",
    )
    parser.parse_args(argv)
    print(f"{'name':<10}{'what':<58}{'runs':>5}{'steps':>7}")
    for name, experiment in experiments().items():
        count, steps = ("-", "-") if experiment.measure else (len(experiment.runs()), f"{experiment.steps:.0e}")
        print(f"{name:<10}{experiment.title:<58}{count:>5}{str(steps).replace('e+0', 'e'):>7}")
    print("\nruns, steps: at the paper's scale, with its tuning. For something smaller, try:")
    print("  detent paper run table2 --task HalfCheetah --steps 1e6 --seeds 3 --bins 11")
    return 0


def _run(argv: list[str]) -> int:
    parser = Parser(
        "paper run",
        usage="detent paper run NAME [flags]",
        description="Run a figure or table of the paper, in full or in part. Finished runs are\n"
        "skipped, even those of another figure; repeat the command at any time.",
        epilog="The paper reports the best K and, for every head but Beta, the best of two\n"
        "learning rates (PPO) or KLs (TRPO, ACKTR). All of them are run by default;\n"
        "--no-tuning uses the preset's only. `detent paper show NAME` shows the best.",
    )
    parser.add_argument("name", metavar="NAME", help="see `detent paper`")
    what = parser.add_argument_group("which part of it, at which scale (default: all, as in the paper)")
    what.add_argument("--task", nargs="+", metavar="X", default=[], help="tasks, by the paper's name or ours")
    what.add_argument("--algo", nargs="+", metavar="X", default=[], help="only these of its algorithms")
    what.add_argument("--head", nargs="+", metavar="X", default=[], help="these heads instead")
    what.add_argument("--bins", nargs="+", metavar="K", default=[], help="these numbers of bins instead")
    what.add_argument("--preset", nargs="+", metavar="X", default=["paper"], help="settings (default: paper)")
    what.add_argument("--steps", metavar="N", help="steps of every run")
    what.add_argument("--seeds", metavar="N", help="the seeds from 0 to N-1")
    what.add_argument("--draws", metavar="N", help="random settings, where the paper draws them (figure11)")
    what.add_argument("--no-tuning", dest="tuning", action="store_false", help="only the preset's learning rate or KL")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--out",
        type=location,
        metavar="DIR",
        default=PAPER_RUNS,
        help=f"directory for the runs (default: {PAPER_RUNS})",
    )
    sweep_flags(how)
    args = parse(parser, argv)
    out = os.path.abspath(args.out)  # an environment may change the current directory
    found = find(args.name)
    if any(is_file(preset) for preset in args.preset):
        raise BadInput("`detent paper` runs presets that Detent has; to train with a preset file, use `detent sweep`.")
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
            ask(f"{experiment.name} has {len(runs):,} runs.", "Start?", "Nothing was started.")
        if experiment.alone:
            if args.ray or args.jobs not in (None, "1"):
                raise BadInput(f"{experiment.name} measures time, so its runs need --jobs 1 and no --ray.")
            args.jobs = "1"
        code = code or carry_out(runs, out, args, ["paper", "run", *argv])
    if not args.dry_run and code < 128:
        place = [] if args.out == PAPER_RUNS else [args.out]
        print(f"Show it with: {shlex.join(['detent', 'paper', 'show', args.name, *place])}")
    return code


def _measure(experiment: Experiment, args: argparse.Namespace, asked_for: bool) -> None:
    """Carry out an experiment that trains nothing; flags about training are refused where it alone was asked for."""
    if args.dry_run:
        print(f"{experiment.name} is measured without training; {args.out}")
        return
    if asked_for and (args.steps or args.draws or args.algo or args.preset != ["paper"]):
        raise BadInput(f"{experiment.name} trains nothing; only --task, --head, --bins and --seeds apply to it.")
    seeds = None if args.seeds is None else whole_number("--seeds", args.seeds, 1)
    for line in measure(experiment, Path(args.out), args.task, args.head, args.bins, seeds):
        print(line, flush=True)


def _show(argv: list[str]) -> int:
    parser = Parser(
        "paper show",
        usage="detent paper show NAME [DIR_OR_FILE...] [flags]",
        description="Show the results for a figure or table beside the paper's: as text, as\n"
        "figures, and as a page with every run.",
    )
    parser.add_argument("name", metavar="NAME", help="see `detent paper`")
    parser.add_argument(
        "places", type=location, nargs="*", metavar="DIR_OR_FILE",
        help=f"directories with runs, or compact records (default: {PAPER_RUNS})",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=location, metavar="DIR", default="paper", help="directory for figures and page (default: paper)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, with the intervals of differences")
    args = parser.parse_args(argv)
    places = args.places or ([PAPER_RUNS] if os.path.isdir(PAPER_RUNS) else [])
    for experiment in find(args.name):
        for line in show(experiment, places, args.out, args.markdown):
            print(line)
    return 0
