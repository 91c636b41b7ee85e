"""The cost of reliability: checkpoints as a share of training, and the time a resumed run needs to restore its state.
And what it gives: runs that are killed again and again, with every algorithm and backend, and end with the same bits.

    python benchmarks/reliability.py [--seconds 60]
    python benchmarks/reliability.py --kills [100] [--seed 0]

Checkpoints: Humanoid-v5 is trained in a run directory with a checkpoint every five seconds, each of which is timed; the
share is that of the default, one per minute. Largest: the same with every environment 1,000 steps into its episode, all
of which a checkpoint holds. Resuming: 64 Humanoids are brought to the state in which a run of 10 million steps would
have left them, each 1,000 steps into its episode, if its episodes had been 200 steps long on average, or 25 (a policy
that never learned). Kills: every algorithm on every backend is trained undisturbed, and again in processes that are
killed (SIGKILL) at random moments, one in five of them while they start; what is left is then continued to its end and
compared: records, last checkpoint, policy. Prints the results and writes them into `reliability.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from detent.algorithms import ALGORITHMS
from detent.environments import Replay
from detent.files import write_whole
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.training import make_environment

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))  # what kills runs is shared with the tests

from killing import Victim, differences, quick  # noqa: E402

RESULTS = Path(__file__).parent / "reliability.json"
TASK, ENVS, DIMENSIONS = "Humanoid-v5", 64, 17
INTERVAL = 60.0
EARLY = 0.2
"""The share of kills that meet a process while it starts."""


@dataclass(frozen=True)
class Backend:
    """Where environments run: a task, how many steps last for several kills, and the flags it needs."""

    task: str
    steps: int
    flags: tuple[str, ...] = ()


BACKENDS = {
    "EnvPool": Backend("Hopper-v5", 20_000),
    "Gymnasium": Backend("gymnasium/Pendulum-v1", 12_000),
    "Gymnasium in workers": Backend("gymnasium/Pendulum-v1", 12_000, ("--workers", "2")),
    "rllab": Backend("rllab/SimpleHumanoid", 12_000),
    "Roboschool": Backend("roboschool/Reacher", 12_000),
    "JAX, state saved": Backend("test/pendulum", 20_000, ("--import", "registered_pendulum")),
}


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


def kills(count: int, seed: int) -> dict[str, Any]:
    """How many of `count` kills, spread evenly, were survived to the bit."""
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path, str(TESTS)])
    began = time.monotonic()
    cases = list(itertools.product(ALGORITHMS.names(), BACKENDS))
    rows = [
        killed(algo, name, len(range(i, count, len(cases))), np.random.default_rng((seed, i)))
        for i, (algo, name) in enumerate(cases)
        if i < count
    ]
    return {
        "kills": sum(row["kills"] for row in rows),
        "survived": sum(row["kills"] for row in rows if not row["different"]),
        "seed": seed,
        "minutes": (time.monotonic() - began) / 60,
        "runs": rows,
    }


def killed(algo: str, name: str, times: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kill a run of an algorithm on a backend so many times; if one has ended before, the next has another seed."""
    backend = BACKENDS[name]
    kills, runs, different = 0, 0, list[str]()
    while kills < times:
        victim = Victim(backend.task, {"steps": backend.steps, "seed": runs, **quick(algo)}, list(backend.flags))
        with tempfile.TemporaryDirectory() as place:
            whole, out = Path(place, "whole"), Path(place, "killed")
            victim.finish(whole)
            while kills < times and victim.kill(out, rng, EARLY):
                kills += 1
            victim.finish(out)
            different += differences(out, whole)
            runs += 1
    print(f"{algo} on {name}: {kills} kills of {runs} runs, {', '.join(different) or 'identical'}", flush=True)
    return {"algorithm": algo, "backend": name, "kills": kills, "runs": runs, "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, nargs="?", const=100, help="kill runs, this many times (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    if options.kills is not None:
        found: dict[str, Any] = {"kills": kills(options.kills, options.seed)}
    else:
        found = {"checkpoint": checkpoints(options.seconds), "resume": [resuming(200), resuming(25)]}
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**before, **found}, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
