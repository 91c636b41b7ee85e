"""The model card of a run: what it is, how well it does and how to use it. Markdown with Hugging Face's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from detent.errors import BadInput
from detent.files import write_whole
from detent.play import factory_of
from detent.policy import Policy
from detent.report.figures import draw_panels
from detent.report.loading import load_runs
from detent.runs.directory import RunDirectory
from detent.runs.execution import evaluate_run
from detent.runs.run import Run

CURVE = "learning_curve.png"


def write_card(
    directory: RunDirectory, run: Run, file_name: str, policy: Policy, path: Path, episodes: int, seed: int
) -> list[Path]:
    """Evaluate the policy, whose file is `file_name`, and write the card and the learning curve; return their paths."""
    results = {
        "most probable": evaluate_run(run, policy, episodes, seed),
        "sampled": evaluate_run(run, policy, episodes, seed, np.random.default_rng(seed)),
    }
    head, algo = run.names.head, run.names.algo
    written = [path.with_name(CURVE), path]
    draw_panels(load_runs([directory.path]), written[0], f"{algo} with the {head} head")
    write_whole(path, card(directory, run, file_name, policy, results).encode())
    return written


def card(
    directory: RunDirectory, run: Run, file_name: str, policy: Policy, results: Mapping[str, Mapping[str, float]]
) -> str:
    described = directory.configuration()
    task, head, algo, preset, *_ = run.names
    steps = int(policy.meta["steps"])
    name = f"{algo}-{head}-{task}"
    parts = [
        _front_matter(name, task, head, algo, results["most probable"]),
        f"# {_quoted(name)}",
        f"A policy for {_quoted(task)}, trained with Detent for {steps:,} steps by {_quoted(algo)} with the "
        f"{_quoted(head)} head (preset {_quoted(preset)}, seed {run.settings.seed}).",
        f"![Learning curve]({CURVE})",
        "## Evaluation",
        _results(results),
        f"Return: mean ± standard deviation over {int(results['sampled']['episodes'])} episodes in environments that "
        "training did not see. One run is one seed: other seeds may do better or worse.",
        "## Use",
        f"```python\n{usage(run, file_name, policy)}```",
        "Acting needs NumPy and safetensors, and loading the file executes nothing. `policy.mean` and `policy.sample` "
        "give the expected and a random action; `detent export` writes ONNX, NumPy and C.",
        "## Configuration",
        _table(
            ("option", "value"),
            ((_quoted(k), _quoted(json.dumps(v))) for k, v in sorted(described["options"].items())),
        ),
        "## Versions",
        _table(("package", "version"), (map(_quoted, row) for row in described.get("versions", {}).items())),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str, task: str, head: str, algo: str, result: Mapping[str, float]) -> str:
    """YAML, whose strings may be written as in JSON."""
    quoted = partial(json.dumps, ensure_ascii=False)
    value = f"{result['mean_reward']:.2f} +/- {result['std_reward']:.2f}"
    return "\n".join(
        [
            "---",
            "library_name: detent",
            "tags:",
            *(
                f"- {quoted(tag)}"
                for tag in (task, "deep-reinforcement-learning", "reinforcement-learning", algo, head)
            ),
            "model-index:",
            f"- name: {quoted(name)}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {quoted(task)}",
            f"      type: {quoted(task)}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {quoted(value)}",
            "      name: mean_reward",
            "      verified: false",
            "---",
        ]
    )


def _results(results: Mapping[str, Mapping[str, float]]) -> str:
    success = all("success_rate" in result for result in results.values())
    rows = [
        (
            actions,
            f"{result['mean_reward']:,.2f} ± {result['std_reward']:,.2f}",
            f"{result['mean_ep_length']:,.1f}",
            *([f"{result['success_rate']:.2f}"] if success else []),
        )
        for actions, result in results.items()
    ]
    return _table(("actions", "return", "episode length", *(["success rate"] if success else [])), rows)


def usage(run: Run, file_name: str, policy: Policy) -> str:
    """A program that works in the directory of the policy's file; it plays an episode if Gymnasium has the task."""
    load = f'import detent\n\npolicy = detent.load("{file_name}")\n'
    env_id = _gymnasium_id(run)
    if env_id is None:
        return (
            f"import numpy as np\n{load}observation = np.zeros({policy.observation_size}, np.float32)"
            "  # what your environment gives\naction = policy(observation)\n"
        )
    return f"""\
import gymnasium
{load}env = gymnasium.make({json.dumps(env_id)})
observation, _ = env.reset(seed=0)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(policy(observation))
    total, over = total + reward, terminated or truncated
print(total)
"""


def _gymnasium_id(run: Run) -> str | None:
    """The id of the run's task in Gymnasium, if it has one and `gymnasium.make` needs nothing else."""
    env_id = run.task.envpool_id or run.names.task.removeprefix("gymnasium/")
    if run.settings.env_kwargs or env_id not in gymnasium.registry:
        return None
    try:
        factory_of(run.task, {})
    except BadInput:
        return None
    return env_id


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _quoted(text: Any) -> str:
    """Text from a file as a code span: in it nothing is Markdown or HTML, and without a backtick nothing ends it.

    A bar would end the cell of a table, even after a backslash; programs that know no code spans see no tags either.
    """
    instead = {"`": "'", "|": "¦", "<": "‹", ">": "›"}
    plain = "".join(instead.get(letter, letter) if letter.isprintable() else " " for letter in str(text))
    return f"`{plain.strip().replace('](', '] (') or ' '}`"
