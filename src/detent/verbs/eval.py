"""`detent eval`: play episodes with a trained policy."""

from __future__ import annotations

import json
import os

import numpy as np

from detent.ops import Choose
from detent.runs.execution import evaluate_run
from detent.runs.progress import rounded
from detent.verbs.flags import Parser, episode_flags, episodes_and_seed, location, mean_flag, parse, task_flag
from detent.verbs.trained import trained


def main(argv: list[str]) -> int:
    parser = Parser(
        "eval", description="Play episodes with a trained policy: most probable actions, then sampled ones."
    )
    parser.add_argument("run", type=location, metavar="RUN", help="a run directory or a policy file")
    episode_flags(parser, 20)
    mean_flag(parser)
    task_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parse(parser, argv)
    episodes, seed = episodes_and_seed(args)
    run, policy, _ = trained(args)
    choose: Choose = "mean" if args.mean else "mode"
    results = {
        choose: evaluate_run(run, policy, episodes, seed, choose=choose),
        "stochastic": evaluate_run(run, policy, episodes, seed, np.random.default_rng(seed)),
    }
    if args.json:
        print(json.dumps({"run": os.path.abspath(args.run), "steps": policy.meta["steps"], **results}, indent=2))
        return 0
    for kind, summary in results.items():
        success = f", success rate {summary['success_rate']:.2f}" if "success_rate" in summary else ""
        print(
            f"{kind:<10}  return {rounded(summary['mean_reward'])} ± {rounded(summary['std_reward'])} (sd over "
            f"{episodes} episodes), length {summary['mean_ep_length']:,.1f}{success}"
        )
    return 0
