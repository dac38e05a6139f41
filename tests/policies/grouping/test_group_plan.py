import math
from collections import Counter
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spotlight.policies.grouping import plan as plan_module
from spotlight.policies.grouping.plan import GroupKind, Place, WorkClass, plan_groups
from spotlight.policies.grouping.throughput import Outlook

AS_GOOD = 0.95
POWERS = (1, 2, 4, 8)
LEFT_S = st.one_of(st.none(), st.floats(0, 60))
DEGREES = st.sampled_from([(1,), (1, 2), (1, 2, 4), POWERS, (1, 2, 3, 6), tuple(range(1, 9))])
SHARES = st.sampled_from([0.0, 0.02, 0.1, 0.3])


def by_degree(degrees, share: float, alone_s: float = 1.0) -> dict[int, float]:
    return {degree: alone_s * ((1 - share) / degree + share) for degree in degrees}


def waiting(batches: int, degrees=POWERS, share: float = 0.1, alone_s: float = 1.0) -> WorkClass:
    """A member alone takes 20 s for a micro-batch; 2, 4, 8 together take 11, 6.5, 4.25 s."""
    return WorkClass(batches, 20, by_degree(degrees, share, alone_s))


def node(members: int, name: str = "n", fate: str = "spot") -> list[Place]:
    return [Place(f"{name}/{index}", name, fate) for index in range(members)]


def sizes(groups) -> list[int]:
    return sorted(map(len, groups), reverse=True)


def plan(members, *work, seconds_left=None, **options):
    return plan_groups(members, work, seconds_left=seconds_left, **options)


@st.composite
def clusters(draw, nodes: int = 3, members: int = 6) -> list[Place]:
    return [
        Place(f"{name}/{index}", name, draw(st.sampled_from(["spot", "reserved"])))
        for name in "abc"[: draw(st.integers(1, nodes))]
        for index in range(draw(st.integers(1, members)))
    ]


@st.composite
def divided(draw, names: list[str]) -> list[tuple[str, ...]]:
    """Some of the names, in groups of any size and order."""
    left = draw(st.permutations(names))
    groups = []
    while left:
        cut = draw(st.integers(1, min(4, len(left))))
        groups.append(tuple(left[:cut]))
        left = left[cut:]
    return groups[draw(st.integers(0, 1)) :]


WORK = st.lists(
    st.builds(
        waiting,
        batches=st.integers(0, 30),
        degrees=DEGREES,
        share=SHARES,
        alone_s=st.sampled_from([0.1, 1.0, 2.5]),
    ),
    min_size=1,
    max_size=2,
)


# --- what holds for every plan ---


@settings(max_examples=60, deadline=None)
@given(
    clusters(),
    WORK,
    LEFT_S,
    st.sampled_from([None, 1, 2, 3, 4, 9]),
    st.sampled_from([1.0, 2.0]),
    st.data(),
)
def test_every_member_is_in_one_group_of_its_fate_and_of_a_possible_degree(
    members, work, seconds_left, wanted, span_factor, data
):
    current = data.draw(divided([place.name for place in members] + ["lost/0", "lost/1"]))
    groups = plan_groups(
        members,
        work,
        seconds_left=seconds_left,
        current=current,
        wanted=wanted,
        span_factor=span_factor,
    )
    assert sorted(name for group in groups for name in group) == sorted(p.name for p in members)
    fates = {place.name: place.fate for place in members}
    assert all(len({fates[name] for name in group}) == 1 for group in groups)
    if any(each.batches for each in work):
        possible = set.intersection(*(set(each.step_s) for each in work if each.batches))
        assert {len(group) for group in groups} <= possible


@pytest.mark.parametrize("quick", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    clusters(), WORK, LEFT_S, st.sampled_from([None, 2, 4]), st.sampled_from([1.0, 2.0]), st.data()
)
def test_planning_again_changes_nothing(
    quick, members, work, seconds_left, wanted, span_factor, data
):
    current = data.draw(divided([place.name for place in members] + ["lost/0"]))
    options = {"seconds_left": seconds_left, "wanted": wanted, "span_factor": span_factor}
    with pytest.MonkeyPatch.context() as patch:
        if quick:
            patch.setattr(plan_module, "MOST_COMBINATIONS", 0)
        groups = plan_groups(members, work, current=current, **options)
        assert plan_groups(members, work, current=groups, **options) == groups


@settings(max_examples=50, deadline=None)
@given(clusters(), WORK, LEFT_S, st.data(), st.randoms(use_true_random=False))
def test_the_order_of_members_and_groups_does_not_matter(members, work, left_s, data, rng):
    current = data.draw(divided([place.name for place in members]))
    expected = plan_groups(members, work, seconds_left=left_s, current=current)
    rng.shuffle(members)
    rng.shuffle(current)
    assert plan_groups(members, work, seconds_left=left_s, current=current) == expected


@pytest.mark.parametrize("quick", [False, True])
@settings(max_examples=40, deadline=None)
@given(clusters(), WORK, LEFT_S)
def test_no_plan_is_worse_than_all_alone_or_all_in_the_largest_groups(
    quick, members, work, seconds_left
):
    assume(any(each.batches for each in work))
    with pytest.MonkeyPatch.context() as patch:
        if quick:
            patch.setattr(plan_module, "MOST_COMBINATIONS", 0)
        groups = plan_groups(members, work, seconds_left=seconds_left)
        outlook = Outlook([each for each in work if each.batches], seconds_left, 2.0)
        for wanted in (1, 8):
            other = plan_groups(members, work, seconds_left=seconds_left, wanted=wanted)
            least = AS_GOOD * rate(members, other, outlook) * (1 - 1e-9)
            assert rate(members, groups, outlook) >= least


def rate(members, groups, outlook: Outlook) -> float:
    nodes = {place.name: place.node for place in members}
    return outlook.score(
        Counter(GroupKind(len(group), len({nodes[name] for name in group}) > 1) for group in groups)
    ).rate


# --- the best there is, by brute force ---


def partitions(members: int, degrees) -> list[tuple[int, ...]]:
    if members == 0:
        return [()]
    return [
        (degree, *rest)
        for degree in degrees
        if degree <= members
        for rest in partitions(members - degree, [d for d in degrees if d <= degree])
    ]


def finished_by(division, work: WorkClass, seconds_left: float) -> int:
    each = (math.floor(seconds_left / work.batch_s(degree) + 1e-9) for degree in division)
    return min(work.batches, sum(each))


def last_end(division, work: WorkClass) -> float:
    ends = {count * work.batch_s(d) for d in division for count in range(1, work.batches + 1)}
    return min(end for end in ends if finished_by(division, work, end) == work.batches)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), DEGREES, SHARES, st.integers(1, 100), st.floats(0.5, 100))
def test_before_the_phase_ends_no_division_of_a_node_finishes_more(
    members, degrees, share, batches, seconds_left
):
    work = waiting(batches, degrees, share)
    groups = plan(node(members), work, seconds_left=seconds_left)
    most = max(finished_by(each, work, seconds_left) for each in partitions(members, degrees))
    assert finished_by(sizes(groups), work, seconds_left) >= AS_GOOD * most - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), WORK, LEFT_S)
def test_no_division_of_a_node_is_better_for_several_classes(members, work, seconds_left):
    work = [each for each in work if each.batches]
    assume(work)
    outlook = Outlook(work, seconds_left, 2.0)
    degrees = set.intersection(*(set(each.step_s) for each in work))
    most = max(
        outlook.score(Counter(GroupKind(degree, False) for degree in division)).rate
        for division in partitions(members, degrees)
    )
    groups = plan(node(members), *work, seconds_left=seconds_left)
    assert rate(node(members), groups, outlook) >= AS_GOOD * most


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), DEGREES, SHARES, st.integers(8, 1000))
def test_while_there_is_work_for_everybody_no_division_does_more(members, degrees, share, batches):
    step_s = by_degree(degrees, share)

    def throughput(division) -> float:
        return sum(1 / step_s[degree] for degree in division)

    groups = plan(node(members), waiting(batches, degrees, share))
    most = max(map(throughput, partitions(members, degrees)))
    assert throughput(sizes(groups)) >= AS_GOOD * most - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), DEGREES, SHARES, st.integers(1, 16))
def test_planned_anew_as_work_ends_all_is_done_no_later_than_by_the_best_fixed_groups(
    members, degrees, share, batches
):
    fixed = min(
        last_end(division, waiting(batches, degrees, share))
        for division in partitions(members, degrees)
    )
    step_s = by_degree(degrees, share)
    left = [1.0] * batches
    """What is left of each micro-batch; those in work come first."""
    now, groups = 0.0, ()
    while left:
        groups = plan(node(members), waiting(len(left), degrees, share), current=groups)
        batch_s = sorted(20 * step_s[len(group)] for group in groups)
        busy, queued = sorted(left[: len(groups)], reverse=True), left[len(groups) :]
        first = min(part * each for part, each in zip(busy, batch_s, strict=False))
        after = [part - first / each for part, each in zip(busy, batch_s, strict=False)]
        left = sorted(part for part in after if part > 1e-9) + queued
        now += first
    assert now <= fixed / AS_GOOD


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.sampled_from([(1, 2), (1, 2, 4), (1, 2, 3, 5)]),
    SHARES,
    st.integers(1, 30),
    LEFT_S,
)
def test_the_quick_way_for_large_clusters_is_about_as_good_as_comparing_all(
    nodes, degrees, share, batches, seconds_left
):
    work = waiting(batches, degrees, share)
    members = [
        place for name, count in zip("ab", nodes, strict=False) for place in node(count, name)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "MOST_COMBINATIONS", 0)
        groups = plan(members, work, seconds_left=seconds_left, span_factor=1000.0)
    outlook = Outlook([work], seconds_left, 1000.0)
    most = max(
        outlook.score(Counter(GroupKind(d, False) for each in chosen for d in each)).rate
        for chosen in product(*(partitions(count, degrees) for count in nodes))
    )
    assert rate(members, groups, outlook) >= 0.8 * most


# --- how much waits, and until when ---


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (1, [8]),
        (2, [4, 4]),
        (3, [4, 2, 2]),
        (4, [2, 2, 2, 2]),
        (7, [2, 1, 1, 1, 1, 1, 1]),
        (8, [1] * 8),
        (100, [1] * 8),
    ],
)
def test_the_less_waits_the_larger_the_groups(batches, expected):
    assert sizes(plan(node(8), waiting(batches))) == expected


@pytest.mark.parametrize(
    ("seconds_left", "expected"),
    [(4.3, [8]), (6.6, [4, 4]), (11.2, [2, 2, 2, 2]), (20.0, [1] * 8), (60.0, [1] * 8)],
)
def test_groups_are_as_large_as_it_takes_to_finish_before_the_phase_ends(seconds_left, expected):
    assert sizes(plan(node(8), waiting(100), seconds_left=seconds_left)) == expected


@pytest.mark.parametrize("seconds_left", [-1.0, 0.0, 4.0])
def test_when_nothing_can_be_finished_nobody_is_moved(seconds_left):
    current = (("n/1", "n/0"), ("n/2",), ("n/3",))
    assert plan(node(4), waiting(9), seconds_left=seconds_left, current=current) == current


def test_all_classes_with_waiting_work_must_be_able_to_do_a_degree():
    work = [waiting(2), waiting(2, (1, 2)), waiting(0, (1,))]
    assert sizes(plan(node(8), *work)) == [2, 2, 2, 2]


def test_the_class_that_is_served_first_decides():
    """In 10 s members alone finish the short kind, and nobody the long one but pairs."""
    short, long = WorkClass(100, 1, {1: 9.0, 2: 9.0}), WorkClass(100, 1, {1: 11.0, 2: 10.0})
    assert sizes(plan(node(4), short, long, seconds_left=10.0)) == [1, 1, 1, 1]


# --- fates and nodes ---


def test_pools_work_on_the_same_queue_and_share_no_group():
    members = node(4, "r", "reserved") + node(4, "s", "spot")
    assert plan(members, waiting(2)) == tuple(
        tuple(f"{name}/{index}" for index in range(4)) for name in "rs"
    )


def test_who_trains_is_alone_and_its_group_goes_on_without_it():
    members = [Place("n/0", "n", "n/0"), *node(4)[1:]]
    current = [("n/0", "n/1", "n/2", "n/3")]
    groups = plan(members, waiting(1), current=current)
    assert groups == (("n/0",), ("n/1", "n/2"), ("n/3",))


def test_a_group_spans_nodes_only_if_that_wins():
    members = node(3, "a") + node(3, "b")
    assert sizes(plan(members, waiting(50), seconds_left=10, span_factor=1.5)) == [4, 1, 1]
    assert sizes(plan(members, waiting(50), seconds_left=9, span_factor=1.5)) == [1] * 6
    assert sizes(plan(members, waiting(50), seconds_left=12, span_factor=1.5)) == [2, 2, 1, 1]
    assert sizes(plan(members, waiting(1), span_factor=1.5)) == [4, 1, 1]
    assert sizes(plan(members, waiting(1), span_factor=2.0)) == [2, 1, 1, 1, 1]


def test_no_group_spans_nodes_when_it_is_only_as_good():
    members = node(3, "a") + node(3, "b")
    current = [("a/0", "a/1", "a/2"), ("b/0", "b/1", "b/2")]
    work = waiting(100, (1, 2), share=0.03)
    groups = plan(members, work, current=current, span_factor=1.0)
    assert groups == (("a/0", "a/1"), ("a/2",), ("b/0", "b/1"), ("b/2",))


def test_members_of_different_fates_do_not_span_nodes_together():
    members = node(1, "a", "spot") + node(1, "b", "reserved") + node(1, "c", "spot")
    assert plan(members, waiting(1), span_factor=1.0) == (("a/0", "c/0"), ("b/0",))


def test_a_group_that_spans_nodes_stays_while_it_is_good():
    members = node(3, "a") + node(3, "b")
    current = (("a/0",), ("a/1", "b/2", "b/0", "a/2"), ("b/1",))
    assert plan(members, waiting(50), seconds_left=10, span_factor=1.5, current=current) == current


def test_as_many_groups_span_nodes_as_micro_batches_wait():
    members = [place for name in "abcd" for place in node(2, name)]
    groups = plan(members, waiting(1), span_factor=1.0)
    assert sizes(groups) == [8]
    groups = plan(members, waiting(1, (1, 2, 4)), span_factor=1.0)
    assert sizes(groups) == [4, 1, 1, 1, 1]


# --- the degree that the user wants ---


@pytest.mark.parametrize(
    ("members", "expected"),
    [(3, [2, 1]), (4, [4]), (5, [4, 1]), (7, [4, 2, 1]), (8, [4, 4]), (11, [4, 4, 2, 1])],
)
def test_groups_of_the_wanted_degree_and_the_rest_as_large_as_possible(members, expected):
    assert sizes(plan(node(members), waiting(100), wanted=4)) == expected


def test_where_the_wanted_degree_is_impossible_the_next_smaller_one_is_taken():
    assert sizes(plan(node(7), waiting(100, (1, 2, 4)), wanted=5)) == [4, 2, 1]


def test_wanted_groups_do_not_span_nodes():
    assert sizes(plan(node(3, "a") + node(3, "b"), waiting(9), wanted=4)) == [2, 2, 1, 1]


# --- keeping groups ---


def test_without_work_the_groups_stay_and_new_members_are_alone():
    current = (("n/1", "n/0"), ("n/2",))
    assert plan(node(4), waiting(0), current=current) == (*current, ("n/3",))
    assert plan(node(4), current=current, wanted=4) == (*current, ("n/3",))


def test_without_work_who_lost_a_member_is_alone():
    current = (("n/0", "n/9", "n/1"), ("n/2", "n/3"))
    assert plan(node(4), current=current) == (("n/0",), ("n/1",), ("n/2", "n/3"))


def test_without_members_there_are_no_groups():
    assert plan([], waiting(1)) == ()


def test_groups_are_torn_only_for_a_clear_win():
    pairs = (("n/0", "n/1"), ("n/2", "n/3"))
    alone = tuple((name,) for pair in pairs for name in pair)
    assert plan(node(4), waiting(100, share=0.04), current=pairs) == pairs
    assert plan(node(4), waiting(100, share=0.06), current=pairs) == (pairs[0], *alone[2:])
    assert plan(node(4), waiting(100, share=0.12), current=pairs) == alone
    assert plan(node(4), waiting(100, share=0.04), current=alone) == alone


def test_rank_zero_stays_and_survivors_stay_together():
    current = (("n/3", "n/1", "n/0", "n/2"), ("n/4", "n/5", "n/6", "n/7"))
    survivors = [place for place in node(8) if place.name != "n/1"]
    groups = plan(survivors, waiting(2), current=current)
    assert groups == (("n/2",), ("n/3", "n/0"), ("n/4", "n/5", "n/6", "n/7"))
    groups = plan(survivors, waiting(2, (1, 2, 3, 4)), current=current)
    assert groups == (("n/3", "n/0", "n/2"), ("n/4", "n/5", "n/6", "n/7"))


def test_a_new_member_joins_where_one_is_missing():
    current = (("n/3", "n/1", "n/9", "n/2"), ("n/4", "n/5", "n/6", "n/7"))
    groups = plan(node(8), waiting(2), current=current)
    assert groups == (("n/3", "n/1", "n/2", "n/0"), ("n/4", "n/5", "n/6", "n/7"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 8), min_size=2, max_size=6),
    st.sampled_from([None, 5.0, 7.0, 12.0, 50.0]),
    st.sampled_from([None, 2, 4]),
    st.data(),
)
def test_while_much_waits_a_lost_member_leaves_the_groups_of_other_nodes_untouched(
    nodes, seconds_left, wanted, data
):
    members = [p for number, count in enumerate(nodes) for p in node(count, f"n{number}")]
    options = {"seconds_left": seconds_left, "wanted": wanted, "span_factor": 100.0}
    groups = plan(members, waiting(10_000), **options)
    lost = data.draw(st.sampled_from(members))
    survivors = [place for place in members if place != lost]
    after = plan(survivors, waiting(10_000), current=groups, **options)
    elsewhere = {group for group in groups if not group[0].startswith(f"{lost.node}/")}
    assert elsewhere <= set(after)


# --- a large cluster ---


@pytest.mark.parametrize(("batches", "seconds_left"), [(10, None), (3000, None), (10**6, 7.0)])
def test_two_thousand_nodes_take_few_looks_and_a_loss_moves_few(monkeypatch, batches, seconds_left):
    looks = Counter()
    original = Outlook.score

    def counted(self, groups):
        looks["score"] += 1
        return original(self, groups)

    monkeypatch.setattr(Outlook, "score", counted)
    members = [place for number in range(2000) for place in node(8, f"n{number:04}")]
    groups = plan(members, waiting(batches), seconds_left=seconds_left)
    after = plan(members[1:], waiting(batches), seconds_left=seconds_left, current=groups)
    assert looks["score"] < 50
    assert len(set(groups) - set(after)) <= 9


def test_only_as_many_large_groups_form_as_there_is_work_for():
    members = [place for number in range(100) for place in node(8, f"n{number:02}")]
    assert Counter(map(len, plan(members, waiting(10)))) == {8: 10, 1: 720}


@pytest.mark.parametrize(
    ("options", "named"),
    [({"wanted": 0}, "wanted"), ({"span_factor": 0.5}, "span_factor")],
)
def test_impossible_wishes_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=named):
        plan(node(2), waiting(1), **options)


def test_a_member_that_is_there_twice_is_refused_by_name():
    with pytest.raises(ValueError, match="'n/0' is there twice"):
        plan([*node(2), *node(1)], waiting(1))
