import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.staleness import rank_fidelity as module
from benchmarks.staleness.rank_fidelity import (
    Contrast,
    bootstrap_interval,
    estimate,
    kendall_tau_b,
    kept_contrast,
    rank_fidelity,
    realised_over_oracle,
)

REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1)
PAIRS = st.lists(st.tuples(REWARDS, REWARDS), max_size=10)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(module, "RESAMPLES", 200)
    monkeypatch.setattr(module, "RANDOM_SUBSETS", 16)


def brute_force_tau_b(first, second):
    """By its definition over all pairs, tie groups counted apart."""
    pairs = list(combinations(range(len(first)), 2))
    products = [
        math.copysign(1, first[i] - first[j]) * math.copysign(1, second[i] - second[j])
        for i, j in pairs
        if first[i] != first[j] and second[i] != second[j]
    ]

    def tied(values):
        return sum(
            count * (count - 1) / 2 for count in (values.count(value) for value in set(values))
        )

    total = len(pairs)
    scale = math.sqrt((total - tied(first)) * (total - tied(second)))
    return sum(products) / scale if scale else None


@given(PAIRS)
def test_tau_b_is_what_its_definition_says(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    expected = brute_force_tau_b(first, second)
    found = kendall_tau_b(first, second)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_tau_b_of_a_known_case_with_ties():
    # Of 6 pairs 4 agree, 0 disagree; one is tied in the first alone, one in the second alone.
    assert kendall_tau_b([1, 2, 2, 3], [1, 2, 3, 3]) == pytest.approx(4 / 5)


@given(PAIRS)
def test_tau_b_turns_its_sign_with_a_ranking(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found, turned = kendall_tau_b(first, second), kendall_tau_b(first, [-b for b in second])
    assert (found is None and turned is None) or found == pytest.approx(-turned)


def test_equal_rankings_have_tau_one_despite_ties():
    assert kendall_tau_b([0.0, 0.5, 0.5, 1.0], [0.0, 2.0, 2.0, 9.0]) == 1.0


@pytest.mark.parametrize("first", [[], [1.0], [2.0, 2.0, 2.0]])
def test_without_variation_there_is_no_tau(first):
    assert kendall_tau_b(first, [float(number) for number in range(len(first))]) is None


def test_rankings_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="2 and 3"):
        kendall_tau_b([1.0, 2.0], [1.0, 2.0, 3.0])


# --- bootstrap ---


def test_the_interval_of_a_mean_is_as_wide_as_theory_says(monkeypatch):
    monkeypatch.setattr(module, "RESAMPLES", 2000)
    rng = random.Random(3)
    values = [rng.gauss(0, 1) for _ in range(100)]
    low, high = bootstrap_interval(values, statistics.fmean, rng)
    width = 2 * 1.96 * statistics.pstdev(values) / math.sqrt(len(values))
    assert high - low == pytest.approx(width, rel=0.15)
    assert low < statistics.fmean(values) < high


def test_a_greater_confidence_is_wider():
    values = [float(number % 7) for number in range(30)]
    narrow = bootstrap_interval(values, statistics.fmean, random.Random(1), confidence=0.5)
    wide = bootstrap_interval(values, statistics.fmean, random.Random(1), confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_interval_depends_on_the_seed_alone():
    values = [0.1, 0.5, 0.7, 0.9]
    first, again, other = (
        bootstrap_interval(values, statistics.fmean, random.Random(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_interval_without_values_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([], statistics.fmean, random.Random(0))


def test_one_value_has_no_interval_and_none_has_no_estimate():
    one = estimate([0.5], statistics.median, random.Random(0))
    assert (one.value, one.interval) == (0.5, None)
    none = estimate([], statistics.median, random.Random(0))
    assert (none.value, none.interval) == (None, None)


# --- contrast ---


def test_the_true_ranking_keeps_all_that_is_possible():
    rewards = [0.0, 0.5, 1.0, 0.25]
    contrast = kept_contrast(rewards, rewards, 2, range(4), random.Random(0))
    assert contrast.realised == contrast.oracle == 0.5


def test_what_an_outdated_ranking_keeps_is_judged_by_the_reference():
    contrast = kept_contrast([0.0, 1.0, 0.5], [0.4, 0.6, 1.0], 2, range(3), random.Random(0))
    assert contrast.realised == pytest.approx(0.1)  # of 0.4 and 0.6
    assert contrast.oracle == pytest.approx(0.3)  # of 0.4 and 1.0


def test_a_random_choice_is_a_mean_over_choices():
    contrast = kept_contrast([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], 2, range(3), random.Random(0))
    assert 0 < contrast.at_random < 0.5  # two of the three pairs have 0.5, one has none


@given(st.lists(st.tuples(REWARDS, REWARDS), min_size=3, max_size=8), st.integers(2, 3))
def test_no_choice_keeps_more_than_the_oracle(pairs, keep):
    judged, reference = [a for a, _ in pairs], [b for _, b in pairs]
    contrast = kept_contrast(judged, reference, keep, range(len(pairs)), random.Random(0))
    best = max(statistics.pstdev(chosen) for chosen in combinations(reference, keep))
    assert contrast.oracle == pytest.approx(best)
    assert contrast.realised <= best + 1e-12 and contrast.at_random <= best + 1e-12


def test_prompts_with_much_contrast_count_for_more():
    contrasts = [Contrast(0.4, 0.4, 0.0), Contrast(0.0, 0.1, 0.0)]
    assert realised_over_oracle(contrasts) == pytest.approx(0.8)


# --- all together ---


def scorings(prompts, seeds, noise, seed=0):
    """(judged, reference): rewards, and the same with noise upon them."""
    rng = random.Random(seed)
    reference = [[rng.random() for _ in range(seeds)] for _ in range(prompts)]
    judged = [[reward + noise * rng.gauss(0, 1) for reward in row] for row in reference]
    return judged, reference


def fidelity(judged, reference, keep=4, seed=0):
    seeds = [range(len(row)) for row in reference]
    return rank_fidelity(judged, reference, keep=keep, seeds=seeds, rng=random.Random(seed))


def test_a_scoring_stands_for_itself():
    rewards, _ = scorings(6, 12, 0.0)
    found = fidelity(rewards, rewards)
    for one in (found.spearman_median, found.kendall_mean, found.realised_over_oracle):
        assert one.value == pytest.approx(1.0)
        assert one.interval == (pytest.approx(1.0), pytest.approx(1.0))


def test_more_noise_is_less_fidelity_between_the_bounds_of_best_and_random():
    little, much = (fidelity(*scorings(12, 24, noise)) for noise in (0.1, 1.0))
    assert little.spearman_median.value > much.spearman_median.value
    assert little.kendall_median.value > much.kendall_median.value
    assert 1 > little.realised_over_oracle.value > much.realised_over_oracle.value
    assert little.realised_over_oracle.value > little.random_over_oracle


def test_unrelated_scores_choose_no_better_than_chance():
    judged, _ = scorings(64, 24, 0.0, seed=1)
    _, reference = scorings(64, 24, 0.0, seed=2)
    found = fidelity(judged, reference)
    assert abs(found.spearman_median.value) < 0.15
    assert found.realised_over_oracle.value == pytest.approx(found.random_over_oracle, abs=0.05)


def test_prompts_without_variation_are_counted_and_not_ranked():
    judged = [[0.0, 0.5, 1.0], [0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]
    reference = [[0.0, 0.5, 1.0], [0.0, 0.5, 1.0], [0.5, 0.5, 0.5]]
    found = fidelity(judged, reference, keep=2)
    assert (found.prompts, found.constant) == (3, 2)
    assert found.spearman_median.value == pytest.approx(1.0)
    assert found.spearman_median.interval is None, "one prompt is left"
    assert found.kept_by_oracle == pytest.approx((0.5 + 0.5 + 0.0) / 3)


def test_without_any_variation_there_are_no_figures():
    flat = [[0.5, 0.5, 0.5]] * 2
    found = fidelity(flat, flat, keep=2)
    assert found.constant == found.prompts == 2
    assert found.kendall_median.value is None and found.realised_over_oracle.value is None
    assert found.random_over_oracle is None


def test_no_prompts_are_refused():
    with pytest.raises(ValueError, match="no prompts"):
        fidelity([], [])


def test_a_missing_row_is_refused():
    with pytest.raises(ValueError):
        fidelity([[0.1, 0.2]], [[0.1, 0.2], [0.1, 0.2]], keep=1)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(REWARDS, min_size=4, max_size=4), min_size=1, max_size=4))
def test_the_order_of_seeds_changes_no_correlation(rows):
    turned = [row[::-1] for row in rows]
    reference = [sorted(row) for row in rows]
    mine = fidelity(rows, reference)
    other = fidelity(turned, [row[::-1] for row in reference])
    assert mine.constant == other.constant
    assert mine.spearman_median.value == pytest.approx(other.spearman_median.value)
