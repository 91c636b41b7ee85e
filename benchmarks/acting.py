"""Microseconds for one action of a policy for Humanoid-v5: 348 observations, two tanh layers of 64, 17 x 11 outputs.

    pip install 'detent-rl[onnx]' onnxruntime stable_baselines3
    python benchmarks/acting.py [--slices 40] [--calls 250]

The contestants are the policy itself, what `detent export` makes of it, and Stable-Baselines3's `predict` with the same
network (MultiDiscrete actions, 11 choices in each of 17 dimensions) and with its Gaussian head. They take turns in
slices of `--calls` calls on one thread, so other load on the machine affects all of them equally. A slice gives the
median of its calls, and the result is the median of the slices. Packages that are not installed are left out. Prints a
table and writes `acting.json`.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import ctypes
import importlib.util
import itertools
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from detent.export import export, file_bytes
from detent.policy import Policy, whole_ops

RESULTS = Path(__file__).resolve().with_name("acting.json")
PACKAGES = ("detent", "numpy", "onnxruntime", "stable_baselines3", "torch")
SIZES, BINS = (348, 64, 64, 187), 11
Act = Callable[[np.ndarray], Any]


def ordinal_policy() -> Policy:
    rng = np.random.default_rng(0)
    tensors = {
        "observation/mean": rng.normal(size=SIZES[0]).astype(np.float32),
        "observation/var": rng.uniform(0.5, 2.0, SIZES[0]).astype(np.float32),
        "space/low": np.full(17, -0.4, np.float32),
        "space/high": np.full(17, 0.4, np.float32),
    }
    for i, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        tensors[f"policy/{i}/w"] = (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
        tensors[f"policy/{i}/b"] = np.zeros(columns, np.float32)
    layers = [{"op": "linear", "parameters": f"policy/{i}"} for i in range(3)]
    network = [layers[0], {"op": "tanh"}, layers[1], {"op": "tanh"}, layers[2]]
    head = [{"op": "running_sum", "bins": BINS}, {"op": "categorical", "bins": BINS}]
    return Policy(tensors, {"ops": whole_ops(network, head, clip=10.0, scale=True, shape=[17])})


def exported_numpy(policy: Policy, folder: Path) -> Act:
    export(policy, "numpy", folder / "policy.py")
    spec = importlib.util.spec_from_file_location("exported_policy", folder / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.act


def exported_c(policy: Policy, folder: Path) -> Act:
    export(policy, "c", folder / "policy.c")
    library = folder / "policy.so"
    command = ["cc", "-std=c99", "-O2", "-shared", "-fPIC", folder / "policy.c", "-o", library, "-lm"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).detent_act
    action = (ctypes.c_float * 17)()
    return lambda observation: function(ctypes.c_void_p(observation.ctypes.data), action)


def exported_onnx(policy: Policy) -> Act:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file_bytes(policy, "onnx"), options, providers=["CPUExecutionProvider"])
    return lambda observation: session.run(["action"], {"observation": observation[None]})


def stable_baselines3(discrete: bool) -> Act:
    import gymnasium
    import torch
    from stable_baselines3 import PPO

    class Spaces(gymnasium.Env[Any, Any]):
        """Nothing but the spaces."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SIZES[0],), np.float32)
        action_space = (
            gymnasium.spaces.MultiDiscrete([BINS] * 17) if discrete else gymnasium.spaces.Box(-0.4, 0.4, (17,))
        )

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", Spaces(), policy_kwargs={"net_arch": list(SIZES[1:-1])}, device="cpu")
    return lambda observation: model.predict(observation, deterministic=True)


def contestants(folder: Path) -> dict[str, Act]:
    policy = ordinal_policy()
    found: dict[str, Act] = {"policy(observation)": policy, "policy.sample(observation)": policy.sample}
    for name, make in {
        "exported to NumPy": lambda: exported_numpy(policy, folder),
        "exported to C, called by ctypes": lambda: exported_c(policy, folder),
        "exported to ONNX, in onnxruntime": lambda: exported_onnx(policy),
        "Stable-Baselines3, MultiDiscrete": lambda: stable_baselines3(discrete=True),
        "Stable-Baselines3, Gaussian": lambda: stable_baselines3(discrete=False),
    }.items():
        try:
            found[name] = make()
        except (ImportError, FileNotFoundError) as error:
            print(f"left out: {name} ({error})")
    return found


def microseconds(act: Act, observations: np.ndarray) -> float:
    taken = []
    for observation in observations:
        began = time.perf_counter()
        act(observation)
        taken.append(time.perf_counter() - began)
    return 1e6 * median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=40)
    parser.add_argument("--calls", type=int, default=250)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        racing = contestants(Path(folder))
        slices: dict[str, list[float]] = {name: [] for name in racing}
        for _ in range(args.slices + 1):
            observations = rng.normal(size=(args.calls, SIZES[0])).astype(np.float32)
            for name, act in racing.items():
                slices[name].append(microseconds(act, observations))
    results = {name: median(taken[1:]) for name, taken in slices.items()}  # the first slice warms up
    for name, taken in results.items():
        print(f"{name:<36} {taken:8.1f} µs")
    installed = {p: metadata.version(p) for p in PACKAGES if importlib.util.find_spec(p)}
    about = {"python": platform.python_version(), "packages": installed, "slices": args.slices, "calls": args.calls}
    RESULTS.write_text(json.dumps({"about": about, "microseconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
