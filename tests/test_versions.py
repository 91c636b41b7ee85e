"""benchmarks/versions.py: contestants that wait for their turn, and the ratio of their rates."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import launch
import versions

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

CONTESTANT = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from stopwatch import measure_rounds

def progress(last):
    for steps in range(7, last, 7):
        yield steps

for measured in measure_rounds(progress(int(sys.argv[1])), 0.0):
    print(json.dumps(measured), flush=True)
"""


def command(last):
    return [sys.executable, "-c", CONTESTANT, str(last)]


def test_contestants_take_turns():
    with launch.Waiting(command(10**6)) as one, launch.Waiting(command(10**6)) as other:
        for contestant in (one, other, other, one):
            measured = contestant.measure()
            assert measured["steps"] == 7 * measured["iterations"] >= 7 * 3
            assert measured["steps_per_second"] == pytest.approx(measured["steps"] / measured["seconds"])
    assert one._process.poll() is not None and other._process.poll() is not None


def test_a_contestant_that_ends_too_early_is_named():
    with launch.Waiting(command(7 * 5)) as contestant, pytest.raises(launch.ContestantError, match="ended before"):
        contestant.measure()
    with pytest.raises(launch.ContestantError, match="ended with 1"):
        launch.Waiting(command(7))


def test_the_ratio_is_that_of_rounds_with_what_they_have_in_common_removed():
    load = np.random.default_rng(0).uniform(0.2, 1.0, 20)
    mean, low, high = versions.ratio(np.stack([1.02 * load, load], axis=1))
    assert (mean, low, high) == pytest.approx((1.02, 1.02, 1.02))
    mean, low, high = versions.ratio(np.array([[1.0, 1.0], [4.0, 1.0]]))
    assert mean == pytest.approx(2.0) and low < 1.0 and high == pytest.approx(4.0 / low)
    assert math.isclose(math.log(high / mean), 12.706 * math.log(4.0) / math.sqrt(2.0) / math.sqrt(2.0), rel_tol=1e-3)


def test_a_directory_without_detent_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="has no Detent in src"):
        versions.check(tmp_path)
    assert versions.check(BENCHMARKS.parent) == BENCHMARKS.parent / "src"
