"""The same algorithm twice: Detent's PPO, and Stable-Baselines3's PPO with Detent's ordinal head and the same settings.

    python benchmarks/interop.py [--jobs N]    train what is missing, N at a time (one per core), and print the table
    python benchmarks/interop.py --table       print what is finished

Both learn one task with 64-64 tanh networks for policy and values, 8 environments, batches of 2,048 steps, minibatches
of 64, 10 epochs, Adam at a constant 3e-4, clipping at 0.2, no clipping of values, no entropy bonus, gradients no longer
than 0.5, gamma 0.99, lambda 0.95, running normalisation of observations and rewards (clipped at 10), advantages
estimated once per batch and standardised in each minibatch, and bootstrapping where a time limit ends an episode. They
differ in this: random numbers; Stable-Baselines3 divides advantages by the standard deviation with n - 1; Detent's
environments use a step to reset, which is part of the batch but has no weight; Detent's are EnvPool's, the others
Gymnasium's own, stepped in one process (the same MuJoCo tasks).

Every run is a fresh process with one thread on one core. The return is the mean of the last 100 training episodes. The
clock and the processor time run from the first rollout to the end, compilation included, imports excluded; on a busy
machine only the processor time means much. Each finished run is kept in benchmarks/interop.json and is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, median, stdev, variance
from typing import Any

import launch
from detent.files import write_whole

RESULTS = Path(__file__).with_name("interop.json")
TASK, STEPS, SEEDS, ENVS, BINS = "Hopper-v5", 200_000, range(5), 8, 11
BATCH, MINIBATCH, EPOCHS, HIDDEN = 2048, 64, 10, (64, 64)
LEARNING_RATE, CLIP, GAMMA, LAMBDA, MAX_GRAD_NORM, NORMALIZATION_CLIP = 3e-4, 0.2, 0.99, 0.95, 0.5, 10.0
SQUARED_ERROR = 0.5
"""Weight of the mean squared error of values in the loss."""
CURVE_POINTS = 20
TIME_LIMIT = 7200.0
"""Seconds after which a run is given up; the machine may be busy with others."""

Result = dict[str, Any]
Curve = list[tuple[float, float | None]]


def learn_with_detent(seed: int, steps: int) -> Curve:
    from detent.runs.run import Run
    from detent.runs.training import train

    run = Run(
        TASK, "ordinal", "ppo", "modern", bins=BINS, seed=seed, steps=steps, envs=ENVS, threads=1,
        batch_size=BATCH, minibatch_size=MINIBATCH, epochs=EPOCHS, hidden_sizes=HIDDEN, policy_gain=0.01,
        learning_rate=LEARNING_RATE, anneal_learning_rate=False, adam_epsilon=1e-5, max_grad_norm=MAX_GRAD_NORM,
        gamma=GAMMA, gae_lambda=LAMBDA, recompute_advantages=False, bootstrap_truncated=True,
        clip_range=CLIP, clip_range_value=0.0, value_coef=2.0 * SQUARED_ERROR, entropy_coef=0.0,
        target_kl=0.0, divide_target_kl=False, actions="scale",
        normalize_observations=True, normalize_rewards=True, normalization_clip=NORMALIZATION_CLIP,
    )  # fmt: skip
    return [(r["time/total_timesteps"] or 0, r["rollout/ep_rew_mean"]) for r in train(run)]


def learn_with_sb3(seed: int, steps: int) -> Curve:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from detent.sb3 import OrdinalPolicy

    curve: Curve = []

    class Note(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            curve.append((self.num_timesteps, float(mean(returns)) if returns else None))

    torch.set_num_threads(1)
    env = make_vec_env(TASK, n_envs=ENVS, seed=seed)
    env = VecNormalize(env, clip_obs=NORMALIZATION_CLIP, clip_reward=NORMALIZATION_CLIP, gamma=GAMMA)
    model = PPO(
        OrdinalPolicy, env, seed=seed, device="cpu", n_steps=BATCH // ENVS, batch_size=MINIBATCH, n_epochs=EPOCHS,
        learning_rate=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM, gamma=GAMMA, gae_lambda=LAMBDA,
        normalize_advantage=True, clip_range=CLIP, clip_range_vf=None, vf_coef=SQUARED_ERROR, ent_coef=0.0,
        target_kl=None, stats_window_size=100,
        policy_kwargs={
            "bins": BINS, "net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}, "activation_fn": torch.nn.Tanh,
            "ortho_init": True, "optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-5},
        },
    )  # fmt: skip
    model.learn(steps, callback=Note())
    env.close()
    return curve


LEARNERS = {"Detent": learn_with_detent, "Stable-Baselines3": learn_with_sb3}


def run_one(learner: str, seed: int, steps: int, core: int) -> Result:
    """Learn in this process."""
    os.sched_setaffinity(0, {core})
    # What either imports at its first use is not learning.
    import stable_baselines3  # noqa: F401

    import detent.runs.training  # noqa: F401

    began, spent = time.perf_counter(), time.process_time()
    curve = LEARNERS[learner](seed, steps)
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - spent
    thin = [*curve[: -1 : max(1, len(curve) // CURVE_POINTS)], curve[-1]]
    return {
        "learner": learner,
        "seed": seed,
        "task": TASK,
        "steps": steps,
        "steps_done": int(curve[-1][0]),
        "return": curve[-1][1],
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor_seconds, 2),
        "curve": [[int(done), None if value is None else round(value, 1)] for done, value in thin],
    }


def finished() -> list[Result]:
    runs: list[Result] = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    return runs


def keep(runs: list[Result]) -> None:
    rows = ",\n".join(json.dumps(run) for run in sorted(runs, key=lambda run: (run["seed"], run["learner"])))
    write_whole(RESULTS, f'{{"runs": [\n{rows}\n]}}\n'.encode())


def run_missing(steps: int, jobs: int) -> None:
    """Both learners take turns, seed by seed."""
    done = {(run["learner"], run["seed"], run["steps"]) for run in finished()}
    todo = [(learner, seed) for seed in SEEDS for learner in LEARNERS if (learner, seed, steps) not in done]
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)

    def in_process(learner: str, seed: int) -> Result:
        core = cores.get()
        try:
            one = ["--one", learner, "--seed", str(seed), "--steps", str(steps), "--core", str(core)]
            return launch.run([sys.executable, str(Path(__file__).resolve()), *one], time_limit=TIME_LIMIT)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(in_process, *what) for what in todo]):
            run = future.result()
            keep([*finished(), run])
            found = f"{run['return']:,.0f}, {run['processor_seconds']:.0f} s of processor time"
            print(f"{run['learner']}, seed {run['seed']}: {found}", file=sys.stderr, flush=True)


def table(steps: int) -> None:
    """Returns with their 95% intervals (Student's t), the difference with Welch's, and speed."""
    runs = [run for run in finished() if run["steps"] == steps]
    by_learner = {name: {r["seed"]: r for r in runs if r["learner"] == name} for name in LEARNERS}
    both = sorted(set.intersection(*map(set, by_learner.values())))
    if not both:
        print("No seed has been trained with both.")
        return
    print(f"{TASK}, {steps:,} steps, seeds {', '.join(map(str, both))}\n")
    print("| PPO, ordinal head | return | 95% interval | by seed | steps/s | steps per processor second |")
    print("|---|---|---|---|---|---|")
    for name, learned in by_learner.items():
        chosen = [learned[seed] for seed in both]
        returns = [run["return"] for run in chosen]
        speed, rate = (median(r["steps_done"] / r[key] for r in chosen) for key in ("seconds", "processor_seconds"))
        by_seed = "; ".join(f"{value:,.0f}" for value in returns)
        interval = "{:,.0f} to {:,.0f}".format(*student(returns)) if len(returns) > 1 else ""
        print(f"| {name} | {mean(returns):,.0f} | {interval} | {by_seed} | {speed:,.0f} | {rate:,.0f} |")
    ours, theirs = ([by_learner[name][seed] for seed in both] for name in LEARNERS)
    for key, what in (("seconds", "by the clock"), ("processor_seconds", "by processor time")):
        ratio = median(
            (a["steps_done"] / a[key]) / (b["steps_done"] / b[key]) for a, b in zip(ours, theirs, strict=True)
        )
        print(f"\nDetent's speed is {ratio:.1f} times Stable-Baselines3's {what}.")
    if len(both) > 1:
        low, high = welch([r["return"] for r in ours], [r["return"] for r in theirs])
        print(f"\nDifference of the means, 95% interval: {low:,.0f} to {high:,.0f}.")


def student(values: list[float]) -> tuple[float, float]:
    """95% interval of the mean."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def welch(a: list[float], b: list[float]) -> tuple[float, float]:
    """95% interval of mean(a) - mean(b), variances not assumed to be equal."""
    from scipy.stats import t

    va, vb = variance(a) / len(a), variance(b) / len(b)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = float(t.ppf(0.975, freedom)) * (va + vb) ** 0.5
    return mean(a) - mean(b) - half, mean(a) - mean(b) + half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at the same time")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--table", action="store_true", help="print what is finished")
    parser.add_argument("--one", choices=LEARNERS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(args.one, args.seed, args.steps, args.core)))
        return
    if not args.table:
        run_missing(args.steps, args.jobs)
    table(args.steps)


if __name__ == "__main__":
    main()
