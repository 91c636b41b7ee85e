"""`detent check`: does an environment of the user's own fit?"""

from __future__ import annotations

import textwrap

from detent import checking
from detent.configuration import read_env_kwargs
from detent.errors import BadInput
from detent.tasks import find_task
from detent.verbs.flags import Parser, parse, whole_number


def main(argv: list[str]) -> int:
    parser = Parser(
        "check",
        usage="detent check TASK [flags]",
        description="Tell whether an environment of your own can be trained on, and what is wrong\n"
        "with it. Exit code 1: it has a problem.",
    )
    parser.add_argument("task", metavar="TASK", help="module:factory or a Gymnasium id")
    parser.add_argument("--env-kwargs", metavar="X", help="keyword arguments of the environment, as JSON")
    parser.add_argument("--steps", metavar="N", help="random steps to take (default: 3000, or 20 seconds)")
    args = parse(parser, argv)
    task = find_task(args.task)
    if task.factory is None:
        raise BadInput(
            f"{task.name} is not a Gymnasium environment but one of Detent's own tasks, which its tests check; give "
            "module:factory or a Gymnasium id."
        )
    steps = checking.STEPS if args.steps is None else whole_number("--steps", args.steps, 1)
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
    return textwrap.fill(sentence, 80, initial_indent=f"{kind:<8} ", subsequent_indent=" " * 9)
