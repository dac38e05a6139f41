import math
import statistics
from itertools import pairwise
from random import Random

import pytest

from spotlight.policies.advantages import (
    contrasting_groups,
    group_advantages,
    mixed_advantages,
)

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


@pytest.mark.parametrize("std", ["global", "group"])
@pytest.mark.parametrize("clip", [0.1, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(20))
def test_a_clip_leaves_no_push_on_a_whole_group(seed, clip, std):
    """Advantages of each group sum to 0, stay within the clip and keep their order."""
    random = Random(seed)
    groups = [random.randrange(4) for _ in range(40)]
    rewards = [random.choice([0.0, 0.25, 1.0]) * random.random() ** 3 for _ in groups]
    advantages = group_advantages(rewards, groups, std=std, clip=clip)
    for group in set(groups):
        inside = [(r, a) for r, a, g in zip(rewards, advantages, groups, strict=True) if g == group]
        assert math.fsum(a for _, a in inside) == pytest.approx(0, abs=1e-12)
        assert max(abs(a) for _, a in inside) <= clip * (1 + 1e-12)
        ordered = [a for _, a in sorted(inside)]
        assert all(one <= other + 1e-12 for one, other in pairwise(ordered))


def test_one_good_sample_of_eight_is_as_good_as_the_others_together_are_bad():
    """Without centring again, a clip at 1 leaves (1 - 7 * 0.378) / 8 = -0.2 on average."""
    advantages = group_advantages([1.0] + [0.0] * 7, [0] * 8, clip=1.0)
    assert advantages == pytest.approx([1.0] + [-1 / 7] * 7)


def test_what_the_clip_does_not_cut_is_exactly_as_it_was():
    scale = statistics.pstdev(REWARDS) + 1e-4
    mean = math.fsum([0.25, 0.75]) / 2
    expected = [(0.25 - mean) / scale, (0.75 - mean) / scale]
    assert group_advantages(REWARDS, GROUPS, clip=5.0)[4:] == expected


def test_the_median_baseline_leaves_the_sample_in_the_middle_at_zero():
    rewards = [0.0, 0.1, 0.2, 0.3, 1.0]
    scale = statistics.pstdev(rewards) + 1e-4
    expected = [(reward - 0.2) / scale for reward in rewards]
    found = group_advantages(rewards, [0] * 5, baseline="median")
    assert found == pytest.approx(expected)
    assert found[2] == 0.0
    # The outlier lifts the mean above 0.3, and with it turns the sign of the second best.
    assert group_advantages(rewards, [0] * 5, baseline="mean")[3] < 0 < found[3]


def test_no_rewards_give_no_advantages():
    assert group_advantages([], []) == []


@pytest.mark.parametrize(
    ("rewards", "groups"), [([0.1], []), ([float("nan"), 0.0], [0, 0]), ([float("inf")], [0])]
)
def test_wrong_input_is_refused(rewards, groups):
    with pytest.raises(ValueError):
        group_advantages(rewards, groups)


@pytest.mark.parametrize("seed", range(10))
def test_a_clip_leaves_no_push_on_a_whole_group_with_several_rewards_either(seed):
    random = Random(seed)
    groups = [random.randrange(3) for _ in range(30)]
    rewards = [(random.random() ** 4, 20 * random.random()) for _ in groups]
    advantages = mixed_advantages(rewards, groups, (1.0, 0.5), clip=0.8)
    assert max(map(abs, advantages)) <= 0.8 * (1 + 1e-12)
    for group in set(groups):
        inside = [a for a, g in zip(advantages, groups, strict=True) if g == group]
        assert math.fsum(inside) == pytest.approx(0, abs=1e-12)


# --- groups that vary most ---

VARYING = [(0.0,), (1.0,), (0.4,), (0.6,), (0.5,), (0.5,), (0.0,), (1.0,)]
IN_PAIRS = ["a", "a", "b", "b", "c", "c", "d", "d"]
"""Variances of 0.25, 0.01, 0 and 0.25."""


@pytest.mark.parametrize(
    ("share", "kept"),
    [(0.4, "a"), (0.49, "a"), (0.5, "ad"), (0.98, "ad"), (0.99, "abd"), (1.0, "abcd")],
)
def test_the_fewest_groups_that_have_the_share_of_variance_are_kept(share, kept):
    assert contrasting_groups(VARYING, IN_PAIRS, (1.0,), share) == set(kept)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_all_groups_are_kept_where_none_varies(share):
    assert contrasting_groups([(0.5,)] * 4, [0, 0, 1, 1], (1.0,), share) == {0, 1}


def test_several_rewards_count_by_their_weight_and_not_by_their_unit():
    first = [0.0, 1.0, 0.5, 0.5]
    second = [50.0, 50.0, 0.0, 100.0]
    rewards, groups = list(zip(first, second, strict=True)), [0, 0, 1, 1]
    assert contrasting_groups(rewards, groups, (2.0, 1.0), 0.5) == {0}
    assert contrasting_groups(rewards, groups, (1.0, 2.0), 0.5) == {1}


def test_a_reward_that_is_only_measured_keeps_no_group():
    rewards = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.5, 9.0)]
    assert contrasting_groups(rewards, [0, 0, 1, 1], (1.0, 0.0), 0.99) == {0}


def test_no_sample_has_no_group():
    assert contrasting_groups([], [], (1.0,), 0.5) == frozenset()


# --- weights that depend on the group ---


def test_rewards_weigh_otherwise_in_groups_that_say_so():
    rewards = [(0.0, 1.0), (1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    groups = [0, 0, 1, 1]
    found = mixed_advantages(rewards, groups, (1.0, 0.0), by_group={1: (0.0, 1.0)})
    assert found == pytest.approx([-1.0, 1.0, 1.0, -1.0], abs=1e-3)


def test_groups_with_the_same_weights_as_all_change_nothing():
    rewards = [(0.0, 3.0), (1.0, 2.0), (0.5, 0.0), (0.2, 9.0)]
    groups, weights = [0, 0, 1, 1], (1.0, 0.5)
    plain = mixed_advantages(rewards, groups, weights)
    assert mixed_advantages(rewards, groups, weights, by_group={0: weights}) == plain


def test_a_single_reward_counts_more_in_groups_where_it_weighs_more():
    rewards = [(0.0,), (1.0,), (0.0,), (1.0,)]
    found = mixed_advantages(rewards, [0, 0, 1, 1], (1.0,), by_group={0: (3.0,)})
    assert found[1] == pytest.approx(3 * found[3])
    assert contrasting_groups(rewards, [0, 0, 1, 1], (1.0,), 0.5, {1: (3.0,)}) == {1}
