"""Groups of random seeds: which they are, what they tell, and when they need not wait."""

from __future__ import annotations

import math
from itertools import product
from statistics import pvariance

import pytest

from spotlight.policies.exploration.planners import first_seeds
from spotlight.policies.exploration.random_groups import (
    SHARE,
    Contrasts,
    Credit,
    RandomContrast,
    draw_groups,
    random_seeds,
)


def contrast(
    kept: dict[int, list[float]],
    rewards: dict[int, list[float]],
    probes: dict[int, list[float]] | None = None,
    of_any_prompt: bool = False,
) -> Contrasts | None:
    found = RandomContrast(2, kept, probes or {}, of_any_prompt)
    for group, values in rewards.items():
        found.rewards[group] += values
    return found.contrasts()


# --- what they tell ---


def test_random_seeds_are_compared_with_the_kept_ones_of_the_same_prompts() -> None:
    found = contrast({0: [0.0, 1.0], 1: [0.0, 0.2]}, {1: [0.4, 0.5]})
    assert found == Contrasts(1, pytest.approx(0.1), pytest.approx(0.05))


def test_contrasts_are_root_mean_squares_over_groups() -> None:
    found = contrast({0: [0.0, 1.0], 1: [0.0, 0.2]}, {0: [0.0, 0.8], 1: [0.4, 0.4]})
    expected = (math.sqrt((0.25 + 0.01) / 2), math.sqrt(0.16 / 2))
    assert found == Contrasts(2, *map(pytest.approx, expected))


def test_probes_are_random_seeds_as_well() -> None:
    found = contrast({0: [0.0, 1.0]}, {0: [0.0, 0.8]}, probes={0: [0.0, 0.2, 0.4]})
    assert found is not None
    assert found.groups == 2


def test_where_prompts_are_chosen_too_any_prompt_is_compared_with_all_that_are() -> None:
    kept = {0: [0.0, 1.0], 2: [0.0, 0.2]}
    found = contrast(kept, {1: [0.4, 0.5]}, of_any_prompt=True)
    assert found == Contrasts(1, pytest.approx(math.sqrt(0.26 / 2)), pytest.approx(0.05))
    assert contrast(kept, {1: [0.4, 0.5]}) is None


@pytest.mark.parametrize("there", [2, 3])
def test_a_group_that_lacks_seeds_tells_the_same_on_average(there: int) -> None:
    levels = [0.0, 0.3, 1.0]
    squares = [
        found.at_random**2
        for rewards in product(levels, repeat=there)
        if (found := contrast({0: [0.0, 1.0]}, {0: list(rewards)}))
    ]
    assert sum(squares) / len(squares) == pytest.approx(pvariance(levels) / 2)


@pytest.mark.parametrize(
    ("kept", "rewards"),
    [({0: [0.0, 1.0]}, {}), ({0: [0.0, 1.0]}, {0: [0.3]}), ({}, {0: [0.0, 1.0]})],
)
def test_too_little_tells_nothing(
    kept: dict[int, list[float]], rewards: dict[int, list[float]]
) -> None:
    assert contrast(kept, rewards) is None
    assert contrast(kept, rewards, of_any_prompt=True) is None


# --- which they are ---


def test_random_seeds_are_no_candidates_and_the_same_each_time() -> None:
    seeds = random_seeds(7, 3, 4, 8)
    assert seeds == random_seeds(7, 3, 4, 8) != random_seeds(7, 4, 4, 8)
    candidates = {seed for choice in first_seeds(7, 3, 4, 1000) for seed in choice.seeds}
    drawn = [seed for choice in seeds for seed in choice.seeds]
    assert len(set(drawn)) == 32
    assert not candidates & set(drawn)


def test_prompts_are_drawn_at_random_and_those_that_are_probed_come_last() -> None:
    drawn = {draw_groups(7, iteration, range(4), 1, [2])[0] for iteration in range(40)}
    assert drawn == {0, 1, 3}
    assert draw_groups(7, 3, [5, 2], 9, [2]) == [5, 2]
    assert draw_groups(7, 3, [2], 1, [2]) == [2]
    assert draw_groups(7, 3, range(4), 0, []) == []


# --- when they need not wait ---


def due_iterations(group_steps: int, preview_steps: int, iterations: int) -> list[int]:
    """Where there is no idle time."""
    due, left = [], None
    for iteration in range(iterations):
        credit = Credit(group_steps, left)
        if credit.is_due:
            due.append(iteration)
        credit.iteration_over(credit.is_due, preview_steps)
        left = credit.left
    return due


def test_without_idle_time_the_first_group_is_due_at_once_and_others_cost_their_share() -> None:
    due = due_iterations(group_steps=64, preview_steps=200, iterations=400)
    assert due[0] == 0
    assert (len(due) - 1) * 64 == pytest.approx(SHARE * 200 * 400, abs=64)


def test_what_was_measured_in_idle_time_is_not_due_soon() -> None:
    credit = Credit(64, 60.0)
    credit.iteration_over(1, 200)
    assert credit.left == 8.0
    assert not credit.is_due


def test_credit_is_not_saved_up_for_more_than_one_group() -> None:
    credit = Credit(64, 0.0)
    for _ in range(100):
        credit.iteration_over(0, 200)
    assert credit.left == 64.0
    assert credit.is_due


def test_the_first_group_stays_due_until_it_was_asked_for() -> None:
    credit = Credit(64)
    credit.iteration_over(0, 200)
    assert credit.left is None
    assert credit.is_due
