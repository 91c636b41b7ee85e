"""The campaign: its commands are its runs, and its page says what its records say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from detent import report
from detent.cli import main
from written import write_run

sys.path.insert(0, str(Path(__file__).parent.parent / "results"))
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
    of_bins = [run for run in million if run.names[1:4] == ("discrete", "ppo", "paper-0.1")]
    figure5b = {r.slug + str(r.options["bins"]) for r in of_bins if r.names.task in ("Reacher-v5", "HalfCheetah-v5")}
    assert len(figure5b) == 2 * 6 * 3
    count = {algo: sum(run.names.algo == algo for run in million) for algo in wanted}
    assert count == wanted | {"ppo": wanted["ppo"] + 2 * 6 * 3 - 3}
    assert len(runs) - len(million) == 2 * 2 * 5  # the bandit, with its two reward functions


@pytest.fixture
def records(tmp_path):
    """Runs of the campaign with made-up returns: discrete far above the Gaussian, ordinal level with it.

    K = 7 and 15, which are runs of Figure 5b, are better still.
    """
    rng = np.random.default_rng(0)
    for name, run in campaign.planned().items():
        task, head, algo, preset, *_ = run.names
        if task not in ("HalfCheetah-v5", "Ant-v5") or algo == "acktr":
            continue
        level = {"discrete": 900.0, "ordinal": 505.0}.get(head, 500.0) + 20 * rng.normal()
        level += 1000 * (run.options.get("bins") in (7, 15))
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
    assert f"of {len(campaign.planned())} runs" in page and "5 diverged" in page and "have not been run yet" in page
    held = page.partition("## What holds here")[2].partition("###")[0]
    assert (
        "PPO, modern-0.1: discrete higher, ordinal undecided; PPO, paper-0.1: discrete higher, ordinal undecided"
        in held
    )
    assert "| Discretising beats the Gaussian | holds on 2 | holds on 2 | holds on 1 |" in held
    assert "| The ordinal policy beats the discrete one | does not hold on 2 | does not hold on 2 |" in held
    assert "| The ordinal policy beats the Gaussian | undecided on 2 | undecided on 2 | undecided on 1 |" in held
    assert "| Beta is no better than the Gaussian | undecided on 2 | undecided on 2 | undecided on 1 |" in held
    across = page.partition("### Across tasks")[2].partition("###")[0]
    assert "| PPO, modern-0.1: Ant-v5, HalfCheetah-v5 | gaussian |" in across
    assert across.count("| discrete |") == 2 and across.count("| higher (") == 2
    care = page.partition("### What is left of the gain")[2].partition("##")[0]
    rows = [line.split("|") for line in care.splitlines() if line.startswith("|")]
    first = next(number for number, row in enumerate(rows) if "PPO, HalfCheetah-v5" in row[1])
    for settings, row in zip(campaign.SETTINGS, rows[first : first + 3], strict=True):
        assert row[2].strip() == settings
        assert " (1." in row[4] and "x, higher)" in row[4], "K = 7 and 15 are Figure 5b's, not Table 2's"
        assert "undecided" in row[5]
    assert (
        "discrete against the Gaussian:** with paper-0.1 higher on 2; with modern-0.1 higher on 2; with the better"
        in care
    )
    assert "gaussian 28, gaussian_tanh 0, beta 10, discrete 16, ordinal 22" in care, "as in results/learning.jsonl"
    detail = page.partition("### Task by task")[2].partition("##")[0]
    assert detail.count("| PPO, modern-0.1 |") == len(campaign.CLAIMS) and "higher: +" in detail
    assert "highest mean at K = 15" in page or "highest mean at K = 7" in page
    assert "Not shown: highest mean" in page, "K = 2 is no lower here"
    assert (tmp_path / "assets" / "table2-ppo-modern-0.1-1000000.png").exists()
    assert "assets/table2-ppo-modern-0.1-1000000.png" in page


def test_what_a_verdict_means_for_a_claim():
    beats = campaign.Claim("A beats B", "a", "b")
    no_better = campaign.Claim("A is no better than B", "a", "b", better=False)
    told = [beats.judged("higher"), beats.judged("lower"), no_better.judged("higher"), no_better.judged("lower")]
    assert told == ["holds", "does not hold", "does not hold", "holds"]
    assert beats.judged("undecided") == no_better.judged("undecided") == "undecided"
