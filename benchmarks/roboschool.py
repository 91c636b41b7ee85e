"""Steps per second of the Roboschool tasks and of those in the package pybullet_envs_gymnasium, on one core.

    pip install --no-deps pybullet_envs_gymnasium==0.6.0
    python benchmarks/roboschool.py [--slices 30] [--steps 150]

Both are stepped with the same random actions. They take turns in slices of `--steps` steps, resets included, so other
load on the machine affects both equally. Rates are medians over slices; a ratio is the median of the ratios of
neighbouring slices. Prints a table and writes `roboschool.json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from detent.tasks.roboschool import ENVIRONMENTS

RESULTS = Path(__file__).resolve().with_name("roboschool.json")
PEER, PEER_VERSION = "pybullet_envs_gymnasium", "0.6.0"
PEER_NAMES = {"Walker2d": "Walker2D"}
PACKAGES = ("detent", "pybullet", PEER, "gymnasium", "numpy")

Env = gymnasium.Env[Any, Any]


def rate(env: Env, actions: list[np.ndarray]) -> float:
    """Steps per second."""
    began = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions) / (time.perf_counter() - began)


def compare(ours: Env, peer: Env, slices: int, steps: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    for env in (ours, peer):
        env.reset(seed=0)
    rates: dict[Env, list[float]] = {ours: [], peer: []}
    for k in range(slices + 1):
        actions = list(rng.uniform(-1, 1, (steps, *ours.action_space.shape)).astype(np.float32))
        for env in (ours, peer) if k % 2 else (peer, ours):
            rates[env].append(rate(env, actions))
    fast, slow = rates[ours][1:], rates[peer][1:]  # the first slice warms up
    return {
        "steps_per_second": median(fast),
        "peer_steps_per_second": median(slow),
        "ratio": median(a / b for a, b in zip(fast, slow, strict=True)),
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    try:
        importlib.import_module(PEER)
    except ImportError:
        sys.exit(f"This compares with {PEER}: pip install --no-deps {PEER}=={PEER_VERSION}")
    results = {}
    print(f"| task | Detent | {PEER} | ratio |\n|---|---|---|---|")
    for kind in ENVIRONMENTS:
        name = kind.__name__
        ours = kind()
        peer = gymnasium.make(f"{PEER_NAMES.get(name, name)}BulletEnv-v0", disable_env_checker=True)
        results[name] = row = compare(ours, peer, options.slices, options.steps)
        print(f"| {name} | {row['steps_per_second']:,.0f} | {row['peer_steps_per_second']:,.0f} | {row['ratio']:.2f} |")
        ours.close()
        peer.close()
    about = {
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
        "slices": options.slices,
        "steps_of_a_slice": options.steps,
    }
    RESULTS.write_text(json.dumps({"about": about, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
