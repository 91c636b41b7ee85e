"""`detent card`: the model card of a run."""

from __future__ import annotations

from detent.policy import load
from detent.report.card import write_card
from detent.runs.directory import RunDirectory
from detent.verbs.flags import (
    Parser,
    episode_flags,
    episodes_and_seed,
    file_path,
    location,
    parse,
    policy_path,
    task_flag,
)


def main(argv: list[str]) -> int:
    parser = Parser(
        "card",
        description="Evaluate a trained policy and write its model card: Markdown with the metadata\n"
        "of Hugging Face's model-index, and the learning curve beside it.",
    )
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=location, metavar="FILE", help="file to write (default: README.md in RUN)")
    episode_flags(parser, 20)
    task_flag(parser)
    args = parse(parser, argv)
    episodes, seed = episodes_and_seed(args)
    directory = RunDirectory(args.run)
    run = directory.run(args.imports, args.task)
    source = policy_path(args.run, args.best)
    path = file_path(args.out, directory.path / "README.md")
    for written in write_card(directory, run, source.name, load(source), path, episodes, seed):
        print(written)
    return 0
