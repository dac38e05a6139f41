"""An iteration in two parts."""

import pytest

from spotlight.policies.training_parts import (
    can_be_divided,
    have_their_share,
    later_groups,
    updates_of,
)


@pytest.mark.parametrize("updates", [2, 4, 6])
def test_the_two_parts_take_all_updates_in_order(updates):
    first, rest = updates_of("first", updates), updates_of("rest", updates)
    assert [*first, *rest] == [*updates_of("whole", updates)] == list(range(updates))
    assert len(first) == len(rest)


@pytest.mark.parametrize(
    ("prompts", "updates", "divided"), [(4, 2, True), (4, 1, False), (3, 2, False), (1, 2, False)]
)
def test_only_what_has_two_halves_is_divided(prompts, updates, divided):
    assert can_be_divided(prompts, updates) == divided


def test_groups_with_fewer_previews_are_later():
    assert later_groups([0, 1, 2, 3], {0: 5, 1: 9, 2: 9, 3: 4}, {1: 7}) == (0, 3)


def test_of_equals_those_that_more_are_awaited_for_are_later():
    assert later_groups([0, 1, 2, 3], dict.fromkeys(range(4), 6), {0: 2, 2: 1}) == (0, 2)


def test_of_equals_in_all_the_last_ones_are_later():
    assert later_groups([1, 4, 6, 7], {}, {}) == (6, 7)


def test_later_groups_have_their_share_with_as_many_previews_as_the_first_ones():
    trained, later = (0, 1, 4, 5), (1, 5)
    assert have_their_share(later, trained, {0: 8, 4: 7, 1: 10, 5: 5, 2: 30})
    assert not have_their_share(later, trained, {0: 8, 4: 7, 1: 10, 5: 4, 2: 30})
    assert not have_their_share(later, trained, {0: 1})
