"""`detent export`: a policy as one file that acts without Detent."""

from __future__ import annotations

from detent.export import TARGETS, export, file_name
from detent.policy import load
from detent.verbs.flags import Parser, best_flag, file_path, location, mean_flag, policy_path


def main(argv: list[str]) -> int:
    parser = Parser("export", description="Write a trained policy as one file that acts without Detent.")
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory or a policy file")
    parser.add_argument("--to", required=True, metavar="X", help=f"format: {', '.join(TARGETS)}")
    parser.add_argument("--out", type=location, metavar="FILE", help="file to write (default: beside the policy)")
    best_flag(parser)
    mean_flag(parser)
    args = parser.parse_args(argv)
    source = policy_path(args.run, args.best)
    path = file_path(args.out, source.with_name(file_name(args.to)))
    export(load(source), args.to, path, "mean" if args.mean else "mode")
    print(f"{path}  {path.stat().st_size / 1024:,.0f} KB")
    return 0
