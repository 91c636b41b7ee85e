"""The memory that a run needs, from the shapes of its arrays, and the memory that there is."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from detent.agent import Agent, Parameters
from detent.algorithms import Algorithm
from detent.distributions import Key
from detent.environments import Environment
from detent.errors import Refused
from detent.networks import Op, parameter_shapes, tapped_network
from detent.rollout import Edge, rollout_shapes

NEAR = 1 / 8
"""The fraction of the available memory from which on a run is looked at more closely."""
SCRATCH = 1.4
"""What a run holds at its peak, relative to what the compiler says: it leaves out what matrix products are packed into.
Measured on Humanoid-v5: 1.5 with 20,001 bins, 1.8 with 5,001."""


class _Blank(Agent):
    """An agent whose parameters are zeros, so that JAX can tell their shapes without computing them."""

    def init(self, key: Key) -> Parameters:
        return {
            "policy": _zeros(self.policy_program),
            "head": self.head.parameters(self.space),
            "value": _zeros(self.value_program),
            "critic": self.critic.state(),
        }


def _zeros(program: list[Op]) -> list[dict[str, Any]]:
    shapes = [parameter_shapes(op) for op in program]
    return [{name: jnp.zeros(shape) for name, shape in of_op.items()} for of_op in shapes if of_op]


def refuse_what_cannot_fit(
    agent: Agent, algorithm: Algorithm, edge: Edge, env: Environment, update: Callable[..., Any], key: Key
) -> None:
    """Raise `Refused` if the arrays of a run cannot fit into the memory that is available.

    At least, an update holds the rollout, the state before it and the state after it, and the outputs of the networks
    for every sample of the batch. If that is a good part of what there is, the compiler says what else it will hold.
    """
    there = available()
    try:
        state = jax.eval_shape(lambda: algorithm.init(_Blank(**vars(agent)), key))
    except jax.errors.JAXTypeError:  # an algorithm of the user's own that does not leave it all to JAX
        return
    rollout, trace = rollout_shapes(agent, edge, env, state.parameters, algorithm.batch_size // env.num_envs)
    outputs, inputs = jax.eval_shape(partial(_activations, agent), state.parameters, rollout.observation)
    needed = 2 * size_of(state) + size_of((rollout, trace, outputs))
    _refuse(needed, there)
    if needed + size_of(inputs) < NEAR * there:
        return
    found = update.lower(state, rollout, np.float32(0.0), key).compile().memory_analysis()  # type: ignore[attr-defined]
    if found is not None:
        sizes = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
        _refuse(int(SCRATCH * (sum(sizes) + size_of(trace))), there)


def _activations(agent: Agent, parameters: Parameters, observation: Float[Array, "*b d"]) -> tuple[Any, Any]:
    """The policy's outputs, and the inputs of all layers of both networks."""
    outputs, of_policy = tapped_network(agent.policy_program, parameters["policy"], observation)
    _, of_value = tapped_network(agent.value_program, parameters["value"], observation)
    return outputs, (of_policy, of_value)


def _refuse(needed: int, there: float) -> None:
    if needed > there:
        raise Refused(
            f"This run needs at least {needed / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are available; a "
            "smaller --batch-size, fewer --bins or a smaller network need less."
        )


def size_of(tree: Any) -> int:
    """Bytes of a pytree of arrays or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# --- what there is ---


def available(root: Path = Path("/")) -> float:
    """Bytes that this process can still get: of the machine (memory and swap), its control groups and its limits."""
    return min([*_of_machine(root), *_of_groups(root), *_of_limits(root)], default=math.inf)


def _of_machine(root: Path) -> Iterator[float]:
    numbers = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in numbers:
        yield 1024 * (numbers["MemAvailable:"] + numbers.get("SwapFree:", 0))


def _of_groups(root: Path) -> Iterator[float]:
    """What is left below the limit of each control group around this process, in either version of them.

    The cache of files counts as used there, but is given up when something else needs the memory.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, limit, used, cache = (
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
        )
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):
            place = root / top / group
            bounds = [_text(place / name).strip() for name in (limit, used)]
            if all(bound.isdigit() for bound in bounds):  # not "max"
                most, now = map(int, bounds)
                yield max(0, most - now + _numbers(place / "memory.stat").get(cache, 0))


def _of_limits(root: Path) -> Iterator[float]:
    """What `ulimit -v` leaves."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text(root / "proc/self/statm").split()
    if most != resource.RLIM_INFINITY and pages:
        yield max(0, most - int(pages[0]) * resource.getpagesize())


def _numbers(path: Path) -> dict[str, int]:
    """The lines `name number ...` of a file."""
    rows = [line.split() for line in _text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
