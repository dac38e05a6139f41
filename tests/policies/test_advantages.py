import math
import statistics

import pytest

from spotlight.policies.advantages import flat_group_share, group_advantages

REWARDS = [0.0, 1.0, 0.5, 0.5, 0.25, 0.75]
GROUPS = ["a", "a", "b", "b", "c", "c"]


def test_global_std_is_that_of_the_whole_batch():
    scale = statistics.pstdev(REWARDS) + 1e-4
    expected = [-0.5 / scale, 0.5 / scale, 0, 0, -0.25 / scale, 0.25 / scale]
    assert group_advantages(REWARDS, GROUPS, std="global") == pytest.approx(expected)


def test_group_std_is_that_of_each_group():
    expected = [-0.5 / 0.5001, 0.5 / 0.5001, 0, 0, -0.25 / 0.2501, 0.25 / 0.2501]
    assert group_advantages(REWARDS, GROUPS, std="group") == pytest.approx(expected)


def test_groups_may_be_interleaved():
    order = [4, 0, 2, 5, 3, 1]
    mixed = group_advantages([REWARDS[i] for i in order], [GROUPS[i] for i in order])
    assert mixed == [group_advantages(REWARDS, GROUPS)[i] for i in order]


@pytest.mark.parametrize("std", ["global", "group"])
def test_a_group_without_contrast_gets_exactly_zero(std):
    advantages = group_advantages([0.1, 0.1, 0.1, 0.9], [0, 0, 0, 1], std=std)
    assert advantages == [0.0, 0.0, 0.0, 0.0]


def test_advantages_are_clamped():
    rewards = [0.0] * 99 + [1.0]
    assert group_advantages(rewards, [0] * 100, clip=5.0)[-1] == 5.0


def test_advantages_of_a_group_add_up_to_zero():
    assert math.fsum(group_advantages([0.1, 0.7, 0.2], [0, 0, 0])) == pytest.approx(0, abs=1e-12)


def test_no_rewards_give_no_advantages():
    assert group_advantages([], []) == []
    assert flat_group_share([], []) == 0.0


def test_the_share_of_flat_groups_is_counted():
    assert flat_group_share(REWARDS, GROUPS) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("rewards", "groups"), [([0.1], []), ([float("nan"), 0.0], [0, 0]), ([float("inf")], [0])]
)
def test_wrong_input_is_refused(rewards, groups):
    with pytest.raises(ValueError):
        group_advantages(rewards, groups)
