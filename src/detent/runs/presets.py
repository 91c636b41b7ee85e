"""Presets: the one module that names heads, algorithms and their settings together.

`paper` is what the authors' released code does. `modern` is what has worked best so far: for PPO on both HalfCheetah
and Humanoid (docs/performance.md), for TRPO and ACKTR in a few short runs on HalfCheetah and Hopper. Options that a
preset does not mention have their defaults.

A preset may change from version to version. Its earlier settings stay available under a name with their version, such
as `modern-0.1`; there, options that it does not mention have their baselines.

A preset can also be a user's TOML file (`--preset best.toml`), with tables like those below:

    [ppo]
    learning_rate = 2e-4

    ["ppo ordinal"]
    initial_std = 0.4

A run remembers only its name: all options are in the run's own files, so the preset's file is not needed again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.errors import BadInput, in_file
from detent.files import read_toml
from detent.schemas import OBJECT, Field, Schema

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "modern": {
        # Stopping the epochs at a KL makes one step size serve HalfCheetah and Humanoid alike. An advantage mixes the
        # effects of all action dimensions, so the more there are, the noisier is the gradient of each.
        "ppo": {"envs": 64, "learning_rate": 3e-4, "target_kl": 0.2, "divide_target_kl": True},
        "ppo gaussian": {"initial_log_std": -0.5},
        "ppo gaussian_tanh": {"initial_log_std": -0.5},
        # Twice the usual step of 0.01, twice as often: batches of 1,024. Less damping than the usual 0.1, with which a
        # step covers half of its trust region. And a step is accepted only inside that region, as in the TRPO paper.
        "trpo": {"envs": 16},
        "trpo gaussian": {"initial_log_std": -0.5},
        "trpo gaussian_tanh": {"initial_log_std": -0.5},
        # Running sums spread the eigenvalues of the Fisher matrix: with less damping, ten iterations of conjugate
        # gradient come nowhere near its inverse, and HalfCheetah reaches only a third of the return.
        "trpo ordinal": {"damping": 0.1},
        # As for TRPO. The value function takes Gauss-Newton steps of a tenth, not of a thousandth.
        "acktr": {"envs": 16},
        "acktr gaussian": {"initial_log_std": -0.5},
        "acktr gaussian_tanh": {"initial_log_std": -0.5},
    },
    "paper": {
        # OpenAI Baselines' PPO2 of early 2018 as the authors ran it: one environment, constant step size,
        # clipped values, no bootstrapping at time limits, and a return that continues across episodes.
        "ppo": {
            "envs": 1,
            "learning_rate": 3e-4,
            "anneal_learning_rate": False,
            "clip_range_value": 0.2,
            "value_coef": 0.5,
            "recompute_advantages": False,
            "bootstrap_truncated": False,
            "returns_across_episodes": True,
        },
        # The Gaussians' actions reach the environment unscaled and unclipped, whatever its bounds are.
        "ppo gaussian": {"actions": "raw"},
        "ppo gaussian_tanh": {"actions": "raw"},
        # The authors' Beta policy acts on [-1, 1] whatever the bounds are, and diverges unless trained slowly.
        "ppo beta": {"actions": "raw", "learning_rate": 3e-5, "policy_gain": 0.001},
        # OpenAI Baselines' trpo_mpi: small networks, raw rewards, a lower limit of the observations' variance (on
        # Humanoid a quarter of them are below), and steps accepted up to 1.5 times the KL limit.
        "trpo": {
            "envs": 1,
            "batch_size": 1024,
            "hidden_sizes": (32, 32),
            "normalize_rewards": False,
            "normalization_clip": 5.0,
            "least_variance": 1e-2,
            "gae_lambda": 0.98,
            "max_kl": 0.01,
            "kl_tolerance": 1.5,
            "damping": 0.1,
            "fisher_every": 5,
            "line_search_factor": 0.5,
            "minibatch_size": 64,
            "epochs": 5,
            "bootstrap_truncated": False,
        },
        "trpo gaussian": {"actions": "raw"},
        "trpo gaussian_tanh": {"actions": "raw"},
        "trpo beta": {"actions": "raw", "policy_gain": 0.001},
        # OpenAI Baselines' acktr_cont: large batches, short steps, and a value function that learns Monte Carlo
        # returns of raw rewards. The trust region is half of its `clip_kl`, which omits the 1/2 of 1/2 d^T F d.
        "acktr": {
            "envs": 1,
            "batch_size": 2500,
            "normalize_rewards": False,
            "policy_gain": 0.1,
            "gae_lambda": 0.97,
            "target_kl": 0.002,
            "clip_kl": 0.005,
            "decay": 0.99,
            "value_lambda": 1.0,
            "value_learning_rate": 1e-3,
            "bootstrap_truncated": False,
        },
        "acktr beta": {"policy_gain": 0.001},
    },
}


ADDED = ("returns_across_episodes", "least_variance")
"""What `paper` has set since."""

EARLIER: dict[str, dict[str, dict[str, Any]]] = {
    "modern-0.1": PRESETS["modern"],
    "paper-0.1": {
        pair: {name: value for name, value in options.items() if name not in ADDED}
        for pair, options in PRESETS["paper"].items()
    },
}
"""Presets as they were in earlier versions."""


def preset_options(preset: str, algo: str, head: str) -> dict[str, Any]:
    """The options that this preset sets for this algorithm and head; a user's own head gets the algorithm's."""
    known = PRESETS | EARLIER
    if preset not in known and not is_file(preset):
        raise BadInput(
            f"There is no preset named {preset!r}. Known: {', '.join(known)}, or a file whose name ends in .toml."
        )
    tables = _read_preset(preset, algo) if is_file(preset) else known[preset]
    return {**tables.get(algo, {}), **tables.get(f"{algo} {head}", {})}


# --- files ---

FILE_SCHEMA = 1
FILE = Schema(
    "a preset",
    {"schema": Field(lambda value: value == FILE_SCHEMA, f"{FILE_SCHEMA}, the only version there is", required=False)},
    others=OBJECT._replace(wanted='a table such as [ppo] or ["ppo ordinal"] with options in it'),
)


def is_file(preset: str) -> bool:
    return preset.endswith(".toml")


def label(preset: str) -> str:
    """What a run remembers of its preset: a name, not a place on somebody's disk."""
    return os.path.basename(preset) if is_file(preset) else preset


def _read_preset(path: str, algo: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of a preset file, which must have some for this algorithm."""
    with in_file(path):
        content = read_toml(Path(path), "a preset")
        if fault := FILE.fault(content):
            raise BadInput(f"{fault}.")
        tables = {name: table for name, table in content.items() if name != "schema"}
        if not any(name.split(" ")[0] == algo for name in tables):
            raise BadInput(f"there are no settings for {algo} in it, only for {', '.join(tables) or 'nothing'}.")
    return tables


CHANGED_SINCE = {"modern-0.1": ("ppo",), "paper-0.1": ("ppo", "trpo")}
"""The algorithms whose settings have changed since; for all others, both names mean the same settings."""


def edition(preset: str, algo: str, version: str | None) -> str:
    """Today's name for what that version (None for this one) called `preset`."""
    named = f"{preset}-{'.'.join(version.split('.')[:2])}" if version else preset
    return named if algo in CHANGED_SINCE.get(named, ()) else preset


def base(preset: str) -> str:
    """The name of a preset without its version."""
    return next((name for name in PRESETS if preset.startswith(f"{name}-") and preset in EARLIER), preset)
