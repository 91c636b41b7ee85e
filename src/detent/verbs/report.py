"""`detent report`: runs on one page, in figures, or in one file."""

from __future__ import annotations

import os
import signal
import sys

from detent import report
from detent.errors import BadInput
from detent.options import whole_number
from detent.paper.printed import reference as papers_reference
from detent.report.serving import Server, Watch
from detent.report.studies import found_studies
from detent.verbs.flags import Parser, location


def main(argv: list[str]) -> int:
    parser = Parser(
        "report",
        usage="detent report DIR... [flags]",
        description="Show all runs below some directories on one HTML page: learning curves,\n"
        "comparisons, action distributions, configurations. See docs/report.md.",
    )
    parser.add_argument(
        "dirs",
        type=location,
        nargs="+",
        metavar="DIR",
        help="run directories, directories above them, or files of --compact",
    )
    parser.add_argument("--out", type=location, metavar="FILE", help="file to write the page to (default: report.html)")
    parser.add_argument(
        "--figures", type=location, metavar="DIR", help="draw the learning curves as PNG and PDF into this directory"
    )
    parser.add_argument(
        "--compact", type=location, metavar="FILE", help="write all runs into one small file, or add them to it"
    )
    parser.add_argument(
        "--reference",
        type=location,
        metavar="FILE",
        help="published numbers to show alongside: paper, or a TOML file (docs/report.md)",
    )
    parser.add_argument("--serve", action="store_true", help="serve a self-updating page, on this machine only")
    parser.add_argument("--port", metavar="N", default="8000", help="port for --serve; 0 for any (default: 8000)")
    args = parser.parse_args(argv)
    port = whole_number("--port", args.port, 0, 65_535)
    if args.serve and (args.out or args.figures or args.compact):
        raise BadInput("--serve writes no files, so it cannot be combined with --out, --figures or --compact.")
    reference = None
    if args.reference == "paper":
        reference = papers_reference()
    elif args.reference:
        reference = report.read_reference(args.reference)
    if args.serve:
        with Server(Watch(args.dirs, reference), port) as server:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            print(f"Serving {server.address}; press Ctrl-C to stop.", flush=True)
            server.serve_forever()
    runs = report.load_runs(args.dirs)
    damaged = [run for run in runs if run.status == "damaged"]
    if args.compact:
        held, damaged = report.write_compact(runs, args.compact)
        print(f"{held:,} run{'s' * (held != 1)}: {os.path.abspath(args.compact)}")
    if args.out or not (args.figures or args.compact):
        out = args.out or "report.html"
        report.write_page(runs, out, reference, studies=found_studies(args.dirs))
        print(f"{len(runs):,} run{'s' * (len(runs) != 1)}: {os.path.abspath(out)}")
    for path in report.draw_figures(runs, args.figures) if args.figures else ():
        print(path)
    if damaged:
        print(f"{len(damaged):,} of them cannot be read, for example: {damaged[0].why}", file=sys.stderr)
    return 0
