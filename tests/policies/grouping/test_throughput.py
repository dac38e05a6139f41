import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.grouping.throughput import GroupKind, Outlook, WorkClass

DEGREES = (1, 2, 3, 4)
SECONDS = st.sampled_from([0.25, 0.5, 1.0, 1.75, 4.0])
"""Sums of these are exact, so that ends tie here and there alike."""
WORK = st.lists(
    st.builds(
        WorkClass,
        batches=st.integers(1, 30),
        steps=st.integers(1, 3),
        step_s=st.fixed_dictionaries({degree: SECONDS for degree in DEGREES}),
    ),
    min_size=1,
    max_size=3,
)
KINDS = st.builds(GroupKind, st.sampled_from(DEGREES), st.booleans())
GROUPS = st.dictionaries(KINDS, st.integers(1, 5), min_size=1, max_size=4)
SPAN = 1.5


def one_by_one(work, groups, seconds_left):
    """The judge: each micro-batch to whoever is done with it first, of several the smallest. How
    many are done in time, and the last end.
    """
    free = [[0.0, kind] for kind in sorted(groups) for _ in range(groups[kind])]
    done, last = 0, 0.0
    for each in work:
        for _ in range(each.batches):
            ends = [
                since + each.batch_s(kind.degree) * (SPAN if kind.spans else 1.0)
                for since, kind in free
            ]
            end = min(ends)
            if end > seconds_left:
                break
            free[ends.index(end)][0] = end
            done, last = done + 1, max(last, end)
    return done, last


def alone(batches: int, seconds: float, **other: float) -> WorkClass:
    return WorkClass(batches, 1, {1: seconds, **{int(d[1:]): s for d, s in other.items()}})


@settings(deadline=None)
@given(WORK, GROUPS, st.integers(1, 60))
def test_before_the_phase_ends_as_much_is_finished_as_one_by_one(work, groups, seconds_left):
    everything = sum(each.batches for each in work)
    done, _ = one_by_one(work, groups, seconds_left)
    rate = Outlook(work, seconds_left, SPAN).score(groups).rate
    if done < everything:
        assert rate * seconds_left == pytest.approx(done)
    else:
        assert rate * seconds_left >= everything * (1 - 1e-9)


@settings(deadline=None)
@given(WORK, GROUPS)
def test_the_last_end_is_that_of_one_by_one_once_members_outnumber_the_work(work, groups):
    _, last = one_by_one(work, groups, math.inf)
    end = Outlook(work, None, SPAN).score(groups).end
    members = sum(kind.degree * count for kind, count in groups.items())
    enough = sum(each.batches for each in work) >= members
    assert end == pytest.approx(0.0 if enough else last)


@settings(deadline=None)
@given(st.integers(1, 30), GROUPS)
def test_what_each_group_finishes_in_time_adds_up(batches, groups):
    work = [WorkClass(10_000, 2, {1: 1.0, 2: 0.6, 3: 0.5, 4: 0.4})]
    outlook = Outlook(work, float(batches), SPAN)
    finished = sum(count * outlook.in_time(kind) for kind, count in groups.items())
    assert outlook.score(groups).rate * batches == pytest.approx(finished)


def test_no_more_groups_are_busy_than_micro_batches_wait():
    kinds = {GroupKind(1, False): 4, GroupKind(2, False): 1}
    assert Outlook([alone(2, 2.0, d2=1.0)], None, SPAN).score(kinds).rate == pytest.approx(1.5)


def test_a_group_that_ends_with_the_phase_is_in_time():
    kinds = {GroupKind(1, False): 1}
    assert Outlook([alone(9, 0.1)], 0.3, SPAN).score(kinds).rate == pytest.approx(3 / 0.3)


def test_who_is_not_free_yet_does_not_hasten_the_next_class():
    work = [alone(2, 1.5, d2=1.0), alone(1, 0.1, d2=0.1), alone(1, 99.0, d2=99.0)]
    kinds = {GroupKind(1, False): 1, GroupKind(2, False): 1}
    assert Outlook(work, 5.0, SPAN).score(kinds).rate == pytest.approx(3 / 5.0)


def test_when_the_phase_is_over_nothing_is_finished():
    kinds = {GroupKind(1, False): 1}
    assert Outlook([alone(1, 0.1)], -1.0, SPAN).score(kinds).rate == 0.0


def test_who_spans_nodes_is_slower():
    outlook = Outlook([alone(5, 3.0)], None, SPAN)
    assert outlook.speed(GroupKind(1, True)) == pytest.approx(1 / (3.0 * SPAN))


@pytest.mark.parametrize(
    ("batches", "steps", "step_s", "named"),
    [
        (-1, 1, {1: 1.0}, "batches"),
        (1, 0, {1: 1.0}, "steps"),
        (1, 1, {2: 1.0}, "degree 1"),
        (1, 1, {1: 1.0, 0: 1.0}, "degree 1"),
        (1, 1, {1: 0.0}, r"step_s\[1\]"),
        (1, 1, {1: 1.0, 2: math.nan}, r"step_s\[2\]"),
    ],
)
def test_impossible_work_is_refused_by_name(batches, steps, step_s, named):
    with pytest.raises(ValueError, match=named):
        WorkClass(batches, steps, step_s)
