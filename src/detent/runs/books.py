"""What training keeps track of: the results of episodes, and what restores the environments."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from detent.environments import ActionSpace, Replay
from detent.files import Corrupt
from detent.rollout import Trace

WINDOW = 100
"""Episodes over which returns and lengths are averaged, as in Baselines and Stable-Baselines3."""


class Episodes:
    """The last episodes: return, length, success (NaN if the environment does not report it)."""

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
        reported = rows[~np.isnan(rows[:, 2]), 2]
        return metrics | ({"rollout/success_rate": float(reported.mean())} if len(reported) else {})

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {
            "episodes/finished": np.array(self.finished, np.int64),
            "episodes/last": np.array(self._last, np.float32).reshape(-1, 3),
        }

    @staticmethod
    def restored(tensors: Mapping[str, NDArray[Any]]) -> Episodes:
        episodes = Episodes()
        episodes.finished = int(stored(tensors, "episodes/finished", np.int64))
        last = stored(tensors, "episodes/last", np.float32, None, 3)
        if not 0 <= len(last) <= min(WINDOW, episodes.finished):
            raise Corrupt("The checkpoint does not match the run: it has more episodes than were finished.")
        episodes._last.extend(last)
        return episodes


class History:
    """How many times each environment was reset, and the actions of its current episode (see `Replay`)."""

    restarts: int = 0
    """Resets that did not follow the end of an episode: an environment failed and was replaced."""

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, bool)
        """Whether the last step ended an episode."""
        self._resets = np.ones(num_envs, np.int64)
        self._began = np.zeros(num_envs, np.int64)
        """Number of the step at which the current episode of each environment began."""
        self._before: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * num_envs
        """The actions of each environment's current episode before the first chunk, [length, m]."""
        self._chunks: list[NDArray[np.float32]] = []
        self._first = 0
        """Number of the first step of the first chunk."""

    def add(self, actions: NDArray[np.float32], valid: NDArray[np.bool_], ended: NDArray[np.bool_]) -> None:
        """Append a rollout: actions [t, n, m]; `valid` [t, n] is False where a step only reset."""
        self.restarts += int(np.sum(~valid & ~np.concatenate([self._ended[None], ended[:-1]])))
        self._ended = ended[-1].copy()
        length = self._first + sum(map(len, self._chunks))
        self._chunks.append(np.asarray(actions, np.float32))
        self._resets += np.sum(~valid, axis=0)
        for t, i in np.argwhere(~valid):
            self._began[i] = length + t + 1
            self._before[i] = self._before[i][:0]
        while len(self._chunks) > 1 and self._began.min() >= self._first + len(self._chunks[0]):
            self._first += len(self._chunks.pop(0))

    def replay(self) -> Replay:
        if not self._chunks:
            return Replay(self._resets.copy(), list(self._before))
        actions = np.concatenate(self._chunks)
        since = [actions[began:, i] for i, began in enumerate(self._began - self._first)]
        whole = [np.concatenate([b, s]) if len(b) else s for b, s in zip(self._before, since, strict=True)]
        return Replay(self._resets.copy(), whole)

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
    def restored(tensors: Mapping[str, NDArray[Any]], space: ActionSpace, num_envs: int, steps: int) -> History:
        """The history of `num_envs` environments with these actions, each of which has taken this many steps."""
        history = History(num_envs)
        history.restarts = int(stored(tensors, "history/restarts", np.int64))
        history._ended = stored(tensors, "history/ended", np.bool_, num_envs).copy()
        history._resets = stored(tensors, "history/resets", np.int64, num_envs).copy()
        lengths = stored(tensors, "history/lengths", np.int64, num_envs)
        actions = stored(tensors, "history/actions", np.float32, None, *space.shape)
        possible = ((lengths >= 0) & (lengths <= steps) & (history._resets >= 1) & (history._resets <= steps + 1)).all()
        chosen = np.rint(actions)
        choices = np.issubdtype(space.dtype, np.integer)
        allowed = (chosen >= space.low) & (chosen <= space.high) if choices else np.isfinite(actions)
        if not possible or int(lengths.sum()) != len(actions) or not allowed.all():
            raise Corrupt("The checkpoint does not match the run: its episodes are impossible.")
        history._before = np.split(actions, np.cumsum(lengths)[:-1])
        return history


def stored(tensors: Mapping[str, NDArray[Any]], name: str, dtype: DTypeLike, *shape: int | None) -> NDArray[Any]:
    """The tensor of this name, type and shape in a checkpoint; None stands for any size."""
    found = tensors.get(name)
    fits = found is not None and len(found.shape) == len(shape) and found.dtype == dtype
    if found is None or not fits or any(want not in (None, has) for has, want in zip(found.shape, shape, strict=True)):
        have = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
        wanted = f"{np.dtype(dtype)}[{', '.join('any' if size is None else str(size) for size in shape)}]"
        raise Corrupt(
            f"The checkpoint does not match the run: {name} should be {wanted}, but the checkpoint has {have}."
        )
    return found
