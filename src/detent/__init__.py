"""Detent: on-policy training for continuous actions, with the policy head as a free choice.

import detent

run = detent.Run(task="Humanoid-v5", head="ordinal", steps=1_000_000, seed=0)
for record in detent.train(run, out="runs/humanoid"):
    print(record["time/total_timesteps"], record["rollout/ep_rew_mean"])
policy = detent.load("runs/humanoid")
action = policy(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent.algorithms import register_algorithm as register_algorithm
    from detent.configuration import Run as Run
    from detent.errors import BadInput as BadInput
    from detent.errors import DetentError as DetentError
    from detent.heads import register_head as register_head
    from detent.policy import Policy as Policy
    from detent.policy import load as load
    from detent.runs import train as train
    from detent.tasks import register_task as register_task

# Each name is imported when it is first used: acting with a trained policy needs NumPy, not JAX.
_HOMES = {
    "BadInput": "errors",
    "DetentError": "errors",
    "Policy": "policy",
    "Run": "configuration",
    "load": "policy",
    "register_algorithm": "algorithms",
    "register_head": "heads",
    "register_task": "tasks",
    "train": "runs",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'detent' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detent.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
