import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.reward_scales import combined, reward_scale, weighted_mean

SMALL_AND_LARGE = [
    [(0.0, 10.0), (0.5, 900.0), (1.0, 400.0)],
    [(0.9, 100.0), (0.2, 700.0), (0.4, 300.0)],
]


def test_a_single_reward_is_left_as_it_is():
    assert reward_scale([[(0.1,), (0.9,)]], [1]) == [1.0]


def test_every_reward_is_brought_to_a_pooled_standard_deviation_of_1():
    weights = reward_scale(SMALL_AND_LARGE, [1, 1])
    for index, weight in enumerate(weights):
        scaled = [[weight * rewards[index] for rewards in group] for group in SMALL_AND_LARGE]
        assert statistics.fmean(map(statistics.variance, scaled)) == pytest.approx(1)


def test_a_weight_multiplies_the_scale_of_its_reward():
    equal, halved = reward_scale(SMALL_AND_LARGE, [1, 1]), reward_scale(SMALL_AND_LARGE, [0.5, -2])
    assert halved == pytest.approx([0.5 * equal[0], -2 * equal[1]])


def test_the_mean_by_weight_is_of_the_rewards_as_they_are():
    assert weighted_mean((0.5, 20.0), (3, 1)) == pytest.approx(5.375)
    assert weighted_mean((0.1,), (0.3,)) == 0.1, "to the bit"


def test_the_level_of_a_group_does_not_count_as_spread():
    moved = [[(a + 1000 * n, b) for a, b in group] for n, group in enumerate(SMALL_AND_LARGE)]
    assert reward_scale(moved, [1, 1]) == pytest.approx(reward_scale(SMALL_AND_LARGE, [1, 1]))


def test_all_groups_are_scaled_alike_so_that_a_wide_one_stays_wide():
    narrow = [(0.0, 0.0), (0.1, 1.0)]
    wide = [(0.0, 0.0), (1.0, 10.0)]
    weights = reward_scale([narrow, wide], [1, 1])
    spreads = [
        statistics.pstdev(combined(rewards, weights) for rewards in group)
        for group in (narrow, wide)
    ]
    assert spreads[1] == pytest.approx(10 * spreads[0])


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3])
def test_a_reward_that_never_varies_in_a_group_weighs_nothing(constant):
    groups = [[(0.1 * n, constant) for n in range(7)], [(0.3 * n, 3.7) for n in range(7)]]
    assert reward_scale(groups, [1, 1])[1] == 0.0


@pytest.mark.parametrize("groups", [[], [[]], [[(0.5, 0.5)], []]])
def test_too_few_scores_weigh_nothing_and_divide_by_nothing(groups):
    assert reward_scale(groups, [1, 1]) == [0.0, 0.0]


@given(st.permutations([(0.1, 5.0), (0.7, 3.0), (0.2, 8.0), (0.30000001, 3.1)]))
def test_the_order_of_arrival_changes_no_bit_of_the_weights(arrived):
    in_order = sorted(arrived)
    assert reward_scale([arrived], [1, 1]) == reward_scale([in_order], [1, 1])
