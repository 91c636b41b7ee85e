"""`detent tasks`: list the tasks."""

from __future__ import annotations

import itertools

from detent.errors import BadInput
from detent.package import install_extra
from detent.registry import nearest
from detent.tasks import TASKS
from detent.verbs.flags import Parser, parse


def main(argv: list[str]) -> int:
    parser = Parser("tasks", description="List the tasks.")
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="only those of this suite")
    args = parse(parser, argv)
    tasks = sorted((TASKS.get(name) for name in TASKS.names()), key=lambda task: task.suite)
    suites = sorted({task.suite for task in tasks})
    if args.suite not in (None, *suites):
        raise BadInput(
            f"There is no suite named {args.suite!r}.{nearest(args.suite, suites)} Known: {', '.join(suites)}."
        )
    for suite, members in itertools.groupby(tasks, key=lambda task: task.suite):
        if args.suite not in (None, suite):
            continue
        listed = list(members)
        print(f"{f'{suite} ({listed[0].backend})':<46} obs  act  horizon  resumes")
        for task in listed:
            size = task.size()
            obs, act, horizon = ("?", "?", "?") if size is None else (str(number or "-") for number in size)
            resumes = "exactly" if task.replayable else "new episodes"
            print(f"  {task.name:<44} {obs:>3}  {act:>3}  {horizon:>7}  {resumes}")
        print(f"needs: {install_extra(listed[0].extra)}\n" if listed[0].extra else "")
    print(
        "obs, act: sizes of observations and actions; horizon: time limit in steps.\n"
        "Also any Gymnasium id (gymnasium/ID if EnvPool has it too), and your own\n"
        "environment as module:factory, which `detent check` can test."
    )
    return 0
