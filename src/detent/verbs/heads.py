"""`detent heads`: list the policy heads."""

from __future__ import annotations

from detent.heads import HEADS
from detent.verbs.flags import Parser, parse


def main(argv: list[str]) -> int:
    parse(Parser("heads", description="List the policy heads."), argv)
    for name in HEADS.names():
        about = (HEADS.get(name).__doc__ or "").strip().splitlines()
        print(f"{name:<17} {about[0] if about else ''}")
    return 0
