"""The report: what is read from run directories, what is made of it, and what a browser makes of that."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import detent
from browser import Browser, find
from detent import report
from detent.cli import main
from detent.networks import deployed
from detent.policy import Policy, whole_ops
from detent.report.actions import Betas, Bins, Normals, action_distributions
from detent.report.figures import band
from detent.report.page import POINTS, downsampled, page_data
from detent.report.summaries import Curve, read_curve
from detent.report.variants import find_variants
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.trunks.mlp import MLP
from written import write_grid, write_run

QUICK = {"batch_size": 128, "minibatch_size": 32, "epochs": 1, "envs": 8, "steps": 256}


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Two tasks, three heads, three seeds; one run that diverged, one that goes on, one that cannot be read."""
    top = tmp_path_factory.mktemp("runs")
    write_grid(top, 60)
    write_run(
        top / "Hopper-v5" / "ordinal-3", [1.0, 2.0, None], seed=3, status="diverged", why="The loss is NaN.", steps=6100
    )
    write_run(top / "Hopper-v5" / "ordinal-4", [5.0] * 6, seed=4, status="running", steps=6100)
    broken = write_run(top / "Hopper-v5" / "ordinal-5", [5.0] * 6, seed=5, steps=6100)
    (broken / "records.jsonl").write_text('{"time/iterations": 1}\n<script>alert(1)</script>\n')
    return top


POLICIES = (("Hopper-v5", "discrete"), ("Hopper-v5", "gaussian"), ("Hopper-v5", "beta"), ("CartPole-v1", "categorical"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One run with a policy for each kind of distribution; its weights are random, which is as good here."""
    top = tmp_path_factory.mktemp("trained")
    for task, head in POLICIES:
        path = write_run(top / f"{task}-{head}", [1.0], task, head)
        write_policy(path, RunDirectory(path).run())
    return top


def write_policy(path, run):
    rng = np.random.default_rng(1)
    inputs, dims = (4, 1) if run.names.task == "CartPole-v1" else (11, 3)
    outputs = {"discrete": 11 * dims, "gaussian": dims, "beta": 2 * dims, "categorical": 2}[run.names.head]
    tensors = {"observation/mean": rng.normal(size=inputs), "observation/var": rng.uniform(0.5, 2.0, inputs)}
    for i, (rows, columns) in enumerate(((inputs, 8), (8, outputs))):
        tensors |= {
            f"policy/{i}/w": rng.normal(size=(rows, columns)) / 3,
            f"policy/{i}/b": rng.normal(size=columns) / 3,
        }
    tensors |= {"observations": rng.normal(size=(8, inputs)), "head/log_std": np.full(dims, -1.0)}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    whole = run.names.head == "categorical"
    bounds = (
        (np.zeros(1, np.int32), np.ones(1, np.int32)) if whole else (-np.ones(3, np.float32), np.ones(3, np.float32))
    )
    tensors |= {"space/low": bounds[0], "space/high": bounds[1]}
    network = deployed(MLP((8,)).program(inputs, outputs), "policy")
    ops = whole_ops(network, run.head.deploy(), clip=10.0, scale=True, shape=bounds[0].shape)
    Policy(tensors, {"ops": ops, "steps": 100}).save(path / "policy.safetensors")


# --- Reading ---


def test_a_runs_summary(tmp_path):
    write_run(tmp_path / "a" / "one", [None, *range(1, 21)], seed=7)
    (run,) = report.load_runs([tmp_path])
    assert (run.name, run.task, run.algo, run.head, run.preset, run.seed) == (
        "a/one", "Hopper-v5", "ppo", "ordinal", "modern", 7,
    )  # fmt: skip
    assert run.final == np.mean(range(11, 21))
    assert (run.status, run.counted, run.steps, run.seconds) == ("finished", True, 2100, 42.0)
    assert math.isnan(run.curve.returns[0])
    assert run.versions["jax"]


def test_runs_are_found_once_and_named_below_what_was_searched(runs_dir):
    runs = report.load_runs([runs_dir / "Hopper-v5", runs_dir / "Hopper-v5" / "ordinal-1", runs_dir])
    assert len(runs) == 21
    assert runs[0].name == "discrete-0"
    assert "Ant-v5/gaussian-2" in [run.name for run in runs]
    assert report.load_runs([runs_dir / "Hopper-v5" / "ordinal-1"])[0].name == "ordinal-1"


def test_the_quick_way_to_read_records_gives_what_the_careful_one_does(tmp_path):
    path = write_run(tmp_path / "run", [None, 1.5, -2e-7, 1e22, None])
    quick = read_curve(RunDirectory(path))
    file = path / "records.jsonl"
    file.write_text("".join(json.dumps(dict(reversed(json.loads(x).items()))) + "\n" for x in file.open()))
    careful = read_curve(RunDirectory(path))
    for name in ("steps", "seconds", "returns"):
        np.testing.assert_array_equal(getattr(quick, name), getattr(careful, name))
    assert quick.returns[2] == -2e-7


def test_a_last_line_cut_short_is_left_out(tmp_path):
    path = write_run(tmp_path / "run", [1.0, 2.0, 3.0])
    with open(path / "records.jsonl", "a") as file:
        file.write('{"time/iterations": 4, "time/tot')
    assert read_curve(RunDirectory(path)).returns.tolist() == [1.0, 2.0, 3.0]


def test_wall_time_goes_on_after_a_resume(tmp_path):
    path = write_run(tmp_path / "run", [1.0] * 5, elapsed=[2.0, 4.0, 1.0, 3.0, 5.0])
    assert read_curve(RunDirectory(path)).seconds.tolist() == [2.0, 4.0, 5.0, 7.0, 9.0]


def test_a_damaged_run_is_shown_as_such(runs_dir, tmp_path):
    damaged = [run for run in report.load_runs([runs_dir]) if run.status == "damaged"]
    assert [run.name for run in damaged] == ["Hopper-v5/ordinal-5"]
    assert "is not a record" in damaged[0].why
    assert damaged[0].head == "ordinal"
    shutil.copytree(runs_dir / "Ant-v5", tmp_path / "Ant-v5")
    file = tmp_path / "Ant-v5" / "ordinal-0" / "run.json"
    file.write_text(file.read_text().replace("0.99", "0.98"))
    runs = report.load_runs([tmp_path])
    (bad,) = [run for run in runs if run.status == "damaged"]
    assert "was changed after it was written" in bad.why
    page_data(runs)


# --- Grouping and comparing ---


def test_runs_that_differ_only_in_their_seed_are_one_variant(tmp_path):
    for name, seed, bins in (("a", 0, 7), ("b", 1, 7), ("c", 0, 11)):
        write_run(tmp_path / name, [1.0], seed=seed, bins=bins)
    write_run(tmp_path / "d", [1.0], head="gaussian")
    variants = find_variants(report.load_runs([tmp_path]))
    assert [variants.labels[v] for v in variants.of] == [
        "ordinal · bins=7",
        "ordinal · bins=7",
        "ordinal · bins=11",
        "gaussian",
    ]
    assert len(set(variants.styles.values())) == 3
    assert list(variants.labels.values()) == ["gaussian", "ordinal · bins=7", "ordinal · bins=11"], "7 before 11"


def test_options_that_change_no_result_make_no_variant(tmp_path):
    write_run(tmp_path / "a", [1.0], seed=0, threads=1)
    write_run(tmp_path / "b", [1.0], seed=1, threads=2)
    assert len(find_variants(report.load_runs([tmp_path])).all) == 1


def test_the_comparison_by_hand(runs_dir):
    runs = report.load_runs([runs_dir])
    found = report.comparison(runs, {("Ant-v5", "ppo", "ordinal"): (1234.0, 56.0)})
    assert found.tasks == ["Ant-v5", "Hopper-v5"]
    rows = {(row.task, row.label): row for row in found.rows}
    row = rows["Ant-v5", "ordinal"]
    own = [run.final for run in runs if (run.task, run.head) == ("Ant-v5", "ordinal")]
    assert (row.mean, row.sd) == pytest.approx((np.mean(own), np.std(own, ddof=1)))
    assert row.reference == (1234.0, 56.0)
    assert row.versus["gaussian"].difference.verdict == "higher"
    assert row.versus["gaussian"].improvement.value == 1.0
    assert rows["Ant-v5", "gaussian"].versus["ordinal"].difference.verdict == "lower"
    assert "ordinal" not in row.versus
    assert rows["Ant-v5", "gaussian"].reference is None
    # What diverged counts with what it had reached; what goes on or cannot be read is named.
    hopper = rows["Hopper-v5", "ordinal"]
    assert hopper.runs == 4
    assert hopper.statuses == {"finished": 3, "diverged": 1, "running": 1, "damaged": 1}
    assert hopper.versus["gaussian"].difference.verdict == "undecided"


def test_across_tasks_scores_are_on_one_scale(runs_dir):
    across = report.comparison(report.load_runs([runs_dir])).across
    assert [row.label for row in across] == ["discrete", "gaussian", "ordinal"]
    assert all(row.tasks == ("Ant-v5", "Hopper-v5") for row in across)
    ordinal = across[2]
    assert ordinal.runs == 7
    assert 0.9 < ordinal.iqm.value <= 1
    assert ordinal.versus["gaussian"].tasks == 2
    assert ordinal.profile.share[-1] == 0.0


def test_a_copied_run_is_not_counted_twice(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, [3.0], seed=0)
    write_run(tmp_path / "c", [5.0], seed=1)
    (row,) = report.comparison(report.load_runs([tmp_path])).rows
    assert (row.runs, row.mean) == (2, 4.0)
    assert row.statuses == {"finished": 2, "copy": 1}


def two_heads_and_two_rates(place):
    """The comparison of runs whose return depends on the learning rate and the seed, but not on the head."""
    for rate in (1e-4, 3e-4):
        for head in ("gaussian", "ordinal"):
            for seed in (0, 1):
                write_run(place / f"{head}{rate}{seed}", [1e6 * rate + seed], head=head, seed=seed, learning_rate=rate)
    return report.comparison(report.load_runs([place]))


def test_a_baseline_has_the_same_options(tmp_path):
    found = two_heads_and_two_rates(tmp_path)
    for row in found.rows:
        (head,) = {"gaussian", "ordinal"} - {row.variant.head}
        assert row.versus[head].difference.value == 0.0
    assert found.heads == ["gaussian", "ordinal"]


def test_a_baseline_can_be_a_value_of_any_option(tmp_path):
    found = two_heads_and_two_rates(tmp_path)
    low, high = "learning_rate=0.0001", "learning_rate=0.0003"
    assert [baseline.label for baseline in found.baselines] == ["gaussian", "ordinal", low, high]
    for row in found.rows:
        other, gain = (low, 200.0) if row.variant.aspects["learning_rate"] == "0.0003" else (high, -200.0)
        assert row.versus[other].difference.value == pytest.approx(gain)
        assert len(row.versus) == 2  # the other head, and the other rate


def test_what_was_drawn_at_random_is_no_baseline(tmp_path):
    for i in range(14):
        write_run(tmp_path / str(i), [1.0], seed=0, learning_rate=1e-4 * (i + 1))
    assert [b.label for b in report.comparison(report.load_runs([tmp_path])).baselines] == ["ordinal"]


def test_reference_numbers_from_a_file(tmp_path):
    file = tmp_path / "reference.toml"
    file.write_text('[[result]]\ntask = "Ant-v5"\nalgo = "ppo"\nhead = "beta"\nmean = 3112\nsd = 173\n')
    assert report.read_reference(file) == {("Ant-v5", "ppo", "beta"): (3112.0, 173.0)}
    file.write_text("[[result]]\ntask = 3")
    with pytest.raises(detent.BadInput, match=r"should have tables"):
        report.read_reference(file)


# --- Curves and distributions ---


def test_downsampling_keeps_the_ends_and_the_extremes():
    returns = np.sin(np.arange(5000) / 300)
    returns[1234], returns[3210] = 50.0, -50.0
    returns[:7] = math.nan
    small = downsampled(Curve(np.arange(5000.0), np.arange(5000.0) / 9, returns))
    assert small.steps.size <= POINTS
    assert {7.0, 1234.0, 3210.0, 4999.0} <= set(small.steps)
    assert np.all(np.diff(small.steps) > 0)
    np.testing.assert_array_equal(small.returns, returns[small.steps.astype(int)])
    few = downsampled(Curve(np.arange(9.0), np.arange(9.0), returns[:9]))
    assert few.steps.tolist() == [7.0, 8.0]


def test_the_band_of_a_figure():
    a = Curve(np.array([0.0, 10.0]), np.zeros(2), np.array([0.0, 10.0]))
    b = Curve(np.array([0.0, 5.0]), np.zeros(2), np.array([2.0, 7.0]))  # ends early
    grid, mean, sd = band([a, b], points=3)
    assert grid.tolist() == [0.0, 5.0, 10.0]
    assert mean.tolist() == [1.0, 6.0, 10.0]
    assert sd.tolist() == pytest.approx([math.sqrt(2), math.sqrt(2), 0.0])


def test_bins_are_what_the_policy_draws(trained):
    policy = detent.load(trained / "Hopper-v5-discrete")
    shown = action_distributions(policy, 1)
    assert isinstance(shown, Bins)
    drawn = policy.sample(np.repeat(raw(policy)[:1], 20_000, axis=0), np.random.default_rng(0))
    for d in range(3):
        share = [(np.abs(drawn[:, d] - x) < 1e-6).mean() for x in shown.positions[d]]
        assert share == pytest.approx(shown.probabilities[d][0], abs=0.015)


def raw(policy):
    """The stored observations as the environment gave them."""
    t = policy.tensors
    return t["observations"] * np.sqrt(t["observation/var"] + 1e-8) + t["observation/mean"]


def test_densities_are_what_the_policy_draws(trained):
    for head, kind in (("gaussian", Normals), ("beta", Betas)):
        policy = detent.load(trained / f"Hopper-v5-{head}")
        shown = action_distributions(policy, 1)
        assert isinstance(shown, kind)
        drawn = policy.sample(np.repeat(raw(policy)[:1], 20_000, axis=0), np.random.default_rng(0))[:, 0]
        if isinstance(shown, Normals):
            distribution = stats.norm(shown.mean[0, 0], shown.std[0, 0])
        else:
            distribution = stats.beta(1 + shown.a[0, 0], 1 + shown.b[0, 0], -1, 2)
            u = 0.3
            density = math.exp(shown.log_c[0, 0] + shown.a[0, 0] * math.log(u) + shown.b[0, 0] * math.log(1 - u))
            assert density / 2 == pytest.approx(distribution.pdf(2 * u - 1), rel=1e-4)
        inside = drawn[np.abs(drawn) < 0.999]
        assert inside.size > 5000
        for x in (-0.5, 0.0, 0.5):
            assert (drawn < x).mean() == pytest.approx(distribution.cdf(x), abs=0.015)


def test_choices_are_bars_at_whole_numbers(trained):
    shown = action_distributions(detent.load(trained / "CartPole-v1-categorical"), 5)
    assert isinstance(shown, Bins)
    assert [list(places) for places in shown.positions] == [[0, 1]]
    assert shown.probabilities[0].shape == (5, 2)
    assert shown.probabilities[0].sum(-1) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_trained_run_is_reported(tmp_path):
    for _ in execute(Run("Hopper-v5", "discrete", **QUICK), tmp_path / "run", Execution()):
        pass
    data = page_data(report.load_runs([tmp_path]))
    assert data["runs"][0]["status"] == "finished"
    assert data["runs"][0]["steps"] >= 256
    assert data["policies"][0]["kind"] == "bins"
    assert len(data["policies"][0]["positions"]) == 3


# --- The page and the figures as files ---


def embedded(path):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', Path(path).read_text())
    return json.loads(text)


def test_the_page_holds_everything_and_asks_for_nothing(runs_dir, tmp_path):
    out = tmp_path / "deep" / "report.html"
    assert main(["report", str(runs_dir), "--out", str(out)]) == 0
    text = out.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "<script>alert" not in text
    data = embedded(out)
    assert len(data["runs"]) == 21
    run = next(r for r in data["runs"] if r["name"] == "Ant-v5/ordinal-1")
    steps, _, returns = np.frombuffer(base64.b64decode(run["curve"]), "<f4").reshape(3, -1)
    assert steps[-1] == 6100
    assert run["final"] == pytest.approx(returns[-10:].mean(), rel=1e-5)
    assert data["settings"][run["settings"]]["bins"] == 11


def test_the_same_runs_give_the_same_page_but_for_the_time(runs_dir):
    one, two = (page_data(report.load_runs([runs_dir])) for _ in range(2))
    assert {**one, "generated": 0} == {**two, "generated": 0}


def test_figures_in_the_papers_layout(runs_dir, tmp_path, capsys):
    assert main(["report", str(runs_dir), "--figures", str(tmp_path / "figures")]) == 0
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["curves-ppo-modern.pdf", "curves-ppo-modern.png"]
    assert (tmp_path / "figures" / names[0]).read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figures" / names[1]).read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "report.html").exists()
    assert "1 of them cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{tmp}/nowhere"], "There is no directory"),
        (["{tmp}"], "There is no run"),
        (["{runs}", "--out", "{tmp}"], "Cannot write"),
        (["{runs}", "--out", "/proc/report.html"], "Cannot write"),
        (["{runs}", "--figures", "/proc/figures"], "Cannot write"),
        (["{runs}", "--serve", "--port", "99999"], "--port must be a whole number of at most 65535"),
        (["{runs}", "--serve", "--port", "x"], "--port must be a whole number"),
        (["{runs}", "--serve", "--out", "x.html"], "--serve writes no files"),
        (["{runs}", "--reference", "{tmp}/none.toml"], "Cannot read"),
        ([], "The following arguments are required: DIR"),
    ],
)
def test_bad_input_gets_one_sentence(words, sentence, runs_dir, tmp_path, capsys):
    code = main(["report", *(word.format(tmp=tmp_path, runs=runs_dir) for word in words)])
    told = capsys.readouterr().err.strip()
    assert code != 0
    assert told.startswith(f"detent: {sentence}")
    assert "\n" not in told


# --- Serving ---


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return answer.status, answer.read()


@pytest.fixture
def served(tmp_path):
    """A server in a process of its own, over a directory with one run that goes on."""
    write_run(tmp_path / "runs" / "one", [1.0, 2.0], status="running", steps=1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "detent.cli", "report", str(tmp_path / "runs"), "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    yield tmp_path / "runs", re.search(r"http://127\.0\.0\.1:\d+/", line).group(), process
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == ""


def test_a_served_page_follows_the_runs(served):
    runs, url, _ = served
    status, page = get(url)
    assert status == 200
    assert b"Learning curves" in page
    data = json.loads(get(url + "data.json")[1])
    assert data["live"]
    assert get(f"{url}data.json?version={data['version']}") == (204, b"")
    write_run(runs / "two", [3.0], seed=1)
    later = json.loads(get(f"{url}data.json?version={data['version']}")[1])
    assert [run["name"] for run in later["runs"]] == ["one", "two"]


def test_only_this_machine_is_served(served):
    _, url, _ = served
    for path, headers, code in (("", {"Host": "evil.example:8000"}, 403), ("etc/passwd", {}, 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(url + path, **headers)
        assert caught.value.code == code
    port = int(url.rstrip("/").rpartition(":")[2])
    other = socket.gethostbyname(socket.gethostname())
    if not other.startswith("127."):
        with pytest.raises(OSError), socket.create_connection((other, port), timeout=5):
            pass


# --- In a browser ---


@pytest.fixture(scope="module")
def chromium():
    path = find()
    if path is None:
        why = "the page was not tried in a browser: there is no Chromium (apt-get install chromium)"
        if os.environ.get("DETENT_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    with Browser(path) as browser:
        yield browser


@pytest.fixture
def page(chromium, runs_dir, trained, tmp_path):
    out = tmp_path / "report.html"
    report.write_page(report.load_runs([runs_dir, trained]), out, {("Ant-v5", "ppo", "ordinal"): (1234.0, 56.0)})
    chromium.problems.clear()
    chromium.resize(1200, 2400)
    chromium.open(out)
    chromium.wait_for(f"({INKED})('#panels canvas')")
    yield chromium
    assert chromium.problems == []


INKED = """where => [...document.querySelectorAll(where)].every(c => {
  if (c.width < 50) return false;
  const copy = Object.assign(document.createElement('canvas'), {width: c.width, height: c.height});
  const g = copy.getContext('2d', {willReadFrequently: true});
  g.drawImage(c, 0, 0);
  return g.getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v > 0).length > 500;
})"""
DRAWN = "[...document.querySelectorAll('#panels canvas')].map(c => c.toDataURL()).join()"
ROWS = "document.querySelectorAll('#run-table tr.run').length"


def test_the_page_renders(page):
    assert page.run("document.querySelectorAll('#panels canvas').length") == 3
    assert page.run(ROWS) == 25
    told = page.run("document.body.innerText")
    assert "25 runs (1 damaged, 1 diverged, 22 finished, 1 running)" in told
    assert "incl. 1 diverged" in told
    assert "+ 1 running" in told
    assert "1,234 ± 56" in told, "the paper's number"
    assert "▲ higher" in told
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run(f"({INKED})('#comparison canvas')"), "the performance profile"


def test_filters_choose_rows_and_curves(page):
    page.choose("choose-task", "Hopper-v5")
    assert page.run(ROWS) == 15
    page.wait_for(f"({INKED})('#panels canvas')")
    assert page.run("document.querySelectorAll('#panels canvas').length") == 1
    page.choose("choose-head", "ordinal")
    assert page.run(ROWS) == 6
    page.choose("choose-status", "diverged")
    assert page.run(ROWS) == 1
    page.choose("choose-text", "no such run")
    assert page.run(ROWS) == 0
    page.run("document.getElementById('clear').click()")
    assert page.run(ROWS) == 25
    page.choose("choose-text", "ant seed=2")
    assert page.run(ROWS) == 3
    assert page.run("document.getElementById('run-count').innerText") == "3 runs of 25"


def test_every_control_of_the_curves_changes_the_picture(page):
    before = page.run(DRAWN)
    for control, value in (
        ("choose-x", "seconds"),
        ("choose-centre", "iqm"),
        ("choose-band", "range"),
        ("smooth", "9"),
    ):
        page.choose(control, value)
        page.wait_for(f"({INKED})('#panels canvas')")
        after = page.wait_for(f"({DRAWN}) !== {json.dumps(before)} && {DRAWN}")
        before = after
    for click in ("document.getElementById('seeds').click()", "document.querySelector('#legend button').click()"):
        page.run(click)
        assert page.run(DRAWN) != before
        before = page.run(DRAWN)
    assert page.run("document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"


def test_curves_tell_their_values(page):
    page.run("document.querySelector('#panels canvas').focus()")
    for _ in range(2):
        page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'End', cancelable: true}))")
    told = page.run("document.querySelector('.readout:not([hidden])').innerText")
    assert "6,100 steps" in told
    assert "(3 runs)" in told
    assert "null" not in told
    assert re.search(r"ordinal\s+3,0\d\d|ordinal\s+2,9\d\d", told), told


def test_the_table_sorts_and_opens(page):
    page.run("document.querySelector('[data-sort=final]').click()")
    first = page.run("document.querySelector('#run-table tr.run').innerText")
    assert first.startswith("▸ Ant-v5/ordinal")
    page.run("document.querySelector('[data-sort=final]').click()")
    assert page.run("document.querySelector('[data-sort=final]').parentElement.ariaSort") == "ascending"
    page.run("document.querySelector('#run-table button.link').click()")
    details = page.run("document.querySelector('tr.details').innerText")
    assert "learning_rate" in details
    assert "jaxlib" in details


def test_policies_are_seen(page):
    names = page.run("[...document.querySelectorAll('#choose-policy option')].map(o => o.value)")
    assert sorted(names) == ["CartPole-v1-categorical", "Hopper-v5-beta", "Hopper-v5-discrete", "Hopper-v5-gaussian"]
    for name in names:
        page.choose("choose-policy", name)
        page.wait_for(f"({INKED})('#policy canvas')")
        assert page.run("document.querySelectorAll('#policy canvas').length") == (1 if "Cart" in name else 3)
        average = page.run("document.querySelector('#policy canvas').toDataURL()")
        page.choose("observation", "1")
        assert "Observation 1 of 8" in page.run("document.getElementById('policy-controls').innerText")
        assert page.run("document.querySelector('#policy canvas').toDataURL()") != average


def test_runs_from_a_compact_file_say_that_they_have_no_policy(page, runs_dir, trained, tmp_path):
    report.write_compact(report.load_runs([runs_dir]), tmp_path / "runs.jsonl")
    for places, rows, told in (
        ([tmp_path / "runs.jsonl"], 20, "has a policy to show. Compact files contain no policies."),
        ([tmp_path / "runs.jsonl", trained], 24, "or too many to show. Compact files contain no policies."),
        ([runs_dir], 21, "has a policy to show."),
    ):
        report.write_page(report.load_runs(places), tmp_path / "compact.html")
        page.open(tmp_path / "compact.html")
        page.wait_for(f"({INKED})('#panels canvas')")
        assert page.run(ROWS) == rows
        assert page.run("document.getElementById('policy-controls').innerText").endswith(told)
        assert "silent for" not in page.run("document.getElementById('run-table').innerText")


def test_the_page_on_a_phone_and_in_the_dark(page):
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.scheme("dark")
    page.resize(400, 800)
    page.wait_for(f"({INKED})('#panels figure:first-child canvas')")
    assert page.run("getComputedStyle(document.body).backgroundColor") != light
    assert page.run("document.documentElement.scrollWidth") <= 400
    page.scheme("light")


def test_a_served_page_refreshes_itself(chromium, served):
    runs, url, _ = served
    chromium.open(url)
    assert chromium.wait_for(ROWS) == 1
    chromium.choose("choose-text", "one two")
    chromium.choose("choose-text", "")
    write_run(runs / "two", [3.0], seed=1)
    chromium.wait_for(f"{ROWS} === 2")
    assert [p for p in chromium.problems if not p.startswith(f"asked the network for {url}")] == []


def test_the_report_needs_no_jax(trained, tmp_path):
    """Directories, compact files, the paper's numbers and action distributions are read with NumPy alone."""
    code = """
import sys
from detent.cli import main
assert main(["report", *sys.argv[1:], "--reference", "paper", "--compact", "runs.jsonl", "--out", "page.html"]) == 0
assert not {"jax", "gymnasium", "envpool", "optax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(trained)], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-c", code, "runs.jsonl"], cwd=tmp_path, check=True)
    assert '"policies":[]' in (tmp_path / "page.html").read_text(), "compact files have no policies"
