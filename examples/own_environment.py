"""An environment of your own, from start to finish: write it, check it, train on it, and use the policy.

    python examples/own_environment.py

A crane moves a load that hangs from a rope: the trolley is pushed by a force, and the load should come to rest over a
target that is in a different place in every episode. The file is also a module, so these commands work too:

    cd examples
    detent check own_environment:make_crane
    detent train own_environment:make_crane --head ordinal --steps 2e5 --workers 2
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import detent
from detent.environments.checking import check

Observation = NDArray[np.float32]


class Crane(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Trolley position x, rope angle a, and their velocities; the action is a force between -1 and 1."""

    # Everything that a policy may see, as one vector, and bounds for every action: that is all Detent needs.
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    STEP, GRAVITY, ROPE, FORCE = 0.05, 9.8, 1.0, 5.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)  # every random number comes from self.np_random: episodes can be repeated
        self.x = self.v = self.a = self.w = 0.0
        self.target = float(self.np_random.uniform(-2.0, 2.0))
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        acceleration = self.FORCE * float(action[0]) - 0.5 * self.v
        swing = -(self.GRAVITY * np.sin(self.a) + acceleration * np.cos(self.a)) / self.ROPE - 0.1 * self.w
        self.v += self.STEP * acceleration
        self.w += self.STEP * swing
        self.x += self.STEP * self.v
        self.a += self.STEP * self.w
        distance = abs(self.x + self.ROPE * np.sin(self.a) - self.target)
        reward = 1.0 - min(1.0, distance) - 0.1 * abs(self.w)
        off_the_rails = abs(self.x) > 4.0
        return self._observation(), reward, off_the_rails, False, {"is_success": bool(distance < 0.1)}

    def _observation(self) -> Observation:
        return np.array([self.x - self.target, self.v, np.sin(self.a), self.w, self.x], np.float32)


def make_crane() -> gymnasium.Env[Any, Any]:
    """What Detent calls to make one environment. Episodes of 200 steps, 10 seconds."""
    return gymnasium.wrappers.TimeLimit(Crane(), 200)


def main(steps: int = 150_000) -> None:
    for finding in check(make_crane, "crane"):
        print(f"{finding.kind:<8} {finding.sentence}")

    run = detent.Run(make_crane, head="ordinal", steps=steps, envs=16, seed=0)
    for record in detent.train(run, out="runs/crane", resume=True):
        value, success = record["rollout/ep_rew_mean"], record.get("rollout/success_rate")
        print(f"{record['time/total_timesteps']:>8,} steps: return {value or 0:.1f}, at rest over the target {success}")

    policy = detent.load("runs/crane")  # from here on NumPy is enough
    nothing = np.zeros(1, np.float32)
    for name, act in (("doing nothing", lambda observation: nothing), ("the trained policy", policy)):
        episodes = [play(act, seed) for seed in range(10)]
        returns, rests = zip(*episodes, strict=True)
        print(f"{name}: mean return {np.mean(returns):.1f}, at rest over the target in {sum(rests)} of 10 episodes")


def play(act: Callable[[Observation], NDArray[np.float32]], seed: int) -> tuple[float, bool]:
    """The return of one episode, and whether the load came to rest over the target."""
    env = make_crane()
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(act(observation))
        total, over = total + float(reward), terminated or truncated
    return total, info["is_success"]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
