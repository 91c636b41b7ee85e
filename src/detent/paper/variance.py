"""Figure 5a: the variance of policy gradients at initialisation against the number of positions K.

A sample of the gradient is g = A grad_theta log pi(a|s), theta being the layers below the outputs, which networks of
all K share. Its variance is the trace of its covariance over the samples of a rollout, E|g|^2 - |E g|^2.

With logits L_j = w_j . h(s), p_j = 1 / K and A = 1 the sample is grad L_a - mean_j grad L_j, whose mean over actions is
0. If the grad L_j are uncorrelated with mean 0 and E|grad L_j|^2 = sigma^2 over initialisations, then

    E_init[V] = sigma^2 (K - 1) / K,

and m times that for m action dimensions, since their samples are independent. For any head the factor is the trace of
the Fisher information of its outputs (`score_size`). sigma^2 is proportional to E|w_j|^2. Orthogonal matrices keep that
constant only up to as many outputs as hidden units: H orthonormal rows of length m K have columns with
E|w_j|^2 = H / (m K) of what it was. From there on the variance falls with K, whatever the theory says (`output_share`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Array, Bool, Float

from detent.agent import Agent, Parameters
from detent.algorithms import Rollout
from detent.algorithms.ppo import PPO
from detent.algorithms.samples import Sample, minibatches, samples, standardized, weights
from detent.distributions import Action, Key, key_of
from detent.errors import BadInput, EnvironmentFailed
from detent.files import Corrupt
from detent.heads import HEADS, Head
from detent.kfac import Seen, inputs_and_scores
from detent.package import import_optional
from detent.report.figures import save_figure
from detent.report.statistics import Interval, ratio
from detent.report.variants import COLOURS
from detent.rollout import COMPILER_OPTIONS, begin, make_collect
from detent.runs.acting import make_edge
from detent.runs.run import Run
from detent.runs.training import make_agent, make_environment

OUTPUT_INITS = {"preset": "orthogonal output layer", "iid": "i.i.d. output layer"}
"""How the output layer is initialised: as for training, or with independent normal numbers of the same E|w_j|^2 for
every K, as the derivation assumes."""
WEIGHTS = {"constant": "constant reward", "advantages": "advantages"}
"""What multiplies the gradient of log pi: 1 for every sample, or PPO's standardised advantages."""


@dataclass(frozen=True)
class Measurement:
    """The variances of one task and head, for every K and every initialisation."""

    task: str
    head: str
    preset: str
    output_init: str
    seed: int
    samples: int
    dimensions: int
    """Of an action (m)."""
    width: int
    """Units of the last hidden layer (H)."""
    bins: tuple[int, ...]
    """K, increasing."""
    constant: tuple[tuple[float, ...], ...]
    """[bins][initialisations] With weight 1 for every sample."""
    advantages: tuple[tuple[float, ...], ...]
    """[bins][initialisations] With the advantages as weights."""


@dataclass(frozen=True)
class Point:
    """Variances at one K relative to those at the largest K measured, with 95% intervals over initialisations."""

    bins: int
    constant: Interval
    advantages: Interval
    theory: float
    """For outputs whose gradients are i.i.d.: for the discrete head ((K - 1) / K) / ((Kmax - 1) / Kmax)."""
    expected: float
    """The theory for the initialisation that was used."""


# --- Measuring ---


def measure(
    task: str,
    bins: Sequence[int],
    *,
    head: str = "discrete",
    initialisations: int,
    samples: int,
    seed: int,
    preset: str = "paper",
    output_init: str = "preset",
) -> Measurement:
    """The gradient's variance for every K, with networks, rollouts and advantages as PPO's first update has them.

    `samples` is the run's `batch_size`, the number of steps collected for every initialisation. Initialisation i has
    the same hidden layers for every K and head.
    """
    if output_init not in OUTPUT_INITS:
        raise BadInput(f"There is no output_init named {output_init!r}. Known: {', '.join(OUTPUT_INITS)}.")
    if initialisations < 1:
        raise BadInput(f"initialisations must be at least 1, not {initialisations}.")
    if not bins:
        raise BadInput("bins must name at least one K.")
    runs = [Run(task, head, "ppo", preset, bins=k, seed=seed, batch_size=samples) for k in sorted(set(bins))]
    measured = [_measured(run, initialisations, output_init) for run in runs]
    agents, variances = zip(*measured, strict=True)
    return Measurement(
        task=task,
        head=head,
        preset=preset,
        output_init=output_init,
        seed=seed,
        samples=samples,
        dimensions=agents[0].space.shape[0],
        width=int(agents[0].policy_program[-1]["inputs"]),
        bins=tuple(run.options["bins"] for run in runs),
        **{name: tuple(tuple(one[name]) for one in variances) for name in WEIGHTS},
    )


def _measured(run: Run, initialisations: int, output_init: str) -> tuple[Agent, dict[str, list[float]]]:
    """The variances of every initialisation for one K. The environments are made once, as they cost a compilation."""
    ppo, settings = run.algorithm, run.settings
    assert isinstance(ppo, PPO)
    env = make_environment(run, settings.seed, settings.envs)
    try:
        agent = make_agent(run, env)
        collect = make_collect(agent, make_edge(run), env, ppo.batch_size // settings.envs)
        variances = jax.jit(partial(rollout_variances, agent, ppo), compiler_options=COMPILER_OPTIONS)
        found: dict[str, list[float]] = {name: [] for name in WEIGHTS}
        for number in range(initialisations):
            key = jax.random.fold_in(key_of(settings.seed), number)
            for_network, for_actions, for_order, for_outputs = (
                jax.random.fold_in(key, purpose) for purpose in range(4)
            )
            parameters = agent.init(for_network)
            if output_init == "iid":
                parameters = with_iid_outputs(agent, parameters, for_outputs)
            env_state, observation = env.reset()
            _, _, rollout, trace = collect(parameters, begin(observation), env_state, for_actions)
            if np.any(trace.fault):
                raise EnvironmentFailed(f"{run.names.task} returned an observation or reward that is not finite.")
            for name, value in variances(parameters, rollout, for_order).items():
                found[name].append(float(value))
        return agent, found
    finally:
        env.close()


def with_iid_outputs(agent: Agent, parameters: Parameters, key: Key) -> Parameters:
    """The parameters with an output layer of independent normal weights, E|w_j|^2 = gain^2 for every output."""
    *hidden, last = parameters["policy"]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    scale = agent.policy_gain / math.sqrt(last["w"].shape[0])
    weight = jnp.asarray(scale * rng.standard_normal(last["w"].shape), jnp.float32)
    return parameters | {"policy": [*hidden, {"w": weight, "b": last["b"]}]}


def rollout_variances(
    agent: Agent, ppo: PPO, parameters: Parameters, rollout: Rollout, key: Key
) -> dict[str, Float[Array, ""]]:
    """The variance of the gradient over the samples of a rollout, by the name of the weights."""
    value = agent.value(parameters, rollout.observation)
    cut: Sample = minibatches(key, samples(ppo, rollout, value, value), ppo.minibatch_size)
    # PPO standardises the advantages of each minibatch separately.
    advantage = jax.vmap(standardized)(cut).reshape(-1)
    batch: Sample = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), cut)
    scores = hidden_scores(agent, parameters, batch.observation, batch.action)
    return {
        "constant": total_variance(scores, jnp.ones_like(advantage), batch.valid),
        "advantages": total_variance(scores, advantage, batch.valid),
    }


def hidden_scores(agent: Agent, parameters: Parameters, observation: Float[Array, "b d"], action: Action) -> list[Seen]:
    """Every sample's gradient of log pi(a|s) with respect to each layer but the last: `inputs` times `scores`, as
    columns and row of a matrix (see `kfac.as_matrices`)."""

    def log_prob(out: Float[Array, "b o"], of_head: dict[str, Array]) -> Float[Array, ""]:
        return agent.head.distribution(out, of_head).log_prob(action).sum()

    every, _ = inputs_and_scores(agent.policy_program, parameters["policy"], observation, log_prob, parameters["head"])
    return every[:-1]


def total_variance(layers: Sequence[Seen], factor: Float[Array, " b"], valid: Bool[Array, " b"]) -> Float[Array, ""]:
    """The trace of the covariance of factor * gradient over the valid samples, with n - 1.

    |a s^T|^2 = |a|^2 |s|^2, so no sample's gradient is ever written out.
    """
    weight, count = weights(valid), valid.sum(dtype=jnp.float32)
    squared = sum(((seen.inputs**2).sum(-1) * (seen.scores**2).sum(-1) for seen in layers), jnp.zeros_like(factor))
    mean = [(seen.inputs * (weight * factor)[:, None]).T @ seen.scores for seen in layers]
    of_mean = sum((jnp.vdot(g, g) for g in mean), jnp.zeros(()))
    return (weight @ (factor**2 * squared) - of_mean) * count / jnp.maximum(count - 1.0, 1.0)


# --- The theory ---


def score_size(head: Head) -> float:
    """E|d log p(a) / d outputs|^2 for one action dimension whose K outputs are 0.

    This is the trace of their Fisher information: (K - 1) / K for the discrete head, (K^2 - 1) / (6 K) for the
    ordinal one.
    """
    space = Box(-1.0, 1.0, (1,), np.float32)
    outputs = head.outputs(space)

    def log_prob(out: Float[Array, " k"]) -> Float[Array, " k"]:
        return head.distribution(out, head.parameters(space)).log_prob(jnp.arange(outputs)[:, None])

    def trace(out: Float[Array, " k"]) -> Float[Array, ""]:
        return jnp.exp(log_prob(out)) @ jnp.sum(jax.jacobian(log_prob)(out) ** 2, axis=-1)

    return float(jax.jit(trace)(jnp.zeros(outputs)))


@cache
def _score_size(head: str, bins: int) -> float:
    return score_size(HEADS.get(head)(bins=bins))  # type: ignore[call-arg]


def output_share(output_init: str, width: int, outputs: int) -> float:
    """E|w_j|^2 of an output's weights, relative to that of a few outputs."""
    return min(1.0, width / outputs) if output_init == "preset" else 1.0


def normalised(result: Measurement) -> tuple[Point, ...]:
    """Variances relative to the mean at the largest K, each initialisation with its own."""
    theory = np.array([_score_size(result.head, k) for k in result.bins])
    share = [output_share(result.output_init, result.width, result.dimensions * k) for k in result.bins]
    expected = theory * share

    def relative(values: tuple[tuple[float, ...], ...], number: int) -> Interval:
        return Interval(1.0, 1.0, 1.0) if number == len(values) - 1 else ratio(values[number], values[-1])

    return tuple(
        Point(
            k,
            relative(result.constant, number),
            relative(result.advantages, number),
            float(theory[number] / theory[-1]),
            float(expected[number] / expected[-1]),
        )
        for number, k in enumerate(result.bins)
    )


# --- Records ---


def as_json(results: Sequence[Measurement]) -> dict[str, Any]:
    """For `files.write_json`; six digits of every variance, which is more than their precision."""

    def short(value: Any) -> Any:
        if isinstance(value, tuple):
            return [short(one) for one in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return {
        "measurements": [{k: short(v) for k, v in dataclasses.asdict(result).items()} for result in results],
    }


def from_json(value: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """The inverse of `as_json`; raises `Corrupt` for anything else."""
    try:
        return tuple(_read(one) for one in value["measurements"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Corrupt(f"This is not a record of gradient variances: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _read(value: Mapping[str, Any]) -> Measurement:
    def variances(name: str) -> tuple[tuple[float, ...], ...]:
        rows = tuple(tuple(float(v) for v in row) for row in value[name])
        if len(rows) != len(bins) or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError(f"{name} does not have one variance for each K and initialisation")
        if not all(math.isfinite(v) and v > 0 for row in rows for v in row):
            raise ValueError(f"{name} has a variance that is not a positive number")
        return rows

    bins = tuple(int(k) for k in value["bins"])
    if value["output_init"] not in OUTPUT_INITS:
        raise ValueError(f"there is no output_init named {value['output_init']!r}")
    return Measurement(
        task=str(value["task"]),
        head=str(value["head"]),
        preset=str(value["preset"]),
        output_init=str(value["output_init"]),
        seed=int(value["seed"]),
        samples=int(value["samples"]),
        dimensions=int(value["dimensions"]),
        width=int(value["width"]),
        bins=bins,
        constant=variances("constant"),
        advantages=variances("advantages"),
    )


# --- The figure ---


def draw(results: Sequence[Measurement], path: str | os.PathLike[str]) -> list[Path]:
    """One curve per task and the theory, as PNG and PDF (the path's ending does not count); the files' paths.

    A row of panels for every head and initialisation of the output layer, a column for every kind of weight. Dotted:
    what the theory becomes with an orthogonal output layer.
    """
    if not results:
        raise BadInput("There is nothing to draw: no variances have been measured.")
    figures = import_optional("matplotlib.figure", "report")
    rows = list(dict.fromkeys((result.head, result.output_init) for result in results))
    tasks = list(dict.fromkeys(result.task for result in results))
    colours = {task: COLOURS[number % len(COLOURS)] for number, task in enumerate(tasks)}
    figure = figures.Figure(figsize=(3.6 * len(WEIGHTS), 2.7 * len(rows) + 0.6), layout="constrained")
    panels = figure.subplots(len(rows), len(WEIGHTS), squeeze=False, sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for (head, output_init), row in zip(rows, panels, strict=True):
        shown = [(one, normalised(one)) for one in results if (one.head, one.output_init) == (head, output_init)]
        for (name, weighting), axes in zip(WEIGHTS.items(), row, strict=True):
            for result, points in shown:
                handles[result.task] = _draw_points(axes, points, name, colours[result.task])
                if any(point.expected != point.theory for point in points):
                    style = {"color": "black", "linestyle": ":", "linewidth": 1.0, "zorder": 3}
                    curve = axes.plot(result.bins, [point.expected for point in points], **style)
                    handles["theory, orthogonal"] = curve[0]
            _, points = max(shown, key=lambda one: len(one[1]))
            bins = [point.bins for point in points]
            (handles["theory"],) = axes.plot(bins, [point.theory for point in points], color="black", linewidth=1.2)
            axes.set_title(f"{head}, {OUTPUT_INITS[output_init]}, {weighting}", fontsize=8)
            axes.set_ylim(bottom=0.0)
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("variance, 1 at the largest K", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("positions K", fontsize=8)
    figure.suptitle("Variance of policy gradients at initialisation", fontsize=11)
    named = {label: handles[label] for label in sorted(handles, key=lambda label: label.startswith("theory"))}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(4, len(handles)), fontsize=8)
    written = [Path(path).with_suffix(f".{kind}") for kind in ("png", "pdf")]
    for file in written:
        save_figure(figure, file)
    return written


def _draw_points(axes: Any, points: Sequence[Point], name: str, colour: str) -> Any:
    bins = [point.bins for point in points]
    intervals: list[Interval] = [getattr(point, name) for point in points]
    axes.fill_between(
        bins, [one.low for one in intervals], [one.high for one in intervals], color=colour, alpha=0.2, linewidth=0
    )
    (line,) = axes.plot(bins, [one.value for one in intervals], ".-", color=colour, linewidth=1.5, markersize=5)
    return line
