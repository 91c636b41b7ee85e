"""Tables for a terminal of 80 columns and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True)
class Block:
    """The lines of a task: label -> column -> text."""

    title: str
    lines: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Aligned; columns that do not fit side by side continue below."""
        labels = max((len(label) for block in self.blocks for label in block.lines), default=0) + 4
        widths = {
            column: 2 + max(len(column), *(len(line.get(column, "")) for b in self.blocks for line in b.lines.values()))
            for column in self.columns
        }
        pieces = [self.title]
        for columns in _fitting(self.columns, widths, WIDTH - labels):
            pieces.append(" " * labels + "".join(column.rjust(widths[column]) for column in columns))
            for block in self.blocks:
                lines = [(label, line) for label, line in block.lines.items() if any(line.get(c) for c in columns)]
                pieces += [f"  {block.title}"] * bool(block.title and lines)
                for label, line in lines:
                    row = "".join(line.get(column, "").rjust(widths[column]) for column in columns)
                    pieces.append((f"    {label}".ljust(labels) + row).rstrip())
        for note in self.notes:
            pieces.append(textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="  "))
        return "\n".join(pieces)

    def markdown(self) -> str:
        rows = [f"**{self.title}**", "", f"| | | {' | '.join(self.columns)} |", "|---" * (len(self.columns) + 2) + "|"]
        for block in self.blocks:
            title = block.title
            for label, line in block.lines.items():
                rows.append(f"| {title} | {label} | {' | '.join(line.get(column, '') for column in self.columns)} |")
                title = ""
        return "\n".join([*rows, *(f"\n{note}" for note in self.notes)])


def _fitting(columns: Sequence[str], widths: Mapping[str, int], room: int) -> Iterator[list[str]]:
    line: list[str] = []
    for column in columns:
        if line and sum(widths[c] for c in line) + widths[column] > room:
            yield line
            line = []
        line.append(column)
    yield line
