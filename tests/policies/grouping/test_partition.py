from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.grouping.partition import AS_GOOD, Shape, divide, largest_first, mixes

DEGREES = st.sampled_from([(1,), (2, 1), (4, 2, 1), (6, 3, 2, 1), (4, 3, 2, 1)])


def busiest(mix, worth, batches: int) -> float:
    each = sorted((worth[degree] for degree, count in mix for _ in range(count)), reverse=True)
    return sum(each[:batches])


def total(plan, worth, batches: int) -> float:
    counts = Counter(degree for mix in plan for degree, count in mix for _ in range(count))
    return busiest(tuple(counts.items()), worth, batches)


def speeds(degrees, share: float) -> dict[int, float]:
    return {degree: 1 / ((1 - share) / degree + share) for degree in degrees}


def shapes(*members: int) -> list[Shape]:
    return [Shape(count, (1,) * count) for count in members]


@settings(deadline=None)
@given(st.integers(1, 70), DEGREES)
def test_every_division_has_a_seat_for_every_member(members, degrees):
    for mix in [*mixes(members, degrees), largest_first(members, degrees)]:
        assert sum(degree * count for degree, count in mix) == members
        assert all(degree in degrees and count > 0 for degree, count in mix)


@pytest.mark.parametrize(("members", "divisions"), [(1, 1), (4, 5), (8, 22), (16, 231)])
def test_up_to_sixteen_members_all_divisions_are_there(members, divisions):
    every = mixes(members, range(members, 0, -1))
    assert len(every) == len(set(every)) == divisions


def test_a_large_node_has_some_groups_of_every_degree_to_choose_from():
    every = mixes(64, range(64, 0, -1))
    assert {((8, 3), (1, 40)), ((40, 1), (8, 3)), ((64, 1),), ((1, 64),)} <= set(every)
    assert len(every) < 1000


@settings(deadline=None)
@given(
    members=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    degrees=DEGREES,
    share=st.sampled_from([0.02, 0.1, 0.3]),
    batches=st.integers(0, 16),
)
def test_no_other_division_of_the_nodes_is_worth_more(members, degrees, share, batches):
    worth = speeds(degrees, share)
    best, _ = divide(shapes(*members), worth, batches)
    every = product(*(mixes(count, degrees) for count in members))
    most = max(total(plan, worth, batches) for plan in every)
    assert total(best, worth, batches) == pytest.approx(most)


@settings(deadline=None)
@given(
    nodes=st.lists(
        st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    share=st.sampled_from([0.02, 0.1, 0.3]),
    batches=st.integers(0, 40),
)
def test_those_that_keep_more_groups_lose_nothing_or_a_twentieth(nodes, share, batches):
    worth = speeds((4, 2, 1), share)
    together = [Shape(sum(sizes), tuple(sorted(sizes))) for sizes in nodes]
    best, (free, cheap) = divide(together, worth, batches)
    most = total(best, worth, batches)
    assert total(free, worth, batches) >= most * (1 - 1e-6)
    assert total(cheap, worth, batches) >= most * AS_GOOD - 1e-9


def test_nodes_that_get_no_work_stay_as_they_are():
    together = [Shape(4, (1, 1, 2)) for _ in range(5)]
    _, (free, _) = divide(together, speeds((4, 2, 1), 0.1), 2)
    assert Counter(free) == {((4, 1),): 2, ((2, 1), (1, 2)): 3}
