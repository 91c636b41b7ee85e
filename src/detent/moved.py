"""Modules that can still be imported under the names they had in version 0.1.0."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "detent.checking": "detent.environments.checking",
    "detent.configuration": "detent.runs.run",
    "detent.directory": "detent.runs.directory",
    "detent.gymnasium": "detent.wrappers",
    "detent.progress": "detent.runs.progress",
    "detent.scheduling": "detent.sweeps.cores",
    "detent.statistics": "detent.report.statistics",
    "detent.training": "detent.runs.training",
}


class Moved(MetaPathFinder, Loader):
    """Finds the modules of `MOVED` under their old names; it comes last on `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} has moved to {new}.", DeprecationWarning, stacklevel=2)
        return importlib.import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was executed when it was imported under its new name."""
