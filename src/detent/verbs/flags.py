"""Flags that several verbs share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from detent.errors import BadInput, quoted
from detent.options import flag, name_here, whole_number

DEBUG = "--debug"
"""The flag that every verb has; the command line reads it itself."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, verb: str = "", **options: Any) -> None:
        super().__init__(
            prog=f"detent {verb}".strip(),
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=80),
            **options,
        )
        if options.get("add_help", True):
            self.add_argument(DEBUG, action="store_true", help="show where an error arose, besides what it is")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or ())
        for i, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name == "--":
                break
            if name.startswith("--") and value == "--":  # which argparse makes an empty list of (until Python 3.13)
                self.error(f"argument {name}: expected a value, not '--'")
            if name.startswith("--"):
                words[i] = f"{name.replace('_', '-')}{equals}{value}"
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def _refuse(self, word: str) -> NoReturn:
        """Refuse a word that the verb does not have, with the flag that may have been meant."""
        from detent.registry import nearest  # here, so that `detent --help` is quick

        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        here = name_here(name) if word.startswith("--") else None
        if here and flag(here[0]) in self._option_string_actions:
            raise BadInput(here[1])
        close = nearest(word.partition("=")[0], self._option_string_actions) if word.startswith("--") else ""
        self.error(
            f"unrecognized argument: {quoted(word)}.{close}" if close else f"unrecognized argument: {quoted(word)}"
        )

    def error(self, message: str) -> NoReturn:
        end = " See" if message.endswith("?") else "; see"
        raise BadInput(f"{message[0].upper()}{message[1:]}{end} `{self.prog} --help`.")


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """Parse the flags, including --import, and import the modules that it names."""
    import_flag(parser)
    args: argparse.Namespace = parser.parse_args(argv)
    import_modules(args.imports)
    return args


def import_flag(parser: Parser) -> None:
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="MODULE",
        help="import this module first, for heads, tasks, algorithms, trunks and critics of your own; repeatable",
    )  # fmt: skip


def import_modules(modules: Sequence[str]) -> None:
    if modules:
        from detent.tasks import import_module  # here, so that `detent --help` is quick

        for module in modules:
            import_module(module)


def ask(fact: str, question: str, otherwise: str) -> None:
    """Go on only if the user agrees, who has to be there to be asked."""
    if not sys.stdin.isatty():
        raise BadInput(f"{fact} If that is what you want, add --yes.")
    if input(f"{fact} {question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise BadInput(otherwise)


def location(text: str) -> str:
    """The `type` of an argument that names a file or a directory."""
    if not text or "\0" in text or not _encodable(text):
        raise argparse.ArgumentTypeError(f"the name of a file or directory cannot be {quoted(text)}")
    return text


def _encodable(text: str) -> bool:
    try:
        return bool(os.fsencode(text))
    except UnicodeEncodeError:
        return False


def positive_number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be a number greater than 0, not {quoted(text)}.")
    return value


def task_flag(parser: Parser) -> None:
    parser.add_argument(
        "--task", metavar="TASK", help="where the run's task is found, if its name there is not enough: module:factory"
    )


def mean_flag(parser: Any) -> None:
    parser.add_argument("--mean", action="store_true", help="use the expected action, not the most probable one")


def best_flag(parser: Parser) -> None:
    parser.add_argument("--best", action="store_true", help="use the best policy kept by --eval-every, not the last")


def episode_flags(parser: Parser, episodes: int) -> None:
    parser.add_argument(
        "--episodes", default=str(episodes), metavar="N", help=f"number of episodes (default: {episodes})"
    )
    parser.add_argument("--seed", default="0", metavar="N", help="seed of the episodes (default: 0)")
    best_flag(parser)


def episodes_and_seed(args: argparse.Namespace) -> tuple[int, int]:
    """The values of the flags added by `episode_flags`."""
    return whole_number("--episodes", args.episodes, 1), whole_number("--seed", args.seed, 0)


def file_path(out: str | None, default: Path) -> Path:
    """The file that --out names."""
    path = Path(out).absolute() if out else default
    if path.is_dir():
        raise BadInput(f"--out {path} is a directory; name a file in it.")
    return path


def policy_path(run: str, best: bool) -> Path:
    """The policy file that RUN means: a run directory's last or best one, or RUN itself."""
    from detent.files import refuse_odd  # here, so that `detent --help` is quick

    path = Path(run).absolute()
    if not path.is_dir():
        if best:
            raise BadInput(f"--best needs a run directory, and {run} is not one.")
        return path
    found = path / ("best_policy.safetensors" if best else "policy.safetensors")
    refuse_odd(found)
    if best and not found.exists():
        raise BadInput(f"{run} has no best policy: training keeps one only with --eval-every.")
    return found
