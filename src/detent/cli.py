"""The command line: `detent VERB ...`. A verb is imported when it is asked for, so that `detent --help` is quick."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from detent.errors import BadInput, DetentError, NeedsImport
from detent.verbs.flags import Parser

VERBS = {
    "train": "train a policy on a task",
    "sweep": "train many policies: grids, random draws, Ray",
    "resume": "continue a run, or make it longer",
    "verify": "execute a run again and compare the bits",
    "eval": "play episodes with a trained policy",
    "export": "write a policy as ONNX, NumPy or C",
    "play": "record a film of a trained policy",
    "card": "write the model card of a run",
    "report": "show runs on one HTML page, and in figures",
    "paper": "run and show the paper's figures and tables",
    "check": "tell whether your own environment fits",
    "tasks": "list the tasks",
    "heads": "list the policy heads",
}
"""Verb -> what it does; detent/verbs/VERB.py does it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 done, 1 verified and found different, 2 bad input, 3 stopped or diverged, 130/143 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except NeedsImport as error:
        print(f"detent: {error}: {shlex.join(['detent', *words, '--import', error.module])}", file=sys.stderr)
        return error.exit_code
    except DetentError as error:
        print(f"detent: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader (head, less) went away; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    verbs = "\n".join(f"  {name:<8} {about}" for name, about in VERBS.items())
    parser = Parser(
        usage="detent VERB ...",
        description=f"On-policy training for continuous actions.\n\nverbs:\n{verbs}",
        epilog="`detent VERB --help` tells more.",
    )
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    args, _ = parser.parse_known_args(argv[:1])
    if args.version:
        from importlib.metadata import version

        print(f"detent {version('detent')}")
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
