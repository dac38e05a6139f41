import math
import random
import statistics
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration.contrast import (
    best_contrast,
    contrast_and_gain,
    expected_contrast,
    largest_contrast,
    squared_deviations,
)

REWARDS = st.lists(
    st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=10
)


@settings(max_examples=40, deadline=None)
@given(rewards=REWARDS, data=st.data())
def test_the_contrast_is_that_of_the_best_of_all_subsets(rewards, data):
    keep = data.draw(st.integers(1, len(rewards)))
    best = max(statistics.pstdev(subset) for subset in combinations(rewards, keep))
    assert best_contrast(sorted(rewards), keep) == pytest.approx(best, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(rewards=REWARDS, data=st.data())
def test_the_resampled_gain_is_the_mean_over_all_rewards_again(rewards, data):
    keep = data.draw(st.integers(2, len(rewards))) if len(rewards) > 1 else 1
    before = best_contrast(sorted(rewards), keep)
    gains = [best_contrast(sorted([*rewards, again]), keep) - before for again in rewards]
    expected = statistics.fmean(gains) if before > 0 else 0.0
    contrast, gain = contrast_and_gain(sorted(rewards), keep)
    assert contrast == before
    assert gain == pytest.approx(expected, rel=0.5, abs=1e-6)


def test_rewards_far_from_zero_keep_their_contrast():
    rewards = [1e9 + offset for offset in (0.0, 0.25, 0.5, 1.0)]
    assert best_contrast(rewards, 2) == pytest.approx(0.5, rel=1e-6)


def test_equal_rewards_have_exactly_no_contrast_whatever_rounding_does_to_their_mean():
    for count in range(1, 40):
        assert best_contrast([0.1] * count, count) == 0.0
        assert squared_deviations([0.1] * count) == 0.0
    assert squared_deviations([]) == 0.0


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_squared_deviations_are_those_from_the_mean(rewards):
    expected = statistics.pvariance(rewards) * len(rewards)
    assert squared_deviations(rewards) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("keep", [2, 3, 4, 7])
def test_nothing_within_the_limits_contrasts_more_than_halves_at_the_ends(keep):
    rng = random.Random(keep)
    ends = [-1.0] * keep + [3.0] * keep
    assert largest_contrast(keep, -1, 3) == pytest.approx(best_contrast(ends, keep))
    for _ in range(200):
        rewards = sorted(rng.uniform(-1, 3) for _ in range(12))
        assert best_contrast(rewards, keep) <= largest_contrast(keep, -1, 3)


@pytest.mark.parametrize(
    ("count", "keep", "published"),
    [
        *((count, 24, g) for count, g in [(24, 0.96), (48, 1.34), (96, 1.68), (192, 1.98)]),
        *((count, 16, g) for count, g in [(24, 1.17), (48, 1.52), (96, 1.85), (192, 2.14)]),
    ],
)
def test_the_expected_contrast_agrees_with_the_table(count, keep, published):
    assert expected_contrast(count, keep) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("count", "keep", "tolerance"),
    [
        *((count, 2, 0.12) for count in (2, 4, 32)),
        *((count, 4, 0.03) for count in (4, 16, 32)),
        *((count, 8, 0.015) for count in (8, 12, 64)),
        *((count, 16, 0.015) for count in (16, 64)),
    ],
)
def test_the_expected_contrast_agrees_with_simulated_normal_rewards(count, keep, tolerance):
    rng = random.Random(count * 100 + keep)
    rounds = 60_000 // count
    simulated = [
        best_contrast(sorted(rng.gauss(0, 1) for _ in range(count)), keep) for _ in range(rounds)
    ]
    error = statistics.stdev(simulated) / math.sqrt(rounds)
    mean = statistics.fmean(simulated)
    assert expected_contrast(count, keep) == pytest.approx(mean, abs=tolerance * mean + 3 * error)


@pytest.mark.parametrize("keep", [2, 3, 8, 24])
def test_every_further_candidate_adds_less(keep):
    values = [expected_contrast(count, keep) for count in range(keep, 10 * keep)]
    gains = [after - before for before, after in pairwise(values)]
    assert all(gain > 0 for gain in gains)
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize(("count", "keep"), [(3, 4), (3, 0)])
def test_impossible_subsets_are_refused(count, keep):
    with pytest.raises(ValueError, match="keep must be"):
        best_contrast([0.5] * count, keep)
    with pytest.raises(ValueError, match="keep must be"):
        expected_contrast(count, keep)
