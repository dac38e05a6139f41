import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.grouping.assignment import Place, Seating


def places(names: str, fate: str = "spot") -> list[Place]:
    return [Place(name, "node", fate) for name in names]


def groups(*names: str) -> list[tuple[str, ...]]:
    return [tuple(each) for each in names]


def seated(names: str, current: list[str], sizes: dict[int, int]) -> list[str]:
    made = Seating(places(names), groups(*current)).seat(names, sizes)
    return sorted("".join(group) for group in made)


@settings(deadline=None)
@given(st.data())
def test_everybody_has_one_seat(data):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    names = "abcdefghijklmnopqrstuvwxyz"[: sum(sizes)]
    left = data.draw(st.permutations(names))
    current = []
    while left:
        cut = data.draw(st.integers(1, len(left)))
        current.append("".join(left[:cut]))
        left = left[cut:]
    made = seated(names, current, {size: sizes.count(size) for size in sizes})
    assert sorted(map(len, made)) == sorted(sizes)
    assert sorted("".join(made)) == sorted(names)


def test_a_group_of_a_wanted_size_keeps_its_order():
    assert seated("abcdef", ["ca", "fbde"], {4: 1, 1: 2}) == ["a", "c", "fbde"]


def test_an_intact_group_is_kept_rather_than_the_rest_of_a_broken_one():
    assert seated("abcdef", ["xab", "ef"], {2: 1, 1: 4}) == ["a", "b", "c", "d", "ef"]


def test_survivors_stay_together_and_are_joined():
    assert seated("bcde", ["abcd", "e"], {3: 1, 1: 1}) == ["bcd", "e"]
    assert seated("acde", ["acdx", "e"], {4: 1}) == ["acde"]


def test_the_halves_of_a_torn_group_stay_together():
    assert seated("abcd", ["dcba"], {2: 2}) == ["ba", "dc"]


def test_who_joins_others_comes_from_the_end_of_its_group():
    assert seated("abcdef", ["abc", "def"], {4: 1, 2: 1}) == ["abcf", "de"]


def test_rank_zero_stays_rank_zero_when_others_join():
    assert seated("abcd", ["ba", "dc"], {4: 1}) == ["badc"]


def test_of_those_who_join_somebody_who_led_leads():
    assert seated("abcd", ["xabc", "d"], {4: 1}) == ["dabc"]


def test_who_no_longer_shares_the_fate_is_apart():
    seating = Seating([*places("ab"), *places("c", "trainer")], groups("abc"))
    assert seating.parts == groups("ab", "c")
    assert seating.cells() == {"spot": groups("ab"), "trainer": groups("c")}


def test_who_claims_to_be_in_two_groups_is_in_one():
    assert Seating(places("abc"), groups("ab", "bc")).parts == groups("ab", "c")


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_members_and_groups_does_not_matter(rng: random.Random):
    members, current = places("abcdefg"), groups("cab", "ex", "g")
    expected = Seating(members, current).seat("abcdefg", {5: 1, 2: 1})
    rng.shuffle(members)
    rng.shuffle(current)
    assert Seating(members, current).seat("gfedcba", {5: 1, 2: 1}) == expected


def test_a_member_that_is_there_twice_is_refused_by_name():
    with pytest.raises(ValueError, match="'b' is there twice"):
        Seating(places("abb"), [])
