"""`detent tune`: what is searched, what is better, and that the search is the same however it is carried out.

Most tests search among run directories that are written without training (`pretend`): a known function of the options
takes the place of learning. `test_a_search_that_is_killed_gives_the_same_study` trains.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from browser import Browser, find
from detent import report
from detent.cli import main
from detent.draws import choice, log_uniform, uniform
from detent.errors import BadInput
from detent.files import Corrupt
from detent.heads import HEADS, register_head
from detent.heads.ordinal import Ordinal
from detent.options import option, options_of
from detent.report.studies import found_studies, fresh_score, read_study, study_data
from detent.runs.directory import RunDirectory
from detent.runs.run import PARTS, Names, Run, Settings
from detent.sweeps.plan import by_name
from detent.tasks import find_task
from detent.tuning import files, winner
from detent.tuning.scoring import Failed, Yardstick, score
from detent.tuning.search import JOURNAL, RUNS, Study, search
from detent.tuning.space import asked_by_file, asked_by_flags, find_space
from marks import slow_unless
from updates import BOX_HEADS
from written import write_records

TASKS = ("probe/action", "probe/follow")
EPOCHS = replace(uniform(3, 20), whole=True)
SPACE = {"bins": choice(7, 11, 15), "learning_rate": log_uniform(1e-5, 1e-2), "epochs": EPOCHS}
NAMES = Names("probe/action")


def study(**changes):
    names = {kind: name for kind, name in NAMES._asdict().items() if kind != "task"}
    tasks = tuple(map(find_task, TASKS))
    return Study(**{"tasks": tasks, "names": names, "fixed": {}, "space": SPACE, "steps": 2_000, "seeds": 2, **changes})


def peak(run):
    """The return of a run in place of training: best at a learning rate of 1e-3, a little better with more bins."""
    options = run.options
    off = math.log10(options["learning_rate"]) + 3
    level = {"probe/action": -200.0, "probe/follow": 5_000.0}[run.names.task]
    return level + 100 * (0.02 * options["bins"] - off**2) + 0.001 * options["seed"]


class Killed(Exception):
    """The search was killed."""


def pretend(out, of=peak, after=math.inf, order=lambda runs: runs):
    """Carry runs out by writing down a curve that rises to `of(run)`; the search is killed after so many runs."""
    carried = []

    def carry_out(runs, until, title):
        assert len(title) < 50
        for name, run in order(list(by_name(runs).items())):
            place = out / RUNS / name
            if RunDirectory(place).exists and (until or RunDirectory(place).status() != "stopped"):
                continue
            if len(carried) >= after:
                raise Killed
            shutil.rmtree(place, ignore_errors=True)
            end = of(run)
            curve = [None, *(end - 50 * (1 - share / 19) ** 2 for share in range(19)), end]
            kept = (until or run.settings.steps) // 100
            write_records(place, run, curve[:kept], "stopped" if until else "finished")
            carried.append((name, until))

    return carry_out, carried


def searched(out, trials=6, of=peak, after=math.inf, order=lambda runs: runs, **changes):
    carry_out, carried = pretend(out, of, after, order)
    out.mkdir(exist_ok=True)
    return list(search(study(**changes), trials, out, carry_out))[-1], carried


# --- the space ---


def space_of(names, fixed=None, asked=None, only=False):
    def make(values):
        kinds = {kind: name for kind, name in names._asdict().items() if kind != "task"}
        return Run("probe/action", **kinds, **{**(fixed or {}), **values})

    return find_space(names, fixed or {}, asked or {}, only, make)


@pytest.mark.parametrize("algo", PARTS["algo"].names())
@pytest.mark.parametrize("head", BOX_HEADS)
def test_every_corner_of_the_space_is_a_run(algo, head):
    space = space_of(Names("", head, algo))
    assert len(space) >= 4
    assert "initial_std" in space
    for pick in (0, -1):
        Run("probe/action", head, algo, **{name: draw.values[pick] for name, draw in space.items()})


def test_a_declared_range_contains_what_the_option_allows():
    for part in [Settings, *(part for registry in PARTS.values() for part in map(registry.get, registry.names()))]:
        for declared in options_of(part):
            if draw := declared.metadata["search"]:
                assert draw.kind == "choice" or draw.values[0] < draw.values[1]
                assert draw.kind != "log_uniform" or draw.values[0] > 0


def test_the_initial_spread_is_searched_where_the_head_can_have_it():
    assert space_of(Names("", "gaussian"))["initial_std"].values == (0.1, 1.0)
    assert space_of(Names("", "beta"))["initial_std"].values[1] == pytest.approx(0.575, abs=2e-3)
    assert space_of(Names("", "discrete"))["initial_std"].values[1] == pytest.approx(0.617, abs=1e-3)  # of 15 bins
    assert space_of(Names("", "discrete"), {"bins": "5"})["initial_std"].values[1] == pytest.approx(0.707, abs=1e-3)
    assert "initial_std" not in space_of(Names("", "discrete"), {"bins": "2"})  # with two bins there is only one


def test_what_is_fixed_is_not_searched_nor_what_sets_the_same():
    assert "learning_rate" not in space_of(NAMES, {"learning_rate": "1e-4"})
    assert "initial_std" not in space_of(Names("", "gaussian"), {"initial_log_std": "-1"})
    asked = asked_by_flags(["initial-log-std=-2:0"], Names("", "gaussian"))
    assert "initial_std" not in space_of(Names("", "gaussian"), asked=asked)
    assert space_of(NAMES, {"batch_size": "64", "envs": "8"})["minibatch_size"].values == (32, 64)


def test_flags_and_files_override_what_is_declared(tmp_path):
    asked = asked_by_flags(
        ["learning-rate=1e-5:1e-2", "bins=15,7", "gamma=0.9:0.999", "clip-range=log-uniform:0.1,1"], NAMES
    )
    assert [(name, draw.kind, draw.values) for name, draw in asked.items()] == [
        ("learning_rate", "log_uniform", (1e-5, 1e-2)),
        ("bins", "choice", (7, 15)),
        ("gamma", "uniform", (0.9, 0.999)),
        ("clip_range", "log_uniform", (0.1, 1.0)),
    ]
    assert set(space_of(NAMES, asked=asked)) == {*space_of(NAMES), "gamma", "clip_range"}
    file = tmp_path / "space.toml"
    file.write_text("epochs = {uniform = [3, 5]}\nhidden_sizes = [[64, 64], [32]]\nkl_per_dimension = [true, false]\n")
    assert space_of(NAMES, asked=asked_by_file(str(file), NAMES), only=True).keys() == {
        "epochs", "hidden_sizes", "divide_target_kl",
    }  # fmt: skip


def test_a_head_of_ones_own_is_searched_too():
    @dataclass(frozen=True)
    class Wobbly(Ordinal):
        wobble: float = option(0.5, "how much it wobbles", above=0, search=log_uniform(0.1, 2.0))

    register_head("wobbly", Wobbly)
    try:
        assert space_of(Names("", "wobbly"))["wobble"].values == (0.1, 2.0)
    finally:
        del HEADS._entries["wobbly"]


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("learning-rat=1:2", "no option --learning-rat. Did you mean learning_rate"),
        ("initial-log-std=-1:0", "The head 'ordinal' has no --initial-log-std"),
        ("learning-rate=1e-2:1e-5", "the lower one first"),
        ("learning-rate=0:1e-2", "greater than 0"),
        ("learning-rate=a:b", "the lower one first"),
        ("learning-rate", "write it like --search"),
        ("epochs=1.5:3", "whole number"),
        ("epochs=0:3", "--epochs must be at least 1, not 0"),
        ("bins=7", "needs two values"),
        ("bins=7,x", "--bins must be a whole number"),
        ("kl-from=0:1", "is not a number"),
        ("initial-std=0.1:5", "--initial-std must be between"),
        ("minibatch-size=60,64", "is not a multiple of --minibatch-size 60"),
        ("seed=0:3", "--seed cannot be searched"),
        ("steps=1:3", "--steps cannot be searched"),
        ("head=ordinal,beta", "--head cannot be searched"),
        ("gamma=nonsense:1,2", "two numbers"),
    ],
)
def test_a_bad_search_is_one_sentence(search, sentence, capsys):
    assert main(["tune", "probe/action", "--search", search, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("probe/acton", "Did you mean probe/action"),
        ("probe/action --trials 0", "--trials must be a whole number of at least 1"),
        ("probe/action --seeds 0", "--seeds must be"),
        ("probe/action --seed 3", "--seed"),
        ("probe/action --head gaussian --bins 7", "The head 'gaussian' has no --bins"),
        ("probe/action --batch-size 96", "is not a multiple"),
        ("probe/action --bins 7 --search bins=7,11", "either fixed or searched"),
        ("probe/action --space nowhere.toml", "nowhere.toml: cannot be read"),
        ("probe/action --sampler best", "--sampler"),
        ("probe/action --preset nowhere.toml", "nowhere.toml: cannot be read"),
        ("probe/action --trials 1000", "a search of 3,003 runs. If that is what you want, add --yes"),
        ("probe/action --head nobody", "no head named 'nobody'"),
    ],
)
def test_bad_flags_are_one_sentence(flags, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *flags.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_would_be_searched_is_listed(capsys):
    assert main(["tune", "probe/action", "--trials", "5", "--search", "bins=7,9", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "bins                   choice       7, 9\n" in said
    assert "5 trials and the default settings, 18 runs" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80


def test_without_optuna_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "probe/action"]) == 2
    assert "pip install 'detent-rl[tune]'" in capsys.readouterr().err


# --- the score ---


def test_the_default_settings_score_0_and_signs_and_units_do_not_matter():
    sticks = {"low": Yardstick(-200.0, 100.0), "high": Yardstick(5_000.0, 4_000.0)}
    assert score({"low": [-210.0, -190.0], "high": [5_000.0]}, sticks) == 0.0
    assert (
        score({"low": [-100.0], "high": [5_000.0]}, sticks) == score({"low": [-200.0], "high": [9_000.0]}, sticks) > 0
    )
    # A catastrophe on one task does not hide a gain on the other.
    worse, worst = (score({"low": [-1e6], "high": [x]}, sticks) for x in (9_000.0, 5_000.0))
    assert worst < worse < 0
    assert worst > -6


def test_runs_without_a_return_fail_their_trial_and_no_other(tmp_path):
    def sometimes(run):
        return math.nan if run.options["bins"] == 7 else peak(run)

    found, _ = searched(tmp_path / "tune", trials=8, of=sometimes)
    states = {trial.number: trial.state for trial in found.trials}
    failed = [trial.number for trial in found.trials if trial.values.get("bins") == 7]
    assert failed
    assert states == {n: "failed" if n in failed else "finished" for n in range(9)}
    assert "no episode ended" in found.trials[failed[0]].why


def test_default_settings_without_a_return_are_refused(tmp_path):
    with pytest.raises(BadInput, match="give no return to compare with"):
        searched(tmp_path / "tune", of=lambda run: math.nan)


def test_settings_that_make_no_run_fail_their_trial(tmp_path):
    space = {"bins": choice(7, 11), "initial_std": uniform(0.6, 0.66)}  # 11 bins reach 0.63
    found, _ = searched(tmp_path / "tune", trials=12, space=space)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert failed
    assert all(t.values["bins"] == 11 and "--initial-std must be between" in t.why for t in failed)


# --- the search ---


def test_a_search_finds_the_peak(tmp_path):
    found, carried = searched(tmp_path / "tune", trials=24)
    assert len(found.trials) == 25
    assert len(carried) == len({name for name, _ in carried}) == 25 * 4
    best = found.best
    assert best.number and best.score > 0
    assert 3e-4 < best.values["learning_rate"] < 3e-3
    assert max(found.importances, key=found.importances.get) == "learning_rate"


def test_the_order_in_which_runs_end_does_not_matter(tmp_path):
    first, _ = searched(tmp_path / "first", trials=14)
    second, _ = searched(tmp_path / "second", trials=14, order=lambda runs: runs[::-1])
    assert first == second
    other, _ = searched(tmp_path / "other", trials=14, search_seed=1)
    assert other.trials[1].values != first.trials[1].values


@pytest.mark.parametrize("prune", slow_unless(lambda prune: not prune, [False, True]))
def test_a_search_that_is_killed_anywhere_continues_as_if_it_had_not_been(tmp_path, prune):
    whole, _ = searched(tmp_path / "whole", trials=16, prune=prune)
    kills, again = 0, None
    while again is None:
        try:
            again, _ = searched(tmp_path / "cut", trials=16, prune=prune, after=9)
        except Killed:
            kills += 1
    assert again == whole
    assert kills >= 7


def test_a_journal_that_was_cut_short_continues(tmp_path):
    whole, _ = searched(tmp_path / "tune", trials=6)
    journal = tmp_path / "tune" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-40])  # the last trial of the second batch
    journal.with_name(f"{JOURNAL}.lock").touch()
    again, carried = searched(tmp_path / "tune", trials=6)
    assert (again, carried) == (whole, [])
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    with pytest.raises(Corrupt, match="damaged"):
        searched(tmp_path / "tune", trials=6)


def test_more_trials_continue_a_study(tmp_path):
    whole, _ = searched(tmp_path / "whole", trials=14)
    searched(tmp_path / "parts", trials=5)
    longer, carried = searched(tmp_path / "parts", trials=14)
    assert longer == whole
    assert len(carried) == 9 * 4


def test_hopeless_trials_are_given_up_halfway(tmp_path):
    found, carried = searched(tmp_path / "tune", trials=24, prune=True, sampler="random")
    states = [trial.state for trial in found.trials]
    assert "pruned" not in states[:11]
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert len(pruned) > 3
    assert all(trial.score is None and trial.halfway is not None for trial in pruned)
    finished = [trial.halfway for trial in found.trials[1:] if trial.state == "finished"]
    assert min(trial.halfway for trial in pruned) < min(finished[10:])
    went_on = [name for name, until in carried if until is None]
    assert len(went_on) == 4 * (25 - len(pruned))


# --- the winner ---


def test_the_winner_is_checked_on_seeds_that_the_search_has_not_seen(tmp_path):
    out = tmp_path / "tune"
    found, _ = searched(out, trials=8)
    carry_out, carried = pretend(out)
    fresh = winner.check(study(), found.best, 3, out, carry_out)
    assert fresh["seeds"] == [100, 101, 102]
    assert len(carried) == 3 * 2 * 2
    files.write_study(study(), 8, found, out, fresh, winner.flags(study(), found.best))
    written = read_study(out)
    assert fresh_score(written).value == pytest.approx(found.best.score, abs=1e-3)  # seeds hardly matter to `peak`
    lines = list(winner.told(written, found.best))
    assert any("flatters" in line for line in lines)
    assert max(map(len, lines)) <= 80
    with pytest.raises(Failed):
        shutil.rmtree(next((out / RUNS).glob("*-100-*")))
        winner.check(study(), found.best, 3, out, lambda *_: None)


def test_the_preset_of_the_winner_is_the_winner(tmp_path):
    values = {"bins": 7, "learning_rate": 0.00123, "initial_std": 0.25}
    made = Run("probe/action", "ordinal", hidden_sizes="32,16", steps=500, **values)
    preset = files.write_preset(made, "detent train ...", tmp_path)
    again = Run("probe/action", "ordinal", preset=str(preset), steps=500)
    assert again.identity == made.identity
    assert again.names.preset == "best.toml"
    other = Run("probe/action", "gaussian", preset=str(preset), steps=500)
    assert other.options["learning_rate"] == 0.00123
    assert tomllib.loads(preset.read_text())["ppo ordinal"] == {"bins": 7, "initial_std": 0.25}


def test_the_flags_of_the_winner_are_the_winner(tmp_path, monkeypatch):
    found, _ = searched(tmp_path / "tune", trials=4, fixed={"gamma": "0.97", "anneal_learning_rate": False})
    made = study(fixed={"gamma": "0.97", "anneal_learning_rate": False})
    words = winner.flags(made, found.best).split()
    seen = []
    monkeypatch.setattr("detent.verbs.train.carry_out", lambda run, *_, **__: seen.append(run) or 0)
    assert main(["train", "probe/action", "--steps", "2000", *words]) == 0
    assert seen[0].identity == made.runs(found.best.values, seeds=[0])[0].identity


# --- preset files ---


def test_a_run_with_a_preset_file_does_not_need_the_file_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("[ppo]\nlearning_rate = 1e-3\nkl_per_dimension = true\nenvs = 8\nbatch_size = 64\n")
    run = Run("probe/action", preset="mine.toml", steps=128)
    assert (run.options["learning_rate"], run.options["divide_target_kl"]) == (1e-3, True)
    assert Run("probe/action", preset="mine.toml", learning_rate=1e-4).options["learning_rate"] == 1e-4
    write_records(tmp_path / "run", run, [1.0, 2.0])
    Path("mine.toml").unlink()
    again = RunDirectory(tmp_path / "run").run()
    assert (again.identity, again.names.preset) == (run.identity, "mine.toml")
    RunDirectory(tmp_path / "run").check_same(again)
    assert report.load_runs(["run"])[0].preset == "mine.toml"
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert main(["paper", "show", "table2", "run"]) in (0, 2)
    assert "mine.toml: cannot" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[ppo]\nlearning_rat = 1", "mine.toml: There is no option learning_rat. Did you mean learning_rate or anneal"),
        ("[ppo]\nlearning_rate = 'fast'", "mine.toml: learning_rate must be a finite number, not 'fast'"),
        ("[trpo]\nmax_kl = 0.1", "mine.toml: there are no settings for ppo in it, only for trpo"),
        ("learning_rate = 1", "mine.toml: learning_rate is not a table such as [ppo]"),
        ("schema = 2\n[ppo]\nepochs = 3", "mine.toml: schema is not 1"),
        ("[ppo", "mine.toml: this is not valid TOML"),
        ("[ppo]\nepochs = 0", "--epochs must be at least 1"),
    ],
)
def test_a_bad_preset_file_is_one_sentence(content, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(content)
    for verb in (["train", "probe/action"], ["sweep", "--task", "probe/action", "--out", "x", "--dry-run"]):
        assert main([*verb, "--preset", "mine.toml"]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    with pytest.raises(BadInput):
        Run("probe/action", preset="mine.toml")


# --- the directory ---


def test_a_directory_of_another_study_is_refused(tmp_path, capsys):
    out = tmp_path / "tune"
    flags = ["--steps", "2000", "--seeds", "2", "--out", str(out)]
    made = study(tasks=(find_task("probe/action"),), space=space_of(NAMES))
    out.mkdir()
    files.write_study(made, 3, None, out)
    for changed, sentence in (
        (["probe/follow"], 'the list of tasks is ["probe/action"] there and ["probe/follow"] here'),
        (["probe/action", "--seeds", "3"], "--seeds is 2 there and 3 here"),
        (["probe/action", "--gamma", "0.9"], "--gamma is 0.99 there and 0.9 here"),
        (["probe/action", "--search", "bins=7,9"], "the range of --bins is"),
        (["probe/action", "--epochs", "9"], "the range of --epochs is"),
        (["probe/action", "--head", "beta"], '--head is "ordinal" there and "beta" here'),
        (["probe/action", "--prune"], "--prune is false there and true here"),
    ):
        assert main(["tune", *changed[:1], *flags, *changed[1:]]) == 2
        assert f"holds another study: {sentence}" in capsys.readouterr().err
    (out / "study.json").write_text('{"schema": 1}')
    assert main(["tune", "probe/action", *flags]) == 2
    assert "study.json is damaged: settings is missing" in capsys.readouterr().err
    (out / "study.json").unlink()
    (out / "other").touch()
    assert main(["tune", "probe/action", *flags]) == 2
    assert "holds something else than a study" in capsys.readouterr().err


# --- the page ---


@pytest.fixture
def tuned(tmp_path):
    """The directory of a search that has ended."""
    out = tmp_path / "tune"
    found, _ = searched(out, trials=24)
    carry_out, _ = pretend(out)
    fresh = winner.check(study(), found.best, 3, out, carry_out)
    files.write_study(study(), 24, found, out, fresh, winner.flags(study(), found.best))
    return out


def test_the_page_shows_a_search(tuned, tmp_path):
    path = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(path)]) == 0
    text = path.read_text()
    shown = json.loads(text[text.index('id="data">') + 10 : text.index("</script>")])["studies"]
    assert found_studies([tmp_path, tuned]) == [tuned]
    assert [one["name"] for one in shown] == ["tune"]
    assert len(shown[0]["trials"]) == 25
    assert [len(curve["runs"]) for curve in shown[0]["curves"]] == [4, 4]
    chromium = find()
    if chromium is None:
        pytest.skip("there is no Chromium")
    with Browser(chromium, 1200, 2400) as browser:
        browser.open(path)
        rows = "[...document.querySelectorAll('table.trials tbody tr')].map(r => parse(r.children[1].textContent))"
        browser.run("parse = text => +text.replace('\u2212', '-'); 0")
        scores = browser.run(rows)
        assert len(scores) == 20
        assert scores == sorted(scores, reverse=True)
        browser.run(
            "[...document.querySelectorAll('#studies button')].find(b => b.textContent.startsWith('Show all')).click()"
        )
        assert len(browser.run(rows)) == 25
        assert browser.run("document.querySelectorAll('table.importances tr').length") == 3
        assert browser.run("document.querySelectorAll('table.fresh tbody tr').length") == 2
        assert "flatters" in browser.run("document.querySelector('#studies').textContent")
        assert browser.problems == []


def test_a_damaged_study_does_not_spoil_the_page(tuned):
    content = json.loads((tuned / "study.json").read_text())
    flat, other = {"x": {"mean": 1, "distance": 0}}, {**content["fresh"], "best": {}}
    damage = [{"trials": [{}]}, {"yardsticks": flat}, {"fresh": other}]
    for changes in damage:
        (tuned / "study.json").write_text(json.dumps(content | changes))
        with pytest.raises(Corrupt, match=r"study\.json is damaged"):
            read_study(tuned)
    assert "is damaged" in study_data(tuned, [])["why"]
    assert main(["report", str(tuned), "--out", str(tuned / "page.html")]) == 0


def test_reading_a_study_needs_no_optuna(tuned):
    code = (
        "import sys; from detent.cli import main; assert main(['report', *sys.argv[1:]]) == 0; "
        "assert not {'optuna', 'jax'} & {*sys.modules}"
    )
    command = [sys.executable, "-c", code, str(tuned), "--out", str(tuned / "page.html")]
    assert subprocess.run(command, timeout=120).returncode == 0


# --- for real ---


FLAGS = "--trials 5 --steps 2000 --seeds 1 --batch 3 --fresh-seeds 1 --batch-size 256 --envs 16 --prune"


def tune(out, *more):
    return [sys.executable, "-m", "detent.cli", "tune", "probe/action", *FLAGS.split(), "--out", str(out), *more]


def compared(out):
    content = read_study(out)
    assert not list(out.rglob("*.tmp"))
    return content


@pytest.mark.slow
def test_a_search_that_is_killed_gives_the_same_study(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(tune(whole, "--jobs", "1"), check=True, capture_output=True, timeout=600)
    for runs in (2, 5):
        process = subprocess.Popen(tune(cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while len(list(cut.glob("runs/*/status.json"))) < runs and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(tune(cut), check=True, capture_output=True, text=True, timeout=600)
    assert compared(cut) == compared(whole)
    assert (cut / "best.toml").read_bytes() == (whole / "best.toml").read_bytes()
    assert (cut / "report.html").exists()
    assert "flatters" in done.stdout or "No trial scored higher" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:8])) <= 80
    assert main(["train", "probe/action", "--steps", "500", "--preset", str(cut / "best.toml"), "--out",
                 str(tmp_path / "run"), "--quiet"]) == 0  # fmt: skip
    assert main(["verify", str(tmp_path / "run"), "--all"]) == 0


@pytest.mark.slow
def test_ctrl_c_stops_a_search_so_that_it_can_be_continued(tmp_path):
    process = subprocess.Popen(tune(tmp_path / "tune"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert "trial 0" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Continue with the same command: detent tune probe/action" in said
