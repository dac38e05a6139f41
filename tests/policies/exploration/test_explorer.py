"""The explorer: when it stops, what it chooses, what it counts."""

from __future__ import annotations

from collections import Counter
from statistics import mean, pstdev, pvariance

import pytest
from explorer_kit import KEEP, NOTHING, Expedition, reward_of

from spotlight.policies.exploration.planners import derived_seed
from spotlight.policies.exploration.reuse import Patience
from spotlight.policies.exploration.reward_scales import combined
from spotlight.policies.exploration.reward_spread import UNLIMITED, Evidence, Knowledge, Population

CANDIDATES = 16  # 2 groups x 4 seeds x 2 candidates


def test_only_a_little_is_queued_at_a_time() -> None:
    expedition = Expedition("fixed")
    expedition.start()
    assert len(expedition.submitted) == 8  # one batch of 4 in work and one waiting
    expedition.finish(expedition.submitted[:3])
    assert len(expedition.submitted) == 11


def test_it_says_how_many_candidates_are_still_to_come() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=10.0)
    assert expedition.explorer.unsubmitted == CANDIDATES - 8
    expedition.finish(expedition.submitted[:3])
    assert expedition.explorer.unsubmitted == CANDIDATES - 11
    expedition.now += 20.0
    expedition.finish(expedition.submitted[3:4])
    assert expedition.explorer.unsubmitted == 0, "there is no time for them"


def test_nothing_is_still_to_come_once_seeds_are_chosen() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=10.0)
    expedition.stop()
    assert expedition.explorer.unsubmitted == 0


def test_previews_name_the_iteration_and_the_prompt() -> None:
    expedition = Expedition("fixed")
    expedition.start()
    assert {preview.iteration for preview in expedition.submitted} == {1}
    assert [r.prompt for r in expedition.submitted[:4]] == ["a", "b", "a", "b"]


def test_a_window_budget_submits_nothing_after_its_deadline() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=10.0)
    expedition.now += 9.0
    expedition.finish(expedition.submitted[:2])
    assert len(expedition.submitted) == 10
    expedition.now += 2.0
    expedition.finish(expedition.submitted[2:5])
    assert len(expedition.submitted) == 10


def test_without_a_prediction_nothing_is_previewed() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=0.0)
    expedition.stop()
    assert expedition.submitted == []
    assert [len(seeds) for seeds in expedition.explored.seeds] == [4, 4]
    assert expedition.explored.preview_rewards == ((None,) * 4,) * 2


def test_a_window_budget_chooses_at_once_and_counts_what_it_dropped() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.finish(expedition.submitted[:5])
    expedition.stop()
    explored = expedition.explored
    assert (explored.previews, explored.late) == (5, 8)
    assert expedition.cancelled == 1


def test_what_comes_after_the_choice_changes_nothing() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.stop()
    expedition.finish(expedition.submitted)
    expedition.stop()
    assert expedition.explored.previews == 0


def test_the_stop_of_another_iteration_changes_nothing() -> None:
    expedition = Expedition("window")
    expedition.start(iteration=2)
    expedition.stop()
    assert expedition.outcomes == []


def test_a_fixed_budget_is_finished_first() -> None:
    expedition = Expedition("fixed")
    expedition.start(window_s=0.0)
    expedition.stop()
    assert expedition.outcomes == []
    expedition.finish_all()
    explored = expedition.explored
    assert (explored.previews, explored.late) == (CANDIDATES, 0)
    assert expedition.cancelled == 0


def test_a_fixed_budget_that_is_spent_waits_for_the_stop() -> None:
    expedition = Expedition("fixed")
    expedition.start()
    expedition.finish_all()
    assert expedition.outcomes == []
    expedition.stop()
    assert expedition.explored.previews == CANDIDATES


def test_previews_that_are_given_up_do_not_hold_up_a_fixed_budget() -> None:
    expedition = Expedition("fixed")
    expedition.start()
    expedition.stop()
    expedition.give_up(expedition.submitted[:8])
    expedition.finish(expedition.submitted[8:])
    explored = expedition.explored
    assert explored.previews == CANDIDATES - 8
    failed = {r.seed for r in expedition.submitted[:8]}
    scored = [
        seed
        for seeds, rewards in zip(explored.seeds, explored.preview_rewards, strict=True)
        for seed, reward in zip(seeds, rewards, strict=True)
        if reward is not None
    ]
    assert scored and not failed & set(scored)


@pytest.mark.parametrize("mode", ["random", "uniform", "bandit"])
@pytest.mark.parametrize("groups", [1, 3])
def test_neither_order_nor_place_of_previews_changes_the_choice_of_a_fixed_budget(
    groups: int, mode: str
) -> None:
    choices = []
    for order in (list, lambda waiting: waiting[::-1], lambda w: sorted(w, key=lambda r: r.seed)):
        expedition = Expedition("fixed", mode, groups=groups)
        expedition.start()
        expedition.stop()
        expedition.finish_all(order)
        explored = expedition.explored
        found = explored.knowledge, explored.contrast_at_random
        choices.append((explored.seeds, explored.preview_rewards, *found))
    assert choices[0] == choices[1] == choices[2]


@pytest.mark.parametrize(("share", "whole"), [(0.5, 4), (0.0, 0)])
def test_a_pool_with_half_of_its_previews_still_has_whole_groups(share: float, whole: int) -> None:
    """Half of 4 samples x 2 x 2 candidates would be 2 previews for each of 4 groups of 4."""
    expedition = Expedition("fixed", prompts="abcd", trained=1, candidates=4 * KEEP)
    expedition.start(share=share)
    expedition.finish_all()
    previews = Counter(request.prompt for request in expedition.submitted)
    assert sum(count >= 4 for count in previews.values()) == whole


def test_contrast_at_random_is_that_of_all_prompts_of_a_pool() -> None:
    """Those that are trained on contrast more by chance, too."""
    found = []
    for pool in (1, 2):
        expedition = Expedition("fixed", trained=2 // pool, candidates=2 * pool * KEEP)
        expedition.reward = lambda request: 0.5 if request.prompt == "a" else request.seed % 2
        expedition.start()
        expedition.stop()
        expedition.finish_all()
        found.append(expedition.explored)
    assert [len([group for group in one.seeds if group]) for one in found] == [2, 1]
    assert found[0].contrast_at_random == found[1].contrast_at_random > 0


def test_any_are_kept_when_seeds_are_chosen_at_random() -> None:
    kept = []
    for mode in ("uniform", "random"):
        expedition = Expedition("fixed", mode)
        expedition.start()
        expedition.stop()
        expedition.finish_all()
        explored = expedition.explored
        assert explored.previews == CANDIDATES
        kept.append(explored.preview_rewards)
    best, any_of_them = ([pvariance([r or 0.0 for r in group]) for group in each] for each in kept)
    assert all(one > other for one, other in zip(best, any_of_them, strict=True))


# --- a planner that learns ---


SPREAD = Knowledge({"a": Evidence(200.0, 200 * 0.09), "b": Evidence(200.0, 0.02)}, {})


def test_prompts_known_to_spread_more_are_previewed_more() -> None:
    expedition = Expedition("fixed", "bandit")
    expedition.start(knowledge=SPREAD)
    expedition.finish_all()
    asked = Counter(request.prompt for request in expedition.submitted)
    assert asked["a"] > asked["b"] >= 4
    assert asked.total() == CANDIDATES


def test_a_prompt_never_met_is_taken_to_be_like_its_category() -> None:
    expedition = Expedition("fixed", "bandit")
    wide, narrow = Population(20, 20 * 0.09, 20 * 0.09**2), Population(20, 20 * 1e-4, 20 * 1e-8)
    known = Knowledge({}, {"wide": wide, "narrow": narrow})
    expedition.categories = ("narrow", "wide")
    expedition.reward = lambda request: 0.5
    expedition.start(knowledge=known)
    first = list(expedition.submitted)
    expedition.finish(first)
    asked = Counter(request.prompt for request in expedition.submitted[len(first) :])
    assert asked["b"] > asked["a"]


def test_what_was_learned_is_handed_on() -> None:
    expedition = Expedition("window", "bandit")
    expedition.start(knowledge=SPREAD)
    expedition.finish(expedition.submitted[:6])
    expedition.stop()
    knowledge = expedition.explored.knowledge
    assert set(knowledge.prompts) == {"a", "b"}
    assert knowledge.prompts["b"].total > SPREAD.prompts["b"].total


def test_a_planner_that_does_not_learn_has_nothing_to_hand_on() -> None:
    expedition = Expedition("window")
    expedition.start(knowledge=SPREAD)
    expedition.stop()
    assert expedition.explored.knowledge == NOTHING


def test_rewards_that_are_all_the_same_hold_up_nothing() -> None:
    expedition = Expedition("fixed", "bandit")
    expedition.reward = lambda request: 0.5
    expedition.start()
    expedition.stop()
    expedition.finish_all()
    assert expedition.explored.preview_rewards == ((0.5,) * 4,) * 2


def test_another_candidate_takes_the_place_of_one_that_is_given_up() -> None:
    expedition = Expedition("window", "bandit")
    expedition.start()
    lost = expedition.submitted[0]
    expedition.give_up([lost])
    expedition.finish(expedition.submitted[1:])
    expedition.stop()
    explored = expedition.explored
    assert lost.seed not in explored.seeds[lost.group]
    assert all(reward is not None for group in explored.preview_rewards for reward in group)


# --- several rewards ---

TWO = {"limits": ((0.0, 1.0), UNLIMITED), "weights": (2.0, 1.0)}


@pytest.mark.parametrize("mode", ["uniform", "bandit"])
def test_several_rewards_choose_seeds_on_the_scale_that_is_told(mode: str) -> None:
    expedition = Expedition("fixed", mode, **TWO)
    expedition.rewards = lambda r: (reward_of(r), 20 + 5 * reward_of(r) ** 2)
    expedition.start()
    expedition.stop()
    expedition.finish_all()
    explored = expedition.explored
    assert len(explored.scale) == 2
    by_seed = {(r.group, r.seed): expedition.rewards(r) for r in expedition.submitted}
    for group, (seeds, told) in enumerate(
        zip(explored.seeds, explored.preview_rewards, strict=True)
    ):
        values = [combined(by_seed[group, seed], explored.scale) for seed in seeds]
        assert list(told) == values


def test_a_single_reward_is_on_its_own_scale() -> None:
    expedition = Expedition("fixed")
    expedition.start()
    expedition.stop()
    expedition.finish_all()
    assert expedition.explored.scale == (1.0,)


def test_what_was_not_previewed_has_no_scale() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.stop()
    assert expedition.explored.scale == ()


def test_groups_whose_seeds_are_all_previewed_are_trained_on_as_they_are() -> None:
    expedition = Expedition("window")
    expedition.start()
    done = expedition.submitted[:7]  # four of one group, and three of the other
    expedition.finish(done)
    expedition.stop(reuses=True)
    assert expedition.explored.reused == (0,)
    assert set(expedition.unused) == {r for r in done if r.group == 1}


def test_previews_that_are_not_trained_on_are_all_unused() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.finish(expedition.submitted[:8])
    expedition.stop()
    assert expedition.explored.reused == ()
    assert len(expedition.unused) == 8


def test_nothing_is_probed_where_previews_are_the_samples() -> None:
    for reuses in (True, False):
        expedition = Expedition("window", probes=4)
        expedition.start()
        expedition.finish(expedition.submitted[:8])
        expedition.stop(reuses=reuses)
        assert sum(map(len, expedition.explored.probe_seeds)) == (0 if reuses else 4)


def test_previews_in_work_are_waited_for_until_enough_are_there() -> None:
    expedition = Expedition("window")
    expedition.start()
    first, rest = expedition.submitted[:4], expedition.submitted[4:]
    expedition.finish(first)
    expedition.stop(reuses=True, patience=Patience(6, limit_s=5.0))
    assert expedition.outcomes == []
    expedition.finish(rest[:1])
    assert expedition.outcomes == []
    expedition.finish(rest[1:2])
    assert expedition.explored.previews == 6


def test_previews_in_work_are_not_waited_for_longer_than_it_pays() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.finish(expedition.submitted[:4])
    expedition.stop(reuses=True, patience=Patience(8, limit_s=5.0))
    expedition.go_on()
    assert expedition.outcomes == []
    expedition.now += 5.0
    expedition.go_on()
    assert expedition.explored.previews == 4
    assert expedition.explored.late == len(expedition.submitted) - 4


def test_what_was_withdrawn_is_neither_waited_for_nor_late() -> None:
    expedition = Expedition("window")
    expedition.start()
    done = expedition.submitted[:4]
    expedition.finish(done)
    withdrawn = [r for r in expedition.submitted if r not in done]
    expedition.stop(reuses=True, patience=Patience(8, limit_s=5.0), withdrawn=withdrawn)
    assert (expedition.explored.previews, expedition.explored.late) == (4, 0)


def test_what_any_previews_would_contrast_like_is_a_root_mean_square() -> None:
    expedition = Expedition("window")
    expedition.start()
    expedition.finish(expedition.submitted[:8])
    expedition.stop(reuses=True)
    groups = [[reward_of(r) for r in expedition.submitted[:8] if r.group == g] for g in (0, 1)]
    spreads = [pvariance(rewards) * 4 / 3 for rewards in groups]  # unbiased
    expected = (sum(spreads) / 2 * 3 / 4) ** 0.5
    assert expedition.explored.contrast_of_any == pytest.approx(expected)


def test_random_seeds_are_the_first_previews_of_each_group_whatever_came_later() -> None:
    few, many = Expedition("window"), Expedition("window")
    for expedition, previews in ((few, 8), (many, 12)):
        expedition.start()
        expedition.finish(expedition.submitted[:8])
        expedition.finish(expedition.submitted[8:previews])
        expedition.stop(reuses=True)
        assert expedition.explored.previews == previews
    assert few.explored.contrast_of_any == many.explored.contrast_of_any
    assert (few.explored.random_groups, many.explored.random_groups) == (2, 2)


def test_the_contrast_of_random_seeds_is_right_on_average_though_the_bandit_looks_on() -> None:
    """It gives more previews to groups that were unlucky."""
    squares = []
    for seed in range(250):
        expedition = Expedition("fixed", "bandit", prompts="abcd", trained=4, seed=seed)
        expedition.reward = lambda one, run=seed: float(
            derived_seed("passes", run, one.group, one.seed) % 10 < 3
        )
        expedition.start()
        expedition.finish_all()
        expedition.stop()
        assert expedition.explored.contrast_of_any is not None
        squares.append(expedition.explored.contrast_of_any**2)
    error = pstdev(squares) / len(squares) ** 0.5
    assert mean(squares) == pytest.approx(0.3 * 0.7 * 3 / 4, abs=3 * error)
    assert error < 0.1 * mean(squares)


def test_the_choice_waits_for_as_many_previews_as_are_worth_it() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=0.0, least=12)
    expedition.stop()
    assert expedition.explorer.is_lacking
    expedition.finish(expedition.submitted[:8])
    assert not expedition.outcomes
    expedition.finish(expedition.submitted[8:12])
    assert not expedition.explorer.is_lacking
    assert expedition.explored.previews == 12


def test_previews_are_made_beside_training_though_more_are_waited_for_later() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=10.0, least=4)
    expedition.finish(expedition.submitted[:4])
    assert len(expedition.submitted) == 12
    expedition.stop()
    assert expedition.explored.previews == 4


def test_nothing_is_waited_for_where_seeds_are_denoised_again_anyway() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=0.0, least=12)
    expedition.finish(expedition.submitted[:4])
    expedition.stop(waits=False)
    assert expedition.explored.previews == 4


def test_candidates_that_nobody_can_preview_are_not_waited_for() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=0.0, least=CANDIDATES)
    expedition.stop()
    while not expedition.outcomes:
        given_up, before = expedition.submitted[-1:], len(expedition.submitted)
        expedition.give_up(given_up)
        expedition.finish(expedition.submitted[:-1])
        assert before < 10 * CANDIDATES
    assert expedition.explored.previews <= CANDIDATES
