"""`detent eval`: play episodes with a trained policy."""

from __future__ import annotations

import json

import numpy as np

from detent.policy import load
from detent.runs.directory import RunDirectory
from detent.runs.execution import evaluate_run
from detent.runs.progress import rounded
from detent.verbs.flags import Parser, episode_flags, episodes_and_seed, location, parse, policy_path


def main(argv: list[str]) -> int:
    parser = Parser(
        "eval", description="Play episodes with a trained policy: most probable actions, then sampled ones."
    )
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory")
    episode_flags(parser, 20)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parse(parser, argv)
    episodes, seed = episodes_and_seed(args)
    directory = RunDirectory(args.run)
    run = directory.run(args.imports)
    policy = load(policy_path(args.run, args.best))
    results = {
        "mode": evaluate_run(run, policy, episodes, seed),
        "stochastic": evaluate_run(run, policy, episodes, seed, np.random.default_rng(seed)),
    }
    if args.json:
        print(json.dumps({"run": str(directory.path), "steps": policy.meta["steps"], **results}, indent=2))
        return 0
    for kind, summary in results.items():
        success = f", success rate {summary['success_rate']:.2f}" if "success_rate" in summary else ""
        print(
            f"{kind:<10}  return {rounded(summary['mean_reward'])} ± {rounded(summary['std_reward'])} (sd over "
            f"{episodes} episodes), length {summary['mean_ep_length']:,.1f}{success}"
        )
    return 0
