"""What a choice among previews is worth, against brute force, for rewards of all shapes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import reduce
from itertools import combinations
from pathlib import Path
from statistics import fmean, pvariance

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.choice_worth import (
    EDGES,
    ENOUGH,
    MOST_SCORES,
    ChoiceWorth,
    choice_worth,
)
from spotlight.policies.exploration.contrast import best_contrast, squared_deviations

TABLES = sorted((Path(__file__).parents[3] / "benchmarks" / "reward_tables").glob("*.json"))
REWARDS = st.lists(st.floats(-1, 1), min_size=3, max_size=9)
Draw = Callable[[random.Random, int], list[float]]
"""So many rewards of a random prompt."""


def passes(rng: random.Random, count: int) -> list[float]:
    return [float(rng.random() < 0.5) for _ in range(count)]


def passes_of_mixed_prompts(rng: random.Random, count: int) -> list[float]:
    rate = rng.betavariate(0.6, 0.4)
    return [float(rng.random() < rate) for _ in range(count)]


def normal(rng: random.Random, count: int) -> list[float]:
    return [rng.gauss(0.0, 1.0) for _ in range(count)]


def two_values_and_a_rare_one(rng: random.Random, count: int) -> list[float]:
    return [1.0 if rng.random() < 0.03 else rng.choice((0.0, 0.3)) for _ in range(count)]


def table(name: str) -> list[list[float]]:
    (path,) = (path for path in TABLES if path.stem == name)
    rows: list[list[float]] = json.loads(path.read_text())
    return rows


def of_table(name: str) -> Draw:
    rows = table(name)
    return lambda rng, count: rng.sample(rng.choice(rows), count)


def by_brute_force(draw: Draw, keep: int, previews: float, groups: int = 3000) -> float:
    """The mean variance of those of a group that vary most, over that of as many random ones."""
    rng, each = random.Random(1), round(previews * keep)
    best = [best_contrast(sorted(draw(rng, each)), keep) ** 2 for _ in range(groups)]
    return fmean(best) / fmean(pvariance(draw(rng, keep)) for _ in range(groups))


def told(draw: Draw, keep: int, previews: int, iterations: int, seed: int = 0) -> ChoiceWorth:
    """What so many iterations of four prompts tell, with so many previews of each."""
    rng, found = random.Random(seed), ChoiceWorth()
    for _ in range(iterations):
        groups = [draw(rng, previews) for _ in range(4)]
        found = found.faded() + choice_worth(groups, keep, rng)
    return found


SHAPES = [
    passes,
    passes_of_mixed_prompts,
    normal,
    two_values_and_a_rare_one,
]


@pytest.mark.parametrize("keep", [4, 8])
@pytest.mark.parametrize("draw", SHAPES, ids=lambda draw: draw.__name__)
def test_it_is_what_brute_force_finds_for_rewards_of_any_shape(draw: Draw, keep: int) -> None:
    rng = random.Random(0)
    curve = choice_worth([draw(rng, 64) for _ in range(200)], keep, rng).curve()
    for previews in (2, 4, 8):
        right = by_brute_force(draw, keep, previews)
        assert curve(previews) == pytest.approx(right, rel=0.08), previews


@pytest.mark.parametrize("keep", [4, 8])
@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_it_is_what_brute_force_finds_in_tables_of_real_rewards(name: str, keep: int) -> None:
    curve = choice_worth(table(name), keep, random.Random(0)).curve()
    for previews in (2, 4, 8):
        right = by_brute_force(of_table(name), keep, previews)
        assert curve(previews) == pytest.approx(right, rel=0.08), previews


@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_a_run_finds_it_with_the_previews_that_it_makes(name: str) -> None:
    curve = told(of_table(name), keep=4, previews=15, iterations=60).curve()
    for previews in (2.0, 3.75):
        right = by_brute_force(of_table(name), 4, previews)
        assert curve(previews) == pytest.approx(right, rel=0.15)


@pytest.mark.parametrize("seen", [2, 4])
@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_twice_as_many_previews_as_were_made_are_foreseen(name: str, seen: int) -> None:
    curve = told(of_table(name), keep=4, previews=4 * seen, iterations=60).curve()
    right = by_brute_force(of_table(name), 4, 2 * seen)
    assert 0.8 < curve(2 * seen) / right < 1.15


def test_of_rewards_that_pass_or_fail_nobody_expects_more_than_there_can_be() -> None:
    """Two of four pass: more varied they cannot be."""
    curve = told(passes, keep=4, previews=8, iterations=60).curve()
    assert curve(1000.0) == pytest.approx(4 / 3, rel=0.06)


@given(st.lists(REWARDS, min_size=1, max_size=3), st.integers(2, 4), st.randoms())
def test_the_sums_are_those_of_all_subsets(
    groups: list[list[float]], keep: int, rng: random.Random
) -> None:
    """Those of the whole groups, however they are drawn."""
    found = choice_worth(groups, keep, rng)
    able = [group for group in groups if len(group) > keep and len(set(group)) > 1]
    subsets = [[pvariance(each) for each in combinations(group, keep)] for group in able]
    growth = sum(max(each) - fmean(each) for each in subsets)
    assert sum(one.gained for one in found.ranges) == pytest.approx(growth, abs=1e-9)


@given(st.lists(REWARDS, min_size=1, max_size=9), st.integers(2, 4))
def test_more_previews_are_never_worth_less(groups: list[list[float]], keep: int) -> None:
    curve = choice_worth(groups, keep, random.Random(0)).curve()
    worths = [curve(1 + number / 8) for number in range(300)]
    assert worths[0] == 1.0
    assert worths == sorted(worths)


def test_before_anything_is_known_a_choice_is_guessed_to_be_worth_little() -> None:
    curve = ChoiceWorth().curve()
    assert not ChoiceWorth().is_known
    assert (curve(0.5), curve(1.0)) == (1.0, 1.0)
    assert 1.2 < curve(2.0) < curve(4.0) < curve(EDGES[-1]) < 2.5


def test_the_guess_goes_as_previews_are_scored() -> None:
    rng = random.Random(0)
    distances = []
    for groups in (1, 2, 4, 8):
        drawn = [[0.0, 1.0] * 4 for _ in range(groups)]
        found = choice_worth(drawn, 4, rng)
        assert found.is_known == (8 * groups >= ENOUGH)
        distances.append(abs(found.curve()(2.0) - 7 / 6))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == pytest.approx(0.0, abs=1e-9)


def test_eight_scores_of_a_prompt_say_nothing_odd() -> None:
    rng = random.Random(0)
    for draw in SHAPES:
        for _ in range(50):
            assert 1.0 <= choice_worth([draw(rng, 8)], 4, rng).curve()(4.0) < 2.5


@pytest.mark.parametrize(
    "groups", [[], [[]], [[0.0, 1.0, 0.5]], [[0.0, 1.0, 0.5, 0.2]] * 3, [[0.5] * 8] * 3]
)
def test_groups_without_a_choice_and_rewards_that_are_all_equal_say_nothing(
    groups: list[list[float]],
) -> None:
    assert choice_worth(groups, 4, random.Random(0)) == ChoiceWorth()


def test_where_groups_have_unequally_many_previews_it_is_told_of_their_mean() -> None:
    """A planner gave few to what is varied soon, and many to what seldom passes."""
    often, seldom = [0.0, 1.0] * 3, [1.0, 1.0] + 24 * [0.0]
    curve = choice_worth([often, seldom] * 4, 4, random.Random(0)).curve()
    at_random = [squared_deviations(each) / (len(each) - 1) * 3 / 4 for each in (often, seldom)]
    assert curve((6 + 26) / 8) == pytest.approx(2 * 0.25 / sum(at_random))


def test_the_scale_of_rewards_does_not_matter() -> None:
    rows = [row[:16] for row in table("ocr-start")[:4]]
    hundred = [[100 * reward for reward in row] for row in rows]
    one, another = (choice_worth(each, 4, random.Random(0)).curve() for each in (rows, hundred))
    assert one(3.0) == pytest.approx(another(3.0))


def test_one_seed_gives_the_same_bits_also_from_a_journal() -> None:
    one, again = (told(normal, 4, 17, iterations=3, seed=5) for _ in range(2))
    assert one == again
    assert msgspec.json.decode(msgspec.json.encode(one), type=ChoiceWorth) == one


def test_the_latest_iterations_count_most() -> None:
    first, then = (told(draw, 4, 16, iterations=40) for draw in (normal, passes))
    both = reduce(lambda found, _: found.faded(), range(40), first) + then
    assert both.curve()(4.0) < 0.5 * (first.curve()(4.0) + then.curve()(4.0))


class CountedRandom(random.Random):
    """Counts what is drawn."""

    drawn = 0

    def sample(self, population: list[float], k: int) -> list[float]:  # type: ignore[override]
        self.drawn += k
        return super().sample(population, k)


@pytest.mark.parametrize(("groups", "previews"), [(4, 100), (4, 20_000), (60, 1_000)])
def test_what_it_costs_does_not_grow_with_the_number_of_previews(
    groups: int, previews: int
) -> None:
    rng = CountedRandom(0)
    choice_worth([normal(rng, previews) for _ in range(groups)], 4, rng)
    assert 0 < rng.drawn <= MOST_SCORES
