"""The records in results/: which sweep made them, and that docs/performance.md says what they say."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from itertools import chain

import numpy as np
import pytest
from scipy.stats import t

from detent import report
from detent.runs.presets import base
from detent.runs.run import Run
from detent.sweeps.plan import plan_from_file, run_name
from documented import ROOT

RESULTS = ROOT / "results"
SWEEPS = sorted((RESULTS / "learning").glob("*.toml"))
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def learning():
    return report.load_runs([RESULTS / "learning.jsonl"])


def test_every_recorded_run_is_one_of_a_sweep_file_and_the_other_way_round(learning):
    planned = [run_name(run) for path in SWEEPS for run in plan_from_file(path).runs()]
    assert len(planned) == len(learning)
    assert {run_name(Run.from_configuration(run.configuration)) for run in learning} == set(planned)


def test_the_sweep_files_say_what_they_asked():
    assert len(SWEEPS) == 10
    for path in SWEEPS:
        assert re.match(r"# .*?\?.*\n(# .*\n)*#\n# ", path.read_text()), path
        assert f"results/learning/{path.name}" in PAGE, f"docs/performance.md does not name {path.name}"


# --- docs/performance.md ---


def tables(text):
    """The tables of a page, each as a list of dictionaries, column -> cell."""
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        yield [dict(zip(header, row, strict=True)) for row in rows]


def shown(value):
    """As on the page."""
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def student(values):
    mean, half = statistics.mean(values), t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{shown(mean - half)} to {shown(mean + half)}"


def fits(run, row):
    """Whether the columns of a row can mean this run."""
    options = {"damping": "damping", "iterations": "cg_iterations", "steps": "steps"}
    return all(
        (key == "task" and cell == run.task)
        or (key == "head" and cell == run.head)
        or (key == "preset" and cell.strip("`") == base(run.preset))
        or (key in options and float(cell.replace(",", "")) == run.options.get(options[key]))
        for key, cell in row.items()
        if key in ("task", "head", "preset", *options)
    )


def near(run, steps):
    return run.curve.returns[np.argmin(np.abs(run.curve.steps - steps))]


def last(run):
    """What the tables show: the mean of the last 100 episodes at the end, where the campaign averages 10 such means."""
    return run.curve.returns[-1]


def said(row):
    return {key: cell for key, cell in row.items() if key in ("after 50,000 steps", "mean", "95% interval")}


@pytest.mark.parametrize("algo", ["ppo", "trpo", "acktr"])
def test_returns_by_seed_are_those_of_recorded_runs(algo, learning):
    runs = [*learning, *report.load_runs([RESULTS / "campaign.jsonl"])]
    alike = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        if run.algo == algo and run.seed < 100:
            alike[run.path, run.task, run.head, run.preset, str(run.compared)].append(run)
    groups = alike.values()
    part = {
        "ppo": PAGE.partition("\n## Learning\n")[2].partition("\n## ")[0],
        "trpo": PAGE.partition("**TRPO**\n")[2].partition("**ACKTR**")[0],
        "acktr": PAGE.partition("**ACKTR**")[2],
    }[algo]
    rows = [row for row in chain.from_iterable(tables(part)) if "returns, by seed" in row]
    assert len(rows) == {"ppo": 11, "trpo": 13 + 5, "acktr": 12}[algo]
    for row in rows:
        returns = row["returns, by seed"].removesuffix(" (one seed)")
        members = next(
            (group for group in groups if fits(group[0], row) and "; ".join(shown(last(m)) for m in group) == returns),
            [],
        )
        assert members, f"no recorded runs give {row}"
        values = [last(member) for member in members]
        if len(values) > 1:
            numbers = {"mean": shown(statistics.mean(values)), "95% interval": student(values)}
            if "after 50,000 steps" in row:
                numbers["after 50,000 steps"] = shown(statistics.mean(near(member, 50_000) for member in members))
            assert said(row) == numbers


def test_they_count_as_final_returns(learning):
    """Not the mean of the last 10 of the few points there are."""
    assert all(run.final == last(run) for run in learning)


def test_the_search_is_that_of_the_records(learning):
    (rows,) = (rows for rows in tables(PAGE) if "3e-4, 512" in rows[0])
    assert len(rows) == 12
    for row in rows:
        for rate, size in ((3e-4, 64), (3e-4, 512), (1e-3, 64), (1e-3, 512)):
            wanted = {
                "learning_rate": rate, "minibatch_size": size, "seed": 100, "kl_per_dimension": True, "envs": 64,
                "anneal_learning_rate": True, "bins": 11,
            }  # fmt: skip
            found = [
                shown(run.final)
                for run in learning
                if fits(run, row) and wanted.items() <= ({"bins": 11} | run.options).items()
            ]
            assert row[f"{rate:.0e}".replace("e-0", "e-") + f", {size}"] == "".join(found)
