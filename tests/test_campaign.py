"""The campaign: its commands are its runs, and its page says what its records say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from detent import report
from detent.cli import main
from written import write_run

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import campaign


def test_the_commands_on_the_page_are_the_runs(tmp_path, capsys):
    told = set()
    for name, chosen in campaign.PIECES:
        assert main([*campaign.command(name, chosen), "--dry-run", "--out", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()[:-1]
        told |= {line.split()[1] for line in lines}
    assert told == set(campaign.planned())


def test_it_is_what_was_asked_for():
    """Table 2 at 1M steps: 5 heads x 4 tasks x 2 presets x 3 seeds with PPO, and so on; Figure 5b shares 3 runs."""
    wanted = {"ppo": 5 * 4 * 2 * 3, "trpo": 5 * 2 * 3, "acktr": 3 * 2 * 3}
    runs = campaign.planned().values()
    million = [run for run in runs if run.settings.steps == 1_000_000]
    of_bins = [
        run for run in million if run.names[2] == "ppo" and run.names[3] == "paper" and run.names[1] == "discrete"
    ]
    figure5b = {r.slug + str(r.options["bins"]) for r in of_bins if r.names[0] in ("Reacher-v5", "HalfCheetah-v5")}
    assert len(figure5b) == 2 * 6 * 3
    count = {algo: sum(run.names[2] == algo for run in million) for algo in wanted}
    assert count == wanted | {"ppo": wanted["ppo"] + 2 * 6 * 3 - 3}
    assert len(runs) - len(million) == 2 * 2 * 5  # the bandit, with its two reward functions


@pytest.fixture
def records(tmp_path):
    """Runs of the campaign with made-up returns: discrete far above the Gaussian, ordinal level with it."""
    rng = np.random.default_rng(0)
    for name, run in campaign.planned().items():
        task, head, algo, preset = run.names
        if task != "HalfCheetah-v5" or algo == "acktr":
            continue
        level = {"discrete": 900.0, "ordinal": 505.0}.get(head, 500.0) + 20 * rng.normal()
        status = "diverged" if head == "beta" and run.settings.seed == 2 else "finished"
        options = run.configuration["options"]
        write_run(tmp_path / "runs" / name, [level] * 12, task, head, status, algo=algo, preset=preset, **options)
    report.write_compact(report.load_runs([tmp_path / "runs"]), tmp_path / "campaign.jsonl")
    return tmp_path / "campaign.jsonl"


def test_the_page_says_what_the_records_say(records, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(campaign, "FIGURES", tmp_path / "assets")
    monkeypatch.setattr(campaign, "COST", tmp_path / "none.jsonl")
    monkeypatch.setattr(campaign, "VARIANCE", tmp_path / "none.json")
    page = "\n\n".join(campaign.page(report.load_runs([records])))
    assert f"of {len(campaign.planned())} runs" in page and "3 diverged" in page and "have not been run yet" in page
    beats = page.partition("**Discretising beats the Gaussian**")[2].partition("**The ordinal")[0]
    assert beats.count("higher on 1") == 3 and "HalfCheetah-v5 higher (+" in beats
    level = page.partition("**The ordinal policy beats the Gaussian**")[2].partition(
        "**The ordinal policy beats the d"
    )[0]
    assert "higher" not in level.partition("|---|")[2] and "undecided on 1" in level
    care = page.partition("### What is left of the gain")[2].partition("##")[0]
    assert "| PPO, HalfCheetah-v5 |" in care
    assert (tmp_path / "assets" / "table2-ppo-modern-1000000.png").exists()
    assert "assets/table2-ppo-modern-1000000.png" in page
