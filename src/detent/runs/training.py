"""Training: collect a rollout, update, yield a record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from detent.agent import Agent
from detent.algorithms import Rollout
from detent.distributions import Key, key_of
from detent.environments import Environment, EnvState, Wanted
from detent.errors import BadInput, Diverged, EnvironmentFailed
from detent.heads import HEADS, accepts, are_choices
from detent.heads import deployed as head_ops
from detent.networks import deployed
from detent.ops import Op
from detent.policy import Policy, whole_ops
from detent.rollout import COMPILER_OPTIONS, Memory, Trace, begin, make_collect, normalized
from detent.runs.acting import make_edge
from detent.runs.books import Episodes, History
from detent.runs.compilation import keep_programs
from detent.runs.identity import without_free
from detent.runs.memory import refuse_what_cannot_fit
from detent.runs.pytrees import flatten, restore
from detent.runs.run import Run
from detent.runs.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Record(Mapping[str, float | None]):
    """The metrics of one iteration (a rollout and an update), under Stable-Baselines3's names.

    `snapshot` and `policy` return the state after this iteration; call them before requesting the next record.
    """

    metrics: dict[str, float | None]
    snapshot: Callable[[], Snapshot]
    policy: Callable[[], Policy]
    finite: bool = True
    """False for the last record if training diverged."""

    def __getitem__(self, key: str) -> float | None:
        return self.metrics[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)


CLOCK_KEYS = ("time/fps", "time/time_elapsed")
"""The only keys of a record that depend on the clock."""


def make_environment(run: Run, seed: int, num_envs: int, traced: bool = True) -> Environment:
    settings = run.settings
    return run.task.make(
        Wanted(
            seed=seed,
            num_envs=num_envs,
            options=settings.env_kwargs or {},
            workers=settings.workers,
            threads=settings.threads,
            timeout=settings.env_timeout,
            bounded=settings.actions != "raw",
            restarts=settings.max_env_restarts if settings.on_env_error == "restart" else 0,
            traced=traced,
        )
    )


def make_agent(run: Run, env: Environment) -> Agent:
    """The agent of a run; raises `BadInput` if its head does not fit the environment's actions."""
    _refuse_mismatch(run, env)
    return Agent(run.head, run.trunk, run.critic, env.space, env.observation_layout.size, run.settings.policy_gain)


def train(run: Run, start: Snapshot | None = None, initial: Snapshot | None = None) -> Generator[Record, None, None]:
    """Train and yield a record per iteration.

    It starts from the beginning (with the parameters and moments of `initial`, if any), or continues from `start`.
    """
    keep_programs()
    seed = run.settings.seed
    if start and not run.task.replayable:
        # New episodes, with a different seed so that they do not repeat the first ones.
        seed = int(np.random.SeedSequence((seed, int(start.meta["iteration"]))).generate_state(1)[0])
    env = make_environment(run, seed, run.settings.envs)
    try:
        yield from _Trainer(run, env).records(start, initial)
    finally:
        env.close()


@dataclass
class _Progress:
    """The current state of training."""

    algorithm: Any
    memory: Memory
    env_state: EnvState
    episodes: Episodes
    history: History
    iteration: int = 0
    steps: int = 0


class _Trainer:
    """The fixed parts of training: agent, environments and the two compiled halves of an iteration."""

    def __init__(self, run: Run, env: Environment) -> None:
        self.run, self.env = run, env
        self.agent, self.edge = make_agent(run, env), make_edge(run)
        self.key = key_of(run.settings.seed)
        self.collect = make_collect(self.agent, self.edge, env, run.algorithm.batch_size // run.settings.envs)
        self.update = jax.jit(self._update, compiler_options=COMPILER_OPTIONS)

    def records(self, start: Snapshot | None, initial: Snapshot | None) -> Iterator[Record]:
        began = last = time.perf_counter()
        refuse_what_cannot_fit(self.agent, self.run.algorithm, self.edge, self.env, self.update, self.key)
        now = self._resumed(start) if start else self._fresh(initial)
        while now.steps < self.run.settings.steps:
            rollout, trace = self._collected(now)
            metrics = self._updated(now, rollout)
            finite = metrics.pop("finite") > 0
            clock = time.perf_counter()
            valid = int(rollout.valid.sum())
            yield Record(
                {
                    "time/iterations": now.iteration,
                    "time/total_timesteps": now.steps,
                    "time/fps": valid / (clock - last),
                    "time/time_elapsed": clock - began,
                    **now.episodes.metrics(),
                    **({"rollout/env_restarts": now.history.restarts} if now.history.restarts else {}),
                    "rollout/action_clip_fraction": float(trace.clipped.sum()) / max(valid, 1),
                    **{f"train/{name}": value for name, value in sorted(metrics.items())},
                },
                snapshot=lambda: self._snapshot(now),
                policy=lambda: self._policy(now),
                finite=finite,
            )
            last = time.perf_counter()
            if not finite:
                raise Diverged(
                    f"Training diverged at step {now.steps}: a loss or a parameter is no longer finite. "
                    "A smaller --learning-rate usually helps."
                )

    def _fresh(self, initial: Snapshot | None) -> _Progress:
        env_state, observation = self.env.reset()
        algorithm = self.run.algorithm.init(self.agent, jax.random.fold_in(self.key, 0))
        memory = jax.jit(begin)(observation)
        if initial:
            parameters = restore("algorithm/parameters", algorithm.parameters, initial.tensors)
            algorithm = algorithm._replace(parameters=parameters)
            memory = dataclasses.replace(
                memory,
                observation_moments=restore("memory/observation_moments", memory.observation_moments, initial.tensors),
                return_moments=restore("memory/return_moments", memory.return_moments, initial.tensors),
            )
        return _Progress(algorithm, memory, env_state, Episodes(), History(self.env.num_envs))

    def _collected(self, now: _Progress) -> tuple[Rollout, Trace]:
        """One rollout. If a value in it is not finite, raise, and leave the state unchanged."""
        memory, now.env_state, rollout, trace = self.collect(
            now.algorithm.parameters, now.memory, now.env_state, self._key(now, 0)
        )
        trace, valid = jax.device_get((trace, rollout.valid))
        _refuse_faults(self.run.names.task, trace.fault, now.steps, valid)
        now.memory = memory
        now.episodes.add(trace)
        if not self.env.saved:
            now.history.add(trace.env_action, valid, trace.ended)
        now.steps += int(valid.sum())
        return rollout, trace

    def _updated(self, now: _Progress, rollout: Rollout) -> dict[str, float]:
        settings = self.run.settings
        # The fraction of training completed when this rollout started.
        began = now.steps - int(rollout.valid.sum())
        progress = np.float32(min(1.0, began / (settings.anneal_steps or settings.steps)))
        now.algorithm, metrics = self.update(now.algorithm, rollout, progress, self._key(now, 1))
        now.iteration += 1
        return {name: float(value) for name, value in jax.device_get(metrics).items()}

    def _update(
        self, state: Any, rollout: Rollout, progress: Float[Array, ""], key: Key
    ) -> tuple[Any, dict[str, Shaped[Array, ""]]]:
        """The algorithm's update, and the diagnostics that every head has."""
        state, metrics = self.run.algorithm.update(self.agent, state, rollout, progress, key)
        distribution = self.agent.policy(state.parameters, rollout.observation[:-1])
        weight = rollout.valid / jnp.maximum(rollout.valid.sum(dtype=jnp.float32), 1.0)
        everything = jax.tree.leaves((state.parameters, metrics))
        return state, metrics | self.agent.head.diagnostics(distribution) | {
            "entropy_loss": -jnp.sum(weight * distribution.entropy()),
            "finite": jnp.all(jnp.stack([jnp.isfinite(x).all() for x in everything])),
        }

    def _key(self, now: _Progress, purpose: int) -> Key:
        """A separate key for each purpose in each iteration, so that no random state needs to be saved."""
        return jax.random.fold_in(jax.random.fold_in(self.key, 1 + now.iteration), purpose)

    def _snapshot(self, now: _Progress) -> Snapshot:
        of_environment = flatten("environment", now.env_state) if self.env.saved else now.history.tensors()
        tensors = flatten("algorithm", now.algorithm) | flatten("memory", now.memory)
        return Snapshot(
            tensors | now.episodes.tensors() | of_environment, {"iteration": now.iteration, "steps": now.steps}
        )

    def _resumed(self, start: Snapshot) -> _Progress:
        shape = self.env.num_envs, self.env.observation_layout.size
        state = self.run.algorithm.init(self.agent, self.key)
        memory = jax.eval_shape(lambda: begin(jnp.zeros(shape)))
        taken = int(start.meta["iteration"]) * (self.run.algorithm.batch_size // self.env.num_envs)
        now = _Progress(
            restore("algorithm", state, start.tensors),
            restore("memory", memory, start.tensors),
            None,
            Episodes.restored(start.tensors),
            History(self.env.num_envs)
            if self.env.saved
            else History.restored(start.tensors, self.env.space, self.env.num_envs, taken),
            int(start.meta["iteration"]),
            int(start.meta["steps"]),
        )
        if self.env.saved:
            like, _ = self.env.reset()
            with jax.enable_x64(self.env.x64):
                now.env_state = restore("environment", like, start.tensors)
        elif self.run.task.replayable:
            now.env_state, observation = self.env.replay(now.history.replay())
            if not np.array_equal(observation, now.memory.observation):
                raise EnvironmentFailed(
                    f"{self.run.names.task} did not return to the same state when its actions were repeated, so the "
                    "run cannot be resumed exactly: the task is not deterministic, or it or the machine has changed."
                )
        else:
            now.env_state, observation = self.env.reset()
            now.memory = now.memory.at_episode_start(observation)
            now.history = History(self.env.num_envs)
        return now

    def _policy(self, now: _Progress) -> Policy:
        tensors = {
            **flatten("policy", now.algorithm.parameters["policy"]),
            **flatten("head", now.algorithm.parameters["head"]),
            "observation/mean": np.asarray(now.memory.observation_moments.mean),
            "observation/var": np.maximum(now.memory.observation_moments.var, np.float32(self.edge.least_variance)),
            "space/low": self.env.space.low,
            "space/high": self.env.space.high,
            "observations": np.asarray(normalized(self.edge, now.memory.observation_moments, now.memory.observation)),
        }
        meta = {
            "ops": self._ops(),
            "observation": self.env.observation_layout.described(),
            "steps": now.steps,
            "configuration": without_free(self.run.configuration),
        }
        return Policy(tensors, meta)

    def _ops(self) -> list[Op] | None:
        """The ops from an observation to an action; None if the head has no `deploy`."""
        head = head_ops(self.run.head)
        if head is None:
            return None
        return whole_ops(
            deployed(self.agent.policy_program, "policy"),
            head,
            clip=self.edge.clip if self.edge.normalize_observations else None,
            scale=self.edge.actions == "scale",
            shape=self.env.action_shape,
        )


def _refuse_mismatch(run: Run, env: Environment) -> None:
    task, head = run.names.task, run.names.head
    choices = are_choices(env.space)
    if not accepts(type(run.head), env.space):
        kind = "choices" if choices else "real numbers"
        fitting = [name for name in HEADS.names() if accepts(HEADS.get(name), env.space)]
        raise BadInput(
            f"The head {head!r} does not fit {task}, whose actions are {kind}; --head can be {', '.join(fitting)}."
        )
    if choices and run.settings.actions != "scale":
        raise BadInput(f"The actions of {task} are choices, so --actions must be scale, not {run.settings.actions}.")


def _refuse_faults(task: str, fault: NDArray[np.float32], steps: int, valid: NDArray[np.bool_]) -> None:
    """Stop at the first observation or reward that is not finite."""
    if not np.any(fault):
        return
    t, i = np.argwhere(fault != 0)[0]
    step = steps + int(valid[: t + 1].sum())
    raise EnvironmentFailed(
        f"{task} returned {fault[t, i]:g} in an observation or reward, environment {i}, at step {step} of the run; "
        "training stopped before learning from it, and the last checkpoint is valid."
    )
