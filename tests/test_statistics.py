"""Statistics against SciPy and against cases worked by hand."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from detent.report import statistics as s

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from intervals import FILE, RETURNS, coverage, of_difference, of_improvement, of_iqm, of_profile, table

RNG = np.random.default_rng(7)
A, B = RNG.normal(10.0, 3.0, 9), RNG.normal(7.0, 1.0, 6)


def test_the_papers_final_return_is_the_mean_of_the_last_ten_iterations():
    assert s.final_return([100.0, *range(10)]) == 4.5
    assert s.final_return([3.0, 5.0]) == 4.0
    assert s.final_return([math.nan, 2.0, math.nan]) == 2.0
    assert s.final_return([1.0, 2.0, math.nan], last=1) == 2.0  # the end of a run that diverged
    assert s.final_return([math.nan]) is None
    assert s.final_return([]) is None


def test_mean_and_sd():
    assert s.mean_and_sd([1.0, 2.0, 3.0]) == (2.0, 1.0)
    mean, sd = s.mean_and_sd([5.0])
    assert mean == 5.0
    assert math.isnan(sd)
    assert all(map(math.isnan, s.mean_and_sd([])))


@pytest.mark.parametrize("runs", range(1, 14))
def test_iqm_is_scipys_trimmed_mean(runs):
    x = RNG.normal(size=runs)
    assert s.iqm([x]).value == pytest.approx(stats.trim_mean(x, 0.25))


def test_iqm_by_hand():
    assert s.iqm([[0.0, 1.0, 2.0, 1000.0]]).value == 1.5
    assert s.iqm([[0.0, 1.0], [2.0, 1000.0]]).value == 1.5, "runs of all tasks go into one heap"


@pytest.mark.parametrize("runs", [2, 3])
def test_up_to_three_runs_iqm_has_students_interval(runs):
    x = A[:runs]
    theirs = stats.t.interval(0.95, runs - 1, x.mean(), stats.sem(x))
    assert (s.iqm([x]).low, s.iqm([x]).high) == pytest.approx(theirs)


@pytest.mark.parametrize("runs", [4, 5, 8, 9])
def test_iqm_has_yuens_interval(runs):
    """SciPy has Yuen's as a test: of a trimmed mean against one that is exactly known."""
    x = np.sort(A[:runs])
    ours = s.iqm([x])
    cut = runs // 4
    kept = runs - 2 * cut
    winsorized = stats.mstats.winsorize(x, (0.25, 0.25)).data
    reach = stats.t.ppf(0.975, kept - 1) * np.sqrt(((winsorized - winsorized.mean()) ** 2).sum() / kept / (kept - 1))
    assert (ours.low, ours.high) == pytest.approx((ours.value - reach, ours.value + reach))


def test_tasks_far_apart_do_not_widen_the_interval():
    """Every task is always there, so only what varies within tasks counts."""
    near = s.iqm([[1.0, 2.0, 3.0], [1.1, 2.1, 3.1]] * 2)
    far = s.iqm([[-1e6, -2e6, -3e6], [1.0, 2.0, 3.0], [1.1, 2.1, 3.1], [1e6, 2e6, 3e6]])
    assert far.high - far.low < 2 * (near.high - near.low)


def test_the_same_scores_give_the_same_interval():
    assert s.iqm([A, B]) == s.iqm([A, B])


def test_probability_of_improvement_is_mann_and_whitneys():
    x, y = np.round(A), np.round(B)  # with ties
    u = stats.mannwhitneyu(x, y).statistic
    assert s.probability_of_improvement([x], [y]).value == pytest.approx(u / (x.size * y.size))
    assert s.probability_of_improvement([y], [x]).value == pytest.approx(1 - u / (x.size * y.size))


def test_probability_of_improvement_by_hand():
    one = s.probability_of_improvement([[1.0, 3.0]], [[2.0, 3.0]])
    assert one.value == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    assert 0 <= one.low <= one.value <= one.high <= 1
    two = s.probability_of_improvement([[1.0, 3.0], [5.0, 6.0]], [[2.0, 3.0], [0.0, 1.0]])
    assert two.value == pytest.approx((0.375 + 1) / 2), "the mean over tasks"


def test_four_wins_of_four_are_not_certainty():
    won, lost = [[5.0, 6.0, 7.0]], [[0.0, 1.0, 2.0, 3.0]]
    sure = s.probability_of_improvement(won, lost)
    # Three disjoint pairs are all won with probability p^3, which is 2.5% at the lower end.
    assert (sure.value, sure.low**3, sure.high) == (1.0, pytest.approx(0.025), 1.0)
    beaten = s.probability_of_improvement(lost, won)
    assert (beaten.value, beaten.low, beaten.high) == (0.0, 0.0, pytest.approx(1 - sure.low))


@pytest.mark.parametrize(("wins", "trials"), [(0, 5), (1, 5), (3, 7), (40, 50), (50, 50), (700, 1000)])
def test_shares_have_clopper_and_pearsons_interval(wins, trials):
    theirs = stats.binomtest(wins, trials).proportion_ci(0.95, "exact")
    ours = s.share_interval(wins / trials, trials)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_difference_has_welchs_interval():
    theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval(0.95)
    ours = s.difference([A], [B])
    assert ours.value == pytest.approx(A.mean() - B.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_ratio_of_means():
    """To first order it is the mean of a - ratio * b that varies."""
    a, b = A[:6], 10 + B
    ours = s.ratio(a, b)
    assert ours.value == pytest.approx(a.mean() / b.mean())
    theirs = stats.t.interval(0.95, 5, 0.0, stats.sem(a - ours.value * b) / b.mean())
    assert (ours.low, ours.high) == pytest.approx((ours.value + theirs[0], ours.value + theirs[1]))


@pytest.mark.parametrize("freedom", [1.0, 1.7, 2.0, 4.0, 11.3, 100.0, 1e5])
def test_t_quantiles_agree_with_scipy(freedom):
    assert s.t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


@pytest.mark.parametrize("a", [1e-3, 0.3, 1.0, 12.0, 3000.5])
@pytest.mark.parametrize("b", [1e-3, 0.5, 1.7, 40.0, 4000.0])
def test_beta_quantiles_agree_with_scipy(a, b):
    for probability in (0.025, 0.5, 0.975):
        theirs = stats.beta.ppf(probability, a, b)
        assert s.beta_quantile(probability, a, b) == pytest.approx(theirs, rel=1e-8, abs=1e-12)


def test_two_policies_differ_only_if_the_interval_says_so():
    assert s.different([[10.0, 11.0, 12.0]], [[1.0, 2.0, 3.0]])
    assert not s.different([[10.0, 11.0, 12.0]], [[7.0, 9.5, 9.9]]), "apart, but three runs do not prove it"
    assert not s.different([[10.0]], [[1.0]]), "one run proves nothing"
    assert not s.different([A], [A])
    # Two tasks that agree say more than each by itself.
    a, b = [10.0, 12.0, 14.0], [7.0, 9.0, 11.0]
    assert not s.different([a], [b])
    assert s.different([a] * 4, [b] * 4)


def test_performance_profile_by_hand():
    profile = s.performance_profile([[0.0, 1.0], [1.0, 2.0]], [-1.0, 0.0, 0.5, 1.0, 2.0])
    assert profile.share.tolist() == [1.0, 0.75, 0.75, 0.25, 0.0]
    assert (profile.low[0], profile.high[0]) == (pytest.approx(0.025**0.25), 1.0), "four runs of four"
    assert profile.low[1] == pytest.approx(stats.binomtest(3, 4).proportion_ci(0.95, "exact").low)
    assert np.all(profile.low <= profile.share)
    assert np.all(profile.high >= profile.share)


def test_tasks_with_fewer_runs_make_the_band_wider():
    """The mean of shares of 2 and of 10 runs varies like a share of 1 / mean(1/2, 1/10) * 2 = 20/3 runs."""
    few, many = [0.0, 1.0], [0.0] * 5 + [1.0] * 5
    profile = s.performance_profile([few, many], [0.5])
    assert profile.low[0] == pytest.approx(stats.beta.ppf(0.025, 10 / 3, 10 / 3 + 1))


def test_scores_on_a_common_scale():
    assert s.normalized([1.0, 3.0, 5.0], 1.0, 5.0).tolist() == [0.0, 0.5, 1.0]
    assert s.normalized([2.0], 2.0, 2.0).tolist() == [0.5]


def test_one_run_has_no_interval():
    one = s.iqm([[3.0]])
    assert (one.value, one.why) == (3.0, "needs two runs")
    assert math.isnan(one.low)
    assert not one.excludes(0.0)


def test_without_an_interval_there_is_a_reason():
    pair = [1.0, 2.0]
    assert s.iqm([pair, pair]).why == "needs three runs of each task"
    assert s.difference([pair], [[3.0]]).why == "needs two runs of each"
    assert s.iqm([[3.0, 3.0]]).why == s.difference([[3.0] * 2], [[1.0] * 2]).why == "needs runs that differ"
    assert not s.different([[3.0] * 2], [[1.0] * 2]), "nothing tells how much they vary"
    assert s.iqm([pair]).why == ""


def test_two_policies_differ_only_where_the_interval_says_so():
    assert s.Interval(5.0, 1.0, 9.0).verdict == "higher"
    assert s.Interval(-5.0, -9.0, -1.0).verdict == "lower"
    assert s.Interval(5.0, -1.0, 11.0).verdict == s.Interval(5.0).verdict == "undecided"


# --- What an interval is called is what it does ---

NORMAL, SKEWED = RETURNS["normal"], RETURNS["skewed"]
SIZES = [(1, 2), (1, 3), (1, 4), (1, 5), (1, 10), (2, 3), (4, 3)]


@pytest.mark.parametrize(("tasks", "runs"), SIZES)
def test_the_interval_of_the_iqm_covers_it(tasks, runs):
    """As far as so many trials tell; the bootstrap covered it in 75% with 1 x 3 and in 83% with 4 x 3."""
    trials = 4000 if tasks == 1 else 500
    assert coverage(of_iqm, NORMAL, tasks, runs, trials=trials) > 0.93
    assert coverage(of_iqm, SKEWED, tasks, runs, trials=trials) > 0.91


@pytest.mark.parametrize("kind", RETURNS)
@pytest.mark.parametrize(("tasks", "runs"), [(1, 3), (1, 10), (4, 3)])
def test_the_interval_of_p_better_covers_it_whatever_the_returns(tasks, runs, kind):
    assert coverage(of_improvement, RETURNS[kind], tasks, runs, RETURNS[kind], trials=500) > 0.95


@pytest.mark.parametrize("kind", RETURNS)
def test_the_band_of_the_profile_covers_it_whatever_the_returns(kind):
    assert coverage(of_profile, RETURNS[kind], 4, 3, 1.0, trials=500) > 0.95


@pytest.mark.parametrize(("tasks", "runs"), [(1, 2), (1, 3), (1, 5), (4, 2), (4, 3)])
def test_the_interval_of_a_difference_covers_it(tasks, runs):
    for draw in (NORMAL, SKEWED):
        assert coverage(of_difference, draw, tasks, runs, draw, trials=400) > 0.94


def test_few_runs_do_not_know_of_a_basin():
    """What no interval can do, and the page says: a third of all triples miss the basin of three in ten runs."""
    assert coverage(of_iqm, RETURNS["basin"], 1, 3, trials=500) < 0.8


def test_the_documented_coverage_is_the_recorded_one():
    record = json.loads(FILE.read_text())
    assert table(record) in (Path(__file__).parent.parent / "docs" / "report.md").read_text()
    for case in record["cases"]:
        found = case["coverage"]
        assert found["normal"] > 0.93, case
        assert found["skewed"] > 0.90, case
        if case["interval"] in ("P(better)", "profile"):
            assert min(found.values()) > 0.95, case
