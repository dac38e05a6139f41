import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration.planners import max_variance_subset

REWARDS = st.lists(
    st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=12
)


def variance(values: list[float]) -> Fraction:
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    return sum(((value - mean) ** 2 for value in exact), Fraction(0)) / len(exact)


def chosen(rewards: list[float], keep: int, **options) -> list[float]:
    options.setdefault("tie_break", range(len(rewards)))
    return sorted(rewards[index] for index in max_variance_subset(rewards, keep, **options))


@settings(max_examples=60, deadline=None)
@given(rewards=REWARDS, data=st.data())
def test_no_subset_of_the_same_size_has_a_larger_variance(rewards, data):
    keep = data.draw(st.integers(1, len(rewards)))
    picked = max_variance_subset(rewards, keep, tie_break=range(len(rewards)))
    assert len(set(picked)) == keep
    best = max(variance(list(subset)) for subset in combinations(rewards, keep))
    assert variance([rewards[index] for index in picked]) == best


def test_symmetric_rewards_give_the_halves():
    assert chosen([0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0], 4) == [0.0, 0.1, 0.9, 1.0]


def test_a_lone_success_is_kept_among_failures():
    rewards = [0.0] * 15 + [1.0]
    assert 15 in max_variance_subset(rewards, 4, tie_break=range(16))


@given(st.permutations(range(10)))
def test_the_choice_does_not_depend_on_the_order_of_the_candidates(order):
    rewards = [0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    seeds = [seed * 7919 for seed in range(10)]
    expected = {seeds[index] for index in max_variance_subset(rewards, 4, tie_break=seeds)}
    shuffled_rewards, shuffled_seeds = [rewards[i] for i in order], [seeds[i] for i in order]
    picked = max_variance_subset(shuffled_rewards, 4, tie_break=shuffled_seeds)
    assert {shuffled_seeds[index] for index in picked} == expected


def test_ties_are_not_broken_by_position():
    picks = {
        tuple(max_variance_subset([0.5] * 20, 4, tie_break=random.Random(seed)))
        for seed in range(20)
    }
    assert len(picks) > 15


def test_the_same_generator_seed_gives_the_same_choice():
    first, second = (
        max_variance_subset([0.5] * 20, 4, tie_break=random.Random(3)) for _ in range(2)
    )
    assert first == second


def test_keeping_all_keeps_all():
    assert max_variance_subset([0.3, 0.1, 0.2], 3, tie_break=[1, 2, 3]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("rewards", "keep", "tie_break"),
    [([0.1], 0, [1]), ([0.1], 2, [1]), ([float("nan")], 1, [1]), ([0.1, 0.2], 1, [1])],
)
def test_impossible_requests_are_refused(rewards, keep, tie_break):
    with pytest.raises(ValueError):
        max_variance_subset(rewards, keep, tie_break=tie_break)
