"""`detent resume`: continue a run."""

from __future__ import annotations

from detent.options import FREE_OPTIONS, flag, options_of
from detent.runs.directory import RunDirectory
from detent.runs.progress import say
from detent.runs.run import Settings
from detent.verbs.flags import Parser, location, parse, task_flag
from detent.verbs.train import carry_out, execution_flags


def main(argv: list[str]) -> int:
    parser = Parser("resume", description="Continue a run from its last checkpoint.")
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory")
    execution_flags(parser)
    task_flag(parser)
    changeable = ("steps", *FREE_OPTIONS)
    for declared in options_of(Settings):
        if declared.name in changeable:
            about = "extend the run to this many steps" if declared.name == "steps" else declared.metadata["help"]
            parser.add_argument(flag(declared.name), dest=declared.name, metavar="X", help=about)
    args = parse(parser, argv)
    changes = {name: vars(args)[name] for name in changeable if vars(args)[name] is not None}
    run = RunDirectory(args.run).run(args.imports, args.task, **changes)
    if not args.quiet and not run.task.replayable:
        say(f"The state of {run.names.task} cannot be restored, so the run resumes with new episodes.")
    return carry_out(run, args.run, args, resume=True)
