"""`detent ls`: the runs below some directories, as a table."""

from __future__ import annotations

from detent import report
from detent.report.listing import listing
from detent.verbs.flags import Parser, location


def main(argv: list[str]) -> int:
    parser = Parser(
        "ls",
        usage="detent ls DIR... [flags]",
        description="List the runs below some directories: each group of runs that differ only in\n"
        "their seeds, with the mean of the final training returns and its 95% interval.",
    )
    parser.add_argument(
        "dirs", type=location, nargs="+", metavar="DIR",
        help="run directories, directories above them, or files of `detent report --compact`",
    )  # fmt: skip
    args = parser.parse_args(argv)
    for line in listing(report.load_runs(args.dirs)):
        print(line)
    return 0
