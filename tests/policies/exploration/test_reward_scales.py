import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.reward_scales import combined, pooled_weights

SMALL_AND_LARGE = [
    [(0.0, 10.0), (0.5, 900.0), (1.0, 400.0)],
    [(0.9, 100.0), (0.2, 700.0), (0.4, 300.0)],
]


def test_a_single_reward_is_left_as_it_is():
    assert pooled_weights([[(0.1,), (0.9,)]], 1) == [1.0]


def test_every_reward_is_brought_to_a_pooled_standard_deviation_of_1():
    weights = pooled_weights(SMALL_AND_LARGE, 2)
    for index, weight in enumerate(weights):
        scaled = [[weight * rewards[index] for rewards in group] for group in SMALL_AND_LARGE]
        assert statistics.fmean(map(statistics.variance, scaled)) == pytest.approx(1)


def test_the_level_of_a_group_does_not_count_as_spread():
    moved = [[(a + 1000 * n, b) for a, b in group] for n, group in enumerate(SMALL_AND_LARGE)]
    assert pooled_weights(moved, 2) == pytest.approx(pooled_weights(SMALL_AND_LARGE, 2))


def test_all_groups_are_scaled_alike_so_that_a_wide_one_stays_wide():
    narrow = [(0.0, 0.0), (0.1, 1.0)]
    wide = [(0.0, 0.0), (1.0, 10.0)]
    weights = pooled_weights([narrow, wide], 2)
    spreads = [
        statistics.pstdev(combined(rewards, weights) for rewards in group)
        for group in (narrow, wide)
    ]
    assert spreads[1] == pytest.approx(10 * spreads[0])


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3])
def test_a_reward_that_never_varies_in_a_group_weighs_nothing(constant):
    groups = [[(0.1 * n, constant) for n in range(7)], [(0.3 * n, 3.7) for n in range(7)]]
    assert pooled_weights(groups, 2)[1] == 0.0


@pytest.mark.parametrize("groups", [[], [[]], [[(0.5, 0.5)], []]])
def test_too_few_scores_weigh_nothing_and_divide_by_nothing(groups):
    assert pooled_weights(groups, 2) == [0.0, 0.0]


@given(st.permutations([(0.1, 5.0), (0.7, 3.0), (0.2, 8.0), (0.30000001, 3.1)]))
def test_the_order_of_arrival_changes_no_bit_of_the_weights(arrived):
    in_order = sorted(arrived)
    assert pooled_weights([arrived], 2) == pooled_weights([in_order], 2)
