"""Learning: many runs, one single-threaded process per core; the mean return of the last 100 training episodes.

    python benchmarks/learning.py GRID [GRID ...]     run what is missing of these grids (see GRIDS)
    python benchmarks/learning.py --table [GRID ...]  print what is finished of them (or of all) as a Markdown table

Each finished run is one line of results/learning.jsonl, named by its options; a run that is there is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results" / "learning.jsonl"
Options = dict[str, Any]


def grid(**axes: Any) -> list[Options]:
    """Every combination; an axis that is not a list has one value."""
    values = [v if isinstance(v, list) else [v] for v in axes.values()]
    return [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*values)]


def tried(**axes: Any) -> list[Options]:
    """Runs that looked for a limit on the KL, before it was divided by the action dimensions."""
    return grid(steps=1_000_000, kl_per_dimension=False, **axes)


CHEETAH, HUMANOID = "HalfCheetah-v5", "Humanoid-v5"
GRIDS: dict[str, list[Options]] = {
    "explore": [
        *tried(task=CHEETAH, head=["gaussian", "ordinal"], seed=100, learning_rate=[1e-4, 3e-4], target_kl=[0.0, 0.02]),
        *tried(task=CHEETAH, head=["gaussian", "ordinal"], seed=100, learning_rate=3e-4, target_kl=0.01),
        *tried(task=CHEETAH, head="ordinal", seed=100, learning_rate=1e-3, target_kl=0.02),
        *tried(task=CHEETAH, head=["gaussian", "ordinal"], seed=101, learning_rate=3e-4, target_kl=[0.01, 0.02]),
        *tried(task=CHEETAH, head="gaussian", seed=100, learning_rate=3e-4, target_kl=0.05),
        *tried(task=HUMANOID, head="gaussian", seed=100, learning_rate=3e-4, target_kl=[0.01, 0.02]),
        *tried(task=HUMANOID, head=["gaussian", "ordinal"], seed=100, learning_rate=1e-4, target_kl=0.0),
    ],
    "minibatch": [
        *tried(task=CHEETAH, head=["gaussian", "ordinal"], seed=100, learning_rate=1e-3, target_kl=[0.02, 0.05],
               minibatch_size=512),
        *tried(task=CHEETAH, head="gaussian", seed=101, learning_rate=1e-3, target_kl=[0.02, 0.05], minibatch_size=512),
        *tried(task=CHEETAH, head="gaussian", seed=[100, 101], learning_rate=3e-4, target_kl=0.03, minibatch_size=64),
        *tried(task=HUMANOID, head="gaussian", seed=100, learning_rate=1e-3, target_kl=0.02, minibatch_size=512),
    ],
    # The equal search behind `modern`: the same four settings for every head, one seed that no table uses.
    "search": grid(task=[CHEETAH, "Hopper-v5"], head=["ordinal", "discrete", "gaussian", "beta"],
                   learning_rate=[3e-4, 1e-3], minibatch_size=[64, 512], preset="modern", steps=1_000_000, seed=100),
    "search-humanoid": grid(task=HUMANOID, learning_rate=[1e-3, 3e-4], head=["beta", "discrete", "gaussian", "ordinal"],
                            preset="modern", steps=1_000_000, seed=100),
    # A lower rate, for the head that learns most slowly with the others.
    "search-slow": [
        *grid(head="discrete", task=[HUMANOID, CHEETAH], learning_rate=1e-4, preset="modern", steps=1_000_000,
              seed=100),
        *grid(head="ordinal", task=CHEETAH, learning_rate=1e-4, preset="modern", steps=1_000_000, seed=100),
    ],
    # What else might be in its way.
    "discrete-modern": [
        {"task": CHEETAH, "head": "discrete", "preset": "modern", "steps": 1_000_000, "seed": 100} | changed
        for changed in ({"envs": 16}, {"envs": 4}, {"anneal_learning_rate": False}, {"bins": 7})
    ],
    # What the goals are measured by.
    "modern-humanoid": [
        *grid(task="Humanoid-v5", preset="modern", steps=1_500_000, seed=[0, 1, 2], head=["gaussian", "ordinal"]),
    ],
    "modern-cheetah": grid(task="HalfCheetah-v5", preset="modern", steps=1_000_000, seed=[0, 1, 2],
                           head=["gaussian", "ordinal", "discrete"]),
    "paper": grid(task="HalfCheetah-v5", preset="paper", steps=1_000_000, seed=[0, 1, 2],
                  head=["gaussian", "discrete", "ordinal"]),
    "modern-walker": grid(task="Walker2d-v5", preset="modern", steps=1_000_000, seed=[0, 1, 2],
                          head=["gaussian", "ordinal", "discrete"]),
    # The other algorithms.
    "trpo": [
        *grid(task=[CHEETAH, "Hopper-v5", "Walker2d-v5"], algo="trpo", preset=["modern", "paper"], steps=1_000_000,
              seed=[0, 1, 2], head="gaussian"),
        *grid(task=CHEETAH, algo="trpo", preset=["modern", "paper"], steps=1_000_000, seed=[0, 1, 2], head="discrete"),
        *grid(task=CHEETAH, algo="trpo", preset="paper", steps=1_000_000, seed=[0, 1, 2], head="ordinal"),
    ],
    # What ten iterations of conjugate gradient leave of the ordinal head's natural gradient.
    "trpo-conditioning": [
        *grid(task=CHEETAH, algo="trpo", preset="modern", steps=1_000_000, seed=[0, 1, 2], head="ordinal",
              damping=[0.03, 0.1]),
        *grid(task=CHEETAH, algo="trpo", preset="modern", steps=1_000_000, seed=[0, 1, 2], head="ordinal",
              damping=0.03, cg_iterations=40),
        *grid(task=CHEETAH, algo="trpo", preset="modern", steps=1_000_000, seed=[0, 1, 2], head="discrete",
              cg_iterations=40),
    ],
    # The first three seeds of Humanoid are in the campaign (benchmarks/campaign.py), with the preset `paper`.
    "trpo-humanoid": grid(task=HUMANOID, algo="trpo", preset="modern", steps=1_000_000, seed=0, head="gaussian"),
    "acktr": grid(task=[CHEETAH, "Reacher-v5"], algo="acktr", preset="modern", steps=1_000_000, seed=[0, 1, 2],
                  head=["gaussian", "gaussian_tanh", "beta", "discrete", "ordinal", "ordinal_released"]),
    # The three runs of `make demo`, with other seeds too.
    "demo": grid(task="HalfCheetah-v5", head=["gaussian", "discrete", "ordinal"], preset="paper", envs=16,
                 steps=600_000, seed=[1, 2, 3]),
}  # fmt: skip


def name(options: Options) -> str:
    return " ".join(f"{key}={options[key]}" for key in sorted(options))


def finished() -> dict[str, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {name(line["options"]): line for line in lines}


def take_core(cores: Any) -> None:
    """Bind this process to a core of its own, and give way to whoever works at the machine."""
    os.sched_setaffinity(0, {cores.get()})
    os.nice(10)


def run_one(options: Options) -> dict[str, Any]:
    """Train; the last record, and the curve at about twenty points."""
    from detent.configuration import Run
    from detent.errors import Diverged
    from detent.training import train

    curve: list[tuple[float | None, float | None]] = []
    status = "finished"
    try:
        for record in train(Run(**options)):
            curve.append((record["time/total_timesteps"], record["rollout/ep_rew_mean"]))
    except Diverged:
        status = "diverged"
    thin = curve[:: max(1, len(curve) // 20)]
    return {
        "options": options,
        "status": status,
        "steps": curve[-1][0],
        "return": curve[-1][1],
        "minutes": round((record["time/time_elapsed"] or 0) / 60, 2),
        "curve": [[steps, None if value is None else round(value, 1)] for steps, value in thin],
    }


def missing(names: list[str]) -> Iterator[Options]:
    done = finished()
    for options in itertools.chain.from_iterable(GRIDS[n] for n in names):
        if name(options) not in done:
            yield options


def table(names: list[str]) -> None:
    """Returns by seed, their mean, and its 95% interval (Student's t)."""
    done = finished()
    wanted = [name(options) for options in itertools.chain.from_iterable(GRIDS[n] for n in names)] or list(done)
    groups: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for line in (done[key] for key in wanted if key in done):
        options = dict(line["options"])
        options.setdefault("algo", "ppo")
        key = tuple(str(options.pop(k, "")) for k in ("algo", "preset", "task", "steps", "head"))
        seed = options.pop("seed")
        groups[(*key, name(options))][seed] = line["return"] if line["status"] == "finished" else float("nan")
    print(
        "| algo | preset | task | steps | head | options | seeds | returns | mean | 95% interval |\n"
        + "|---" * 10
        + "|"
    )
    for key, by_seed in sorted(groups.items()):
        values = [by_seed[seed] for seed in sorted(by_seed)]
        mean = statistics.mean(values)
        seeds, returns = ", ".join(map(str, sorted(by_seed))), "; ".join(map(rounded, values))
        print(f"| {' | '.join(key)} | {seeds} | {returns} | {rounded(mean)} | {interval(values)} |")


def rounded(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{rounded(statistics.mean(values) - half)} to {rounded(statistics.mean(values) + half)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", choices=[*GRIDS, []], metavar="GRID", help=", ".join(GRIDS))
    parser.add_argument("--table", action="store_true", help="print what has been run")
    args = parser.parse_args()
    if args.table:
        table(args.grids)
        return
    todo = list(missing(args.grids))
    RESULTS.parent.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in os.sched_getaffinity(0):
        cores.put(core)
    with context.Pool(len(os.sched_getaffinity(0)), take_core, (cores,)) as pool:
        for number, result in enumerate(pool.imap_unordered(run_one, todo), 1):
            with open(RESULTS, "a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{number}/{len(todo)} {name(result['options'])}: {result['return']}", flush=True)


if __name__ == "__main__":
    main()
