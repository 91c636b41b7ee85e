"""Speed and memory of Detent compared with its peers and with bare physics, in one run.

    python benchmarks/speed.py [--only training,share,...] [--rounds 3] [--seconds 20]

    training    PPO training with the ordinal head, K=11, against Stable-Baselines3 and SBX (their Gaussian)
    share       the same as a share of the rate at which the same pool is stepped with random actions on all cores:
                one run on all cores, and one single-threaded run per core, bound to it, their rates added
    algorithms  TRPO training with the Gaussian against sb3-contrib's, and ACKTR training with the ordinal head as a
                share of physics and against Detent's PPO
    heads       time per step of training with discrete and ordinal, K=11 and K=100, against the Gaussian, Reacher-v5
    gymnasium   collecting through Gymnasium, 8 environments in 2 workers, against the same environments in a plain loop
    startup     `detent --help`, and `detent train` until its first record, not counting the first start
    memory      the peak memory of `detent train Humanoid-v5`

Contestants run one at a time, each in a fresh process, in turn (round-robin, with another one first in every round). A
rate is the median over rounds, a ratio the median of the rounds' ratios. Where speed depends on the number of
environments or threads, every setting is tried once for each side, and the fastest of each side are compared.
`contestant.py` and `peer_contestant.py` describe what is timed. Prints a table and writes `results.json`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import launch
import peers

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
DETENT = Path(sys.executable).with_name("detent")
PACKAGES = ("detent", "jax", "jaxlib", "optax", "envpool", "gymnasium", "mujoco", "numpy")

DETENT_ENVS = (16, 32, 64, 128)
DEFAULT_ENVS = 64
PEER_NAMES: dict[peers.Library, str] = {"sb3": "SB3", "sbx": "SBX", "sb3-contrib": "sb3-contrib TRPO"}
TRAINING_GOALS: dict[str, dict[peers.Library, float]] = {
    "HalfCheetah-v5": {"sb3": 7.0, "sbx": 5.0},
    "Humanoid-v5": {"sb3": 3.5, "sbx": 2.8},
}
SHARE_GOALS: dict[str, tuple[float | None, float | None]] = {
    "HalfCheetah-v5": (None, None),
    "Humanoid-v5": (0.67, 0.82),
}
TRPO_GOALS = {"HalfCheetah-v5": 6.0, "Humanoid-v5": 3.0}
HEAD_GOALS = {11: 1.05, 100: 1.25}
MEMORY_STEPS = 100_000

Result = dict[str, Any]
Contestants = dict[str, Callable[[], Result]]


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int
    seconds: float

    @property
    def trial_seconds(self) -> float:
        """For trying a setting."""
        return self.seconds / 2


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = True

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def __str__(self) -> str:
        shown = f"{self.value:,.0f}" if self.unit == "steps/s" else f"{self.value:.2f}"
        goal = "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}"
        verdict = {None: "", True: "yes", False: "NO"}[self.reached]
        return f"{self.what:<49.49}{shown:>9} {self.unit:<8}{goal:<9}{verdict}".rstrip()


@dataclass
class Section:
    """What one part of the benchmark found."""

    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


# --- measuring ---


def contestant(what: str, task: str, seconds: float, *flags: str | int) -> list[str]:
    """The command of one of Detent's contestants."""
    command = [sys.executable, str(HERE / "contestant.py"), what, task, "--seconds", str(seconds)]
    return command + [str(flag) for flag in flags]


def ordinal(task: str, seconds: float, envs: int, *flags: str | int) -> list[str]:
    return contestant("train", task, seconds, "--head", "ordinal", "--bins", 11, "--envs", envs, *flags)


def one_per_core(task: str, seconds: float, envs: int) -> Result:
    """A training bound to each core, all at once; their rates added."""
    cores = sorted(os.sched_getaffinity(0))
    results = launch.run_together([ordinal(task, seconds, envs, "--cores", core, "--barrier") for core in cores])
    return {"steps_per_second": sum(r["steps_per_second"] for r in results), "processes": results}


def in_turn(contestants: Contestants, rounds: int) -> dict[str, list[Result]]:
    """Measure all contestants once a round, each round beginning with another one."""
    names = list(contestants)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            result = contestants[name]()
            results[name].append(result)
            note(f"round {number + 1}/{rounds}  {name}: {result['steps_per_second']:,.0f} steps/s")
    return results


def rate(results: list[Result]) -> float:
    return float(median(r["steps_per_second"] for r in results))


def ratio(ours: list[Result], theirs: list[Result]) -> float:
    """Median over rounds: what slows down a whole round cancels out."""
    pairs = zip(ours, theirs, strict=True)
    return float(median(a["steps_per_second"] / b["steps_per_second"] for a, b in pairs))


def rates(results: dict[str, list[Result]]) -> dict[str, list[float]]:
    return {name: [round(r["steps_per_second"], 1) for r in rows] for name, rows in results.items()}


def note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


@functools.cache
def detent_trials(task: str, seconds: float) -> dict[int, float]:
    """Steps per second of training for each number of environments."""
    trials = {}
    for envs in DETENT_ENVS:
        trials[envs] = float(launch.run(ordinal(task, seconds, envs))["steps_per_second"])
        note(f"trial  {task} Detent, {envs} envs: {trials[envs]:,.0f} steps/s")
    return trials


def detent_envs(task: str, seconds: float) -> int:
    """The number of environments with which Detent is fastest."""
    trials = detent_trials(task, seconds)
    return max(trials, key=lambda envs: trials[envs])


def peer_trials(library: peers.Library, task: str, seconds: float) -> dict[peers.Setting, float]:
    """Steps per second of a peer's training for each of its settings."""
    trials = {}
    for setting in peers.SETTINGS:
        trials[setting] = float(peers.run(library, task, seconds, setting)["steps_per_second"])
        note(f"trial  {task} {PEER_NAMES[library]}, {setting}: {trials[setting]:,.0f} steps/s")
    return trials


# --- the parts ---


def training(plan: Plan) -> Section:
    """Detent's PPO with the ordinal head against the peers' PPO, each with its fastest setting."""
    peers.ensure()
    section = Section()
    for task, goals in TRAINING_GOALS.items():
        ours = detent_trials(task, plan.trial_seconds)
        envs = detent_envs(task, plan.trial_seconds)
        contestants: Contestants = {"Detent": functools.partial(_train, task, plan.seconds, envs)}
        tried: dict[str, Any] = {"Detent": {f"{n} envs": speed for n, speed in ours.items()}}
        chosen = {"Detent": f"{envs} envs"}
        for library in goals:
            name = PEER_NAMES[library]
            trials = peer_trials(library, task, plan.trial_seconds)
            best = max(trials, key=lambda setting, trials=trials: trials[setting])  # type: ignore[misc]
            contestants[name] = functools.partial(peers.run, library, task, plan.seconds, best)
            tried[name] = {str(setting): speed for setting, speed in trials.items()}
            chosen[name] = str(best)
        results = in_turn(contestants, plan.rounds)
        for name, setting in chosen.items():
            section.rows.append(Row(f"{task}, {name}: {setting}", rate(results[name]), "steps/s"))
        for library, goal in goals.items():
            name = PEER_NAMES[library]
            section.rows.append(
                Row(f"{task}, Detent against {name}", ratio(results["Detent"], results[name]), "x", goal)
            )
        section.details[task] = {"settings": chosen, "tried": tried, "rounds": rates(results)}
    return section


def _train(task: str, seconds: float, envs: int) -> Result:
    return launch.run(ordinal(task, seconds, envs))


def share(plan: Plan) -> Section:
    """Detent's training against the physics of its own environments."""
    section = Section()
    for task, goals in SHARE_GOALS.items():
        envs = detent_envs(task, plan.trial_seconds)
        physics = contestant("physics", task, plan.seconds, "--envs", envs)
        contestants: Contestants = {
            "physics": functools.partial(launch.run, physics),
            "one run": functools.partial(_train, task, plan.seconds, envs),
            "one run per core": functools.partial(one_per_core, task, plan.seconds, envs),
        }
        results = in_turn(contestants, plan.rounds)
        section.rows.append(Row(f"{task}, physics, {envs} envs, all cores", rate(results["physics"]), "steps/s"))
        for name, goal in zip(("one run", "one run per core"), goals, strict=True):
            section.rows.append(Row(f"{task}, {name}", rate(results[name]), "steps/s"))
            section.rows.append(
                Row(f"{task}, {name}, share of physics", ratio(results[name], results["physics"]), "", goal)
            )
        section.details[task] = {
            "envs": envs,
            "rounds": rates(results),
            "physics, resets counted": [round(r["all_steps_per_second"], 1) for r in results["physics"]],
        }
    return section


def algorithms(plan: Plan) -> Section:
    """TRPO beside its peer; ACKTR, which has none, beside the physics and beside PPO."""
    peers.ensure()
    section = Section()
    for task, goal in TRPO_GOALS.items():
        envs = detent_envs(task, plan.trial_seconds)
        trials = peer_trials("sb3-contrib", task, plan.trial_seconds)
        best = max(trials, key=lambda setting, trials=trials: trials[setting])  # type: ignore[misc]
        trpo = contestant("train", task, plan.seconds, "--algo", "trpo", "--head", "gaussian", "--envs", envs)
        contestants: Contestants = {
            "physics": functools.partial(launch.run, contestant("physics", task, plan.seconds, "--envs", envs)),
            "PPO": functools.partial(_train, task, plan.seconds, envs),
            "ACKTR": functools.partial(launch.run, ordinal(task, plan.seconds, envs, "--algo", "acktr")),
            "TRPO": functools.partial(launch.run, trpo),
            PEER_NAMES["sb3-contrib"]: functools.partial(peers.run, "sb3-contrib", task, plan.seconds, best),
        }
        results = in_turn(contestants, plan.rounds)
        section.rows += [Row(f"{task}, {name}", rate(rows), "steps/s") for name, rows in results.items()]
        section.rows += [
            Row(
                f"{task}, TRPO against sb3-contrib",
                ratio(results["TRPO"], results[PEER_NAMES["sb3-contrib"]]),
                "x",
                goal,
            ),
            Row(f"{task}, ACKTR, share of physics", ratio(results["ACKTR"], results["physics"]), ""),
            Row(f"{task}, ACKTR against PPO", ratio(results["ACKTR"], results["PPO"]), "x", 1.0),
        ]
        tried = {str(setting): speed for setting, speed in trials.items()}
        section.details[task] = {"envs": envs, "peer": str(best), "tried": tried, "rounds": rates(results)}
    return section


def heads(plan: Plan) -> Section:
    """Time per step of training, against the Gaussian's; Reacher-v5, where physics costs least.

    The parameters shown are the policy's; the value function's, the same for all, are in the details.
    """
    task = "Reacher-v5"
    section = Section()
    choices: dict[str, list[str | int]] = {"gaussian": ["--head", "gaussian"]}
    for bins in HEAD_GOALS:
        for head in ("discrete", "ordinal"):
            choices[f"{head} K={bins}"] = ["--head", head, "--bins", bins]
    commands = {
        name: contestant("train", task, plan.seconds, *flags, "--envs", DEFAULT_ENVS) for name, flags in choices.items()
    }
    results = in_turn({name: functools.partial(launch.run, c) for name, c in commands.items()}, plan.rounds)
    sizes = {
        name: {part: rows[0][f"{part}_parameters"] for part in ("policy", "head", "value")}
        for name, rows in results.items()
    }
    for name, rows in results.items():
        parameters = sizes[name]["policy"] + sizes[name]["head"]
        label = f"{task}, {name} ({parameters:,} parameters)"
        if name == "gaussian":
            section.rows.append(Row(label, rate(rows), "steps/s"))
        else:
            goal = HEAD_GOALS[int(name.split("=")[1])]
            section.rows.append(Row(label, ratio(results["gaussian"], rows), "x time", goal, at_least=False))
    section.details = {"task": task, "envs": DEFAULT_ENVS, "parameters": sizes, "rounds": rates(results)}
    return section


def gymnasium(plan: Plan) -> Section:
    """Detent's collecting (policy, normalisation and all) against a loop that only steps."""
    task, envs, workers = "HalfCheetah-v5", 8, 2
    collect = contestant("collect", f"gymnasium/{task}", plan.seconds, "--envs", envs, "--workers", workers)
    results = in_turn(
        {
            "loop": functools.partial(launch.run, contestant("loop", task, plan.seconds, "--envs", envs)),
            "collect": functools.partial(launch.run, collect),
        },
        plan.rounds,
    )
    rows = [
        Row(f"{task}, {envs} Gymnasium envs in a plain loop", rate(results["loop"]), "steps/s"),
        Row(f"{task}, Detent collecting, {workers} workers", rate(results["collect"]), "steps/s"),
        Row(f"{task}, Detent against the loop", ratio(results["collect"], results["loop"]), "x", 1.0),
    ]
    return Section(rows, {"task": task, "envs": envs, "workers": workers, "rounds": rates(results)})


def startup(plan: Plan) -> Section:
    """From the start of the process: to its end for the help, to a whole line in `records.jsonl` for training."""
    times: dict[str, list[float]] = {"help": [], "first record": []}
    for number in range(plan.rounds + 1):
        measured = {"help": seconds_of_help(), "first record": seconds_to_first_record("HalfCheetah-v5")}
        note(f"start {number}  " + ", ".join(f"{name}: {seconds:.2f} s" for name, seconds in measured.items()))
        if number:  # the first start fills caches
            for name, seconds in measured.items():
                times[name].append(round(seconds, 3))
    rows = [
        Row("detent --help", median(times["help"]), "s", 0.5, at_least=False),
        Row("detent train HalfCheetah-v5: first record", median(times["first record"]), "s", 8.0, at_least=False),
    ]
    return Section(rows, {"seconds": times})


def seconds_of_help() -> float:
    begin = time.perf_counter()
    subprocess.run([DETENT, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def seconds_to_first_record(task: str) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        records = Path(scratch) / "run" / "records.jsonl"
        begin = time.perf_counter()
        process = _start_training(task, scratch)
        try:
            while not (records.exists() and b"\n" in records.read_bytes()):
                if process.poll() is not None:
                    raise launch.ContestantError(f"detent train {task} ended with {process.returncode}")
                time.sleep(0.005)
            return time.perf_counter() - begin
        finally:
            process.kill()
            process.wait()


def _start_training(task: str, scratch: str, *flags: str) -> subprocess.Popen[bytes]:
    """`detent train` as a user would start it, in a scratch directory."""
    command = [str(DETENT), "train", task, "--out", os.path.join(scratch, "run"), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=scratch)


def memory(plan: Plan) -> Section:
    """The largest resident set of `detent train`, as the kernel tells it when the process has ended."""
    task = "Humanoid-v5"
    peaks = []
    for _ in range(plan.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            process = _start_training(task, scratch, "--steps", str(MEMORY_STEPS))
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise launch.ContestantError(f"detent train {task} ended with {process.returncode}")
        peaks.append(usage.ru_maxrss * 1024 / 1e9)
        note(f"{task}: {peaks[-1]:.3f} GB")
    row = Row(f"{task}, peak memory of {MEMORY_STEPS:,} steps", median(peaks), "GB", 1.2, at_least=False)
    return Section([row], {"gigabytes": peaks, "steps": MEMORY_STEPS})


PARTS: dict[str, Callable[[Plan], Section]] = {
    "training": training,
    "share": share,
    "algorithms": algorithms,
    "heads": heads,
    "gymnasium": gymnasium,
    "startup": startup,
    "memory": memory,
}


# --- reporting ---


def machine() -> dict[str, Any]:
    """What the figures depend on, and nothing that tells whose machine it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {package: metadata.version(package) for package in PACKAGES},
    }


def earlier(here: dict[str, Any]) -> dict[str, Any]:
    """The parts measured before, if under the same conditions."""
    if not RESULTS.exists():
        return {}
    before = json.loads(RESULTS.read_text())
    parts: dict[str, Any] = before["parts"] if before["machine"] == here else {}
    return parts


def table(title: str, section: Section) -> str:
    return "\n".join([f"{title:-<80}", *map(str, section.rows)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each contestant (default: 3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default: 20)")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def main() -> int:
    options = arguments()
    plan = Plan(options.rounds, options.seconds)
    here = machine()
    parts = earlier(here)
    tables, failures = [], []
    for name in options.only:
        print(f"{name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        load = round(os.getloadavg()[0], 2)
        try:
            section = PARTS[name](plan)
        except launch.ContestantError as error:
            failures.append(f"{name}: {error}")
            continue
        tables.append(table(f"{name} ", section))
        rows = [asdict(row) | {"reached": row.reached} for row in section.rows]
        parts[name] = {"rows": rows, **section.details, "plan": asdict(plan), "load_before": load}
        if name in ("training", "algorithms"):
            parts[name]["peers"] = peers.versions()
        RESULTS.write_text(json.dumps({"machine": here, "parts": parts}, indent=2) + "\n")
    print(f"{here['cores']} cores, {here['cpu']}; medians of {plan.rounds} rounds of {plan.seconds:g} s\n")
    print("\n\n".join(tables))
    for failure in failures:
        print(f"FAILED  {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
