"""Run directories written without training."""

from __future__ import annotations

import numpy as np

from detent.runs.directory import RunDirectory
from detent.runs.run import Run
from detent.runs.training import Record


def write_run(path, returns, task="Hopper-v5", head="ordinal", status="finished", elapsed=None, why=None, **options):
    """A run directory with these returns, written by what writes run directories, without training."""
    run = Run(task, head, **{"steps": 100 * len(returns), "preset": "modern", **options})
    return write_records(path, run, returns, status, elapsed, why)


def write_records(path, run, returns, status="finished", elapsed=None, why=None):
    """The same for a run that was made."""
    directory = RunDirectory(path)
    directory.path.mkdir(parents=True)
    directory.create(run, None)
    for i, value in enumerate(returns, 1):
        metrics = {
            "time/iterations": i,
            "time/total_timesteps": 100 * i,
            "time/fps": 50.0,
            "time/time_elapsed": 2.0 * i if elapsed is None else elapsed[i - 1],
            "rollout/ep_rew_mean": value,
            "train/loss": 0.5,
        }
        directory.append(Record(metrics, lambda: None, lambda: None))
    directory.write_status(status, why)
    return directory.path


def write_grid(top, iterations):
    """Two tasks, three heads one above the other, three seeds: noisy learning curves, without a return at first."""
    rng = np.random.default_rng(0)
    for task, scale in (("Hopper-v5", 100.0), ("Ant-v5", 1000.0)):
        for level, head in enumerate(("gaussian", "discrete", "ordinal"), 1):
            for seed in range(3):
                rise = 1 - np.exp(-np.arange(iterations) / (iterations / 4))
                returns = scale * level * rise + rng.normal(0, scale / 50, iterations)
                write_run(top / task / f"{head}-{seed}", [None, *returns.tolist()], task, head, seed=seed)
