"""`detent verify`: execute a run again and compare the bits."""

from __future__ import annotations

import os

from detent.options import whole_number
from detent.runs import verification as v
from detent.runs.directory import RunDirectory
from detent.verbs.flags import Parser, location, parse, task_flag


def main(argv: list[str]) -> int:
    parser = Parser(
        "verify",
        description="Execute stretches of a run again and compare every bit with what the run wrote\n"
        "down. Default: the first stretch and the last. Exit code 1: something differs.",
    )
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory; nothing in it is changed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--link", metavar="N", help="the stretch that ends in this link of the hash chain")
    which.add_argument("--sample", metavar="M", help="this many stretches, chosen at random")
    which.add_argument("--all", action="store_true", help="the whole run")
    parser.add_argument("--seed", metavar="N", default="0", help="seed of the choice (default: 0)")
    task_flag(parser)
    args = parse(parser, argv)
    link = None if args.link is None else whole_number("--link", args.link, 1)
    sample = None if args.sample is None else whole_number("--sample", args.sample, 1)
    seed = whole_number("--seed", args.seed, 0)

    os.environ.setdefault("NPROC", "1")  # as in training
    directory = RunDirectory(args.run)
    run = directory.run(args.imports, args.task)
    found = v.stretches(directory, run)
    elsewhere = v.foreign(directory)
    if elsewhere:
        print(f"Bits may differ, because this is another machine or other versions: {elsewhere}.")
    print(f"{directory.path} has {found[-1].numbers[-1]} checkpoints, in {len(found)} stretches that can be repeated.")
    odd = v.published(directory)
    alike = not odd
    for sentence in odd:
        print(f"DIFFERENT: {sentence}")
    for stretch in v.chosen(found, link, sample, args.all, seed):
        finding = v.check(directory, run, stretch)
        if elsewhere and finding.difference:
            finding = v.check_elsewhere(directory, run, stretch)
        alike &= finding.difference is None
        print(f"{stretch}: {_verdict(finding, elsewhere is not None)}", flush=True)
        for note in finding.notes:
            print(f"  {note}")
    return 0 if alike else 1


def _verdict(finding: v.Finding, elsewhere: bool) -> str:
    if finding.difference:
        return f"DIFFERENT: {finding.difference}"
    if finding.notes:
        return "not identical, but the first steps and the first update agree within the tolerances"
    return "identical" + " nevertheless" * elsewhere
