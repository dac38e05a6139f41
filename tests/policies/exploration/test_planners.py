import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration import planners
from spotlight.policies.exploration.planners import (
    SeedChoice,
    UniformPlanner,
    chunk_size,
    derived_seed,
    draw_prompts,
    first_seeds,
    widest,
    widest_beside,
)
from spotlight.policies.exploration.ranking import spread

MANY = 6000
"""Prompts: a pass over so many is not sorted."""


def planner(groups: int = 3, keep: int = 2, candidates: int = 6, **changes) -> UniformPlanner:
    settings = {"job_seed": 5, "iteration": 4, **changes}
    return UniformPlanner(groups=groups, keep=keep, candidates=candidates, **settings)


def all_candidates(plan: UniformPlanner, chunk: int = 4):
    candidates = []
    while part := plan.next_chunk(chunk):
        candidates += part
    return candidates


def test_candidates_are_handed_out_round_robin_over_the_prompts():
    assert [candidate.group for candidate in planner().next_chunk(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_every_candidate_is_handed_out_once_whatever_the_chunks(chunk):
    candidates = all_candidates(planner(), chunk)
    assert len(candidates) == len(set(candidates)) == 3 * 6
    assert set(candidates) == set(all_candidates(planner(), 4))


def test_nothing_is_handed_out_for_no_place():
    plan = planner()
    assert plan.next_chunk(0) == plan.next_chunk(-3) == []
    assert len(all_candidates(plan)) == 18


def test_seeds_depend_on_the_job_the_iteration_and_the_group():
    plans = [planner(), planner(job_seed=6), planner(iteration=5)]
    seeds = [candidate.seed for plan in plans for candidate in all_candidates(plan)]
    assert len(set(seeds)) == len(seeds)


def test_without_scores_the_choice_is_that_of_a_run_without_exploration():
    plan = planner()
    plan.next_chunk(5)
    assert plan.choose() == first_seeds(5, 4, groups=3, keep=2)
    assert all(choice.preview_rewards == (None, None) for choice in plan.choose())


def test_the_kept_seeds_contrast_most():
    plan = planner(groups=1, keep=2, candidates=5)
    candidates = all_candidates(plan)
    for candidate, reward in zip(candidates, [0.4, 0.9, 0.5, 0.1, 0.6], strict=True):
        plan.record(candidate, reward)
    (choice,) = plan.choose()
    assert choice.seeds == (candidates[1].seed, candidates[3].seed)
    assert choice.preview_rewards == (0.9, 0.1)


def test_a_group_with_too_few_scores_keeps_them_and_is_topped_up():
    plan = planner(groups=2, keep=3, candidates=3)
    candidates = all_candidates(plan)
    plan.record(candidates[2], 0.7)  # the second candidate of group 0
    first, second = plan.choose()
    assert first.seeds[0] == candidates[2].seed
    assert first.preview_rewards == (0.7, None, None)
    assert len(set(first.seeds)) == 3
    assert second == first_seeds(5, 4, groups=2, keep=3)[1]


def test_a_group_of_which_every_candidate_failed_still_gets_seeds():
    plan = planner(groups=1, keep=4, candidates=4)
    all_candidates(plan)
    (choice,) = plan.choose()
    assert len(set(choice.seeds)) == 4


@settings(max_examples=60, deadline=None)
@given(data=st.data(), keep=st.integers(1, 5), candidates=st.integers(1, 9))
def test_any_subset_of_scores_in_any_order_gives_the_same_full_choice(data, keep, candidates):
    plans = [planner(2, keep, candidates), planner(2, keep, candidates)]
    issued = all_candidates(plans[0])
    scored = {
        candidate: data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
        for candidate in data.draw(st.lists(st.sampled_from(issued), unique=True))
    }
    for plan, entries in zip(
        plans, (list(scored), data.draw(st.permutations(list(scored)))), strict=True
    ):
        for candidate in entries:
            plan.record(candidate, scored[candidate])
    assert plans[0].choose() == plans[1].choose()
    rewards = {candidate.seed: reward for candidate, reward in scored.items()}
    for choice in plans[0].choose():
        assert len(set(choice.seeds)) == len(choice.preview_rewards) == keep
        assert choice.preview_rewards == tuple(rewards.get(seed) for seed in choice.seeds)


def test_exploration_spreads_rewards_more_than_the_first_seeds_do():
    rng = random.Random(0)
    plan = planner(groups=8, keep=4, candidates=16)
    rewards = [[rng.random() for _ in range(16)] for _ in range(8)]
    given_out = [0] * 8
    for candidate in all_candidates(plan):
        plan.record(candidate, rewards[candidate.group][given_out[candidate.group]])
        given_out[candidate.group] += 1
    chosen = [spread([r or 0.0 for r in choice.preview_rewards]) for choice in plan.choose()]
    first = [spread(group[:4]) for group in rewards]
    assert all(explored >= unexplored for explored, unexplored in zip(chosen, first, strict=True))
    assert sum(chosen) > 1.3 * sum(first)


def test_seeds_fit_a_signed_64_bit_integer_and_never_change():
    seeds = [derived_seed(0, number) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(0, 1, 2, 3) == 8415226463665777121


@pytest.mark.parametrize(
    ("outstanding", "workers", "expected"),
    [(0, 2, 32), (20, 2, 12), (32, 2, 0), (99, 2, 0), (0, 0, 16)],
)
def test_every_worker_has_one_batch_in_work_and_one_waiting_and_so_has_the_next_to_join(
    outstanding, workers, expected
):
    assert chunk_size(outstanding, workers, micro_batch=8) == expected


@settings(max_examples=40, deadline=None)
@given(available=st.integers(1, 20), wanted=st.integers(1, 25), seed=st.integers(0, 2**63 - 1))
def test_all_prompts_are_met_equally_often(available, wanted, seed):
    drawn = [
        index
        for iteration in range(available)
        for index in draw_prompts(seed, iteration, available, wanted)
    ]
    assert all(drawn.count(index) == wanted for index in range(available))


def test_no_prompt_comes_twice_in_one_pass():
    drawn = draw_prompts(3, 0, 40, 16) + draw_prompts(3, 1, 40, 16) + draw_prompts(3, 2, 40, 16)
    assert sorted(drawn[:40]) == list(range(40))


@given(
    seed=st.integers(0, 2**32),
    iteration=st.integers(0, 100),
    available=st.integers(1, 60),
    wanted=st.integers(1, 100),
)
def test_prompts_are_those_of_sorted_passes_one_after_the_other(seed, iteration, available, wanted):
    first = iteration * wanted
    passes = [
        sorted(range(available), key=lambda index: derived_seed(seed, "prompts", epoch, index))
        for epoch in range(first // available, (first + wanted) // available + 1)
    ]
    start = first % available
    expected = [index for one in passes for index in one][start : start + wanted]
    assert draw_prompts(seed, iteration, available, wanted) == expected


def test_all_iterations_of_a_pass_hash_every_prompt_once(monkeypatch):
    hashed = []

    def counted(*parts):
        hashed.append(parts)
        return derived_seed(*parts)

    monkeypatch.setattr(planners, "derived_seed", counted)
    for iteration in range(16):  # two jobs take turns
        draw_prompts(1001, iteration, 64, 4)
        draw_prompts(1002, iteration, 64, 4)
    assert len(hashed) == 2 * 64


@pytest.mark.parametrize("available", [40, MANY])
def test_each_pass_and_each_job_has_its_own_order(available):
    first = draw_prompts(3, 0, available, available)
    assert first != draw_prompts(3, 1, available, available)
    assert first != draw_prompts(4, 0, available, available)
    assert first != list(range(available))


@pytest.mark.parametrize("available", [MANY, 4097, 65 * 65, 65 * 65 + 1])
def test_all_of_many_prompts_are_met_once_in_a_pass_however_it_is_cut(available):
    drawn = [
        index for iteration in range(7) for index in draw_prompts(3, iteration, available, 997)
    ]
    assert len(set(drawn[:available])) == available
    assert sorted(draw_prompts(3, 1, available, available)) == list(range(available))


def test_neighbours_in_a_pass_over_many_prompts_are_no_neighbours_among_these():
    drawn = draw_prompts(3, 0, MANY, MANY)
    distances = sorted(abs(one - other) for one, other in pairwise(drawn))
    # Of two numbers drawn at random below n, the distance is n (1 - sqrt(1/2)) in the median.
    assert distances[MANY // 2] == pytest.approx(MANY * (1 - math.sqrt(0.5)), rel=0.05)
    early = sum(index < MANY // 2 for index in drawn[: MANY // 2])
    assert early == pytest.approx(MANY // 4, abs=4 * math.sqrt(MANY) / 4)


def test_a_draw_from_a_million_prompts_hashes_only_for_those_that_are_wanted(monkeypatch):
    hashed = []

    def counted(*parts):
        hashed.append(parts)
        return derived_seed(*parts)

    monkeypatch.setattr(planners, "derived_seed", counted)
    assert len(set(draw_prompts(1, 0, 1_000_000, 64))) == 64
    assert len(hashed) <= 8 * 64


def test_a_run_that_an_earlier_version_began_keeps_its_order_of_many_prompts():
    def drawn(index):
        return derived_seed(3, "prompts", 1, index)

    expected = sorted(range(MANY), key=drawn)
    assert draw_prompts(3, 1, MANY, MANY, sorts=True) == expected
    assert draw_prompts(3, 1, MANY, MANY) != expected


def test_a_choice_derives_each_seed_once_and_none_that_nobody_needs(monkeypatch):
    hashed = []

    def counted(*parts):
        hashed.append(parts)
        return derived_seed(*parts)

    monkeypatch.setattr(planners, "derived_seed", counted)
    planner = UniformPlanner(job_seed=1, iteration=2, groups=3, keep=2, candidates=64)
    planner.choose()
    assert len(hashed) == 3 * 2, "those that are kept without a preview"
    for candidate in planner.next_chunk(3 * 4):
        planner.record(candidate, candidate.seed % 7 / 7)
    planner.choose()
    assert len(hashed) == 3 * 4


def test_of_several_rewards_each_counts_by_its_weight_and_not_by_its_unit():
    def rewards(candidate):
        rng = random.Random(candidate.seed)
        return rng.random(), 1000 * rng.random()

    kept = {}
    for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        plan = planner(1, keep=2, candidates=16, weights=weights)
        given_out = all_candidates(plan)
        for candidate in given_out:
            plan.record(candidate, rewards(candidate))
        (choice,) = plan.choose()
        chosen = [rewards(c) for c in given_out if c.seed in choice.seeds]
        kept[weights] = [spread(list(column)) for column in zip(*chosen, strict=True)]
    assert kept[1.0, 0.0][0] > kept[1.0, 1.0][0]
    assert kept[0.0, 1.0][1] > kept[1.0, 1.0][1]
    assert min(kept[1.0, 1.0][0], kept[1.0, 1.0][1] / 1000) > 0.1


def test_a_single_reward_is_reported_as_it_is_whatever_its_weight():
    plan = planner(1, keep=2, candidates=4, weights=(0.1,))
    for candidate, reward in zip(all_candidates(plan), (0.1, 0.7, 0.3, 0.2), strict=True):
        plan.record(candidate, (reward,))
    assert sorted(plan.choose()[0].preview_rewards) == [0.1, 0.7]


def test_of_a_pool_whole_groups_are_taken_before_wider_ones_that_lack_previews():
    whole = SeedChoice((1, 2), (0.4, 0.6))
    half = SeedChoice((3, 4), (1.0, None))
    two = SeedChoice((5, 6, 7), (0.0, 1.0, None))
    unseen = SeedChoice((8, 9), (None, None))
    nothing = SeedChoice((), ())
    assert widest([half, two, whole, unseen], 1) == [nothing, nothing, whole, nothing]
    assert widest([half, two, whole, unseen], 2) == [nothing, two, whole, nothing]
    assert widest([half, unseen], 1) == [half, nothing]


def test_groups_that_are_kept_are_among_those_that_are_trained_on():
    narrow, wide, wider = (
        SeedChoice((1, 2), (0.5 - spread, 0.5 + spread)) for spread in (0.1, 0.2, 0.3)
    )
    nothing = SeedChoice((), ())
    assert widest_beside([narrow, wide, wider], 2, (0,)) == [narrow, nothing, wider]
    assert widest_beside([narrow, wide, wider], 2, ()) == [nothing, wide, wider]
    assert widest_beside([narrow, wide, wider], 1, (1,)) == [nothing, wide, nothing]


def test_candidates_that_are_compared_come_in_whole_heats_of_one_prompt() -> None:
    planner = UniformPlanner(job_seed=1, iteration=2, groups=2, keep=3, candidates=7, heat=3)
    chunk = planner.next_chunk(4)
    assert [one.group for one in chunk] == [0, 0, 0, 1, 1, 1]
    rest = planner.next_chunk(100)
    assert [one.group for one in rest] == [0, 0, 0, 1, 1, 1], "of 7 there are two heats"
    assert len({(one.group, one.seed) for one in (*chunk, *rest)}) == 12
    assert planner.next_chunk(1) == []
