"""`detent play`: a film of a trained policy."""

from __future__ import annotations

import contextlib
from pathlib import Path

from detent.errors import BadInput
from detent.ops import Choose
from detent.play import Film, make_env, play
from detent.runs.progress import rounded
from detent.verbs.flags import Parser, episode_flags, episodes_and_seed, location, mean_flag, parse, task_flag
from detent.verbs.trained import trained


def main(argv: list[str]) -> int:
    parser = Parser(
        "play",
        description="Watch a trained policy: record play.mp4 and play.gif, or open a window.\n"
        "Policies trained in EnvPool play in the Gymnasium environment of the same id.",
    )
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory or a policy file")
    episode_flags(parser, 1)
    parser.add_argument(
        "--out", type=location, metavar="X", help="FILE.mp4, FILE.gif, or a directory for both (default: RUN)"
    )
    which = parser.add_mutually_exclusive_group()
    mean_flag(which)
    which.add_argument("--sample", action="store_true", help="sample actions instead of using the most probable ones")
    task_flag(parser)
    parser.add_argument("--window", action="store_true", help="show a window and record nothing")
    args = parse(parser, argv)
    if args.window and args.out:
        raise BadInput("--window records nothing; give only one of --window and --out.")
    episodes, seed = episodes_and_seed(args)
    run, policy, source = trained(args)
    choose: Choose = "mean" if args.mean else "sample" if args.sample else "mode"
    out = Path(args.out).absolute() if args.out else source.parent
    whole = {} if args.window else {"mp4": out / "play.mp4", "gif": out / "play.gif"}
    files = {out.suffix[1:]: out} if out.suffix in (".mp4", ".gif") else whole
    with contextlib.closing(make_env(run, args.window)) as env, contextlib.ExitStack() as stack:
        film = stack.enter_context(Film(env, files.get("mp4"), files.get("gif"))) if files else None
        for number, episode in enumerate(play(run, policy, env, episodes, seed, choose, film), 1):
            print(f"episode {number}: return {rounded(episode.total)} in {episode.length:,} steps", flush=True)
    for path in files.values():
        print(f"{path}  {path.stat().st_size / 1024:,.0f} KB")
    return 0
