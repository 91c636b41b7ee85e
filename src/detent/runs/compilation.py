"""Compiled programs are kept from one process to the next, in the user's cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

SWITCH = "DETENT_COMPILATION_CACHE"
"""The environment variable that is `off` if nothing is to be kept."""
LARGEST = 2**28
"""Bytes that are kept; what was not used for longest goes first. With a limit, JAX locks the directory."""


def keep_programs() -> None:
    """Let JAX keep what it compiles, unless the user has decided where and whether it does.

    Where that cannot be, everything is compiled anew, and nothing is said.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or importlib.util.find_spec("filelock") is None:
        return
    place = _place()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK | os.X_OK):
            return
    except OSError:
        return
    # An entry that a killed process left half-written is compiled anew.
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    config.update("jax_compilation_cache_max_size", LARGEST)
    config.update("jax_compilation_cache_dir", str(place))
    compilation_cache.reset_cache()  # it may have been looked for before


def _place() -> Path:
    """A directory for this kind of processor: machines that share a home may have others."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return cache / "detent" / "programs" / hashlib.sha256(_processor().encode()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do, on which compiled programs depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = {
        line.partition(":")[0].strip(): line for line in lines if line.startswith(("model name", "flags", "Features"))
    }
    return "\n".join(found[name] for name in sorted(found))
