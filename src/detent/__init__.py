"""Detent: on-policy training for continuous actions, with the policy head as a free choice.

import detent

run = detent.Run(task="Humanoid-v5", head="ordinal", steps=1_000_000, seed=0)
for record in detent.train(run, out="runs/humanoid"):
    print(record["time/total_timesteps"], record["rollout/ep_rew_mean"])
policy = detent.load("runs/humanoid")
action = policy(observation)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from detent.lazily import lazily
from detent.moved import Moved

if TYPE_CHECKING:
    from detent.algorithms import register_algorithm as register_algorithm
    from detent.critics import register_critic as register_critic
    from detent.errors import BadInput as BadInput
    from detent.errors import DetentError as DetentError
    from detent.heads import register_head as register_head
    from detent.policy import Policy as Policy
    from detent.policy import load as load
    from detent.runs.execution import train as train
    from detent.runs.run import Run as Run
    from detent.tasks import register_task as register_task
    from detent.trunks import register_trunk as register_trunk

_HOMES = {
    "BadInput": "errors",
    "DetentError": "errors",
    "Policy": "policy",
    "Run": "runs.run",
    "load": "policy",
    "register_algorithm": "algorithms",
    "register_critic": "critics",
    "register_head": "heads",
    "register_task": "tasks",
    "register_trunk": "trunks",
    "train": "runs.execution",
}
__all__ = sorted(_HOMES)
__getattr__ = lazily(__name__, _HOMES)
sys.meta_path.append(Moved())


def __dir__() -> list[str]:
    return __all__
