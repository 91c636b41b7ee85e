"""The paper's bandit (Section 4.2 and Figure 1): one step, one action in [-1, 1], and a reward with two peaks.

    python examples/bandit.py        # a minute; the picture is runs/bandit/bandit.png

A Gaussian that starts between the peaks climbs the one it finds first. A discrete policy (K = 11) can keep both until
it knows which is higher. The paper draws its reward function but does not define it; here it is that of
`probe/bimodal`: a wide peak of height 0.6 at -0.6 and a narrow one of height 1 at 0.6.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import detent
from detent.tasks.probes import bimodal

SEEDS, HEADS = range(5), ("gaussian", "discrete")


def main(steps: int = 100_000) -> None:
    out = Path("runs/bandit")
    out.mkdir(parents=True, exist_ok=True)
    figure, (densities, curves) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    grid = np.linspace(-1.0, 1.0, 401)
    densities.plot(grid, np.asarray(bimodal(grid)), color="tab:blue", label="reward")
    for head, color in zip(HEADS, ("tab:green", "tab:red"), strict=True):
        found = 0
        for seed in SEEDS:
            run = detent.Run("probe/bimodal", head, preset="paper", envs=64, batch_size=512, minibatch_size=128,
                             steps=steps, seed=seed)  # fmt: skip
            x, y = [], []
            for record in detent.train(run):
                x.append(record["time/total_timesteps"])
                y.append(record["rollout/ep_rew_mean"])
            curves.plot(x, y, color=color, alpha=0.7, label=head if seed == 0 else None)
            found += (y[-1] or 0.0) > 0.8
            if seed == 0:
                drawn = record.policy().sample(np.ones((20_000, 1)), np.random.default_rng(0))[:, 0]
                share, edges = np.histogram(drawn, bins=41, range=(-1.05, 1.05))
                middle = 0.5 * (edges[1:] + edges[:-1])
                densities.plot(middle, share / share.max(), color=color, label=f"{head}, seed 0")
        print(f"{head:<9} {found} of {len(SEEDS)} seeds found the higher peak")
    densities.set(xlabel="action", ylabel="reward; density, largest = 1", title="Trained policies")
    curves.set(xlabel="steps", ylabel="mean reward of 100 steps", title="Learning curves, five seeds")
    densities.legend(), curves.legend()
    figure.savefig(out / "bandit.png", dpi=120)
    print(f"Picture: {out / 'bandit.png'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
