"""The paper as commands: what is planned, which runs count, what is chosen, and what is shown beside it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box

from detent import report
from detent.agent import Agent
from detent.cli import main
from detent.errors import BadInput
from detent.heads import HEADS
from detent.paper.experiments import experiments, find
from detent.paper.figures import draw
from detent.paper.layout import WIDTH
from detent.paper.measuring import measure, measured, show_measured
from detent.paper.printed import papers, printed, reference, todays
from detent.paper.selection import best, cells, placed
from detent.paper.tables import parameters, tables_of
from detent.runs.run import Run
from detent.sweeps.plan import run_name
from detent.tasks import find_task
from written import write_run

ALL = list(experiments())


# --- what is run ---


def test_every_figure_and_table_is_there():
    figures = [f"figure{n}" for n in (1, 2, 3, 4, "5a", "5b", 6, 7, 8, 9, 10, 11)]
    assert sorted(ALL) == sorted([*figures, *(f"table{n}" for n in range(1, 6)), "beta"])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("figure1", 2 * 2 * 5),
        ("figure2", 6 * 2 * 4 * 2 * 5),  # tasks, algorithms, Gaussian and three K, tuned values, seeds
        ("figure4", 6 * 2 * 2 * 5),
        ("table2", 13 * (2 + 2 + 1 + 2 * 3 + 2 * 3) * 5),  # Beta is not tuned
        ("table3", (1 + 2 * 4) * 3),
        ("figure11", 8 * 2 * 30),
        ("table4", 4 * 2 * 2 * 5),
        ("beta", (4 + 4) * 5),
    ],
)
def test_runs_at_the_papers_scale(name, count):
    assert len(find(name)[0].runs()) == count


@pytest.mark.parametrize("name", [name for name in ALL if not experiments()[name].measure])
def test_a_part_has_the_same_runs_as_the_whole(name):
    experiment = experiments()[name]
    whole = {run_name(run) for run in experiment.runs()}
    task = experiment.tasks[-1]
    part = experiment.runs(tasks=[task])
    assert {run_name(run) for run in part} < whole or len(experiment.tasks) == 1
    assert {run.names.task for run in part} == {todays(task)[0]}


def test_scale_and_settings_are_those_asked_for():
    runs = find("table2")[0].runs(
        tasks=["paper/Ant"], heads=["ordinal"], bins=["9"], presets=["modern"], steps="1e5", seeds="2"
    )
    assert {run.names[:4] for run in runs} == {("paper/Ant", "ordinal", algo, "modern") for algo in ("ppo", "trpo")}
    assert [(run.settings.steps, run.options["bins"], run.settings.seed) for run in runs] == [
        (100_000, 9, seed) for seed in (0, 0, 1, 1)
    ]


def test_tuning_belongs_to_the_papers_preset():
    experiment = find("table2")[0]
    asked = {"tasks": ["Ant"], "algos": ["ppo"], "heads": ["gaussian"], "seeds": 1}
    rates = [run.options["learning_rate"] for run in experiment.runs(**asked)]
    assert rates == [3e-5, 3e-4]
    assert [run.options["learning_rate"] for run in experiment.runs(**asked, tuning=False)] == [3e-4]
    assert [run.options["learning_rate"] for run in experiment.runs(**asked, presets=["modern"])] == [3e-4]
    beta = experiment.runs(**{**asked, "heads": ["beta"]})
    assert [run.options["learning_rate"] for run in beta] == [3e-5]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table9"], "The paper has no 'table9'"),
        (["table2", "--task", "Ants"], "Did you mean Ant"),
        (["table2", "--algo", "acktr"], "it has ppo, trpo"),
        (["table2", "--head", "gauss"], "gaussian"),
        (["table2", "--preset", "old"], "There is no preset"),
        (["table2", "--steps", "many"], "--steps must be a whole number"),
        (["table2", "--seeds", "0"], "--seeds must be a whole number of at least 1"),
        (["table4", "--bins", "7"], "table4 has no --bins"),
        (["figure11", "--seeds", "3"], "set the number of draws"),
        (["figure2", "--draws", "3"], "set the number of seeds"),
        (["figure5a", "--steps", "10"], "trains nothing"),
        (["figure5a", "--bins", "one"], "at least 2"),
        (["figure5a", "--preset", "modern"], "trains nothing"),
        (["figure5a", "--head", "gaussian"], "has no --bins"),
        (["table2", "--head", "gaussian", "--bins", "7"], "None of these heads has --bins"),
        (["table2"], "1,105 runs"),
        (["table3", "--jobs", "2"], "measures time"),
    ],
)
def test_bad_input_is_a_sentence(words, told, capsys, tmp_path):
    assert main(["paper", "run", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- what was printed ---


def test_the_documented_tables_are_the_reference():
    """docs/paper.md prints the paper's main table; the numbers are those of reference.toml."""
    text = (Path(__file__).parent.parent / "docs" / "paper.md").read_text()
    for algo in ("ppo", "trpo"):
        rows = re.findall(rf"^\| {algo.upper()} \|.*?(?=\n\n)", text, re.M | re.S)[0].splitlines()[2:]
        told = {}
        for row in rows:
            task, *shown = (cell.strip() for cell in row.strip("|").split("|"))
            task = {"SimpleHumanoid (R)": "Sim. Humanoid (R)"}.get(task, task)
            told[task] = [tuple(float(x.replace(",", "")) for x in cell.split(" ± ")) for cell in shown]
        assert told == {task: list(row.values()) for task, row in printed("table2", algo).items()}


def test_every_printed_number_has_a_place():
    for name in ALL:
        experiment = experiments()[name]
        for algo in {algo for part in experiment.parts for algo in part.algos}:
            assert set(printed(name, algo)) <= {*experiment.tasks, "*"}
    assert (
        reference()["Humanoid-v5", "ppo", "ordinal"] == reference()["paper/Humanoid", "ppo", "ordinal"] == (6018, 403)
    )


def test_the_papers_tasks_exist():
    for name in ALL:
        for task in experiments()[name].tasks:
            for today in todays(task):
                assert find_task(today).name == today and papers(today) == task


# --- which runs count ---


@pytest.fixture
def of_table2(tmp_path):
    """Runs of table2 on Ant: two heads, three seeds; and others that do not belong to it."""

    def write(head, returns, **options):
        name = f"{head}-{len(list(tmp_path.iterdir()))}"
        options = {"task": "Ant-v5", "preset": "paper", "steps": 1000, **options}
        return write_run(tmp_path / name, returns, head=head, **options)

    for seed in range(3):
        for rate in (3e-5, 3e-4):
            level = 100.0 if rate == 3e-5 else 200.0
            write("gaussian", [level + seed] * 20, seed=seed, learning_rate=rate)
            write("discrete", [2 * level + seed] * 20, seed=seed, learning_rate=rate, bins=7)
        write("discrete", [390.0 + seed] * 20, seed=seed, bins=11)
        write("ordinal_released", [7.0] * 20, seed=seed)
    write("discrete", [9999.0] * 20, learning_rate=1e-3)  # a value that the paper did not try
    write("discrete", [9999.0] * 20, envs=4)
    write("discrete", [9999.0] * 20, task="Swimmer-v5")
    write("discrete", [8888.0] * 20, steps=2000)
    return tmp_path


def test_only_runs_with_the_papers_options_count(of_table2):
    runs = report.load_runs([of_table2])
    members = placed(find("table2")[0], runs)
    assert len(runs) == 22 and len(members) == 19
    assert {m.head for m in members} == {"gaussian", "discrete", "ordinal_released"}
    assert not [m for m in members if m.run.final == 9999.0]


def test_the_best_setting_is_chosen_and_said(of_table2):
    members = [m for m in placed(find("table2")[0], report.load_runs([of_table2])) if m.run.options["steps"] == 1000]
    chosen = cells(members, by_bins=False)
    assert chosen["Ant-v5", "gaussian"].mean_and_sd == (201.0, 1.0)
    discrete = chosen["Ant-v5", "discrete"]
    assert (discrete.setting, discrete.tried) == ("K = 7, learning_rate 0.0003", 3)
    assert set(cells(members, by_bins=True)) == {
        ("Ant-v5", label) for label in ("gaussian", "discrete, K = 7", "discrete, K = 11", "ordinal_released, K = 11")
    }


def test_few_seeds_do_not_win_over_many(of_table2):
    """One lucky seed of another setting has the highest mean of all; it is left out, and the table says so."""
    write_run(of_table2 / "lucky", [5000.0] * 20, "Ant-v5", "discrete", preset="paper", steps=1000, bins=15)
    members = [m for m in placed(find("table2")[0], report.load_runs([of_table2])) if m.run.options["steps"] == 1000]
    assert any(m.run.final == 5000.0 for m in members)
    discrete = cells(members, by_bins=False)["Ant-v5", "discrete"]
    assert (discrete.setting, sorted(discrete.scores)) == ("K = 7, learning_rate 0.0003", [400.0, 401.0, 402.0])
    assert (discrete.tried, discrete.fewer) == (4, 1)
    (table,) = tables_of(find("table2")[0], members)
    told = table.blocks[0].lines["chosen"]["discrete"]
    assert told == "K = 7, learning_rate 0.0003 (1 with fewer runs left out)"
    assert table.notes[-1].endswith("discrete on Ant-v5 (1).")


def test_a_run_that_goes_on_is_shown_but_does_not_count(tmp_path):
    shared = {"task": "Ant-v5", "head": "gaussian", "preset": "paper", "steps": 1000}
    write_run(tmp_path / "a", [1.0] * 20, seed=0, **shared)
    write_run(tmp_path / "b", [500.0] * 20, seed=1, status="running", **shared)
    write_run(tmp_path / "c", [3.0] * 20, seed=2, status="diverged", why="NaN", **shared)
    choice = best(placed(find("table2")[0], report.load_runs([tmp_path])))
    assert choice.scores.tolist() == [1.0, 3.0]
    (table,) = tables_of(find("table2")[0], choice.members)
    assert table.blocks[0].lines["runs"]["gaussian"] == "1, 1 diverged, 1 running"


def test_a_copy_of_a_run_does_not_count_twice(tmp_path):
    for name in ("here", "copied"):
        write_run(tmp_path / name, [1.0] * 20, "Ant-v5", "gaussian", preset="paper", steps=1000)
    assert best(placed(find("table2")[0], report.load_runs([tmp_path]))).scores.tolist() == [1.0]


def test_draws_belong_to_the_sensitivity_study_and_to_nothing_else(tmp_path):
    sensitivity, main_table = find("figure11")[0], find("table2")[0]
    runs = sensitivity.runs(tasks=["HalfCheetah"], steps=1000, draws=2)
    for number, run in enumerate(runs):
        write_run(tmp_path / str(number), [1.0] * 20, *run.names[:2], preset="paper", **run.options)
    write_run(tmp_path / "other", [1.0] * 20, "HalfCheetah-v5", "gaussian", preset="paper", steps=1000)
    found = report.load_runs([tmp_path])
    assert len(placed(sensitivity, found)) == len(runs) == 4
    assert [m.run.name for m in placed(main_table, found)] == ["other"]


def test_one_k_says_nothing_about_k(tmp_path):
    shared = {"task": "Reacher-v5", "preset": "paper", "steps": 1000}
    for head, bins in (("discrete", 2), ("discrete", 11), ("ordinal", 11)):
        write_run(tmp_path / f"{head}{bins}", [1.0] * 20, head=head, bins=bins, **shared)
    write_run(tmp_path / "gaussian", [1.0] * 20, head="gaussian", **shared)
    members = placed(find("figure5b")[0], report.load_runs([tmp_path]))
    assert {(m.head, m.bins) for m in members} == {("discrete", 2), ("discrete", 11)}


def test_columns_of_settings(tmp_path):
    for size in (32, 128):
        write_run(tmp_path / str(size), [float(size)] * 20, "Ant-v5", "gaussian", preset="paper", algo="trpo",
                  hidden_sizes=(size, size), steps=1000)  # fmt: skip
    (table,) = tables_of(find("table4")[0], placed(find("table4")[0], report.load_runs([tmp_path])))
    assert table.columns == ("128 units", "32 units")
    assert table.blocks[0].lines["here"] == {"128 units": "128", "32 units": "32.0"}
    assert table.blocks[0].lines["paper"] == {"128 units": "-104 ± 30", "32 units": "-94 ± 44"}


# --- what is shown ---


@pytest.mark.parametrize("name", [name for name in ALL if not experiments()[name].measure])
def test_every_experiment_can_be_shown(name, tmp_path):
    """One task of each at a small scale, with made-up returns, as text, Markdown and figures."""
    experiment = experiments()[name]
    runs = experiment.runs(tasks=experiment.tasks[:1], steps=2000, seeds=None if name == "figure11" else 2)
    for number, run in enumerate(runs):
        task, head, algo, preset, *_ = run.names
        write_run(tmp_path / str(number), [float(number + i) for i in range(12)], task, head, preset=preset, algo=algo,
                  **run.options)  # fmt: skip
    members = placed(experiment, report.load_runs([tmp_path]))
    assert len(members) == len(runs)
    tables = tables_of(experiment, members, intervals=True)
    assert len(tables) == len({run.names.algo for run in runs})
    for table in tables:
        assert max(map(len, table.text().splitlines())) <= WIDTH
        for label in (*table.columns, *(label for block in table.blocks for label in block.lines)):
            assert label in table.markdown() and label in table.text()
    drawn = draw(experiment, members, tmp_path / "drawn")
    assert len(drawn) == (0 if name == "table3" else 2 * len(tables))
    assert all(path.stat().st_size > 5000 for path in drawn)


@pytest.mark.parametrize("name", ["table1", "table2", "figure5b"])
def test_without_runs_the_printed_numbers_are_shown(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "show", name]) == 0
    told = capsys.readouterr().out
    assert "as printed" in told and f"detent paper run {name}" in told
    assert "≈ 6,000" in told or name != "table1"  # the off-policy columns
    assert not list(tmp_path.iterdir())


def test_a_report_beside_the_papers_numbers(of_table2, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", str(of_table2), "--reference", "paper", "--out", str(out)]) == 0
    assert "4445" in out.read_text()  # the Gaussian's on Ant, with PPO


def test_showing_what_is_not_there(tmp_path, capsys):
    assert main(["paper", "show", "table2", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_cost_is_relative_to_the_gaussian_of_the_same_seed(tmp_path):
    shared = {"task": "Reacher-v5", "preset": "paper", "steps": 400}
    for seed, (gaussian, discrete) in enumerate(((1.0, 1.5), (2.0, 5.0))):
        for head, pace in (("gaussian", gaussian), ("discrete", discrete)):
            # The first iteration, with its compilation, does not count.
            elapsed = [100.0 + pace * i for i in range(4)]
            write_run(tmp_path / f"{head}{seed}", [1.0] * 4, head=head, seed=seed, elapsed=elapsed, **shared)
    (table,) = tables_of(find("table3")[0], placed(find("table3")[0], report.load_runs([tmp_path])))
    assert table.blocks[0].lines["discrete, K = 11"]["time"] == "200%"
    assert table.blocks[0].lines["discrete, K = 11"]["range over seeds"] == "150 to 250%"
    assert table.blocks[0].lines["discrete, K = 11"]["paper"] == "120%"


@pytest.mark.parametrize("head", sorted({*HEADS.names()} - {"categorical"}))
def test_parameters_are_counted(head, tmp_path):
    run = Run("Reacher-v5", head, "trpo", "paper")
    path = write_run(tmp_path / "run", [1.0], "Reacher-v5", head, algo="trpo", preset="paper")
    size = find_task("Reacher-v5").size()
    agent = Agent(run.head, run.trunk, run.critic, Box(-1.0, 1.0, (size.action,)), size.observation)
    made = agent.init(jax.random.key(0))
    (summary,) = report.load_runs([path])
    (member,) = placed(find("figure8")[0], [summary])
    assert parameters(member) == sum(np.size(x) for x in jax.tree.leaves([made["policy"], made["head"]]))


def test_parameters_of_recorded_runs_are_counted():
    """Those of 0.1.0 have an option whose name has changed since."""
    runs = report.load_runs([Path(__file__).parent.parent / "results" / "cost.jsonl"])
    members = placed(find("table3")[0], runs)
    assert len(members) == len(runs)
    assert all(parameters(member) for member in members)


def test_run_and_show_for_real(tmp_path, capsys):
    """The bandit, briefly: trained by one command, shown by the next, and not trained again."""
    out, shown = str(tmp_path / "runs"), tmp_path / "shown"
    words = ["paper", "run", "figure1", "--task", "probe/bimodal", "--steps", "1024", "--seeds", "1", "--out", out]
    assert main([*words, "--dry-run"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main([*words, "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "2 finished" in told and f"detent paper show figure1 {out}" in told
    assert main(["paper", "show", "figure1", out, "--out", str(shown)]) == 0
    told = capsys.readouterr().out
    assert "of 1 seeds" in told and "1 of 5 seeds" in told
    assert {path.name for path in shown.iterdir()} == {
        "figure1-ppo-paper-1024.png", "figure1-ppo-paper-1024.pdf", "figure1.html"
    }  # fmt: skip
    data = json.loads(
        re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", (shown / "figure1.html").read_text(), re.S)[1]
    )
    assert len(data["runs"]) == 2
    finished = next(Path(out).glob("probe*/records.jsonl")).stat().st_mtime_ns
    assert main([*words, "--quiet"]) == 0
    assert next(Path(out).glob("probe*/records.jsonl")).stat().st_mtime_ns == finished


def test_the_list(capsys):
    assert main(["paper"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{name} " in told for name in ALL)
    assert max(map(len, told.splitlines())) <= WIDTH


def test_unknown_names_raise():
    with pytest.raises(BadInput, match="Did you mean table2"):
        find("tabel2")
    assert [experiment.name for experiment in find("figure5")] == ["figure5a", "figure5b"]


# --- what is measured ---


def test_the_variance_is_measured_kept_and_shown(tmp_path):
    (whole, _) = find("figure5")
    small = {"bins": [2, 5], "head": ["discrete"], "output_init": ["preset"], "initialisations": 2, "samples": 64}
    experiment = replace(whole, measure=small)
    (line, path) = measure(experiment, tmp_path, ["Reacher"])
    assert line.startswith("Reacher-v5, discrete") and path == str(tmp_path / "variance.json")
    (found,) = measured([tmp_path])
    assert found.bins == (2, 5)
    list(measure(experiment, tmp_path / "one", ["Reacher"], bins=["5"]))
    assert list(show_measured(experiment, [tmp_path / "one"], tmp_path / "shown", markdown=True))
    list(measure(experiment, tmp_path, ["Hopper-v5"], bins=["3", "5"]))
    assert {one.task: one.bins for one in measured([tmp_path / "variance.json"])} == {
        "Reacher-v5": (2, 5), "Hopper-v5": (3, 5)
    }  # fmt: skip
    shown = list(show_measured(experiment, [tmp_path], tmp_path / "shown", markdown=False))
    assert [Path(line).name for line in shown[-2:]] == ["figure5a.png", "figure5a.pdf"]
    assert max(len(line) for text in shown[:-2] for line in text.splitlines()) <= WIDTH
