"""The command line: `detent VERB ...`. Verbs are imported only when used, so that `detent --help` is fast."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence

from detent.errors import BadInput, DetentError, NeedsImport, refused
from detent.verbs.flags import DEBUG, Parser

VERBS = {
    "train": "train a policy on a task",
    "sweep": "train many policies: grids, random draws, Ray",
    "tune": "search for good settings",
    "resume": "continue or extend a run",
    "verify": "execute a run again and compare the bits",
    "eval": "play episodes with a trained policy",
    "export": "write a policy as ONNX, NumPy or C",
    "play": "record a film of a trained policy",
    "card": "write the model card of a run",
    "ls": "list runs as a table: means and intervals",
    "report": "show runs on one HTML page, and in figures",
    "paper": "run and show the paper's figures and tables",
    "check": "check an environment of your own",
    "tasks": "list the tasks",
    "heads": "list the policy heads",
}
"""Verb -> what it does; detent/verbs/VERB.py does it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 done, 1 verified and found different, 2 bad input, 3 stopped or diverged, 70 a defect of Detent's, 130/143
    interrupted.
    """
    if argv is None:
        _prepare_terminal()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _shown(words) if DEBUG in words else _dispatch(words)
    except NeedsImport as error:
        _say(f"{error}: {shlex.join(['detent', *words, '--import', error.module])}")
        return error.exit_code
    except DetentError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe, which is fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        sentence = refused(error)
        if sentence is None:
            return _defect(error)
        _say(str(sentence))
        return sentence.exit_code


def _shown(words: list[str]) -> int:
    """Run one verb; an error is shown with its traceback before it is said in a sentence."""
    try:
        return _dispatch(words)
    except Exception as error:
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        raise


LONGEST = 2_000
"""Characters of an error; a value that somebody pasted may be longer."""


def _say(sentence: str) -> None:
    """Print an error on one line, without what a terminal would obey: part of it may come from a file."""
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in sentence)
    if len(plain) > LONGEST:
        plain = f"{plain[: LONGEST // 2]} ... {plain[-LONGEST // 4 :]}"
    print(f"detent: {plain}", file=sys.stderr)


def _defect(error: Exception) -> int:
    """One sentence for what nobody foresaw, and the traceback in a file for whoever is to mend it."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="detent-", suffix=".txt", delete=False) as file:
            file.write("".join(traceback.format_exception(error)))
        how = f"with {file.name}, which says where it happened"
    except OSError:  # there is no place for it
        how = "with the command that you gave"
    _say(f"This is a defect of Detent's, not yours ({type(error).__name__}); please report it {how}.")
    return 70


def _prepare_terminal() -> None:
    """Let whatever this program was started with serve as a terminal.

    A standard stream that is closed becomes /dev/null: otherwise the next file to be opened would take its number, and
    get what libraries print. Characters that a stream cannot represent are escaped. A width that is not one is ignored.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        if number and isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")
    for name in ("COLUMNS", "LINES"):
        text = os.environ.get(name, "1")
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) > 0):
            del os.environ[name]


def _dispatch(argv: list[str]) -> int:
    verbs = "\n".join(f"  {name:<8} {about}" for name, about in VERBS.items())
    parser = Parser(
        usage="detent VERB ...",
        description=f"On-policy training for continuous actions.\n\nverbs:\n{verbs}",
        epilog="For details: `detent VERB --help`.",
    )
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    args, _ = parser.parse_known_args(argv[:1])
    if args.version:
        from detent.package import version

        print(f"detent {version()}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    if args.verb not in VERBS:
        from detent.registry import nearest

        raise BadInput(f"There is no verb {args.verb!r}.{nearest(args.verb, VERBS)} See `detent --help`.")
    code: int = importlib.import_module(f"detent.verbs.{args.verb}").main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
