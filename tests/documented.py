"""What the documentation tells its readers to type, and a reader who types it.

    cd DIRECTORY && python tests/documented.py PAGE

runs every ```python and ```sh block of a page from top to bottom, in one process and one namespace. Blocks are
shortened: numbers of steps and of episodes become small (`SHORTER`, `ADDED`). What stands in `NOT_RUN` is left out. Any
other kind of block (```text) is not for typing.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

STEPS = "1000"
SHORTER = {
    "python": [(r"\bsteps=[\d_]+", f"steps={STEPS}")],
    "sh": [(r"--steps [\d.e]+", f"--steps {STEPS}")],
}
"""In a block of this language, what is replaced by what."""
ADDED = {
    "train": ("--steps", STEPS),
    "eval": ("--episodes", "2"),
    "card": ("--episodes", "2"),
    "sweep": ("--dry-run",),
    "tune": ("--dry-run",),
    "paper run": ("--dry-run",),
}
"""Flags that a verb gets where it has none of that name."""

NOT_RUN = {
    "pip install .": "installs; `make test` has done so",
    "make demo": "runs examples/demo.py, which has a test of its own",
    "make docs": "builds the site, which has a test of its own",
    "make test": "is what runs this",
    "make check": "is what runs this",
    "pytest tests/test_invariance.py": "is part of `make test`",
    "python benchmarks/speed.py --seconds 6": "installs other libraries, and takes minutes on a quiet machine",
    "pip install 'detent-rl[ray]'": "installs",
    "pip install 'detent-rl[sb3]'": "installs",
    "cc -std=c99 -O2 -c policy.c": "tests/test_export.py compiles what is exported",
    "cc -std=c99 -O2 -DDETENT_TEST policy.c -lm -o act": "tests/test_export.py compiles and runs it",
    "detent report RUN --serve": "does not end by itself; tests/test_report.py serves",
    "ray start --head --port 6379 --include-dashboard=false --disable-usage-stats": "starts servers",
    "ray start --address 10.0.0.1:6379": "needs another machine",
    "python results/campaign.py run": "days",
    "python results/campaign.py collect": "needs what has been run",
    "detent report runs/cost --compact results/cost.jsonl": "needs what has been run",
    "python results/campaign.py write": "writes the page itself; tests/test_campaign.py does so elsewhere",
}
"""Commands, with the reason."""

INCLUDED = re.compile(r'\s*--8<-- "([^"]+)"\s*')
"""A block that is a file of the repository."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    """Of its first line in the page."""
    language: str
    text: str

    @property
    def file(self) -> Path | None:
        """The file that the block shows, if it is one."""
        found = INCLUDED.fullmatch(self.text)
        return ROOT / found[1] if found else None

    @property
    def shortened(self) -> str:
        text = self.text
        for pattern, replacement in SHORTER.get(self.language, []):
            text = re.sub(pattern, replacement, text)
        return text


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page. A block inside a list is indented, and loses that."""
    begun: tuple[int, str, str] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"( *)```(\S*)", line)
        if fence and begun is None:
            begun, lines = (number + 1, fence[1], fence[2]), []
        elif fence and begun is not None:
            yield Block(page, begun[0], begun[2], "".join(f"{one.removeprefix(begun[1])}\n" for one in lines))
            begun = None
        elif begun is not None:
            lines.append(line)
    if begun is not None:
        raise AssertionError(f"{page}:{begun[0]}: a block without an end")


def commands(block: Block, shortened: bool = True) -> Iterator[list[str]]:
    """The words of each command of a ```sh block, without comments."""
    text = (block.shortened if shortened else block.text).replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def run_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    home = Path.cwd()
    for block in blocks(page):
        if block.language == "python" and block.file is None:
            # Lines are counted as in the page, for the sake of tracebacks.
            text = "\n" * (block.line - 1) + block.shortened
            exec(compile(text, str(page), "exec", dont_inherit=True), namespace)
        elif block.language == "toml" and (named := re.match(r"# (\S+\.toml)", block.text)):
            Path(named[1]).write_text(block.text)
        elif block.language == "sh":
            os.chdir(home)
            for original, words in zip(commands(block, shortened=False), commands(block), strict=True):
                if shlex.join(original) not in NOT_RUN:
                    print(f"{page.name}:{block.line}: {shlex.join(words)}", flush=True)
                    run_command(words)
        os.chdir(home)


def run_command(words: list[str]) -> None:
    """Run one command; anything but success is an error."""
    settings = list(itertools.takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    os.environ.update(setting.split("=", 1) for setting in settings)
    program, *rest = words[len(settings) :]
    if program == "cd":
        os.chdir(rest[0])
    elif program == "detent":
        added = ADDED.get(rest[0]) or ADDED.get(" ".join(rest[:2]), ())
        code = run_detent(rest if "--help" in rest or {*added[:1]} & {*rest} else [*rest, *added])
        assert code == 0, f"{shlex.join(words)}: exit code {code}"
    elif program == "python":
        assert len(rest) == 1, f"{shlex.join(words)}: only examples, which take a number of steps, can be run"
        subprocess.run([sys.executable, *rest, STEPS], check=True)
    else:
        raise AssertionError(f"{shlex.join(words)}: no way to run it is known; if there is none, say why in NOT_RUN")


def run_detent(words: list[str]) -> Any:
    from detent.cli import main

    try:
        return main(words)
    except SystemExit as end:  # `--help`
        return end.code or 0


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
