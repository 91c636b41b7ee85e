"""The libraries with which Detent is compared, in a virtual environment of their own (`.peers-venv`).

`python benchmarks/peers.py` installs them and prints their versions. The versions are in `peers-requirements.txt`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import launch

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "peers-requirements.txt"
VENV = HERE.parent / ".peers-venv"
PYTHON = VENV / "bin" / "python"
REPORTED = ("stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")

Library = Literal["sb3", "sbx", "sb3-contrib"]
"""The first two train with PPO, the last with TRPO."""


@dataclass(frozen=True)
class Setting:
    """What a peer's user can choose for speed; the settings of the algorithm are the same for all."""

    envs: int
    workers: bool
    """SubprocVecEnv, with each environment in a process of its own; otherwise DummyVecEnv, with all in this one."""
    threads: int
    """Of PyTorch; for SBX, of PyTorch and of XLA."""

    def __str__(self) -> str:
        where = "subproc" if self.workers else "dummy"
        return f"{self.envs} env{'s' * (self.envs > 1)}, {where}, {self.threads} thread{'s' * (self.threads > 1)}"


SETTINGS = (Setting(1, False, 1), Setting(8, False, 1), Setting(8, False, 2), Setting(8, True, 1))
"""All that are tried for each library and task; the fastest is the one compared. (One environment or worker processes
with two threads have never been the fastest.)"""


def ensure() -> None:
    """Make the environment and install the peers, unless that has been done for these requirements."""
    wanted = REQUIREMENTS.read_text()
    done = VENV / "installed.txt"
    if done.exists() and done.read_text() == wanted:
        return
    print(f"Installing the peers into {VENV.name} (a few minutes, once).", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    (VENV / ".gitignore").write_text("*\n")
    # PyTorch first and alone, so that packages that need it use this build instead of choosing another.
    pytorch = next(line for line in wanted.splitlines() if line.startswith("torch=="))
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, pytorch], check=True)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    done.write_text(wanted)


def versions() -> dict[str, str]:
    """The versions installed for the peers."""
    ensure()
    program = (
        "import json; from importlib.metadata import version; "
        f"print(json.dumps({{name: version(name) for name in {REPORTED!r}}}))"
    )
    found: dict[str, str] = launch.run([str(PYTHON), "-c", program])
    return found


def run(library: Library, task: str, seconds: float, setting: Setting) -> dict[str, Any]:
    """Train in a fresh process; see `peer_contestant.py` for what exactly is timed."""
    ensure()
    command = [str(PYTHON), str(HERE / "peer_contestant.py"), library, task, "--seconds", str(seconds)]
    command += ["--envs", str(setting.envs), "--threads", str(setting.threads), *["--workers"] * setting.workers]
    environment = {
        "OMP_NUM_THREADS": str(setting.threads),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": "",  # nothing of Detent's environment
        "XLA_FLAGS": "",
    }
    if setting.threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        environment["NPROC"] = "1"  # the size of XLA's thread pools
    return launch.run(command, environment) | {"setting": asdict(setting)}


def measure(library: Library, task: str, seconds: float, envs: int, threads: int, workers: bool = False) -> float:
    """Steps per second of training, import and compilation excluded."""
    return float(run(library, task, seconds, Setting(envs, workers, threads))["steps_per_second"])


if __name__ == "__main__":
    print(json.dumps(versions(), indent=2))
