"""`detent resume`: go on with a run."""

from __future__ import annotations

from detent.configuration import FREE_OPTIONS, Settings
from detent.directory import RunDirectory
from detent.options import flag, options_of
from detent.verbs.flags import Parser, parse
from detent.verbs.train import carry_out, execution_flags


def main(argv: list[str]) -> int:
    parser = Parser("resume", description="Continue a run where its last checkpoint left it.")
    parser.add_argument("run", metavar="RUN", help="a run directory")
    execution_flags(parser)
    changeable = ("steps", *FREE_OPTIONS)
    for declared in options_of(Settings):
        if declared.name in changeable:
            about = "make the run longer" if declared.name == "steps" else declared.metadata["help"]
            parser.add_argument(flag(declared.name), dest=declared.name, metavar="X", help=about)
    args = parse(parser, argv)
    changes = {name: vars(args)[name] for name in changeable if vars(args)[name] is not None}
    run = RunDirectory(args.run).run(**changes)
    if not args.quiet and not run.task.replayable:
        print(f"{run.names[0]} cannot be brought back to where it was: the run resumes with new episodes.")
    return carry_out(run, args.run, args, resume=True)
