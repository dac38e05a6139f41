"""Speed-ups and their intervals."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from scipy import stats

from benchmarks.exploration.ratios import Arrival, arrival, estimate, speedup, spread

LINE = [(10.0 * step, step / 10) for step in range(11)]


def test_a_run_that_does_not_arrive_is_timed_by_its_end() -> None:
    assert arrival(LINE, 0.55) == Arrival(pytest.approx(55.0), True)
    assert arrival(LINE, 2.0) == Arrival(100.0, False)


def test_a_rival_that_never_arrives_is_only_known_to_be_that_slow() -> None:
    assert speedup(Arrival(50.0, True), Arrival(200.0, False)) == 4.0


def test_a_run_of_ours_that_never_arrives_counts_as_twice_as_slow_as_it_was_seen_to_be() -> None:
    assert speedup(Arrival(100.0, False), Arrival(100.0, True)) == 0.5


def test_the_mean_is_geometric_and_every_task_counts_alike() -> None:
    found = estimate({"ocr": [2.0, 8.0], "compositional": [1.0, 1.0, 1.0]})
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.seeds == 5


@pytest.mark.parametrize("ratios", [[3.0], [2.0, 4.5]])
def test_one_or_two_seeds_have_no_interval(ratios: list[float]) -> None:
    found = estimate({"ocr": ratios})
    assert found is not None
    assert (found.value, found.low, found.high) == (3.0, None, None)


def test_there_is_no_mean_of_tasks_of_which_one_has_no_runs() -> None:
    assert estimate({"ocr": [3.0], "compositional": []}) is None
    assert estimate({}) is None


def test_the_interval_is_that_of_students_t_on_logarithms() -> None:
    ratios = [1.8, 2.9, 2.2, 3.4, 2.6, 1.2, 4.1, 2.4]
    found = estimate({"ocr": ratios})
    logs = [math.log(ratio) for ratio in ratios]
    low, high = stats.t.interval(0.9, len(logs) - 1, fmean(logs), stats.sem(logs))
    assert found is not None
    assert found.low == pytest.approx(math.exp(low), abs=1e-3)
    assert found.high == pytest.approx(math.exp(high), abs=1e-3)


def test_the_interval_of_two_tasks_is_that_of_the_sum_of_two_means() -> None:
    """The difference to the other task's negative, of which Welch's test has the interval."""
    first, second = [1.8, 2.9, 2.2, 3.4], [1.1, 1.9, 0.8, 1.3, 1.6]
    found = estimate({"ocr": first, "compositional": second})
    logs, others = [math.log(each) for each in first], [-math.log(each) for each in second]
    theirs = stats.ttest_ind(logs, others, equal_var=False).confidence_interval(0.9)
    assert found is not None
    assert found.low == pytest.approx(math.exp(theirs.low / 2), abs=1e-3)
    assert found.high == pytest.approx(math.exp(theirs.high / 2), abs=1e-3)


def test_nine_intervals_of_ten_hold_the_true_ratio() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(300):
        found = estimate({"ocr": [math.exp(rng.gauss(math.log(3), 0.3)) for _ in range(8)]})
        assert found is not None
        assert found.low is not None and found.high is not None
        held += found.low <= 3 <= found.high
    assert 255 <= held <= 285


def test_the_spread_of_runs_is_a_factor_of_either_sign() -> None:
    assert spread([2.0, 0.5]) == pytest.approx(2.0)
    assert spread([]) is None
