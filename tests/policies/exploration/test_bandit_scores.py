"""The bandit's budget, limits and choice hold, and can be repeated, however its scores arrive."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from bandit_kit import ANY, BOUNDED, explore, normal, planner
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration.bandit import InvalidReward
from spotlight.policies.exploration.planners import Candidate, UniformPlanner, first_seeds
from spotlight.policies.exploration.reward_spread import ContinuousRewards


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 5),
    keep=st.integers(2, 4),
    candidates=st.integers(0, 9),
    more=st.integers(0, 6),
    chunk=st.integers(1, 11),
    data=st.data(),
)
def test_floor_cap_and_budget_hold_whatever_is_scored_forgotten_or_late(
    groups, keep, candidates, more, chunk, data
):
    plan = planner(groups, keep=keep, candidates=candidates, most=keep + more, rewards=BOUNDED)
    awaited, issued = [], Counter()
    while True:
        planned = plan.next_chunk(chunk)
        assert len(planned) <= chunk
        awaited += planned
        issued.update(candidate.group for candidate in planned)
        if issued and max(issued.values()) > keep:
            assert all(issued[group] >= keep for group in range(groups))
        if not planned and not awaited:
            break
        outcomes = data.draw(
            st.lists(st.sampled_from(["score", "forget", "wait"]), min_size=1, max_size=12)
        )
        for outcome in outcomes[: len(awaited)]:
            candidate = awaited.pop(0)
            if outcome == "score":
                plan.record(candidate, data.draw(st.sampled_from([0.0, 0.25, 0.3, 1.0])))
            elif outcome == "forget":
                plan.forget(candidate)
            else:
                awaited.append(candidate)
        if not planned and "score" not in outcomes:
            break
    assert sum(issued.values()) <= groups * candidates
    assert max(issued.values(), default=0) <= keep + more
    choices = plan.choose()
    assert [len(set(choice.seeds)) for choice in choices] == [keep] * groups


@settings(max_examples=30, deadline=None)
@given(chunk=st.integers(1, 9), cut=st.integers(0, 48))
def test_a_cut_at_any_moment_leaves_groups_that_are_equally_full(chunk, cut):
    plan = planner(groups=6, keep=8)
    issued = Counter({group: 0 for group in range(6)})
    while sum(issued.values()) < cut:
        issued.update(candidate.group for candidate in plan.next_chunk(chunk))
    if sum(issued.values()) <= 48:
        assert max(issued.values()) - min(issued.values()) <= 1


def test_the_whole_budget_is_spent_on_rewards_without_end():
    issued = explore(planner(groups=4), normal([0.1, 0.2, 0.3, 0.4]))
    assert sum(issued.values()) == 4 * 12


def test_the_same_seed_and_scores_give_the_same_decisions():
    plans = [planner(5) for _ in range(2)]
    for _ in range(12):
        chunks = [plan.next_chunk(5) for plan in plans]
        assert chunks[0] == chunks[1]
        for plan, chunk in zip(plans, chunks, strict=True):
            for candidate in chunk:
                plan.record(candidate, float(candidate.seed % 3 == 0))


def test_another_job_seed_has_other_candidates_and_so_other_numbers():
    stds = [0.2, 0.25, 0.3, 0.3]
    numbers = {tuple(sorted(explore(planner(job_seed=s), normal(stds)).items())) for s in range(5)}
    assert len(numbers) > 1


@settings(max_examples=40, deadline=None)
@given(data=st.data(), several=st.booleans(), groups=st.integers(1, 40))
def test_the_order_in_which_scores_of_a_chunk_arrive_changes_nothing(data, several, groups):
    rewards = ContinuousRewards((0.0, 1.0), (0.0, 1.0)) if several else ANY
    categories = [str(group % 7) for group in range(groups)]
    plans = [
        planner(groups, rewards=rewards, keep=2, candidates=5, categories=categories)
        for _ in range(2)
    ]
    while chunk := plans[0].next_chunk(groups):
        assert plans[1].next_chunk(groups) == chunk
        scores = {}
        for candidate in chunk:
            rng = random.Random(candidate.seed)
            scores[candidate] = (rng.random(), rng.random()) if several else rng.random()
        for plan, order in zip(plans, (chunk, data.draw(st.permutations(chunk))), strict=True):
            for candidate in order:
                plan.record(candidate, scores[candidate])
    assert plans[1].next_chunk(1) == []
    assert plans[0].choose() == plans[1].choose()
    assert plans[0].learnt() == plans[1].learnt()


def test_nor_does_it_among_many_groups():
    plans = [planner(1000, keep=2, candidates=4) for _ in range(2)]
    for plan, step in zip(plans, (1, -1), strict=True):
        for size in (2000, 200):
            for candidate in plan.next_chunk(size)[::step]:
                plan.record(candidate, random.Random(candidate.seed).random())
    assert plans[0].next_chunk(900) == plans[1].next_chunk(900)


def test_looking_at_the_choice_changes_no_decision():
    plans = [planner(rewards=ContinuousRewards((0, 1), (0, 1))) for _ in range(2)]
    for _ in range(12):
        chunks = [plan.next_chunk(4) for plan in plans]
        assert chunks[0] == chunks[1]
        for plan, chunk in zip(plans, chunks, strict=True):
            for candidate in chunk:
                rng = random.Random(candidate.seed)
                plan.record(candidate, (rng.random(), rng.random()))
        plans[0].choose()
        plans[0].learnt()


# --- scores that never come, or cannot be ---


def test_before_anything_is_scored_the_whole_budget_can_be_planned():
    for rewards in (ANY, ContinuousRewards((0, 1), (0, 1))):
        chunk = planner(rewards=rewards).next_chunk(1000)
        assert len(chunk) == len(set(chunk)) == 48


def test_a_forgotten_candidate_of_the_floor_is_replaced():
    plan = planner(groups=3, candidates=6)
    first = plan.next_chunk(12)
    for candidate in first[:-1]:
        plan.record(candidate, 0.5)
    plan.forget(first[-1])
    (replacement, *_) = plan.next_chunk(1)
    assert replacement.group == first[-1].group
    assert replacement.seed != first[-1].seed


def test_a_group_whose_scores_never_come_ends_at_its_cap():
    plan = planner(groups=2, candidates=16, most=20)
    issued = Counter()
    while chunk := plan.next_chunk(3):
        for candidate in chunk:
            issued[candidate.group] += 1
            if candidate.group == 0:
                plan.forget(candidate)
            else:
                plan.record(candidate, normal([0, 1.0])(candidate))
    assert issued == {0: 20, 1: 12}
    assert all(reward is None for reward in plan.choose()[0].preview_rewards)


def test_forgetting_makes_room_where_awaiting_did_not():
    plans = [planner(groups=2, candidates=40, most=200) for _ in range(2)]
    numbers = []
    for plan, forgets in zip(plans, (False, True), strict=True):
        for candidate in plan.next_chunk(8):
            plan.record(candidate, normal([1.0, 0.8])(candidate))
        for candidate in plan.next_chunk(20):
            if forgets and candidate.group == 0:
                plan.forget(candidate)
        numbers.append(Counter(candidate.group for candidate in plan.next_chunk(10))[0])
    assert numbers[0] < numbers[1]


def test_a_score_counts_once_also_after_it_was_given_up():
    plan = planner(groups=1)
    first, second, *_ = plan.next_chunk(4)
    plan.forget(first)
    plan.record(first, 0.25)
    plan.record(first, 0.75)
    plan.forget(first)
    plan.record(second, 0.5)
    (choice,) = plan.choose()
    assert dict(zip(choice.seeds, choice.preview_rewards, strict=True))[first.seed] == 0.25


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1.5, (0.5, 0.5), ()])
def test_an_invalid_reward_is_refused_and_changes_nothing(reward):
    plans = [planner(rewards=BOUNDED) for _ in range(2)]
    chunk = plans[0].next_chunk(6)
    plans[1].next_chunk(6)
    with pytest.raises(InvalidReward, match=f"group 2, seed {chunk[2].seed}") as refused:
        plans[0].record(chunk[2], reward)
    assert refused.value.candidate == chunk[2]
    assert plans[0].choose() == plans[1].choose()
    assert plans[0].next_chunk(30) == plans[1].next_chunk(30)
    plans[0].record(chunk[2], 0.5)


@pytest.mark.parametrize("stranger", [Candidate(0, 1), Candidate(99, 1), Candidate(-1, 1)])
def test_candidates_that_were_never_handed_out_are_refused(stranger):
    plan = planner()
    plan.next_chunk(3)
    with pytest.raises(ValueError, match="was not handed out"):
        plan.record(stranger, 0.5)
    with pytest.raises(ValueError, match="was not handed out"):
        plan.forget(stranger)


# --- the choice ---


def test_without_scores_the_choice_is_that_of_a_run_without_exploration():
    plan = planner()
    plan.next_chunk(7)
    assert plan.choose() == first_seeds(5, 3, groups=4, keep=4)


def test_the_choice_from_equal_scores_is_that_of_the_uniform_planner():
    plans = [
        planner(candidates=8, most=8),
        UniformPlanner(job_seed=5, iteration=3, groups=4, keep=4, candidates=8),
    ]
    issued = [plan.next_chunk(32) for plan in plans]
    assert set(issued[0]) == set(issued[1])
    for candidate in issued[0][:29]:
        for plan in plans:
            plan.record(candidate, round(random.Random(candidate.seed).random(), 1))
    assert plans[0].choose() == plans[1].choose()


@pytest.mark.parametrize("changes", [{"candidates": 0}, {"prompts": []}])
def test_nothing_is_planned_without_a_budget_or_prompts(changes):
    plan = planner(**changes)
    assert plan.next_chunk(10) == plan.next_chunk(0) == []
    assert len(plan.choose()) == (0 if "prompts" in changes else 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 1}, "keep must be"),
        ({"most": 3}, "keep must be"),
        ({"candidates": -1}, "candidates must be"),
        ({"categories": ["a"]}, "1 categories"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        planner(**changes)
