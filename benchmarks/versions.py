"""The speed of this version of Detent against another one, in one run.

    python benchmarks/versions.py OTHER_CHECKOUT [--tasks HalfCheetah-v5,Humanoid-v5] [--heads gaussian,ordinal]
                                  [--rounds 20] [--seconds 3] [--envs 64]

Both versions train with PPO as `detent train` does (see `contestant.py`), each in a process of its own that imports
Detent from its checkout's `src`. After both have compiled, they take turns: in each round one trains for a few seconds
while the other waits, and then the other way round, with another one first in every round. The KL that ends an
update's epochs early is computed, as with `modern`, but set so high that it never does: both do all ten epochs.

Prints, for every task and head, both rates (the medians over rounds) and their ratio (the geometric mean over rounds)
with its 95% interval (Student's, of the ratios' logarithms). Use a quiet machine. The other version can be as old as
0.1.0, and must work with the packages that are installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import t

import launch

HERE = Path(__file__).resolve().parent
NEVER = 1e9
"""A KL that no update reaches."""


def check(checkout: Path) -> Path:
    """The checkout's `src`, from which Detent is really imported there."""
    source = checkout / "src"
    imported = subprocess.run(
        [sys.executable, "-c", "import detent; print(detent.__file__)"],
        env=environment(source), capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    if not imported.stdout.startswith(f"{source}{os.sep}"):
        raise SystemExit(f"{checkout} has no Detent in src that can be imported: {imported.stderr[-300:]}")
    return source


def environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source)}


def describe(checkout: Path) -> str:
    """The commit, and whether something differs from it."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--tags"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def rates(sources: list[Path], task: str, head: str, rounds: int, seconds: float, envs: int) -> np.ndarray:
    """Steps per second, [rounds, versions]."""
    flags = ["--head", head, "--envs", str(envs), "--target-kl", str(NEVER), "--seconds", str(seconds), "--rounds"]
    command = [sys.executable, str(HERE / "contestant.py"), "train", task, *flags]
    found = np.zeros((rounds, len(sources)))
    with ExitStack() as stack:
        versions = [stack.enter_context(launch.Waiting(command, environment(source))) for source in sources]
        for number in range(rounds):
            order = range(len(versions)) if number % 2 == 0 else reversed(range(len(versions)))
            for version in order:
                found[number, version] = versions[version].measure()["steps_per_second"]
    return found


def ratio(found: np.ndarray) -> tuple[float, float, float]:
    """The first version's rate over the second's, and its 95% interval."""
    logs = np.log(found[:, 0] / found[:, 1])
    half = t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / np.sqrt(logs.size)
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return mean, low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("--tasks", default="HalfCheetah-v5,Humanoid-v5")
    parser.add_argument("--heads", default="gaussian,ordinal")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="per round and version")
    parser.add_argument("--envs", type=int, default=64)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("an interval needs at least two rounds")
    checkouts = [HERE.parent, options.other.resolve()]
    sources = [check(checkout) for checkout in checkouts]
    print(f"this: {describe(checkouts[0])}; other: {describe(checkouts[1])}; {options.rounds} rounds\n")
    print("| task | head | this, steps/s | other, steps/s | this / other | 95% interval |\n" + "|---" * 6 + "|")
    for task in options.tasks.split(","):
        for head in options.heads.split(","):
            found = rates(sources, task, head, options.rounds, options.seconds, options.envs)
            this, other = map(median, found.T.tolist())
            mean, low, high = ratio(found)
            print(
                f"| {task} | {head} | {this:,.0f} | {other:,.0f} | {mean:.3f} | {low:.3f} to {high:.3f} |", flush=True
            )


if __name__ == "__main__":
    main()
