import math
import random
import statistics
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.contrast import expected_contrast, pass_contrast
from spotlight.policies.reward_spread import (
    PRIOR_COUNTS,
    UNLIMITED,
    ContinuousRewards,
    Evidence,
    Knowledge,
    PassFailRewards,
)

CONTINUOUS = ContinuousRewards(UNLIMITED)
PASS_FAIL = PassFailRewards()


def draws(kind, posterior: Evidence, count: int = 4000) -> list[float]:
    rng = random.Random(7)
    return [kind.draw(posterior, rng) for _ in range(count)]


def test_the_drawn_variance_follows_the_inverse_gamma_posterior():
    variances = [std**2 for std in draws(CONTINUOUS, Evidence(count=12, total=36))]
    assert statistics.fmean(variances) == pytest.approx(36 / (12 - 2), rel=0.05)


def test_the_drawn_pass_rate_follows_the_beta_posterior():
    rates = draws(PASS_FAIL, Evidence(count=10, total=3))
    assert statistics.fmean(rates) == pytest.approx(0.3, rel=0.05)
    assert statistics.variance(rates) == pytest.approx(0.3 * 0.7 / 11, rel=0.1)


@pytest.mark.parametrize("kind", [CONTINUOUS, PASS_FAIL])
def test_more_evidence_leaves_less_doubt(kind):
    little, much = (draws(kind, Evidence(count, count / 4)) for count in (6, 600))
    assert statistics.pstdev(much) < statistics.pstdev(little) / 5


def test_evidence_of_continuous_rewards_is_their_variance():
    rewards = [0.1, 0.4, 0.4, 0.9]
    evidence = CONTINUOUS.evidence(rewards)
    assert evidence.count == 3
    assert evidence.total / evidence.count == pytest.approx(statistics.variance(rewards))


def test_evidence_of_pass_or_fail_is_a_count():
    assert PASS_FAIL.evidence([0.0, 0.0, 1.0]) == Evidence(3, 1)


@pytest.mark.parametrize("kind", [CONTINUOUS, PASS_FAIL])
def test_no_score_is_no_evidence(kind):
    assert kind.evidence([]) == Evidence()


@pytest.mark.parametrize(
    "posterior", [Evidence(), Evidence(5, 0.0), Evidence(5, -1e-18), Evidence(1e-9, 1e-300)]
)
def test_rewards_that_never_differed_have_no_spread_and_break_nothing(posterior):
    assert all(0 <= std < 1e-100 for std in draws(CONTINUOUS, posterior, 50))


def test_a_gain_is_the_expected_one_and_falls_with_every_candidate():
    gains = [CONTINUOUS.gain(2.0, Evidence(), live, keep=4) for live in range(4, 20)]
    assert gains[0] == pytest.approx(2 * (expected_contrast(5, 4) - expected_contrast(4, 4)))
    assert all(before > after for before, after in pairwise(gains))


@given(passes=st.integers(0, 9), fails=st.integers(0, 9), rate=st.floats(0.01, 0.99))
def test_the_gain_of_pass_or_fail_is_exact_when_nothing_is_awaited(passes, fails, rate):
    live, keep = passes + fails, 4
    if live >= keep:
        expected = (
            rate * pass_contrast(passes + 1, fails, keep)
            + (1 - rate) * pass_contrast(passes, fails + 1, keep)
            - pass_contrast(passes, fails, keep)
        )
        gain = PASS_FAIL.gain(rate, Evidence(live, passes), live, keep)
        assert gain == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", [CONTINUOUS, PASS_FAIL])
def test_what_is_awaited_lowers_the_gain(kind):
    own = Evidence(8, 1)
    gains = [kind.gain(0.2, own, 8 + awaited, keep=8) for awaited in range(6)]
    assert all(before > after for before, after in pairwise(gains))


def test_a_pass_or_fail_group_of_halves_gains_nothing():
    assert PASS_FAIL.gain(0.5, Evidence(16, 8), 16, keep=8) == 0


def test_a_prior_has_the_mean_of_what_is_above_at_a_fixed_weight():
    prior = Evidence(50, 5).as_prior()
    assert prior.count == PRIOR_COUNTS
    assert prior.total / prior.count == pytest.approx(0.1)
    assert Evidence().as_prior() == Evidence()


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1.01, -0.01])
def test_what_is_no_number_within_the_limits_is_no_reward(reward):
    assert "outside [0, 1]" in ContinuousRewards((0.0, 1.0)).problem_with([reward])
    assert PASS_FAIL.problem_with([reward])


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200])
def test_a_reward_without_limits_must_still_be_a_finite_number(reward):
    assert CONTINUOUS.problem_with([reward])


def test_the_limits_themselves_are_valid():
    assert not ContinuousRewards((-3.0, 1.0)).problem_with([-3.0])
    assert not ContinuousRewards((-3.0, 1.0)).problem_with([1.0])
    assert not PASS_FAIL.problem_with([0.0]) and not PASS_FAIL.problem_with([1.0])


def test_half_a_pass_is_no_pass_or_fail():
    assert "0 or 1" in PASS_FAIL.problem_with([0.5])


def test_a_missing_reward_is_noticed():
    assert "1 rewards, but 2" in ContinuousRewards((0.0, 1.0), (0.0, 1.0)).problem_with([0.5])


@pytest.mark.parametrize(
    "limits", [[], [(1.0, 0.0)], [(0.0, 0.0)], [(0.0, math.inf)], [(math.nan, 1.0)]]
)
def test_limits_that_are_no_interval_are_refused(limits):
    with pytest.raises(ValueError, match="needs limits"):
        ContinuousRewards(*limits)


def test_knowledge_survives_being_written_and_read():
    knowledge = Knowledge({"a cat": Evidence(7.5, 0.1)}, {"animals": Evidence(80.25, 3.0)})
    assert msgspec.json.decode(msgspec.json.encode(knowledge), type=Knowledge) == knowledge
