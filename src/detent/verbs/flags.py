"""What the flags of several verbs have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from detent.errors import BadInput


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, verb: str = "", **options: Any) -> None:
        super().__init__(
            prog=f"detent {verb}".strip(),
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=80),
            **options,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """The flags, --import among them, after importing what it names."""
    import_flag(parser)
    args = parser.parse_args(argv)
    import_modules(args.imports)
    return args


def import_flag(parser: Parser) -> None:
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="MODULE",
        help="import this module first, for heads, algorithms and tasks of your own; may be repeated",
    )  # fmt: skip


def import_modules(modules: Sequence[str]) -> None:
    if modules:
        from detent.tasks import import_module  # here, so that `detent --help` is quick

        for module in modules:
            import_module(module)


def whole_number(name: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise BadInput(f"{name} must be a whole number of at least {least}, not {text!r}.")
    return int(text)


def positive_number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be a number greater than 0, not {text!r}.")
    return value


def best_flag(parser: Parser) -> None:
    parser.add_argument("--best", action="store_true", help="the best policy that --eval-every kept, not the last")


def episode_flags(parser: Parser, episodes: int) -> None:
    parser.add_argument("--episodes", default=str(episodes), metavar="N", help=f"how many (default: {episodes})")
    parser.add_argument("--seed", default="0", metavar="N", help="seed of the episodes (default: 0)")
    best_flag(parser)


def episodes_and_seed(args: argparse.Namespace) -> tuple[int, int]:
    """What `episode_flags` were given."""
    return whole_number("--episodes", args.episodes, 1), whole_number("--seed", args.seed, 0)


def file_path(out: str | None, default: Path) -> Path:
    """The file that --out names."""
    path = Path(out) if out else default
    if path.is_dir():
        raise BadInput(f"--out {path} is a directory; name a file in it.")
    return path


def policy_path(run: str, best: bool) -> Path:
    """The policy file that RUN means: a run directory's last or best one, or RUN itself."""
    path = Path(run)
    if not best:
        return path / "policy.safetensors" if path.is_dir() else path
    if not path.is_dir():
        raise BadInput(f"--best is for a run directory, which {run} is not.")
    if not (path / "best_policy.safetensors").exists():
        raise BadInput(f"{run} has no best policy: training keeps one with --eval-every only.")
    return path / "best_policy.safetensors"
