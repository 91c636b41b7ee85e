"""A run's identity: the one rule that decides whether runs of any versions are the same. It needs no JAX.

Every option has a baseline, which never changes (`detent.options`). Two runs are the same if they have the same task,
head, algorithm, trunk and critic, and differ from the baselines in the same options. The name of a run in a sweep, the
root of its hash chain, comparisons and `detent paper show` all follow this rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from detent.options import FREE_OPTIONS
from detent.runs.presets import edition
from detent.schemas import OBJECT, WORD, Field, Schema, is_facts, is_object, is_whole, optional

NAMES = ("task", "head", "algo", "preset", "trunk", "critic")
BEFORE = {"trunk": "mlp", "critic": "squared"}
"""What a file without these names means: it was written before there was a choice."""

_FACTS = Field(is_facts, "an object of texts", required=False)
CONFIGURATION = Schema(
    "a configuration",
    {
        **{name: optional(WORD) if name in BEFORE else WORD for name in NAMES},
        "options": Field(
            lambda value: is_object(value) and is_whole(value.get("steps")) and is_whole(value.get("seed")),
            "an object with steps and seed, whole numbers of at least 0",
        ),
        "baselines": optional(OBJECT),
        **dict.fromkeys(("formerly", "versions", "machine"), _FACTS),
    },
)
"""A run in run.json, in a policy, in a compact file or in the plan of a sweep."""


def written_names(configuration: Mapping[str, Any]) -> list[str]:
    """`NAMES` in a file of any version; a preset that has changed since is named by its version."""
    named = [str(BEFORE[k] if k not in configuration and k in BEFORE else configuration[k]) for k in NAMES]
    algo, preset = (named[NAMES.index(k)] for k in ("algo", "preset"))
    named[NAMES.index("preset")] = edition(preset, algo, version_of(configuration))
    return named


def version_of(configuration: Mapping[str, Any]) -> str | None:
    """The version of Detent that wrote a configuration; None for this one."""
    versions = configuration.get("versions")
    if isinstance(versions, Mapping) and "detent" in versions:
        return str(versions["detent"])
    return None if "baselines" in configuration else "0.1"  # which had none


def without_free(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the options that change no result."""
    tables = [key for key in ("options", "baselines") if key in configuration]
    kept = {key: {k: v for k, v in configuration[key].items() if k not in FREE_OPTIONS} for key in tables}
    return {**configuration, **kept}


def identity(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Names, and the options that differ from the configuration's `baselines` and can change a result."""
    names = {k: configuration.get(k) for k in NAMES if k != "preset" and configuration.get(k) != BEFORE.get(k)}
    options = without_free(configuration)["options"]
    return {**names, "options": {k: options[k] for k in configuration["baselines"] if k in options}}


def as_json(value: Any) -> Any:
    """An option's value as JSON."""
    return list(value) if isinstance(value, tuple) else value


def hashed(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
