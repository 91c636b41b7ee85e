"""Compact files: what the report reads from one line is what it reads from a run directory of megabytes."""

from __future__ import annotations

import json
import math
import shutil
import urllib.error
import urllib.request
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

import detent
from detent import report
from detent.cli import main
from detent.files import LARGEST_OBJECT
from detent.report.compact import POINTS, once, read_compact
from detent.report.page import page_data
from detent.report.serving import Server, Watch
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from written import write_grid, write_run

NAMES = ("name", "task", "algo", "head", "preset", "options", "status", "why", "versions", "machine", "seed", "counted")


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Two tasks, three heads, three seeds; runs that diverged, go on, never ended an episode, or cannot be read."""
    top = tmp_path_factory.mktemp("runs")
    write_grid(top, 300)
    hopper = top / "Hopper-v5"
    many = [math.sqrt(i) for i in range(200)]
    write_run(hopper / "ordinal-3", [*many, None, None], seed=3, status="diverged", why="The loss is NaN.", steps=30100)
    write_run(hopper / "ordinal-4", [5.0 / 3] * 6, seed=4, status="running", steps=30100)
    write_run(hopper / "ordinal-5", [None] * 7, seed=5, status="stopped", steps=30100)
    write_run(hopper / "ordinal-6", [], seed=6, status="failed", why="It hung.", steps=30100)
    (write_run(hopper / "ordinal-7", [5.0], seed=7, steps=30100) / "records.jsonl").write_text("nonsense\n")
    return top


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same training twice: once with a checkpoint after every iteration, once with few."""
    top = tmp_path_factory.mktemp("trained")
    run = Run("Hopper-v5", "discrete", batch_size=128, minibatch_size=32, epochs=1, envs=8, steps=500)
    for name, seconds in (("often", 0.0), ("rarely", 1e9)):
        for _ in execute(run, top / name, Execution(checkpoint_seconds=seconds)):
            pass
    return top


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def compact(top, path):
    assert report.write_compact(report.load_runs([top]), path).left_out == []
    return report.load_runs([path])


# --- From directories to a file and back ---


def test_a_file_tells_what_the_directories_tell(runs_dir, tmp_path):
    whole = {run.name: run for run in report.load_runs([runs_dir]) if run.status != "damaged"}
    held, left_out = report.write_compact(report.load_runs([runs_dir]), tmp_path / "deep" / "runs.jsonl")
    runs = report.load_runs([tmp_path / "deep" / "runs.jsonl"])
    assert held == len(runs) == 22
    assert [(run.name, run.status) for run in left_out] == [("Hopper-v5/ordinal-7", "damaged")]
    assert "is not a record" in left_out[0].why
    assert [run.name for run in runs] == sorted(whole)
    for run in runs:
        for name in NAMES:
            assert getattr(run, name) == getattr(whole[run.name], name), name
        assert run.final == whole[run.name].final, "bit for bit"
        assert run.steps == whole[run.name].steps
        assert run.seconds == pytest.approx(whole[run.name].seconds, rel=1e-4)


def test_a_curve_is_thinned_but_for_its_end(runs_dir, tmp_path):
    runs = {run.name: run for run in compact(runs_dir / "Ant-v5", tmp_path / "runs.jsonl")}
    small = runs["ordinal-1"].curve
    whole = report.load_runs([runs_dir / "Ant-v5" / "ordinal-1"])[0].curve
    assert small.steps.size == POINTS + 10
    assert small.steps[0] == 200, "the first iteration has no return"
    where = np.searchsorted(whole.steps, small.steps)
    np.testing.assert_array_equal(whole.steps[where], small.steps)
    np.testing.assert_array_equal(whole.returns[-10:], small.returns[-10:])
    np.testing.assert_allclose(whole.returns[where], small.returns, rtol=5e-5)
    assert np.any(whole.returns[where] != small.returns)
    assert np.ptp(np.diff(where[:POINTS])) <= 1, "evenly spaced"
    assert (tmp_path / "runs.jsonl").stat().st_size < 9 * 4000


def test_a_diverged_curve_keeps_the_iterations_before_its_end(runs_dir, tmp_path):
    report.write_compact(report.load_runs([runs_dir / "Hopper-v5" / "ordinal-3"]), tmp_path / "runs.jsonl")
    (run,) = report.load_runs([tmp_path / "runs.jsonl"])
    assert run.final == np.mean([math.sqrt(i) for i in range(190, 200)])
    assert run.steps == 20_200
    assert lines(tmp_path / "runs.jsonl")[1]["curve"]["returns"][-1] is None
    assert np.isnan(run.curve.returns).tolist() == [False] * (POINTS + 10) + [True]


def test_the_comparison_of_a_file_is_that_of_its_directories(runs_dir, tmp_path):
    whole = [run for run in report.load_runs([runs_dir]) if run.status != "damaged"]
    report.write_compact(whole, tmp_path / "runs.jsonl")
    expected, found = (report.comparison(runs) for runs in (whole, report.load_runs([tmp_path / "runs.jsonl"])))
    assert len(found.rows) == 6
    for ours, theirs in zip(found.rows, expected.rows, strict=True):
        assert ours == theirs
        assert ours.versus
        assert {k: v.difference.verdict for k, v in ours.versus.items()} == {
            k: v.difference.verdict for k, v in theirs.versus.items()
        }
    assert [(row.label, row.runs, row.iqm, row.versus) for row in found.across] == [
        (row.label, row.runs, row.iqm, row.versus) for row in expected.across
    ]


def test_what_a_repetition_is_checked_against(trained, tmp_path):
    """The chain depends on when checkpoints were written; the hash of the last one does not."""
    runs = compact(trained, tmp_path / "runs.jsonl")
    assert [run.final for run in runs] == [run.final for run in report.load_runs([trained])]
    often, rarely = (run.record["last_checkpoint"] for run in runs)
    assert often["sha256"] == rarely["sha256"]
    assert often["chain"] != rarely["chain"]
    assert often == RunDirectory(trained / "often").links()[-1]
    assert often["steps"] == runs[0].steps
    assert runs[0].record["init_sha256"] is None


def test_a_run_whose_chain_is_broken_is_left_out(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs")
    chain = tmp_path / "runs" / "often" / "checkpoints.jsonl"
    chain.write_text("".join(chain.read_text().splitlines(keepends=True)[1:]))
    held, left_out = report.write_compact(report.load_runs([tmp_path / "runs"]), tmp_path / "runs.jsonl")
    assert (held, [run.name for run in left_out]) == (1, ["often"])
    assert "does not belong to this run" in left_out[0].why


def test_a_start_that_options_do_not_tell_is_told(trained, tmp_path):
    run = RunDirectory(trained / "often").run()
    records = execute(run, tmp_path / "runs" / "on", Execution(init_from=str(trained / "often")))
    next(records)
    records.close()
    (run,) = compact(tmp_path / "runs", tmp_path / "runs.jsonl")
    assert run.status == "stopped"
    assert len(run.record["init_sha256"]) == 64


def test_the_same_runs_give_the_same_bytes(runs_dir, tmp_path):
    runs = report.load_runs([runs_dir])
    report.write_compact(runs, tmp_path / "a.jsonl")
    report.write_compact(reversed(runs), tmp_path / "b.jsonl")
    data = (tmp_path / "a.jsonl").read_bytes()
    assert (tmp_path / "b.jsonl").read_bytes() == data
    report.write_compact(runs, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == data, "adding what is there"
    report.write_compact(report.load_runs([tmp_path / "a.jsonl"]), tmp_path / "c.jsonl")
    assert (tmp_path / "c.jsonl").read_bytes() == data, "from a file to a file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "c.jsonl"]


# --- Adding to a file ---


def test_a_file_grows(tmp_path):
    """Two machines, each of which has some of the runs."""
    file = tmp_path / "runs.jsonl"
    for machine, seed in (("one", 1), ("two", 0)):
        write_run(tmp_path / machine / f"seed-{seed}", [float(seed)] * 3, seed=seed)
        compact(tmp_path / machine, file)
    assert [line.get("name") for line in lines(file)] == [None, "seed-0", "seed-1"]
    assert [run.final for run in report.load_runs([file])] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("in_the_file", "in_the_directory", "kept"),
    [
        ("finished", "finished", "directory"),
        ("finished", "diverged", "directory"),
        ("running", "running", "directory"),
        ("running", "finished", "directory"),
        ("failed", "stopped", "directory"),
        ("finished", "running", "file"),
        ("diverged", "stopped", "file"),
    ],
)
def test_which_of_two_is_kept(in_the_file, in_the_directory, kept, tmp_path):
    file = tmp_path / "runs.jsonl"
    write_run(tmp_path / "before" / "run", [1.0, 2.0], status=in_the_file, steps=1000, threads=1)
    write_run(tmp_path / "after" / "run", [1.0, 2.0, 6.0], status=in_the_directory, steps=2000, threads=2)
    compact(tmp_path / "before", file)
    steps = 300 if kept == "directory" else 200
    assert [run.steps for run in report.load_runs([file, tmp_path / "after"])] == [steps], "shown once"
    assert [run.steps for run in compact(tmp_path / "after", file)] == [steps]


def test_a_directory_that_got_damaged_does_not_take_its_run_away(tmp_path):
    path = write_run(tmp_path / "runs" / "run", [1.0, 2.0])
    file = tmp_path / "runs.jsonl"
    compact(tmp_path / "runs", file)
    data = file.read_bytes()
    (path / "records.jsonl").write_text("nonsense\n")
    held, left_out = report.write_compact(report.load_runs([tmp_path / "runs"]), file)
    assert (held, len(left_out)) == (1, 1)
    assert file.read_bytes() == data


def test_another_run_of_the_same_name_is_not_overwritten(tmp_path):
    file = tmp_path / "runs.jsonl"
    for top, bins in (("a", 7), ("b", 11)):
        write_run(tmp_path / top / "run", [1.0], bins=bins)
    compact(tmp_path / "a", file)
    data = file.read_bytes()
    with pytest.raises(detent.BadInput, match=r"Several runs with different options are named run"):
        compact(tmp_path / "b", file)
    assert file.read_bytes() == data
    assert len(report.load_runs([file, tmp_path / "b"])) == 2
    assert [run.name for run in compact(tmp_path, tmp_path / "all.jsonl")] == ["a/run", "b/run"]


def test_copies_in_directories_are_shown_as_before(tmp_path):
    for top in ("a", "b"):
        write_run(tmp_path / top / "run", [1.0])
    runs = report.load_runs([tmp_path / "a", tmp_path / "b"])
    assert len(once(runs)) == len(runs) == 2
    assert report.write_compact(runs, tmp_path / "runs.jsonl").runs == 1


# --- Options that were added later ---

COMMON = {"steps": 1000, "learning_rate": 3e-4}
NEW = {**COMMON, "floor": 0.0, "warm_up": 5}
"""What a later version writes: two options more, one of them not at its baseline."""


def written(path, *seeds, **fields):
    """Compact lines by hand: the fields of a file of version 0.1.0, and whatever a later one adds to them."""
    shared = {"task": "Hopper-v5", "algo": "trpo", "head": "ordinal", "preset": "modern", "status": "finished"}
    rest = {"why": None, "versions": {}, "machine": {}, "last_checkpoint": None, "init_sha256": None}
    curve = {"steps": [1000], "seconds": [1.0], "returns": [1.0]}
    made = [
        {
            "name": f"run-{seed}",
            **shared,
            **rest,
            "curve": curve,
            **fields,
            "options": {**fields["options"], "seed": seed},
        }
        for seed in seeds
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"schema": 1, "kind": "runs"}, *made)))
    return path


def rows(*places):
    return {row.label: row.runs for row in report.comparison(report.load_runs(places)).rows}


def test_a_file_without_an_option_means_its_baseline(tmp_path):
    """Old seeds and new ones of the same setting are one variant; those with another value are another."""
    old = written(tmp_path / "old.jsonl", 0, 1, options=COMMON)
    same = written(tmp_path / "same.jsonl", 2, options={**NEW, "warm_up": 0}, baselines={})
    other = written(tmp_path / "other.jsonl", 3, 4, 5, options=NEW, baselines={"warm_up": 0})
    assert rows(old, same) == {"ordinal": 3}
    assert rows(old, other) == {"ordinal · warm_up=0": 2, "ordinal · warm_up=5": 3}, "the other file tells the baseline"
    assert rows(old, same, other) == {"ordinal · warm_up=0": 3, "ordinal · warm_up=5": 3}
    apart = [run for path in (old, other, same) for run in report.load_runs([path])]
    assert {row.runs for row in report.comparison(apart).rows} == {3}, "also when they were read one by one"


def test_old_files_say_nothing_about_baselines(tmp_path):
    """Of two old files with different options nobody knows which of them was added."""
    old = written(tmp_path / "old.jsonl", 0, options=COMMON)
    own = written(tmp_path / "own.jsonl", 1, options=NEW)
    assert all(not run.completed for run in report.load_runs([old, own]))


def test_options_of_other_kinds_of_runs_are_not_filled_in(tmp_path):
    old = written(tmp_path / "old.jsonl", 0, options=COMMON)
    for name, kind in (("head", {"head": "beta"}), ("trunk", {"trunk": "simba"}), ("critic", {"critic": "hl_gauss"})):
        new = written(tmp_path / f"{name}.jsonl", 1, options=NEW, baselines={"warm_up": 0}, **kind)
        assert [dict(run.completed) for run in report.load_runs([old, new])] == [{}, {}]
        assert len(rows(old, new)) == 2, "and they are not the same thing"


def test_a_run_that_was_made_longer_by_a_later_version_is_the_same_run(tmp_path):
    old = written(tmp_path / "old.jsonl", 0, options=COMMON)
    new = written(tmp_path / "new.jsonl", 0, options={**NEW, "steps": 2000, "warm_up": 0}, baselines={"steps": 1})
    assert len(report.load_runs([old, new])) == 1
    assert report.write_compact(report.load_runs([new]), old).runs == 1


def test_what_is_written_again_is_what_was_read(tmp_path):
    old = written(tmp_path / "old.jsonl", 0, options=COMMON)
    new = written(tmp_path / "new.jsonl", 1, options=NEW, baselines={"warm_up": 0}, trunk="simba", critic="hl_gauss")
    report.write_compact(report.load_runs([old, new]), tmp_path / "both.jsonl")
    assert lines(tmp_path / "both.jsonl")[1:] == [*lines(old)[1:], *lines(new)[1:]]
    assert [run.trunk for run in report.load_runs([tmp_path / "both.jsonl"])] == ["mlp", "simba"]


def test_a_directory_says_its_trunk_critic_and_baselines(tmp_path):
    path = write_run(tmp_path / "runs" / "run", [1.0])
    described = RunDirectory(path).configuration() | {"trunk": "simba", "baselines": {"bins": 7}}
    RunDirectory(path)._write_configuration(described)
    (run,) = compact(tmp_path / "runs", tmp_path / "runs.jsonl")
    assert (run.trunk, run.critic, run.baselines) == ("simba", "squared", {"bins": 7})


def test_a_final_return_that_the_curve_does_not_give_can_be_stated(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / str(seed), [1.0, 2.0, 6.0], seed=seed)
    file = tmp_path / "runs.jsonl"
    compact(tmp_path / "runs", file)
    header, first, second = lines(file)
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, {**first, "final": 7.5}, second)))
    assert [run.final for run in report.load_runs([file])] == [7.5, 3.0]
    write_run(tmp_path / "runs" / "2", [1.0], seed=2)
    report.write_compact(report.load_runs([tmp_path / "runs" / "2"]), file)
    assert [run.final for run in report.load_runs([file])] == [7.5, 3.0, 1.0], "and stays when runs are added"


# --- Files that are not what they should be ---


def changed(**changes):
    return lambda header, record: [header, {**record, **changes}]


def without(key):
    return lambda header, record: [header, {k: v for k, v in record.items() if k != key}]


def curve(**changes):
    return lambda header, record: [header, {**record, "curve": {**record["curve"], **changes}}]


def option(**changes):
    return lambda header, record: [header, {**record, "options": {**record["options"], **changes}}]


DEEP = json.loads("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda header, record: [], "is neither a directory nor a file written by"),
        (lambda header, record: [record], "is neither a directory nor a file written by"),
        (lambda header, record: [{**header, "schema": 2}, record], "is not of version 1"),
        (lambda header, record: [header, record, 3], "it should hold a JSON object"),
        (lambda header, record: [header, record, {}], "line 3 is not a run: name is missing"),
        (without("curve"), "line 2 is not a run: curve is missing"),
        (without("last_checkpoint"), "last_checkpoint is missing"),
        (changed(name="two\nlines"), "name is not a text of one line"),
        (changed(name="\ud800"), "name is not a text of one line"),
        (changed(task=7), "task is not a text"),
        (changed(head=""), "head is not a text"),
        (changed(status="splendid"), "status is not a status that Detent knows"),
        (changed(status="damaged"), "status is not a status that Detent knows"),
        (changed(status=["finished"]), "status is not a status that Detent knows"),
        (changed(why=[]), "why is not a text or null"),
        (changed(final="1"), "final is not a number"),
        (changed(final=None), "final is not a number"),
        (changed(options=[]), "options is not an object with steps and seed"),
        (option(seed="1"), "options is not an object with steps and seed"),
        (option(steps=True), "options is not an object with steps and seed"),
        (option(gamma=math.nan), "a number is not finite"),
        (option(gamma=math.inf), "a number is not finite"),
        (option(gamma=10**400), "a number is not finite or too large"),
        (option(env_kwargs=DEEP), "nested too deeply"),
        (changed(versions=None), "versions is not an object"),
        (changed(machine="fast"), "machine is not an object"),
        (changed(curve=None), "curve is not an object with"),
        (curve(returns=[1.0, "2.0", 3.0]), "curve is not an object with"),
        (curve(returns=[1.0, True, 3.0]), "curve is not an object with"),
        (curve(returns=[1.0]), "curve is not an object with"),
        (curve(returns="123"), "curve is not an object with"),
        (curve(returns=[1.0, math.nan, 3.0]), "curve is not an object with"),
        (curve(steps=[100, None, 300]), "curve is not an object with"),
        (curve(seconds=[1.0, [], 3.0]), "curve is not an object with"),
        (changed(last_checkpoint={"sha256": "x"}), "last_checkpoint is not a link"),
        (changed(init_sha256=1), "init_sha256 is not a hash"),
    ],
)
def test_a_damaged_file_gets_one_sentence(change, sentence, tmp_path, capsys):
    write_run(tmp_path / "runs" / "run", [1.0, 2.0, 3.0])
    file = tmp_path / "runs.jsonl"
    compact(tmp_path / "runs", file)
    file.write_text("".join(json.dumps(line) + "\n" for line in change(*lines(file))))
    refused(file, sentence, capsys)
    data = file.read_bytes()
    assert main(["report", str(tmp_path / "runs"), "--compact", str(file)]) == 2, "and nothing is added to it"
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x80\x81\n", "it is not valid JSON"),
        (b"{}\n\n", "is neither a directory nor a file written by"),
        (b'{"schema": 1, "kind": "runs"}\n{"name": "cut', "it is not valid JSON"),
        (b"[" * 100_000, "it is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it is not valid JSON"),
        (b'{"time/iterations": 1}\n', "is neither a directory nor a file written by"),
    ],
)
def test_a_foreign_file_gets_one_sentence(data, sentence, tmp_path, capsys):
    (tmp_path / "foreign").write_bytes(data)
    refused(tmp_path / "foreign", sentence, capsys)


def test_a_huge_file_is_refused_unread(tmp_path, capsys):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(100 * LARGEST_OBJECT)
    refused(tmp_path / "huge", "a line of it is longer than any that Detent writes", capsys)


def refused(file, sentence, capsys):
    assert main(["report", str(file), "--out", str(file.with_name("page.html"))]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"detent: {file}")
    assert sentence in told
    assert "\n" not in told
    assert not file.with_name("page.html").exists()


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    write_run(tmp_path / "runs" / "two\nlines", [1.0])
    run = report.load_runs([write_run(tmp_path / "runs" / "one", [1.0])])[0]
    odd = replace(run, name="odd", options={**run.options, "gamma": math.nan})
    held, left_out = report.write_compact([*report.load_runs([tmp_path / "runs"]), odd], tmp_path / "runs.jsonl")
    assert (held, len(left_out)) == (1, 2)
    assert all("does not fit into a compact file" in run.why for run in left_out)
    assert [run.name for run in read_compact(tmp_path / "runs.jsonl")] == ["one"]


def test_a_file_without_runs_is_no_report(tmp_path):
    report.write_compact([], tmp_path / "runs.jsonl")
    with pytest.raises(detent.BadInput, match=r"There is no run"):
        report.load_runs([tmp_path / "runs.jsonl"])


# --- The command, the page, the server ---


def test_the_command_writes_a_file_and_no_page(runs_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs_dir), "--compact", "runs.jsonl"]) == 0
    told = capsys.readouterr()
    assert told.out == f"22 runs: {tmp_path / 'runs.jsonl'}\n"
    assert "1 of them cannot be read" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]
    assert main(["report", "runs.jsonl", "--out", "page.html", "--figures", "figures"]) == 0
    assert (tmp_path / "page.html").exists()
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_a_file_is_read_only_where_it_is_named(tmp_path):
    write_run(tmp_path / "a" / "run", [1.0], seed=1)
    write_run(tmp_path / "b" / "other", [1.0], seed=2)
    compact(tmp_path / "a", tmp_path / "b" / "runs.jsonl")
    assert [run.name for run in report.load_runs([tmp_path / "b"])] == ["other"]
    assert [run.name for run in report.load_runs([tmp_path / "b" / "runs.jsonl", tmp_path / "b"])] == ["other", "run"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{runs}", "--serve", "--compact", "x"], "--serve writes no files"),
        (["{runs}", "--compact", "/proc/runs.jsonl"], "Cannot write"),
        (["{runs}", "--compact", "{tmp}"], "Cannot read"),
        (["{tmp}/none.jsonl"], "There is no directory or file"),
        (["/dev/null"], "There is no directory or file"),
    ],
)
def test_bad_input_gets_one_sentence(words, sentence, runs_dir, tmp_path, capsys):
    assert main(["report", *(word.format(tmp=tmp_path, runs=runs_dir / "Ant-v5") for word in words)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"detent: {sentence}")
    assert "\n" not in told


def test_the_page_of_a_file_has_all_but_policies(trained, tmp_path):
    whole = page_data(report.load_runs([trained]))
    small = page_data(compact(trained, tmp_path / "runs.jsonl"))
    assert len(whole["policies"]) == 2
    assert small["policies"] == []
    assert small["comparison"] == whole["comparison"]
    assert [run["compact"] for run in [*small["runs"], *whole["runs"]]] == [True, True, False, False]
    for name in ("variants", "settings", "machines"):
        assert small[name] == whole[name]


def test_names_are_drawn_as_they_are(tmp_path):
    write_run(tmp_path / "runs" / "run", [1.0, 2.0])
    file = tmp_path / "runs.jsonl"
    compact(tmp_path / "runs", file)
    header, record = lines(file)
    odd = dict.fromkeys(("task", "head", "preset"), "$x^$")
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, {**record, **odd})))
    assert main(["report", str(file), "--figures", str(tmp_path / "figures")]) == 0


def test_a_served_file_is_followed(tmp_path):
    file = tmp_path / "runs.jsonl"
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"seed-{seed}", [1.0], seed=seed)
    report.write_compact(report.load_runs([tmp_path / "runs" / "seed-0"]), file)
    with Server(Watch([str(file)]), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            for expected in (["seed-0"], ["seed-0", "seed-1"]):
                with urllib.request.urlopen(server.address + "data.json", timeout=20) as answer:
                    assert [run["name"] for run in json.load(answer)["runs"]] == expected
                compact(tmp_path / "runs", file)
            file.write_text("nonsense")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(server.address, timeout=20)
            assert caught.value.code == 503
            assert b"it is not valid JSON" in caught.value.read()
        finally:
            server.shutdown()
