"""The books kept beside training: how episodes went, and what would bring the environments back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.environments import Replay
from detent.rollout import Trace

WINDOW = 100
"""Episodes over which returns and lengths are averaged, as in Baselines and Stable-Baselines3."""


class Episodes:
    """The last episodes: return, length, success (NaN where the environment does not say)."""

    def __init__(self) -> None:
        self.finished = 0
        self._last: deque[NDArray[np.float32]] = deque(maxlen=WINDOW)

    def add(self, trace: Trace) -> None:
        ended = np.asarray(trace.ended)
        rows = np.stack([trace.episode_return[ended], trace.episode_length[ended], trace.success[ended]], axis=-1)
        self._last.extend(rows.astype(np.float32))
        self.finished += len(rows)

    def metrics(self) -> dict[str, float | None]:
        """Means over the window; null before the first episode has ended."""
        rows = np.array(self._last, np.float64).reshape(-1, 3)
        metrics: dict[str, float | None] = {
            "rollout/ep_rew_mean": float(rows[:, 0].mean()) if len(rows) else None,
            "rollout/ep_len_mean": float(rows[:, 1].mean()) if len(rows) else None,
            "rollout/episodes": self.finished,
        }
        told = rows[~np.isnan(rows[:, 2]), 2]
        return metrics | ({"rollout/success_rate": float(told.mean())} if len(told) else {})

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {
            "episodes/finished": np.array(self.finished, np.int64),
            "episodes/last": np.array(self._last, np.float32).reshape(-1, 3),
        }

    @staticmethod
    def restored(tensors: Mapping[str, NDArray[Any]]) -> Episodes:
        episodes = Episodes()
        episodes.finished = int(tensors["episodes/finished"])
        episodes._last.extend(tensors["episodes/last"])
        return episodes


class History:
    """How often each environment was reset, and the actions of its current episode (see `Replay`)."""

    restarts: int = 0
    """Resets that no end of an episode preceded: an environment failed and was replaced."""

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, bool)
        """Whether the last step ended an episode."""
        self._resets = np.ones(num_envs, np.int64)
        self._began = np.zeros(num_envs, np.int64)
        """Number of the step at which the current episode of each environment began."""
        self._chunks: list[NDArray[np.float32]] = []
        self._first = 0
        """Number of the first step of the first chunk."""

    def add(self, actions: NDArray[np.float32], valid: NDArray[np.bool_], ended: NDArray[np.bool_]) -> None:
        """Append a rollout: actions [t, n, m]; [t, n] False where a step only reset, and True where it ended one."""
        self.restarts += int(np.sum(~valid & ~np.concatenate([self._ended[None], ended[:-1]])))
        self._ended = ended[-1].copy()
        length = self._first + sum(map(len, self._chunks))
        self._chunks.append(np.asarray(actions, np.float32))
        self._resets += np.sum(~valid, axis=0)
        for t, i in np.argwhere(~valid):
            self._began[i] = length + t + 1
        while len(self._chunks) > 1 and self._began.min() >= self._first + len(self._chunks[0]):
            self._first += len(self._chunks.pop(0))

    def replay(self) -> Replay:
        if not self._chunks:
            return Replay(self._resets.copy(), [np.zeros((0, 0), np.float32)] * len(self._resets))
        actions = np.concatenate(self._chunks)
        return Replay(self._resets.copy(), [actions[began:, i] for i, began in enumerate(self._began - self._first)])

    def tensors(self) -> dict[str, NDArray[Any]]:
        resets, actions = self.replay()
        return {
            "history/restarts": np.array(self.restarts, np.int64),
            "history/ended": self._ended,
            "history/resets": resets,
            "history/lengths": np.array([len(a) for a in actions], np.int64),
            "history/actions": np.concatenate(actions),
        }

    @staticmethod
    def restored(tensors: Mapping[str, NDArray[Any]]) -> History:
        lengths, actions = tensors["history/lengths"], tensors["history/actions"]
        history = History(len(lengths))
        history.restarts = int(tensors["history/restarts"])
        history._ended = tensors["history/ended"].copy()
        history._resets = tensors["history/resets"].copy()
        # One chunk as long as the longest episode; shorter ones end with it.
        chunk = np.zeros((int(lengths.max(initial=0)), len(lengths), actions.shape[-1]), np.float32)
        history._began = len(chunk) - lengths
        for i, episode in enumerate(np.split(actions, np.cumsum(lengths)[:-1])):
            chunk[history._began[i] :, i] = episode
        history._chunks = [chunk]
        return history
