"""Files of earlier versions are read, resumed, verified, reported and shown, whatever options were added since.

tests/data/v0.1.0 was written by that version: run directories, a sweep, compact records, and its default options.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from pathlib import Path

import pytest

from detent.algorithms import ALGORITHMS
from detent.algorithms.ppo import PPO
from detent.cli import main
from detent.errors import BadInput
from detent.heads import HEADS
from detent.heads.gaussian import Gaussian
from detent.options import option
from detent.paper.experiments import experiments
from detent.paper.selection import placed
from detent.report.loading import load_runs
from detent.report.variants import find_variants
from detent.runs import run as run_module
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.presets import CHANGED_SINCE, EARLIER, base, edition
from detent.runs.run import PARTS, Names, Run, Settings, described, read_configuration
from detent.sweeps.cores import sweep
from detent.sweeps.plan import by_name, plan_from_file, run_name

DATA = Path(__file__).parent / "data"
OLD = DATA / "v0.1.0"
RUNS = sorted(path.name for path in (OLD / "runs").iterdir())
RECORDED = sorted((Path(__file__).parent.parent / "results").glob("*.jsonl"))


@pytest.fixture
def old(tmp_path):
    """A copy of what 0.1.0 wrote."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


# --- what 0.1.0 wrote ---


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("stopped")])
def test_a_run_of_0_1_is_resumed(old, name):
    directory = RunDirectory(old / "runs" / name)
    before = directory.records()
    run = directory.run()
    after = list(execute(run, directory.path, Execution(resume=True)))
    assert directory.status() == "finished"
    assert after[0]["time/iterations"] == len(before) + 1
    assert [r["time/iterations"] for r in directory.records()] == list(range(1, len(before) + len(after) + 1))
    assert directory.links()[-1]["steps"] >= run.settings.steps


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_0_1_is_verified(old, name, capsys):
    assert main(["verify", str(old / "runs" / name), "--all"]) == 0
    assert "other versions: detent 0.1.0 there" in capsys.readouterr().out


def test_a_resumed_run_of_0_1_is_verified(old, capsys):
    path = str(old / "runs" / "stopped-ppo-ordinal")
    assert main(["resume", path, "--quiet"]) == 0
    assert main(["verify", path, "--all"]) == 0


def test_runs_of_0_1_are_reported(old, tmp_path):
    assert main(["report", str(old), "--out", str(tmp_path / "page.html")]) == 0
    assert {run.status for run in load_runs([old])} == {"finished", "stopped"}


def test_runs_of_0_1_are_shown_as_what_they_were_made_with(capsys):
    assert main(["paper", "show", "figure6", str(OLD / "compact.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert "paper-0.1" in shown
    assert "modern-0.1" in shown
    runs = load_runs([OLD / "compact.jsonl"])
    assert len(placed(experiments()["figure6"], runs)) == len(runs) == 4


def test_a_sweep_of_0_1_is_found_by_identity(old):
    runs = [RunDirectory(path.parent).run() for path in sorted((old / "sweep").glob("*/run.json"))]
    assert [run_name(run) for run in runs] != [path.parent.name for path in sorted((old / "sweep").glob("*/run.json"))]
    events = list(sweep(runs, old / "sweep"))
    assert [event.before for event in events] == [True, True]
    assert sorted(event.name for event in events) == sorted(p.parent.name for p in (old / "sweep").glob("*/run.json"))


def test_a_run_of_today_with_the_same_options_is_the_same_variant(old, tmp_path):
    directory = RunDirectory(old / "runs" / "stopped-ppo-ordinal")
    again = RunDirectory(tmp_path / "again")
    again.path.mkdir()
    again.create(directory.run(), None)
    runs = load_runs([directory.path, again.path])
    assert [run.versions["detent"] for run in runs] != ["0.1.0", "0.1.0"]
    assert len(find_variants(runs).all) == 1


def test_a_preset_of_0_1_gives_what_0_1_trained():
    for run in load_runs([OLD / "compact.jsonl"]):
        today = Run(run.task, run.head, run.algo, run.preset, steps=run.options["steps"])
        assert run.preset.endswith("-0.1")
        assert today.identity == described_identity(run.record)


@pytest.mark.parametrize("preset", EARLIER)
def test_a_preset_keeps_its_name_where_its_settings_are_still_the_same(preset):
    """Then runs of both versions are the same variant; where they differ, the older ones are named by their version."""
    for algo in ("ppo", "trpo", "acktr"):
        heads = ("gaussian", "gaussian_tanh", "beta", "discrete", "ordinal")
        pairs = [[Run("probe/action", head, algo, name) for name in (preset, base(preset))] for head in heads]
        changed = any(then.identity != now.identity for then, now in pairs)
        assert changed == (algo in CHANGED_SINCE[preset]), algo
        assert edition(base(preset), algo, "0.1.0") == (preset if changed else base(preset))


def described_identity(record):
    return Run.from_configuration(record).identity


# --- names that 0.1.0 documented ---

DOCUMENTED = [
    "detent.checking.check",
    "detent.configuration.Run",
    "detent.configuration.Settings",
    "detent.directory.RunDirectory",
    "detent.gymnasium.DiscretizeActions",
    "detent.progress.follow",
    "detent.runs.Execution",
    "detent.runs.evaluate_run",
    "detent.scheduling.sweep",
    "detent.statistics.iqm",
    "detent.sweeps.plan_from_file",
    "detent.sweeps.plan_from_flags",
    "detent.sweeps.read_plan",
    "detent.sweeps.run_name",
    "detent.training.Record",
]


@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.filterwarnings("ignore:.* has moved:DeprecationWarning")
def test_names_of_0_1_can_still_be_imported(name):
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


# --- baselines never change ---


@pytest.mark.parametrize("version", sorted(path.parent.name for path in DATA.glob("v*/baselines.json")))
def test_no_baseline_has_changed(version):
    """Give an option whose default you change its old default as `baseline`; give one that is new the value that
    reproduces runs from before it."""
    then = json.loads((DATA / version / "baselines.json").read_text())
    for kind in PARTS:
        for name, options in then.get(kind, {}).items():
            names = Names("", **{kind: name})
            assert read(names, options) == read(names, {}), (kind, name)
    assert read(Names("", "beta"), then["settings"]) == read(Names("", "beta"), {})


def read(names, options):
    """All options of a file that has these."""
    return read_configuration({**names._asdict(), "options": options})[1]


# --- options that come and go ---


def with_option(monkeypatch, name, default, **aging):
    """Add an option to a head, an algorithm and the settings, as a later version might."""
    for place in ("head", "algorithm", "settings"):
        base = {"head": Gaussian, "algorithm": PPO, "settings": Settings}[place]
        field = (f"{name}_{place}", type(default), option(default, "an option of the future", **aging))
        grown = dataclasses.make_dataclass(base.__name__, [field], bases=(base,), frozen=True)
        if place == "head":
            monkeypatch.setitem(HEADS._entries, "gaussian", grown)
        elif place == "algorithm":
            monkeypatch.setitem(ALGORITHMS._entries, "ppo", grown)
        else:
            monkeypatch.setattr(run_module, "Settings", grown)


def recognised():
    """Experiment -> names of the recorded runs that belong to it."""
    runs = load_runs(RECORDED)
    return {name: sorted(p.run.name for p in placed(e, runs)) for name, e in experiments().items() if not e.measure}


def test_a_new_option_orphans_no_recorded_run(monkeypatch):
    from detent.paper import selection
    from detent.sweeps import plan

    runs = load_runs(RECORDED)
    assert len(runs) >= 221
    names = {id(run): Run.from_configuration(run.record).identity for run in runs}
    before = recognised()
    assert sum(map(len, before.values())) >= 221
    with_option(monkeypatch, "dummy", 2.0, baseline=1.0)
    for cached in (selection._options, selection._draws, plan._options):
        cached.cache_clear()
    assert recognised() == before
    assert {id(run): Run.from_configuration(run.record).identity for run in runs} == names
    assert Run("Hopper-v5", "gaussian").options["dummy_head"] == 2.0
    for cached in (selection._options, selection._draws, plan._options):
        cached.cache_clear()


def test_a_new_option_breaks_no_run_directory(monkeypatch, old):
    path = old / "runs" / "finished-ppo-gaussian-paper"
    identity = RunDirectory(path).run().identity
    with_option(monkeypatch, "dummy", 2.0, baseline=1.0)
    run = RunDirectory(path).run()
    assert run.options["dummy_settings"] == 1.0
    assert run.identity == identity
    assert list(by_name([run], old / "runs")) == [path.name]
    RunDirectory(path).check_same(run)
    assert len(RunDirectory(path).links()) == 4
    with pytest.raises(BadInput, match=r"dummy_head is 1\.0 there, not 2\.0"):
        RunDirectory(path).check_same(Run.from_configuration(RunDirectory(path).configuration(), dummy_head=2.0))


def test_a_renamed_option_is_read_under_its_old_name(monkeypatch):
    run = Run("probe/action", "gaussian")
    with_option(monkeypatch, "renamed", 2.0, formerly=("once",))
    written = run.configuration
    written["options"]["once"], written["baselines"]["once"] = 5.0, 2.0
    # The head, the algorithm and the settings share the old name here; each kind of part is read once.
    assert read_configuration(written)[1]["renamed_head"] == 5.0


def test_users_may_use_the_old_name(tmp_path, capsys):
    """In Python, in sweep files, and as a flag."""
    assert Run("probe/action", kl_per_dimension=False).options["divide_target_kl"] is False
    file = tmp_path / "sweep.toml"
    file.write_text('task = "probe/action"\nkl_per_dimension = [true, false]\n')
    assert [run.options["divide_target_kl"] for run in plan_from_file(file).runs()] == [True, False]
    assert (
        main(["sweep", "--task", "probe/action", "--kl-per-dimension", "true", "--out", str(tmp_path), "--dry-run"])
        == 0
    )
    words = ["--no-kl-per-dimension", "--steps", "8", "--envs", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "probe/action", *words]) == 0
    assert RunDirectory(tmp_path / "run").run().options["divide_target_kl"] is False


def test_a_retired_option_is_read_where_it_had_no_effect(monkeypatch):
    written = Run("probe/action", "gaussian").configuration
    written["options"]["bygone"] = 0.0
    with pytest.raises(BadInput, match="--bygone, which this version of Detent does not have"):
        Run.from_configuration(written)
    monkeypatch.setattr(PPO, "RETIRED", {"bygone": 0.0}, raising=False)
    assert Run.from_configuration(written) == Run("probe/action", "gaussian")
    written["options"]["bygone"] = 1.0
    with pytest.raises(BadInput, match="--bygone"):
        Run.from_configuration(written)


def test_a_file_keeps_what_a_preset_would_change():
    """What is null in a file is null in the run, whatever the preset says."""
    run = Run("probe/action", "gaussian", anneal_steps=500)
    written = run.configuration
    written["options"]["anneal_steps"] = None
    del written["baselines"]["anneal_steps"]
    assert Run.from_configuration(written).settings.anneal_steps is None
    assert described(*read_configuration(run.configuration)) == run.configuration
