import math
import random
from collections import Counter
from statistics import pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.exploration.bandit import BanditPlanner, InvalidReward
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.exploration.planners import (
    Candidate,
    ExplorationPlanner,
    UniformPlanner,
    first_seeds,
    widest,
)
from spotlight.policies.exploration.prompt_population import Population
from spotlight.policies.exploration.reward_spread import (
    FADING,
    POPULATION_FADING,
    UNLIMITED,
    ContinuousRewards,
    Evidence,
    Knowledge,
    PassFailRewards,
)

ANY = ContinuousRewards(UNLIMITED)
BOUNDED = ContinuousRewards((0.0, 1.0))
PASS_FAIL = PassFailRewards()


def planner(groups: int = 4, **changes) -> BanditPlanner:
    settings = {
        "job_seed": 5,
        "iteration": 3,
        "prompts": [f"prompt {number}" for number in range(groups)],
        "keep": 4,
        "candidates": 12,
        "most": 32,
        "rewards": ANY,
    }
    return BanditPlanner(**(settings | changes))


def explore(plan: ExplorationPlanner, reward, chunk: int = 6) -> Counter[int]:
    """Plan and record until nothing more is planned; candidates by group."""
    issued: Counter[int] = Counter()
    while candidates := plan.next_chunk(chunk):
        for candidate in candidates:
            issued[candidate.group] += 1
            plan.record(candidate, reward(candidate))
    return issued


def normal(stds):
    """Normal rewards that depend on the candidate alone; one standard deviation per group."""
    return lambda candidate: random.Random(candidate.seed).gauss(0.5, stds[candidate.group])


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


def test_prompts_that_are_known_to_fail_or_pass_always_get_less_than_those_between():
    rates = [0.0, 0.1, 1.0]
    met = {f"prompt {n}": Evidence(400, 400 * rate) for n, rate in enumerate(rates)}
    known, totals = Knowledge(met), Counter()
    for seed in range(10):
        plan = planner(
            3, rewards=PASS_FAIL, keep=16, candidates=24, most=64, knowledge=known, job_seed=seed
        )
        totals += explore(plan, lambda c: float(random.Random(c.seed).random() < rates[c.group]))
    assert totals[1] > 1.5 * max(totals[0], totals[2])


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


@pytest.mark.parametrize("rewards", [ANY, PASS_FAIL])
def test_the_same_seed_and_scores_give_the_same_decisions(rewards):
    plans = [planner(5, rewards=rewards) for _ in range(2)]
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
@given(data=st.data(), kind=st.sampled_from([ANY, PASS_FAIL, "two"]), groups=st.integers(1, 40))
def test_the_order_in_which_scores_of_a_chunk_arrive_changes_nothing(data, kind, groups):
    rewards = ContinuousRewards((0.0, 1.0), (0.0, 1.0)) if kind == "two" else kind
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
            number = float(rng.random() < 0.3) if kind is PASS_FAIL else rng.random()
            scores[candidate] = (number, rng.random()) if kind == "two" else number
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


def test_a_large_chunk_does_not_pile_onto_the_widest_prompt():
    plan = planner(groups=4, candidates=24, most=96)
    floor = plan.next_chunk(16)
    for candidate in floor:
        plan.record(candidate, normal([0.4, 0.45, 0.5, 0.55])(candidate))
    issued = Counter(candidate.group for candidate in plan.next_chunk(40))
    assert max(issued.values()) < 30
    assert len(issued) == 4


def test_a_costly_prompt_gets_fewer_of_equal_spread():
    totals = Counter()
    for seed in range(6):
        plan = planner(groups=2, job_seed=seed, costs=[1.0, 4.0], candidates=16, most=48)
        totals += explore(plan, normal([0.5, 0.5]))
    assert totals[0] > 1.5 * totals[1]


@pytest.mark.parametrize(("uniform_every", "each"), [(10, 4 + 240 // 40), (10**6, 4), (1, 64)])
def test_the_uniform_share_reaches_groups_that_are_believed_to_gain_nothing(uniform_every, each):
    flat = {f"prompt {number}": Evidence(1e9, 1e-9) for number in range(3)}
    known = Knowledge(flat, {"": alike(1e-9, visits=1e9)})
    plan = planner(candidates=64, most=256, knowledge=known, uniform_every=uniform_every)
    issued = explore(plan, normal([0.0, 0.0, 0.0, 1.0]))
    assert [issued[group] for group in range(3)] == [each] * 3


# --- saturation and rewards that say nothing ---


def test_a_group_with_half_of_its_seeds_at_each_end_gets_no_more():
    issued = explore(
        planner(groups=2, rewards=BOUNDED),
        lambda c: float(c.seed % 2) if c.group == 0 else random.Random(c.seed).uniform(0.4, 0.6),
    )
    assert issued[0] < 16
    assert sum(issued.values()) == 24


def test_when_all_groups_are_saturated_the_rest_of_the_budget_is_left():
    plan = planner(groups=3, rewards=PASS_FAIL, candidates=30)
    issued = explore(plan, lambda candidate: float(candidate.seed % 2))
    assert sum(issued.values()) < 60
    assert all(sorted(c.preview_rewards) == [0.0, 0.0, 1.0, 1.0] for c in plan.choose())


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rewards", [ANY, BOUNDED, ContinuousRewards((0, 1), (-1, 1)), PASS_FAIL])
def test_constant_rewards_neither_stall_nor_divide_by_zero(value, rewards):
    if rewards is PASS_FAIL and value == 0.1:
        value = 0.0
    reward = [value] * len(rewards.limits)
    plan = planner(rewards=rewards)
    issued = explore(plan, lambda candidate: reward)
    assert sum(issued.values()) == 48
    assert max(issued.values()) - min(issued.values()) <= (15 if rewards is PASS_FAIL else 1)


# --- scores that never come, or cannot be ---


def test_before_anything_is_scored_the_whole_budget_can_be_planned():
    for rewards in (ANY, PASS_FAIL, ContinuousRewards((0, 1), (0, 1))):
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


# --- knowledge over iterations ---


def knowledge_of(stds: dict[str, float], count: float = 50.0) -> dict[str, Evidence]:
    return {name: Evidence(count, count * std * std) for name, std in stds.items()}


def alike(std: float, visits: float = 100.0, differing: float = 0.0) -> Population:
    """Prompts of one standard deviation, or whose variances have this squared coefficient of
    variation."""
    variance = std * std
    return Population(visits, visits * variance, visits * variance**2 * (1 + differing))


def adaptive_share(plan: BanditPlanner, group: int) -> float:
    """The share of a group in what is planned before any score came, after the floor."""
    groups = len(plan.choose())
    plan.next_chunk(4 * groups)
    planned = plan.next_chunk(6 * groups)
    return sum(candidate.group == group for candidate in planned) / len(planned)


def test_what_a_prompt_taught_is_used_when_it_is_met_again():
    prompts = knowledge_of({"prompt 0": 2.0, "prompt 1": 0.2, "prompt 2": 0.2, "prompt 3": 0.2})
    known = Knowledge(prompts, {"": alike(1.0, differing=2.0)})
    assert adaptive_share(planner(knowledge=known), 0) > 0.5


def test_a_prompt_never_met_is_taken_to_be_like_its_category():
    shares = []
    for wide in ("a", "b"):
        categories = {name: alike(2.0 if name == wide else 0.2) for name in "ab"}
        shares.append(
            sum(
                adaptive_share(
                    planner(
                        categories=["a", "b", "b", "b"],
                        knowledge=Knowledge({}, categories),
                        job_seed=seed,
                    ),
                    0,
                )
                for seed in range(5)
            )
            / 5
        )
    assert shares[0] > 0.5 > 0.25 > shares[1]


def test_a_category_never_met_is_taken_to_be_like_all_the_others():
    known = Knowledge({}, {"b": alike(0.3)})
    share = 0.0
    for seed in range(20):
        plan = planner(groups=2, categories=["new", "b"], knowledge=known, job_seed=seed)
        share += adaptive_share(plan, 0) / 20
    assert 0.35 < share < 0.65


def test_a_pass_or_fail_category_shrinks_its_new_prompts_as_well():
    categories = {"easy": Population(400, 399), "even": Population(400, 60)}
    plan = planner(
        2, rewards=PASS_FAIL, categories=["easy", "even"], knowledge=Knowledge({}, categories)
    )
    plan.next_chunk(8)
    assert {candidate.group for candidate in plan.next_chunk(4)} == {1}


def test_a_few_scores_of_its_own_outweigh_the_category():
    categories = {"a": alike(0.1, differing=2.0), "b": alike(1.0, differing=2.0)}
    plan = planner(2, categories=["a", "b"], knowledge=Knowledge({}, categories), keep=8)
    issued = explore(plan, normal([1.0, 0.1]))
    assert issued[0] > issued[1]


def test_old_evidence_fades_whenever_its_prompt_or_category_is_met():
    before = Knowledge(
        {"prompt 0": Evidence(10, 5), "elsewhere": Evidence(4, 4)},
        {"": Population(100, 50), "other": Population(7, 7)},
    )
    after = before.after(planner(knowledge=before).learnt())
    assert after.prompts["prompt 0"] == Evidence(10 * FADING, 5 * FADING)
    assert after.prompts["elsewhere"] == Evidence(4, 4)
    assert after.categories == {
        "": Population(100 * POPULATION_FADING, 50 * POPULATION_FADING),
        "other": Population(7, 7),
    }


def test_evidence_stays_bounded_over_many_visits():
    known = Knowledge()
    for iteration in range(30):
        plan = planner(iteration=iteration, knowledge=known)
        explore(plan, normal([1.0] * 4))
        known = known.after(plan.learnt())
    assert all(evidence.count <= 31 / (1 - FADING) for evidence in known.prompts.values())


def test_a_prompt_whose_spread_changed_is_believed_within_a_few_visits():
    known = Knowledge(knowledge_of({"prompt 0": 1.0}), {"": alike(1.0)})
    for iteration in range(5):
        plan = planner(iteration=iteration, knowledge=known)
        explore(plan, normal([0.1, 1.0, 1.0, 1.0]))
        known = known.after(plan.learnt())
    evidence = known.prompts["prompt 0"]
    assert evidence.total / evidence.count < 0.5


def test_one_prompt_in_several_groups_adds_up_its_evidence():
    plan = planner(prompts=["same", "same"], rewards=PASS_FAIL)
    explore(plan, lambda candidate: float(candidate.group))
    learnt = plan.learnt().prompts["same"]
    assert learnt.count == 24
    assert 4 <= learnt.total <= 20


# --- what cannot be ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 1}, "keep must be"),
        ({"most": 3}, "keep must be"),
        ({"candidates": -1}, "candidates must be"),
        ({"uniform_every": 0}, "uniform_every must be"),
        ({"costs": [1.0]}, "1 costs"),
        ({"categories": ["a"]}, "1 categories"),
        ({"costs": [1.0, 0.0, 1.0, 1.0]}, "costs must be"),
        ({"costs": [1.0, math.nan, 1.0, 1.0]}, "costs must be"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        planner(**changes)


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
