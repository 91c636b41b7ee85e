"""How long `detent report` takes for many long runs, and how quickly the page then responds.

    python benchmarks/report.py --runs 1000 --records 5000

Writes run directories as training does (run.json through RunDirectory, records with all keys of PPO, a policy), reports
them, and opens the page in Chromium if it is installed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from detent.networks import deployed
from detent.policy import Policy, whole_ops
from detent.report import load_runs, write_page
from detent.runs.directory import RunDirectory
from detent.runs.run import Run

TASKS = ("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "Walker2d-v5")
HEADS = ("gaussian", "discrete", "ordinal")
DIMENSIONS, INPUTS = 6, 17
OTHER_KEYS = (
    "rollout/ep_len_mean", "rollout/episodes", "rollout/action_clip_fraction", "train/approx_kl", "train/clip_fraction",
    "train/entropy_loss", "train/epochs", "train/explained_variance", "train/learning_rate", "train/loss",
    "train/policy_gradient_loss", "train/value_loss",
)  # fmt: skip


@functools.cache
def records_text(seed: int, records: int) -> str:
    """A learning curve; a few different ones are enough, and writing them takes longer than reading."""
    rng = np.random.default_rng(seed)
    returns = 3000 * (1 - np.exp(-np.arange(records) / records * 4)) + np.cumsum(rng.normal(0, 5, records))
    other = rng.normal(size=(records, len(OTHER_KEYS)))
    lines = []
    for i in range(records):
        record = {
            "time/iterations": i + 1,
            "time/total_timesteps": 2048 * (i + 1),
            "time/fps": 9101.177526128718,
            "time/time_elapsed": 0.225 * (i + 1),
            "rollout/ep_rew_mean": float(returns[i]),
            **dict(zip(OTHER_KEYS, other[i].tolist(), strict=True)),
        }
        lines.append(json.dumps(record) + "\n")
    return "".join(lines)


def write_run(path: Path, task: str, head: str, seed: int, records: int) -> None:
    rng = np.random.default_rng(seed)
    run = Run(task, head, seed=seed, steps=2048 * records)
    directory = RunDirectory(path)
    path.mkdir(parents=True)
    directory.create(run, None)
    (path / "records.jsonl").write_text(records_text(seed % 4, records))
    directory.write_status("finished")
    sizes = (INPUTS, 64, 64, DIMENSIONS if head == "gaussian" else DIMENSIONS * 11)
    tensors = {"observation/mean": np.zeros(INPUTS), "observation/var": np.ones(INPUTS)}
    for i, shape in enumerate(itertools.pairwise(sizes)):
        tensors |= {f"policy/{i}/w": rng.normal(size=shape) / 8, f"policy/{i}/b": np.zeros(shape[1])}
    tensors |= {"observations": rng.normal(size=(64, INPUTS)), "head/log_std": np.zeros(DIMENSIONS)}
    tensors |= {"space/low": -np.ones(DIMENSIONS), "space/high": np.ones(DIMENSIONS)}
    network = deployed(run.trunk.program(INPUTS, sizes[-1]), "policy")
    ops = whole_ops(network, run.head.deploy(), clip=10.0, scale=True, shape=[DIMENSIONS])
    meta = {"ops": ops, "steps": 1}
    Policy({k: v.astype(np.float32) for k, v in tensors.items()}, meta).save(path / "policy.safetensors")


def time_page(page: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from browser import Browser, find

    path = find()
    if path is None:
        print("No Chromium: the page was not opened.")
        return
    with Browser(path, 1400, 1000) as browser:
        began = time.perf_counter()
        browser.open(page)
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        print(f"page opened and drawn: {time.perf_counter() - began:.2f} s")
        for name, value in (("smooth", "8"), ("choose-x", "seconds"), ("choose-task", "Ant-v5"), ("choose-text", "7")):
            began = time.perf_counter()
            browser.choose(name, value)
            browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
            print(f"{name} = {value}: {1000 * (time.perf_counter() - began):.0f} ms")
        print(f"problems: {browser.problems or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--records", type=int, default=5000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for i in range(args.runs):
            task, head = TASKS[i % len(TASKS)], HEADS[i // len(TASKS) % len(HEADS)]
            seed = i // (len(TASKS) * len(HEADS))
            write_run(top / f"{task}-{head}-{seed}", task, head, seed, args.records)
        began, busy = time.perf_counter(), time.process_time()
        runs = load_runs([top])
        read, read_busy = time.perf_counter() - began, time.process_time() - busy
        write_page(runs, top / "report.html")
        whole, whole_busy = time.perf_counter() - began, time.process_time() - busy
        size = (top / "report.html").stat().st_size / 1e6
        for what, wall, cpu in (("reading", read, read_busy), ("all", whole, whole_busy)):
            print(f"{what}: {wall:.1f} s ({cpu:.1f} s of CPU), {100 * wall / args.runs:.2f} s per 100 runs")
        print(f"{args.runs:,} runs of {args.records:,} records; the page has {size:.1f} MB")
        time_page(top / "report.html")


if __name__ == "__main__":
    main()
