"""Seeds of environments; each depends on all bits of the run's seed."""

from __future__ import annotations

import numpy as np


def small_seed(seed: int) -> int:
    """A seed of 31 bits for simulators that seed their environments with it and the numbers that follow.

    Without this, runs with consecutive seeds would share nearly all of their environments.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The seed of one episode of one environment, which depends on nothing else."""
    words = np.random.SeedSequence((seed, index, episode)).generate_state(1)
    return int(words[0]) >> 1  # many environments need a seed that fits a signed 32-bit integer
