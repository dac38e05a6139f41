"""Prompts whose rewards spread more are given more candidates, and full groups none."""

from __future__ import annotations

import random
from collections import Counter
from statistics import pstdev

import pytest
from bandit_kit import ANY, BOUNDED, alike, explore, normal, planner
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.exploration.planners import Candidate, UniformPlanner, widest
from spotlight.policies.exploration.reward_spread import (
    UNLIMITED,
    ContinuousRewards,
    Evidence,
    Knowledge,
)


def test_prompts_whose_rewards_spread_more_get_more():
    issued = explore(planner(groups=4), normal([0.01, 0.1, 0.1, 1.0]))
    assert max(issued[group] for group in range(3)) < issued[3] / 2


def test_the_kept_rewards_spread_more_than_with_equal_numbers():
    stds = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    totals = [0.0, 0.0]
    for seed in range(10):
        plans = [
            planner(6, job_seed=seed),
            UniformPlanner(job_seed=seed, iteration=3, groups=6, keep=4, candidates=12),
        ]
        for index, plan in enumerate(plans):
            explore(plan, normal(stds))
            rewards = [sorted(choice.preview_rewards) for choice in plan.choose()]
            totals[index] += sum(best_contrast(group, 4) for group in rewards)
    assert totals[0] > 1.03 * totals[1]


def over_uniform(reward, groups: int, keep: int, each: int, rounds: int) -> float:
    """The contrast of the bandit over that of as many candidates for every prompt. `reward` is
    given a random generator and the group."""
    bandit = uniform = 0.0
    for seed in range(rounds):
        drawn = [random.Random(f"{seed} {group}") for group in range(groups)]
        rows = [[reward(rng, group) for _ in range(8 * keep)] for group, rng in enumerate(drawn)]
        plan = planner(
            groups, keep=keep, candidates=each, most=2 * each, rewards=BOUNDED, job_seed=seed
        )
        taken = [iter(row) for row in rows]
        issued = explore(plan, lambda candidate, taken=taken: next(taken[candidate.group]), 16)
        bandit += sum(
            best_contrast(sorted(row[: issued[group]]), keep) for group, row in enumerate(rows)
        )
        uniform += sum(best_contrast(sorted(row[:each]), keep) for row in rows)
    return bandit / uniform


def four_characters(rng: random.Random, rate: float) -> float:
    return sum(rng.random() < rate for _ in range(4)) / 4


@pytest.mark.parametrize("each", [8, 16])
@pytest.mark.parametrize(
    "reward",
    [
        lambda rng, group: four_characters(rng, 0.3),
        lambda rng, group: 1.0 - 0.25 * (rng.random() < 0.1),
        lambda rng, group: min(1.0, max(0.0, rng.gauss(0.5, 0.1))),
    ],
    ids=["few levels", "rare failures", "normal"],
)
def test_where_prompts_are_alike_nothing_is_lost_to_equal_numbers(reward, each):
    assert over_uniform(reward, groups=24, keep=4, each=each, rounds=12) > 0.99


def test_where_prompts_differ_contrast_is_gained():
    rates = [0.02, 0.05, 0.3, 0.5, 0.95, 0.98]
    assert over_uniform(lambda rng, n: four_characters(rng, rates[n % 6]), 24, 4, 16, 8) > 1.01
    stds = [0.01, 0.02, 0.04, 0.08, 0.16]
    assert over_uniform(lambda rng, n: rng.gauss(0.5, stds[n % 5]) % 1, 25, 4, 16, 8) > 1.02


def test_belief_is_as_sure_as_it_is_right():
    held = []
    for seed in range(2):
        rng = random.Random(seed)
        stds = [rng.lognormvariate(-3, 0.7) for _ in range(150)]
        plan = planner(150, keep=8, candidates=16, most=32, job_seed=seed)
        explore(plan, normal(stds))
        for group, std in enumerate(stds):
            belief = plan.belief(group)
            draws = sorted(
                belief.total / (2 * rng.gammavariate(belief.count / 2, 1)) for _ in range(200)
            )
            held.append(draws[10] <= std * std <= draws[-11])
    assert 0.8 <= sum(held) / len(held) <= 0.95


def test_a_large_chunk_does_not_pile_onto_the_widest_prompt():
    plan = planner(groups=4, candidates=24, most=96)
    floor = plan.next_chunk(16)
    for candidate in floor:
        plan.record(candidate, normal([0.4, 0.45, 0.5, 0.55])(candidate))
    issued = Counter(candidate.group for candidate in plan.next_chunk(40))
    assert max(issued.values()) < 30
    assert len(issued) == 4


def test_the_uniform_share_reaches_groups_that_are_believed_to_gain_nothing():
    flat = {f"prompt {number}": Evidence(1e9, 1e-9) for number in range(3)}
    known = Knowledge(flat, {"": alike(1e-9, visits=1e9)})
    issued = explore(
        planner(candidates=64, most=256, knowledge=known), normal([0.0, 0.0, 0.0, 1.0])
    )
    assert [issued[group] for group in range(3)] == [4 + 240 // 40] * 3


# --- saturation and rewards that say nothing ---


def test_a_group_with_half_of_its_seeds_at_each_end_gets_no_more():
    issued = explore(
        planner(groups=2, rewards=BOUNDED),
        lambda c: float(c.seed % 2) if c.group == 0 else random.Random(c.seed).uniform(0.4, 0.6),
    )
    assert issued[0] < 16
    assert sum(issued.values()) == 24


def test_when_all_groups_are_saturated_the_rest_of_the_budget_is_left():
    plan = planner(groups=3, rewards=BOUNDED, candidates=30)
    issued = explore(plan, lambda candidate: float(candidate.seed % 2))
    assert sum(issued.values()) < 60
    assert all(sorted(c.preview_rewards) == [0.0, 0.0, 1.0, 1.0] for c in plan.choose())


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rewards", [ANY, BOUNDED, ContinuousRewards((0, 1), (-1, 1))])
def test_constant_rewards_neither_stall_nor_divide_by_zero(value, rewards):
    reward = [value] * len(rewards.limits)
    plan = planner(rewards=rewards)
    issued = explore(plan, lambda candidate: reward)
    assert sum(issued.values()) == 48
    assert max(issued.values()) - min(issued.values()) <= 1


# --- several rewards ---


def test_no_reward_drowns_the_others_by_its_unit():
    def reward(candidate, unit):
        rng = random.Random(candidate.seed)
        stds = [(1.0, 0.1), (0.1, 1.0), (0.1, 0.1)][candidate.group]
        return rng.gauss(0, stds[0]), unit * rng.gauss(0, stds[1])

    choices = []
    for unit in (1.0, 1024.0):
        several = ContinuousRewards(UNLIMITED, UNLIMITED)
        plan = planner(3, rewards=several, keep=8, candidates=24, most=72)
        issued = explore(plan, lambda candidate, unit=unit: reward(candidate, unit))
        assert issued[2] < min(issued[0], issued[1])
        choices.append((issued, [choice.seeds for choice in plan.choose()]))
    assert choices[0] == choices[1]


def test_a_full_group_stays_full_when_the_scale_of_the_rewards_changes():
    plan = planner(2, keep=2, rewards=ContinuousRewards((0.0, 1.0), (0.0, 1.0)), candidates=16)
    issued = explore(plan, lambda c: (c.seed % 2,) * 2 if c.group == 0 else (0.4, c.seed % 3 / 10))
    full = plan.choose()[0].preview_rewards
    assert min(full) == 0 < max(full)
    assert sum(issued.values()) == 32
    assert issued[0] < 12


def test_several_rewards_count_in_a_choice_before_anything_more_is_planned():
    plan = planner(1, keep=2, rewards=ContinuousRewards((0.0, 1.0), (0.0, 1000.0)))
    rewards = [(0.2, 500.0), (0.0, 0.0), (1.0, 1000.0), (0.8, 300.0)]
    chunk = plan.next_chunk(4)
    for candidate, reward in zip(chunk, rewards, strict=True):
        plan.record(candidate, reward)
    assert set(plan.choose()[0].seeds) == {chunk[1].seed, chunk[2].seed}


def test_a_reward_counts_by_its_weight():
    def reward(candidate):
        rng = random.Random(candidate.seed)
        return rng.random(), 1000 * rng.random()

    kept = {}
    for weights in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]):
        limits = ContinuousRewards((0.0, 1.0), (0.0, 1000.0))
        plan = planner(1, keep=2, rewards=limits, weights=weights, candidates=32)
        explore(plan, reward)
        rewards = [reward(Candidate(0, seed)) for seed in plan.choose()[0].seeds]
        kept[tuple(weights)] = [pstdev(column) for column in zip(*rewards, strict=True)]
    assert kept[1.0, 0.0][0] > kept[0.0, 1.0][0]
    assert kept[0.0, 1.0][1] > kept[1.0, 0.0][1]
    assert min(kept[1.0, 1.0][0], kept[1.0, 1.0][1] / 1000) > 0.2


def test_rewards_and_weights_must_be_as_many():
    with pytest.raises(ValueError, match="2 weights for 1 rewards"):
        planner(rewards=BOUNDED, weights=[1.0, 1.0])


# --- a pool of prompts ---


def pooled(**changes) -> BanditPlanner:
    """Two prompts of six are trained on, with eight candidates each."""
    return planner(**({"groups": 6, "trained": 2, "candidates": 3, "most": 16} | changes))


def test_while_all_prompts_contrast_no_other_is_explored():
    scored: Counter[int] = Counter()

    def reward(candidate: Candidate) -> float:
        scored[candidate.group] += 1
        return 0.2 + 0.6 * (scored[candidate.group] % 2)

    assert set(explore(pooled(rewards=BOUNDED), reward)) == {0, 1}


def test_others_are_explored_in_place_of_prompts_that_are_solved():
    def reward(candidate: Candidate) -> float:
        return 1.0 if candidate.group == 0 else random.Random(candidate.seed).random()

    plan = pooled(rewards=BOUNDED, candidates=4)
    issued = explore(plan, reward)
    assert issued[0] < issued[1]
    assert len(issued) > 2
    trained = [choice for choice in widest(plan.choose(), 2) if choice.seeds]
    assert all(choice.is_previewed and pstdev(choice.preview_rewards) > 0.2 for choice in trained)


def test_a_prompt_of_a_pool_is_given_as_many_candidates_as_are_kept_or_none():
    issued = explore(pooled(candidates=4), lambda candidate: 0.5 + 0.01 * (candidate.group > 1))
    assert all(count >= 4 for count in issued.values())


def test_the_prompt_is_opened_whose_category_contrasts_most():
    lively, dull = (
        ANY.visit(rewards) * 40.0 for rewards in ([0.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.51])
    )
    plan = pooled(
        categories=["dull", "dull", "dull", "dull", "lively", "dull"],
        knowledge=Knowledge({}, {"dull": dull, "lively": lively}),
    )
    issued = explore(plan, normal([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    assert issued[4] >= 4
    assert issued[4] > max(issued[group] for group in (2, 3, 5))


@given(
    groups=st.integers(1, 8),
    trained=st.integers(1, 8),
    chunk=st.integers(1, 20),
    solved=st.sets(st.integers(0, 7)),
)
@settings(max_examples=60, deadline=None)
def test_a_pool_never_takes_more_than_its_budget(groups, trained, chunk, solved):
    plan = planner(groups, trained=trained, rewards=BOUNDED)
    issued = explore(
        plan,
        lambda one: 1.0 if one.group in solved else random.Random(one.seed).random(),
        chunk,
    )
    assert sum(issued.values()) <= 12 * groups
    assert all(issued[group] >= 4 for group in range(min(groups, trained)))


def test_with_a_pool_the_order_in_which_scores_arrive_changes_nothing():
    reward = normal([0.0, 0.3, 0.0, 0.2, 0.1, 0.4])
    plans = [pooled(), pooled()]
    while True:
        chunks = [plan.next_chunk(6) for plan in plans]
        assert chunks[0] == chunks[1]
        if not chunks[0]:
            break
        for plan, chunk in zip(plans, (chunks[0], chunks[1][::-1]), strict=True):
            for candidate in chunk:
                plan.record(candidate, reward(candidate))
    assert plans[0].choose() == plans[1].choose()
