"""Which groups are explored when, where an iteration is trained in two parts."""

import math
from collections import Counter

import pytest

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.planners import UniformPlanner
from spotlight.policies.exploration.reward_spread import ContinuousRewards
from spotlight.policies.exploration.turns import Turn, Turns, turns_of


def uniform(groups=4, candidates=16):
    return UniformPlanner(
        job_seed=1, iteration=2, groups=groups, keep=4, candidates=candidates, weights=(1.0,)
    )


def bandit(groups=4, candidates=16):
    return BanditPlanner(
        job_seed=1,
        iteration=2,
        prompts=[f"prompt {group}" for group in range(groups)],
        keep=4,
        candidates=candidates,
        most=64,
        rewards=ContinuousRewards((0.0, 1.0)),
    )


def counts(chunk):
    return dict(sorted(Counter(candidate.group for candidate in chunk).items()))


def test_without_a_guess_all_groups_take_part_all_the_time():
    assert turns_of(4, 4, 16, in_time=0, in_all=60) == [Turn(range(4), math.inf)]
    assert turns_of(4, 4, 16, in_time=40, in_all=0) == [Turn(range(4), math.inf)]


@pytest.mark.parametrize(
    ("in_time", "in_all", "until"),
    [(48, 64, 40), (32, 64, 32), (8, 64, 16), (48, 10, 16)],
    ids=["half-each", "no-more-than-comes-in-time", "never-below-whole", "little-time"],
)
def test_the_first_half_has_its_share_after_all_are_whole(in_time, in_all, until):
    whole, first, later = turns_of(4, 4, 16, in_time, in_all)
    assert (list(whole.groups), whole.until) == ([0, 1, 2, 3], 16)
    assert (list(first.groups), first.until) == ([0, 1], until)
    assert (list(later.groups), later.until) == ([2, 3], math.inf)


def test_groups_of_a_pool_have_two_turns():
    everything, others = turns_of(12, 4, 16, in_time=48, in_all=64)
    assert (list(everything.groups), everything.until) == (list(range(12)), 40)
    assert others == Turn(None, math.inf)


def test_a_turn_without_groups_is_of_those_that_do_not_contrast_most_when_it_begins():
    planner = uniform()
    turns = Turns(planner, [Turn(range(4), 16), Turn(None, math.inf)], first_part=2)
    for number, candidate in enumerate(turns.next_chunk(15)):
        planner.record(candidate, float(number % 8 < 4) if candidate.group in (1, 2) else 0.5)
    assert counts(turns.next_chunk(7)) == {0: 3, 3: 4}, "one of them was still to come"
    assert turns.first == (1, 2)


def test_a_turn_without_groups_is_of_all_while_too_few_are_whole_to_choose_among():
    turns = Turns(uniform(), [Turn(range(4), 16), Turn(None, math.inf)], first_part=2)
    turns.next_chunk(16)
    assert counts(turns.next_chunk(4)) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert turns.first == ()


@pytest.mark.parametrize("planner", [uniform, bandit])
@pytest.mark.parametrize("size", [1, 3, 40])
def test_each_turn_is_given_what_is_its_own_whatever_the_chunks(planner, size):
    turns = Turns(planner(), turns_of(4, 4, 16, in_time=48, in_all=64))
    chunk = []
    while len(chunk) < 40:
        chunk += turns.next_chunk(min(size, 40 - len(chunk)))
    found = counts(chunk)
    assert found[0] + found[1] == 32
    assert (found[2], found[3]) == (4, 4)
    assert set(counts(turns.next_chunk(8))) == {2, 3}


def test_a_turn_whose_groups_want_no_more_is_over():
    turns = Turns(uniform(candidates=5), [Turn(range(4), 40), Turn((3,), math.inf)])
    assert len(turns.next_chunk(100)) == 20
    assert turns.next_chunk(1) == []


@pytest.mark.parametrize("planner", [uniform, bandit])
def test_a_planner_gives_candidates_to_the_groups_that_it_is_restricted_to(planner):
    plan = planner()
    plan.next_chunk(16)
    plan.restrict((1, 2))
    assert set(counts(plan.next_chunk(20))) <= {1, 2}
    plan.restrict((0,))
    assert counts(plan.next_chunk(3)) == {0: 3}


@pytest.mark.parametrize("planner", [uniform, bandit])
def test_no_seed_is_handed_out_twice_when_groups_are_restricted_again(planner):
    plan = planner()
    chunk = plan.next_chunk(7)
    for groups in ((2, 3), (0,), (1, 3)):
        plan.restrict(groups)
        chunk += plan.next_chunk(5)
    assert len({(one.group, one.seed) for one in chunk}) == len(chunk)


def test_a_group_that_lacks_candidates_is_given_none_while_it_is_left_out():
    plan = bandit()
    lost = plan.next_chunk(16)[0]
    plan.restrict((1,))
    plan.forget(lost)
    assert lost.group == 0
    assert counts(plan.next_chunk(2)) == {1: 2}


def test_a_restricted_planner_opens_no_other_prompt_of_its_pool():
    plan = BanditPlanner(
        job_seed=1,
        iteration=2,
        prompts=[f"prompt {group}" for group in range(8)],
        keep=4,
        candidates=16,
        most=64,
        rewards=ContinuousRewards((0.0, 1.0)),
        trained=2,
    )
    for candidate in plan.next_chunk(8):
        plan.record(candidate, 0.5)
    plan.restrict((0, 1))
    assert set(counts(plan.next_chunk(30))) <= {0, 1}


def test_a_choice_counts_all_that_a_restricted_group_was_given():
    plan = uniform(groups=2, candidates=6)
    plan.restrict((1,))
    for number, candidate in enumerate(plan.next_chunk(12)):
        plan.record(candidate, number / 12)
    first, second = plan.choose()
    assert not first.is_previewed
    assert second.is_previewed
    assert {0.0, 11 / 12} <= set(second.preview_rewards)
