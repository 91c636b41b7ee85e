"""The point of the paper in about three minutes: three policy heads, one task, one algorithm, one picture.

With the settings of the paper, replacing the Gaussian with a discrete or ordinal head changes what PPO reaches on
HalfCheetah. One seed shows no more than that; docs/performance.md has several seeds, and settings with which the
Gaussian overtakes both.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import detent
from detent.report import load_runs, write_page
from detent.report.figures import draw_panels
from detent.runs.directory import RunDirectory
from detent.runs.execution import evaluate_run
from detent.runs.progress import follow

TASK = "HalfCheetah-v5"
HEADS = ("gaussian", "discrete", "ordinal")


def main(steps: int = 600_000) -> None:
    out = Path("runs/demo")
    if out.exists():  # earlier runs are moved, not deleted
        shutil.move(out, tempfile.mkdtemp(prefix="demo-before-", dir=out.parent))
    for head in HEADS:
        # The paper uses one environment; sixteen do as well and use the whole machine.
        run = detent.Run(TASK, head, preset="paper", envs=16, steps=steps, seed=1)
        for _ in follow(detent.train(run, out=out / head), head, steps):
            pass
    print(f"\n{TASK}, PPO with the paper's settings, {steps:,} steps, one seed. Return over 10 episodes, mode:")
    for head in HEADS:
        result = evaluate_run(RunDirectory(out / head).run(), detent.load(out / head), 10, seed=0)
        print(f"  {head:<10} {result['mean_reward']:>8,.0f} ± {result['std_reward']:,.0f}")
    runs = load_runs([out])
    draw_panels(runs, out / "curves.png", "PPO with the paper's settings")
    write_page(runs, out / "report.html")
    print(f"\nLearning curves: {(out / 'curves.png').resolve()}")
    print(f"The full report, for a browser: {(out / 'report.html').resolve()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
