"""`jax_pendulum` as the task `test/pendulum`, for commands: `--import registered_pendulum`."""

from __future__ import annotations

from detent.tasks import TASKS
from jax_pendulum import TASK

TASKS.register(TASK.name, TASK)
