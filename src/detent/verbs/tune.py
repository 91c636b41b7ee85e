"""`detent tune`: a search for good settings."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.errors import BadInput
from detent.files import locked
from detent.heads import HEADS
from detent.options import flag, old_names, options_of, whole_number
from detent.report import load_runs, write_page
from detent.report.studies import read_study
from detent.runs import run as c
from detent.runs.presets import is_file
from detent.runs.progress import say
from detent.sweeps.cores import sweep
from detent.sweeps.plan import option_kinds
from detent.sweeps.progress import follow_sweep
from detent.tasks import find_task
from detent.trunks import TRUNKS
from detent.tuning import files, winner
from detent.tuning.asking import SAMPLERS, load
from detent.tuning.scoring import Failed
from detent.tuning.search import RUNS, Found, Study, Trial, search
from detent.tuning.space import Space, asked_by_file, asked_by_flags, find_space
from detent.verbs.flags import Parser, ask, import_flag, import_modules, location, positive_number
from detent.verbs.stopping import Stop
from detent.verbs.sweep import MANY_RUNS, sweep_flags
from detent.verbs.train import preset_help

PAGE = "report.html"
OWN = ("steps", "seed")
"""Options of a run that mean something else here, or nothing."""


def main(argv: list[str]) -> int:
    here = os.getcwd()  # which an environment may change as soon as it is made
    first = Parser("tune", add_help=False)
    import_flag(first)
    import_modules(first.parse_known_args([word for word in argv if word != "--help"])[0].imports)
    args = _parser().parse_args(argv)
    load()  # a missing extra is better told now than after the first runs
    study = _study(args)
    trials = whole_number("--trials", args.trials, 1)
    fresh_seeds = whole_number("--fresh-seeds", args.fresh_seeds, 0)
    slug = re.sub(r"[^\w.-]+", "_", "+".join(task.name for task in study.tasks))[:80]
    out = Path(here, args.out or os.path.join("tunes", f"{slug}-{study.names['algo']}-{study.names['head']}"))
    if args.dry_run:
        _print_plan(study, trials, out)
        return 0
    new = files.check_same(study, out) is None
    if new and not args.yes and _count(study, trials) > MANY_RUNS:
        ask(f"This is a search of {_count(study, trials):,} runs.", "Start?", "Nothing was started.")
    stopped = Stop()
    try:
        with locked(out, "tuning"), stopped:
            return _tune(study, trials, fresh_seeds, out, args, stopped)
    except _Interrupted:
        say(f"Continue with the same command: {shlex.join(['detent', 'tune', *argv])}")
        return 128 + (stopped.signal or 0)


class _Interrupted(Exception):
    """The user stopped the search; it can be continued."""


def _tune(study: Study, trials: int, fresh_seeds: int, out: Path, args: argparse.Namespace, stopped: Stop) -> int:
    before = files.check_same(study, out)
    if before is None:
        files.write_study(study, trials, None, out)
    carry_out = _carrying_out(out, args, stopped)
    told = 0
    for found in search(study, trials, out, carry_out):
        told = _print_trials(found, told)
        kept = before["fresh"] if before and before["fresh"] and before["fresh"]["trial"] == found.best.number else None
        files.write_study(study, trials, found, out, kept, winner.flags(study, found.best))
    best = found.best
    made = study.runs(best.values, seeds=[0])[0]
    command = f"detent train {made.names.task} --head {made.names.head} --algo {made.names.algo}"
    preset = files.write_preset(made, f"{command} --preset {files.PRESET}", out)
    failed = False
    if fresh_seeds:
        try:
            fresh = winner.check(study, best, fresh_seeds, out, carry_out)
            files.write_study(study, trials, found, out, fresh, winner.flags(study, best))
            for line in winner.told(read_study(out), best):
                say(line)
        except Failed as failure:
            say(f"The check on fresh seeds has failed: {failure}.")
            failed = True
    say(f"The best settings: {winner.flags(study, best)}")
    say(f"as a preset: {preset}")
    write_page(load_runs([out]), out / PAGE, studies=[out])
    say(f"as a page: {out / PAGE}")
    return 3 if failed else 0


# --- what to search ---


def _study(args: argparse.Namespace) -> Study:
    tasks = tuple(find_task(name) for name in dict.fromkeys(args.task))
    given = {name: vars(args)[name] for name in option_kinds() if name not in OWN and vars(args)[name] is not None}
    head = args.head or c.fitting_head(tasks[0], given.get("env_kwargs"))
    preset = os.path.abspath(args.preset) if is_file(args.preset) else args.preset
    names = c.Names(tasks[0].name, head, args.algo, preset, args.trunk, args.critic)
    renamed = old_names(names.option_parts)
    fixed = {renamed.get(name, name): value for name, value in given.items()}
    known = {f.name for part in names.option_parts for f in options_of(part)}
    for name in fixed:
        if name not in known:
            raise BadInput(c.unknown_option(name, names))
    parts = {kind: name for kind, name in names._asdict().items() if kind != "task"}
    plan = Study(
        tasks=tasks,
        names=parts,
        fixed=fixed,
        space={},
        steps=whole_number("--steps", args.steps, 1),
        seeds=whole_number("--seeds", args.seeds, 1, winner.FIRST_FRESH * 100),
        batch=whole_number("--batch", args.batch, 1, 10_000),
        sampler=args.sampler,
        search_seed=whole_number("--search-seed", args.search_seed, 0),
        prune=args.prune,
    )
    plan.runs({}, seeds=[0])  # raises if the default settings are no run
    asked: Space = asked_by_file(args.space, names) if args.space else {}
    asked |= asked_by_flags(args.search, names)
    space = find_space(names, fixed, asked, bool(args.space), lambda values: plan.runs(values, seeds=[0]))
    return Study(**{**vars(plan), "space": space})


def _parser() -> Parser:
    parser = Parser(
        "tune",
        usage="detent tune TASK [TASK ...] [flags]",
        description="Search for good settings. Every trial trains on all tasks with all seeds and is\n"
        "compared with the default settings; the best one is checked on fresh seeds.\n"
        "Repeat the command at any time: it continues where it was.",
        epilog="Every option of `detent train` is a flag here too, and is then fixed. Options\n"
        "that declare a range are searched (--dry-run lists them). See docs/tuning.md.",
    )
    parser.add_argument("task", nargs="+", metavar="TASK", help="names (see `detent tasks`) or module:factory")
    what = parser.add_argument_group("what to tune")
    what.add_argument("--head", help=f"policy head: {', '.join(HEADS.names())}")
    what.add_argument("--algo", default=c.DEFAULT_ALGO, help=f"{', '.join(ALGORITHMS.names())} (default: ppo)")
    what.add_argument("--trunk", default=c.DEFAULT_TRUNK, help=f"{', '.join(TRUNKS.names())} (default: mlp)")
    what.add_argument("--critic", default=c.DEFAULT_CRITIC, help=f"{', '.join(CRITICS.names())} (default: squared)")
    what.add_argument("--preset", default=c.DEFAULT_PRESET, help=f"the default settings; {preset_help()}")
    import_flag(parser)
    how = parser.add_argument_group("the search")
    how.add_argument("--trials", metavar="N", default="40", help="trials besides the default settings (default: 40)")
    how.add_argument("--steps", metavar="N", default="1000000", help="steps of each run (default: 1000000)")
    how.add_argument("--seeds", metavar="N", default="3", help="train each trial with the seeds 0 to N-1 (default: 3)")
    how.add_argument(
        "--fresh-seeds", metavar="N", default="5",
        help="check the winner and the default settings on N other seeds; 0 for no check (default: 5)",
    )  # fmt: skip
    how.add_argument(
        "--search", action="append", default=[], metavar="OPTION=RANGE",
        help="search this option in this range, as in learning-rate=1e-5:1e-2 or bins=7,11,15; may be repeated",
    )  # fmt: skip
    how.add_argument(
        "--space", type=location, metavar="FILE.toml", help="search the options in this file, and no others"
    )
    how.add_argument("--sampler", choices=SAMPLERS, default="tpe", help="how to choose what to try (default: tpe)")
    how.add_argument("--search-seed", metavar="N", default="0", help="seed of the search (default: 0)")
    how.add_argument("--batch", metavar="N", default="4", help="trials that are chosen at a time (default: 4)")
    how.add_argument("--prune", action="store_true", help="give up trials that are below the median halfway through")
    for name, kind in option_kinds().items():
        if name not in OWN:  # listing them all would bury the rest: `detent train --help` does
            extra: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if kind == "bool" else {}
            how.add_argument(flag(name), dest=name, help=argparse.SUPPRESS, **extra)
    where = parser.add_argument_group("how")
    where.add_argument(
        "--out", type=location, metavar="DIR", help="directory of the study (default: tunes/<tasks>-<algo>-<head>)"
    )
    sweep_flags(where)
    return parser


# --- carrying it out ---


def _carrying_out(out: Path, args: argparse.Namespace, stopped: Stop) -> Any:
    """What carries out the runs of the search: a sweep."""
    jobs = None if args.jobs is None else whole_number("--jobs", args.jobs, 1)
    nice = whole_number("--nice", args.nice, 0)
    minutes = positive_number("--checkpoint-minutes", args.checkpoint_minutes) or 1.0
    live = not args.quiet and sys.stderr is not None and sys.stderr.isatty()

    def carry_out(runs: Sequence[c.Run], until: int | None, title: str) -> None:
        events = sweep(
            runs, out / RUNS, jobs=jobs, ray=args.ray, nice=nice, imports=args.imports,
            checkpoint_seconds=60 * minutes, until=until, stop=stopped.why,
        )  # fmt: skip
        total = sum(until or run.settings.steps for run in runs)
        for _ in follow_sweep(events, len(runs), total, title) if live and runs else events:
            pass
        if stopped.signal is not None:
            raise _Interrupted

    return carry_out


def _print_trials(found: Found, told: int) -> int:
    """Print a line about each trial since the last time; the number of trials printed."""
    for trial in found.trials[told:]:
        say(_line(trial, found.best))
    return len(found.trials)


def _line(trial: Trial, best: Trial) -> str:
    """In at most 80 characters."""
    if trial.number == 0:
        return "trial 0: the default settings, with which all others are compared"
    if trial.state == "finished":
        how = f"{trial.score:+.3f}" + " (best)" * (trial.number == best.number)
    else:
        how = trial.state if trial.why is None else f"{trial.state}, {trial.why}"
    values = " ".join(f"{name}={value}" for name, value in trial.values.items())
    text = f"trial {trial.number}: {how}  {values}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _count(study: Study, trials: int) -> int:
    """Runs of the search, without the check on fresh seeds."""
    return (trials + 1) * study.seeds * len(study.tasks)


def _print_plan(study: Study, trials: int, out: Path) -> None:
    for name, draw in study.space.items():
        ends = ", ".join(map(str, draw.values))
        print(f"{name:<22} {draw.kind:<12} {ends}")
    runs = _count(study, trials)
    print(f"{trials:,} trials and the default settings, {runs:,} runs of {study.steps:,} steps; {out}")
