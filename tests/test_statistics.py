"""Statistics against SciPy and against cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from detent import statistics as s

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


def test_bootstrap_agrees_with_scipy():
    def trimmed(x, axis):
        return stats.trim_mean(x, 0.25, axis=axis)

    theirs = stats.bootstrap(
        (A,), trimmed, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = s.iqm([A], resamples=20_000)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.1)
    assert ours.low < ours.value < ours.high


def test_the_bootstrap_of_a_difference_agrees_with_scipy():
    theirs = stats.bootstrap(
        (A, B),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    ours = s.bootstrap(lambda t: t[0].mean(1) - t[1].mean(1), [A, B], resamples=20_000)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.1)


def test_resampling_stays_within_tasks():
    first, second = s.resampled([[1.0, 2.0], [10.0, 20.0, 30.0]], seed=0, resamples=500)
    assert first.shape == (500, 2)
    assert second.shape == (500, 3)
    assert set(np.unique(first)) == {1.0, 2.0}
    assert set(np.unique(second)) == {10.0, 20.0, 30.0}
    # Tasks far apart do not widen the interval: each task is always there.
    assert s.bootstrap(lambda t: t[0].mean(1) + t[1].mean(1), [[0.0, 0.0], [1e6, 1e6]]) == s.Interval(1e6, 1e6, 1e6)


def test_the_same_seed_gives_the_same_interval_and_another_does_not():
    assert s.iqm([A], seed=3) == s.iqm([A], seed=3)
    assert s.iqm([A], seed=3) != s.iqm([A], seed=4)


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


def test_welch_agrees_with_scipy():
    theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval(0.95)
    ours = s.welch([A], [B])
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-5)


@pytest.mark.parametrize("freedom", [1.0, 1.7, 2.0, 4.0, 11.3, 100.0, 1e5])
def test_t_quantiles_agree_with_scipy(freedom):
    assert s.t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-4)


def test_the_interval_of_a_difference_is_the_wider_one():
    both = s.difference([A], [B])
    normal = s.welch([A], [B])
    assert both.value == pytest.approx(A.mean() - B.mean())
    assert both.low <= normal.low
    assert both.high >= normal.high


def test_two_policies_differ_only_if_the_interval_says_so():
    assert s.different([[10.0, 11.0, 12.0]], [[1.0, 2.0, 3.0]])
    assert not s.different([[10.0, 11.0, 12.0]], [[7.0, 9.5, 9.9]]), "apart, but three runs do not prove it"
    assert not s.different([[10.0]], [[1.0]]), "one run proves nothing"
    assert not s.different([A], [A])
    # Two tasks that agree say more than each by itself.
    a, b = [10.0, 12.0, 14.0], [7.0, 9.0, 11.0]
    assert not s.different([a], [b])
    assert s.different([a] * 4, [b] * 4)


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_policies_are_seldom_called_different(runs):
    """The promise of 95%, where the plain bootstrap breaks it: with three runs it would be at least 10%."""
    rng = np.random.default_rng(runs)
    trials = 300
    false = sum(
        s.difference([rng.normal(size=runs)], [rng.normal(size=runs)], resamples=300).excludes(0.0)
        for _ in range(trials)
    )
    assert false / trials < 0.08


def test_performance_profile_by_hand():
    profile = s.performance_profile([[0.0, 1.0], [1.0, 2.0]], [-1.0, 0.0, 0.5, 1.0, 2.0])
    assert profile.share.tolist() == [1.0, 0.75, 0.75, 0.25, 0.0]
    assert profile.low[0] == profile.high[0] == 1.0
    assert profile.low[1] == 0.5, "the first task's runs may both be its bad one"
    assert np.all(profile.low <= profile.share)
    assert np.all(profile.high >= profile.share)
    assert np.isnan(s.performance_profile([[1.0]], [0.0]).low).all()


def test_scores_on_a_common_scale():
    assert s.normalized([1.0, 3.0, 5.0], 1.0, 5.0).tolist() == [0.0, 0.5, 1.0]
    assert s.normalized([2.0], 2.0, 2.0).tolist() == [0.5]


def test_one_run_has_no_interval():
    one = s.iqm([[3.0]])
    assert one.value == 3.0
    assert math.isnan(one.low)
    assert not one.excludes(0.0)


def test_two_policies_differ_only_where_the_interval_says_so():
    assert s.Interval(5.0, 1.0, 9.0).verdict == "higher"
    assert s.Interval(-5.0, -9.0, -1.0).verdict == "lower"
    assert s.Interval(5.0, -1.0, 11.0).verdict == s.Interval(5.0).verdict == "undecided"
