import math
import statistics
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pass_fail_rewards import PASS_FAIL_COUNTS, PassFailRewards, pass_contrast
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.exploration.reward_spread import Evidence, Standing

PASS_FAIL = PassFailRewards()


def passes(live: int, scored: int, passed: int) -> Standing:
    return Standing(Evidence(scored, passed), 0.0, 0.0, live)


def test_a_pass_or_fail_prior_is_weak_and_stands_at_the_mean_rate():
    prior = PASS_FAIL.prior(PASS_FAIL.visit([1.0, 0.0, 0.0, 0.0]))
    assert prior == Evidence(PASS_FAIL_COUNTS, PASS_FAIL_COUNTS / 4)


def test_evidence_of_pass_or_fail_is_a_count():
    assert PASS_FAIL.evidence([0.0, 0.0, 1.0]) == Evidence(3, 1)


@given(passed=st.integers(0, 9), failed=st.integers(0, 9), rate=st.floats(0.01, 0.99))
def test_the_gain_of_pass_or_fail_is_exact_when_nothing_is_awaited(passed, failed, rate):
    live, keep = passed + failed, 4
    if live >= keep:
        expected = (
            rate * pass_contrast(passed + 1, failed, keep)
            + (1 - rate) * pass_contrast(passed, failed + 1, keep)
            - pass_contrast(passed, failed, keep)
        )
        gain = PASS_FAIL.gain(rate, passes(live, live, passed), keep, 0.5)
        assert gain == pytest.approx(expected, abs=1e-12)


def test_a_pass_or_fail_group_of_halves_gains_nothing():
    assert PASS_FAIL.gain(0.5, passes(16, 16, 8), 8, 0.5) == 0


def test_half_a_pass_is_no_pass_or_fail():
    assert "0 or 1" in PASS_FAIL.problem_with([0.5])


@pytest.mark.parametrize("keep", [2, 4, 7])
def test_the_first_contrast_of_passes_is_the_mean_over_all_outcomes(keep: int) -> None:
    rate = 0.3
    mean = sum(
        math.prod(rate if passed else 1 - rate for passed in outcome) * statistics.pstdev(outcome)
        for outcome in product((0, 1), repeat=keep)
    )
    assert PASS_FAIL.first_contrast(Evidence(1, rate), keep, 0.5) == pytest.approx(mean)


@given(passes=st.integers(0, 12), fails=st.integers(0, 12), keep=st.integers(1, 12))
def test_counting_passes_gives_the_contrast_of_the_list(passes, fails, keep):
    if passes + fails >= keep:
        expected = best_contrast([0.0] * fails + [1.0] * passes, keep)
        assert pass_contrast(passes, fails, keep) == pytest.approx(expected, abs=1e-12)
