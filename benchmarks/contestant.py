"""One measurement of Detent or of bare environments, in a process of its own; prints one line of JSON.

    train     training as `detent train` does it, without writing anything: collecting 2,048 steps and updating from
              them, with 64-64 networks and normalised observations and rewards. PPO: 10 epochs of minibatches of 64.
              TRPO: 15 iterations of conjugate gradient on all samples, 10 epochs of minibatches of 128 for the value
              function. ACKTR: as its preset `modern` does.
    physics   an EnvPool of the same size stepped with uniformly random actions inside one `lax.scan`.
    collect   Detent's collecting of rollouts, without updates, whatever the task's backend.
    loop      Gymnasium environments stepped one after the other in a plain Python loop with random actions.

Only valid steps are counted; `all_steps_per_second` also counts those that only reset an environment. Only whole
iterations are timed, after a warm-up that includes all compilation: see `stopwatch.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Generator
from typing import Any

from stopwatch import measure, measure_rounds

BATCH, MINIBATCH, EPOCHS = 2048, 64, 10
SAME_AS_PEERS: dict[str, dict[str, Any]] = {
    # All ten epochs, as the peers do them.
    "ppo": {"minibatch_size": MINIBATCH, "epochs": EPOCHS, "target_kl": 0.0},
    # The defaults of sb3-contrib.
    "trpo": {"minibatch_size": 128, "epochs": 10, "cg_iterations": 15, "damping": 0.1, "max_kl": 0.01},
    "acktr": {},
}
ENDLESS = 10**12
"""Steps of a training that is stopped by the clock."""


def options_of_run(options: argparse.Namespace) -> dict[str, Any]:
    """The run that all of Detent's contestants have in common."""
    return {
        "task": options.task,
        "head": options.head,
        "bins": options.bins,
        "algo": options.algo,
        "preset": "modern",
        "steps": ENDLESS,
        "seed": 0,
        "envs": options.envs,
        "workers": options.workers,
        "batch_size": BATCH,
        **SAME_AS_PEERS[options.algo],
        **({} if options.target_kl is None else {"target_kl": options.target_kl}),
    }


def train(options: argparse.Namespace, facts: dict[str, Any]) -> Generator[int, None, None]:
    """Training; notes the number of parameters."""
    import detent

    for record in detent.train(detent.Run(**options_of_run(options))):
        if not facts:
            tensors = record.snapshot().tensors
            for part in ("policy", "head", "value"):
                prefix = f"algorithm/parameters/{part}"
                facts[f"{part}_parameters"] = sum(int(t.size) for name, t in tensors.items() if name.startswith(prefix))
        yield int(record["time/total_timesteps"] or 0)


def physics(options: argparse.Namespace, facts: dict[str, Any]) -> Generator[int, None, None]:
    """Random actions in an EnvPool with one thread per core, scanned."""
    import envpool
    import jax
    import jax.numpy as jnp
    import numpy as np

    n = options.envs
    threads = min(n, len(os.sched_getaffinity(0)))
    pool = envpool.make(options.task, env_type="gymnasium", num_envs=n, num_threads=threads, seed=0)
    pool.reset()
    low, high = (bound.astype(np.float32) for bound in (pool.action_space.low, pool.action_space.high))
    with jax.enable_x64(True):  # EnvPool speaks float64
        handle, _, _, step = pool.xla()

        def one(carry: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], Any]:
            handle, ended = carry
            action = jax.random.uniform(key, (n, *low.shape), jnp.float32, low, high)
            handle, (observation, reward, terminated, truncated, _) = step(handle, action.astype(jnp.float64))
            kept = (observation.astype(jnp.float32), reward.astype(jnp.float32), ~ended)
            return (handle, terminated | truncated), kept

        def rollout(carry: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], Any]:
            return jax.lax.scan(one, carry, jax.random.split(key, BATCH // n))

        carry = (jnp.asarray(handle), jnp.zeros(n, bool))
        compiled = jax.jit(rollout).lower(carry, jax.random.key(0)).compile({"xla_cpu_multi_thread_eigen": False})
    valid = iteration = 0
    while True:
        carry, kept = compiled(carry, jax.random.key(iteration))
        jax.block_until_ready(kept)  # type: ignore[no-untyped-call]
        iteration += 1
        valid += int(np.sum(kept[-1]))
        yield valid


def collect(options: argparse.Namespace, facts: dict[str, Any]) -> Generator[int, None, None]:
    """Detent's rollouts, with the parameters a training begins with."""
    import jax
    import numpy as np

    import detent
    from detent.rollout import begin, make_collect
    from detent.runs.training import make_agent, make_edge, make_environment

    run = detent.Run(**options_of_run(options))
    settings = run.settings
    env = make_environment(run, settings.seed, settings.envs)
    agent, edge = make_agent(run, env), make_edge(run)
    run_rollout = make_collect(agent, edge, env, BATCH // settings.envs)
    key = jax.random.key(settings.seed)
    parameters = agent.init(key)
    env_state, observation = env.reset()
    memory = begin(observation)
    steps = iteration = 0
    try:
        while True:
            iteration += 1
            memory, env_state, rollout, _ = run_rollout(
                parameters, memory, env_state, jax.random.fold_in(key, iteration)
            )
            steps += int(np.sum(rollout.valid))
            yield steps
    finally:
        env.close()


def loop(options: argparse.Namespace, facts: dict[str, Any]) -> Generator[int, None, None]:
    """Gymnasium alone: no policy, no normalisation, no vector wrapper, nothing kept."""
    import gymnasium
    import numpy as np

    envs = [gymnasium.make(options.task, disable_env_checker=True) for _ in range(options.envs)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    space = envs[0].action_space
    assert isinstance(space, gymnasium.spaces.Box)
    rng = np.random.default_rng(0)
    steps = 0
    while True:
        for _ in range(BATCH // len(envs)):
            actions = rng.uniform(space.low, space.high, (len(envs), *space.shape)).astype(space.dtype)
            for env, action in zip(envs, actions, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        steps += BATCH
        yield steps


CONTESTANTS = {"train": train, "physics": physics, "collect": collect, "loop": loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CONTESTANTS)
    parser.add_argument("task")
    parser.add_argument("--algo", default="ppo", choices=SAME_AS_PEERS)
    parser.add_argument("--head", default="ordinal")
    parser.add_argument("--bins", type=int, help="for heads that have bins")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--target-kl", type=float, help="for algorithms that have one")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cores", help="the cores to run on, such as 0,1; default: all")
    parser.add_argument("--barrier", action="store_true", help="after the warm-up, wait for a line of input")
    parser.add_argument("--rounds", action="store_true", help="measure once for every line of input")
    options = parser.parse_args()
    if options.what in ("train", "collect"):
        os.environ.setdefault("NPROC", "1")  # as `detent train` does
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    facts: dict[str, Any] = {}
    progress = CONTESTANTS[options.what](options, facts)
    if options.rounds:
        for measured in measure_rounds(progress, options.seconds):
            print(json.dumps(measured), flush=True)
        progress.close()
        return
    result: dict[str, Any] = {**measure(progress, options.seconds, options.barrier), "envs": options.envs}
    progress.close()
    result["all_steps_per_second"] = result["iterations"] * BATCH / result["seconds"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result | facts | {"peak_megabytes": peak}))


if __name__ == "__main__":
    main()
