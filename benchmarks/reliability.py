"""The cost of reliability: checkpoints as a share of training, and the time a resumed run needs to restore its state.

    python benchmarks/reliability.py [--seconds 60]

Checkpoints: Humanoid-v5 is trained in a run directory with a checkpoint every five seconds, each of which is timed; the
share is that of the default, one per minute. Largest: the same with every environment 1,000 steps into its episode, all
of which a checkpoint holds. Resuming: 64 Humanoids are brought to the state in which a run of 10 million steps would
have left them, each 1,000 steps into its episode, if its episodes had been 200 steps long on average, or 25 (a policy
that never learned). Prints the results and writes `reliability.json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from detent.environments import Replay
from detent.files import write_whole
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.training import make_environment

RESULTS = Path(__file__).parent / "reliability.json"
TASK, ENVS, DIMENSIONS = "Humanoid-v5", 64, 17
INTERVAL = 60.0


def checkpoints(seconds: float) -> dict[str, Any]:
    """Milliseconds and bytes of a checkpoint while training."""
    times: list[float] = []
    write = RunDirectory.checkpoint

    def timed(self: RunDirectory, *args: Any) -> None:
        began = time.perf_counter()
        write(self, *args)
        times.append(time.perf_counter() - began)

    RunDirectory.checkpoint = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as out:
            how = Execution(max_minutes=seconds / 60, checkpoint_seconds=5.0)
            for _ in execute(Run(TASK, steps=10**9), out, how):
                pass
            size = max(path.stat().st_size for path in Path(out, "checkpoints").iterdir())
            largest = _largest(Path(out), size + 4 * ENVS * 1000 * DIMENSIONS)
    finally:
        RunDirectory.checkpoint = write  # type: ignore[method-assign]
    return {
        "milliseconds": 1000 * median(times),
        "most_milliseconds": 1000 * max(times),
        "megabytes": size / 1e6,
        "share_of_a_minute": median(times) / INTERVAL,
        "largest_megabytes": (size + 4 * ENVS * 1000 * DIMENSIONS) / 1e6,
        "largest_write_milliseconds": 1000 * largest,
    }


def _largest(out: Path, size: int) -> float:
    data = np.random.default_rng(0).bytes(size)
    began = time.perf_counter()
    write_whole(out / "largest", data)
    return time.perf_counter() - began


def resuming(mean_length: int) -> dict[str, Any]:
    """Seconds to rebuild the environments of a run of 10 million steps."""
    env = make_environment(Run(TASK), 0, ENVS)
    resets = np.full(ENVS, 10_000_000 // ENVS // mean_length, np.int64)
    actions = [np.zeros((1000, DIMENSIONS), np.float32)] * ENVS
    began = time.perf_counter()
    env.replay(Replay(resets, actions))
    taken = time.perf_counter() - began
    env.close()
    return {"mean_length": mean_length, "resets": int(resets[0]), "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    found = {"checkpoint": checkpoints(parser.parse_args().seconds), "resume": [resuming(200), resuming(25)]}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
