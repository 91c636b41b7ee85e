"""Tables of named things, one per kind, filled by the modules of a package and by users."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from typing import Generic, TypeVar

from detent.errors import BadInput
from detent.options import claim_names, names_of

T = TypeVar("T")


def nearest(name: str, names: Iterable[str], most: int = 3) -> str:
    """`Did you mean a, b or c?`, or an empty string if no name is close."""
    # Ignore case: versions and namespaces are easily mistyped.
    folded = {n.lower(): n for n in sorted(names, reverse=True)}
    close = [folded[n] for n in difflib.get_close_matches(name.lower(), folded, n=most, cutoff=0.6)]
    if not close:
        return ""
    return " Did you mean " + " or ".join([", ".join(close[:-1])] * (len(close) > 1) + close[-1:]) + "?"


class Registry(Generic[T]):
    """A table of one kind of thing (`head`, `algorithm`, ...).

    Every module of `package` registers what it defines when it is imported, which happens at the first look-up.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str, entry: T) -> None:
        if name in self._entries and self._entries[name] is not entry:
            raise BadInput(f"There is already a {self.kind} named {name!r}; choose another name.")
        claim_names(self.kind, f"the {self.kind} {name!r}", names_of(entry))
        self._entries[name] = entry

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        self._discover()
        if name not in self._entries:
            raise BadInput(
                f"There is no {self.kind} named {name!r}.{nearest(name, self._entries)} "
                f"Known: {', '.join(self.names())}."
            )
        return self._entries[name]

    def _discover(self) -> None:
        if self._discovered:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        self._discovered = True
