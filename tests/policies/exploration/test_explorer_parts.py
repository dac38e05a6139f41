"""The explorer where an iteration is trained in two parts: later groups are chosen when the first
part is trained."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from explorer_kit import KEEP, Expedition, reward_of

from spotlight.policies.exploration.explorer import Preview
from spotlight.policies.exploration.planners import max_variance_subset
from spotlight.policies.exploration.reward_spread import UNLIMITED


def expedition(mode: str = "uniform") -> Expedition:
    return Expedition("window", mode, candidates=5 * KEEP, divides=True)


def of_group(previews: list[Preview], group: int) -> list[Preview]:
    return [preview for preview in previews if preview.group == group]


def kept(previews: list[Preview]) -> set[int]:
    rewards = [reward_of(one) for one in previews]
    chosen = max_variance_subset(rewards, 4, tie_break=[one.seed for one in previews])
    return {previews[index].seed for index in chosen}


def test_half_of_the_groups_stay_open_when_training_ends() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    assert trip.explored.reused == (0, 1)
    assert trip.explored.later == (1,)
    assert trip.cancelled == 0, "what is in work may be of use"


def test_what_comes_for_a_later_group_counts_until_it_is_settled() -> None:
    trip = expedition()
    trip.start()
    in_time = trip.submitted[:8]
    trip.finish(in_time)
    trip.stop(reuses=True)
    in_work = [one for one in trip.submitted if one not in in_time]
    trip.finish(in_work)
    trip.settle()
    first, last = trip.outcomes
    assert last.seeds[0] == first.seeds[0], "its samples are trained on by now"
    assert set(last.seeds[1]) == kept(of_group(trip.submitted, 1)) != set(first.seeds[1])
    assert last.later == first.later


def test_previews_of_a_group_that_is_chosen_come_too_late() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True, first_part_s=0.0)
    in_work = trip.submitted[8:]
    late = len(of_group(in_work, 0))
    trip.finish(in_work)
    trip.settle()
    first, last = trip.outcomes
    assert last.late == late == 4
    assert last.previews == first.previews + len(in_work) - late


def test_previews_of_later_groups_that_do_not_come_in_time_are_late_too() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    trip.settle()
    assert trip.outcomes[-1].late == len(trip.submitted) - 8


def behind() -> tuple[Expedition, list[Preview]]:
    """The first group has two previews more than the other; those in work are withdrawn."""
    trip = expedition()
    trip.start()
    trip.now += 3.0  # a preview takes three seconds
    trip.finish(trip.submitted[:8])
    more = of_group(trip.submitted[8:], 0)[:2]
    trip.finish(more)
    return trip, [one for one in trip.submitted[8:] if one not in more]


def test_later_groups_are_given_as_many_previews_as_the_others_have() -> None:
    trip, in_work = behind()
    before = len(trip.submitted)
    trip.stop(reuses=True, withdrawn=in_work)
    more = trip.submitted[before:]
    assert {one.group for one in more} == {1}
    trip.finish(more)
    assert trip.submitted[before:] == more, "they would keep workers from the next exploration"


def test_later_groups_that_are_not_behind_are_given_no_more() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    before = len(trip.submitted)
    trip.stop(reuses=True, withdrawn=trip.submitted[8:])
    assert len(trip.submitted) == before


def test_none_is_begun_that_would_come_after_the_first_part() -> None:
    trip, in_work = behind()
    before = len(trip.submitted)
    trip.stop(reuses=True, withdrawn=in_work, first_part_s=2.0)
    assert len(trip.submitted) == before


def test_nothing_more_is_begun_for_them_once_the_next_exploration_has() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    in_work = of_group(trip.submitted[8:], 1)
    before = len(trip.submitted)
    trip.start(iteration=2, withdrawn=in_work[-2:])
    trip.finish(in_work[:-2])
    assert {one.iteration for one in trip.submitted[before:]} == {2}
    trip.settle(1)
    assert trip.outcomes[-1].previews == 8 + len(in_work) - 2


def test_the_next_exploration_goes_on_while_later_groups_are_open() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    trip.start(iteration=2)
    trip.finish([one for one in trip.submitted if one.iteration == 2][:8])
    trip.stop(iteration=2, reuses=True)
    assert [one.iteration for one in trip.outcomes] == [1, 2]


def test_what_is_left_when_nothing_else_is_explored_is_given_up() -> None:
    """After the last iteration but one nobody withdraws it."""
    trip, in_work = behind()
    trip.stop(reuses=True, withdrawn=in_work)
    assert trip.explorer.unsubmitted > 0
    trip.settle()
    assert trip.cancelled == 1
    assert trip.explorer.unsubmitted == 0


def test_previews_of_the_next_exploration_are_not_given_up_with_those_of_later_groups() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    trip.start(iteration=2)
    trip.settle(1)
    assert trip.cancelled == 0


def test_settling_another_iteration_or_twice_changes_nothing() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    trip.settle(7)
    assert len(trip.outcomes) == 1
    trip.settle()
    trip.settle()
    assert len(trip.outcomes) == 2


def test_what_later_groups_do_not_keep_is_unused_only_when_they_are_settled() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.finish(trip.submitted[8:12])
    trip.stop(reuses=True)
    done = trip.submitted[:12]
    (first,) = trip.outcomes
    closed, later = (0, 1) if first.later == (1,) else (1, 0)
    gone = {one for one in of_group(done, closed) if one.seed not in first.seeds[closed]}
    assert set(trip.unused) == gone
    trip.settle()
    kept_at_last = trip.outcomes[-1].seeds[later]
    assert set(trip.unused) == {
        one for one in of_group(done, later) if one.seed not in kept_at_last
    }


def test_groups_that_are_not_whole_have_the_iteration_trained_in_one() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:7])
    trip.stop(reuses=True)
    assert trip.explored.later == ()
    assert trip.cancelled == 1


def test_where_previews_may_not_be_trained_on_nothing_stays_open() -> None:
    trip = expedition()
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=False)
    trip.settle()
    assert trip.explored.later == ()


@pytest.mark.parametrize("mode", ["uniform", "bandit"])
def test_groups_of_the_first_part_have_their_share_first(mode: str) -> None:
    """So that what is in work when training ends is for the others."""
    trip = expedition(mode)
    for iteration in (1, 2, 3):
        began = len(trip.submitted)
        trip.start(iteration=iteration, window_s=100.0)
        for number in range(began, began + 16):
            trip.finish([trip.submitted[number]])
        in_time, in_work = trip.submitted[began : began + 16], trip.submitted[began + 16 :]
        trip.stop(iteration=iteration, reuses=True, withdrawn=in_work[4:], first_part_s=0.0)
        trip.finish(in_work[:4])
        trip.settle(iteration)
    assert trip.outcomes[-1].later == (1,)
    assert trip.outcomes[-1].late == 0
    asked = Counter(one.group for one in in_time)
    assert asked[0] > asked[1], "the others have theirs later"


def test_what_is_trained_on_is_not_chosen_anew_when_rewards_come_to_another_scale() -> None:
    trip = Expedition(
        "window",
        candidates=5 * KEEP,
        divides=True,
        limits=((0.0, 1.0), UNLIMITED),
        weights=(1.0, 1.0),
    )
    started: list[int] = []
    late = False

    def rewards(request: Preview) -> tuple[float, ...]:
        rng, spread = random.Random(request.seed), 1000.0 if late else 1.0
        started.append(request.seed)
        return rng.random(), spread * rng.random()

    trip.rewards = rewards
    trip.start()
    for _ in range(2):
        trip.finish([one for one in trip.submitted if one.seed not in started])
    before, late = len(started), True  # the second reward hardly counts any more
    trip.stop(reuses=True)
    trip.finish([one for one in trip.submitted if one.seed not in started])
    trip.settle()
    first, last = trip.outcomes
    assert len(started) > before
    assert first.scale != last.scale
    closed = 1 - first.later[0]
    assert last.seeds[closed] == first.seeds[closed]
    assert last.preview_rewards[closed] != first.preview_rewards[closed], "on the new scale"


def test_what_is_learnt_of_later_groups_is_handed_on() -> None:
    trip = expedition("bandit")
    trip.start()
    trip.finish(trip.submitted[:8])
    trip.stop(reuses=True)
    trip.finish(trip.submitted[8:])
    trip.settle()
    first, last = trip.outcomes
    (prompt,) = (trip.prompts[group] for group in first.later)
    assert last.knowledge.prompts[prompt].total > first.knowledge.prompts[prompt].total


def in_batches(trip: Expedition, until: int) -> None:
    """One batch of four after the other is scored, while two are in work."""
    for first in range(0, until, 4):
        trip.finish(trip.submitted[first : first + 4])


def test_what_is_lacking_is_counted_by_group_and_not_by_previews() -> None:
    trip = expedition()
    trip.start()
    assert trip.explorer.lacking == 8
    fast, slow = (of_group(trip.submitted, group) for group in (0, 1))
    trip.finish(fast + slow[:2])
    trip.finish([one for one in of_group(trip.submitted, 0) if one not in fast])
    assert trip.explorer.scored >= 8
    assert trip.explorer.lacking == 2
    assert not trip.explorer.is_whole, "group 1 has two of the four that it needs"
    trip.finish(slow[2:])
    assert trip.explorer.is_whole


def test_of_a_pool_as_many_groups_must_be_whole_as_are_trained_on() -> None:
    trip = Expedition("window", prompts="abcd", candidates=16 * KEEP, groups=4, divides=True)
    trip.start()
    for group in (3, 1):
        trip.finish(of_group(trip.submitted, group)[:4])
    assert trip.explorer.lacking == 0


def in_a_pool() -> Expedition:
    """In its second iteration, when the turn of the later groups has come: the explorer knows how
    many previews come in time by the first."""
    trip = Expedition("window", "bandit", prompts="abcd", candidates=16 * KEEP, divides=True)
    trip.reward = lambda request: 0.5 if request.prompt == "a" else reward_of(request)
    trip.start()
    in_batches(trip, 24)
    trip.stop(reuses=True)
    trip.finish(trip.submitted[24:])
    trip.settle()
    trip.submitted.clear()
    trip.start(iteration=2)
    return trip


def test_in_a_pool_what_comes_last_is_not_for_groups_of_the_first_part() -> None:
    trip = in_a_pool()
    in_batches(trip, 24)
    last = {one.group for one in trip.submitted[20:]}
    trip.stop(iteration=2, reuses=True)
    explored = trip.outcomes[-1]
    (first,) = set(explored.reused) - set(explored.later)
    assert first not in last
    assert set(explored.later) <= last
    assert {one.group for one in trip.submitted[:20]} > last, "before, all had a chance"


def test_in_a_pool_the_first_part_keeps_its_group_though_others_become_wider() -> None:
    trip = in_a_pool()
    in_batches(trip, 20)
    others = {one.group for one in trip.submitted[20:]}
    trip.reward = lambda request: float(request.seed % 2)
    for first in range(20, 48, 4):
        trip.finish(trip.submitted[first : first + 4])
    trip.stop(iteration=2, reuses=True)
    explored = trip.outcomes[-1]
    assert len(explored.reused) == 2
    (kept,) = set(explored.reused) - others
    assert explored.later == tuple(set(explored.reused) - {kept})


def test_in_a_pool_a_prompt_without_contrast_is_not_trained_on() -> None:
    trip = in_a_pool()
    in_batches(trip, 28)
    trip.stop(iteration=2, reuses=True)
    assert 0 not in trip.outcomes[-1].reused


@pytest.mark.parametrize("mode", ["uniform", "bandit"])
def test_in_a_pool_groups_are_not_chosen_before_any_preview_is_scored(mode: str) -> None:
    """Four workers are given all that the first turn has as soon as exploration begins; prompt `a`
    has no contrast."""
    trip = Expedition("window", mode, prompts="abcd", candidates=16 * KEEP, groups=4, divides=True)
    trip.reward = lambda request: 0.5 if request.prompt == "a" else reward_of(request)
    for iteration in (1, 2):
        trip.submitted.clear()
        trip.start(iteration=iteration)
        trip.finish(trip.submitted[:24])
        trip.stop(iteration=iteration, reuses=True)
        trip.finish(trip.submitted[24:])
        explored = trip.outcomes[-1]
        trip.settle(iteration)
    assert len(explored.reused) == 2
    assert 0 not in set(explored.reused) - set(explored.later)


def test_in_a_pool_a_group_that_lost_a_preview_is_not_trained_on() -> None:
    trip = Expedition("window", prompts="abcd", candidates=16 * KEEP, groups=2, divides=True)
    trip.start()
    trip.finish(trip.submitted[:16])
    trip.stop(reuses=True)
    trip.settle()
    trip.submitted.clear()
    trip.start(iteration=2)
    lost = trip.submitted[0]
    trip.give_up([lost])
    trip.finish([one for one in trip.submitted[:16] if one is not lost])
    trip.stop(iteration=2, reuses=True)
    explored = trip.outcomes[-1]
    assert len(explored.later) == 1
    assert lost.group not in explored.reused
