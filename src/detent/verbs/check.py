"""`detent check`: whether the user's own environment is suitable for training."""

from __future__ import annotations

import argparse
import shlex
import textwrap

from detent.environments import checking
from detent.errors import BadInput
from detent.options import whole_number
from detent.runs.run import read_env_kwargs
from detent.tasks import find_task
from detent.verbs.flags import Parser, parse


def main(argv: list[str]) -> int:
    parser = Parser(
        "check",
        usage="detent check TASK [flags]",
        description="Check whether an environment of your own is suitable for training, and report\n"
        "what is wrong with it. The exit code is 1 if it has a problem.",
    )
    parser.add_argument("task", metavar="TASK", help="module:factory or a Gymnasium id")
    parser.add_argument("--env-kwargs", metavar="X", help="keyword arguments of the environment, as JSON")
    parser.add_argument("--steps", metavar="N", help="random steps to take (default: 3000, or 20 seconds)")
    args = parse(parser, argv)
    task = find_task(args.task)
    if task.factory is None:
        raise BadInput(
            f"{task.name} is not a Gymnasium environment but one of Detent's own tasks, which need no check; give "
            "module:factory or a Gymnasium id."
        )
    steps = checking.STEPS if args.steps is None else whole_number("--steps", args.steps, 1)
    worst = "fine"
    for finding in checking.check(task.factory(read_env_kwargs(args.env_kwargs)), task.name, steps):
        print(_wrapped(finding.kind, finding.sentence), flush=True)
        worst = max(worst, finding.kind, key=("fine", "warning", "problem").index)
    verdict = {
        "fine": "It is suitable for training.",
        "warning": "It can be used for training, with the limitations above.",
        "problem": "It cannot be used for training as it is.",
    }
    print(verdict[worst] + (f" Train with: {_command(args)}" if worst != "problem" else ""))
    return 1 if worst == "problem" else 0


def _command(args: argparse.Namespace) -> str:
    """The command that trains on what was checked."""
    words = ["detent", "train", args.task]
    if args.env_kwargs:
        words += ["--env-kwargs", args.env_kwargs]
    return shlex.join([*words, *(word for module in args.imports for word in ("--import", module))])


def _wrapped(kind: str, sentence: str) -> str:
    return textwrap.fill(sentence, 80, initial_indent=f"{kind:<8} ", subsequent_indent=" " * 9)
