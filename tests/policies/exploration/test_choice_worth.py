"""What a choice among previews is worth, against brute force and the tables of real rewards."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations
from pathlib import Path
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.fidelity import USUAL, ChoiceWorth, choice_worth

TABLES = sorted((Path(__file__).parents[3] / "benchmarks" / "reward_tables").glob("*.json"))
REWARDS = st.lists(st.floats(-1, 1), min_size=3, max_size=9)


def table(name: str) -> list[list[float]]:
    (path,) = (path for path in TABLES if path.stem == name)
    rows: list[list[float]] = json.loads(path.read_text())
    return rows


def told(rows: list[list[float]], keep: int, each: int, iterations: int) -> ChoiceWorth:
    """What so many iterations of four prompts tell, with so many previews for each sample."""
    rng, found = random.Random(0), ChoiceWorth()
    for _ in range(iterations):
        groups = [rng.sample(row, keep * each) for row in rng.sample(rows, 4)]
        found = found.faded() + choice_worth(groups, keep)
    return found


def gain(rows: list[list[float]], keep: int, each: int) -> float:
    """Mean variance of the kept rewards over that of random ones: of every row, in many draws."""
    rng, kept, at_random = random.Random(1), [], []
    for row in rows:
        for _ in range(12):
            drawn = sorted(rng.sample(row, keep * each))
            splits = (drawn[:low] + drawn[len(drawn) - keep + low :] for low in range(keep + 1))
            kept.append(max(map(pvariance, splits)))
            at_random.append(pvariance(rng.sample(row, keep)))
    return fmean(kept) / fmean(at_random)


@given(st.lists(REWARDS, min_size=1, max_size=3), st.integers(2, 4))
def test_variances_are_those_of_all_subsets(groups: list[list[float]], keep: int) -> None:
    found = choice_worth(groups, keep)
    able = [group for group in groups if len(group) > keep]
    subsets = [[pvariance(each) for each in combinations(group, keep)] for group in able]
    assert found.groups == len(able)
    assert found.kept == pytest.approx(sum(map(max, subsets)), abs=1e-9)
    assert found.at_random == pytest.approx(sum(map(fmean, subsets)), abs=1e-9)


@pytest.mark.parametrize("each", [2, 4, 8])
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_on_real_rewards_a_run_finds_the_gain_of_a_choice(path: Path, each: int) -> None:
    rows = table(path.stem)
    assert told(rows, 4, each, 60).of(each) == pytest.approx(gain(rows, 4, each), rel=0.15)


def test_the_guess_is_the_mean_of_the_tables() -> None:
    slopes = [
        (gain(table(path.stem), 4, each) - 1) / math.log(each)
        for path in TABLES
        for each in (2, 4, 8)
    ]
    assert fmean(slopes) == pytest.approx(USUAL, abs=0.15)


def test_the_guess_fades_as_groups_are_seen() -> None:
    """Of rewards that pass or fail a choice gains little."""
    rng = random.Random(0)
    assert ChoiceWorth().slope == USUAL
    slopes = []
    for groups in (1, 4, 16, 400):
        drawn = [[float(rng.random() < 0.5) for _ in range(16)] for _ in range(groups)]
        slopes.append(choice_worth(drawn, 4).slope)
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[-1] == pytest.approx(0.32 / math.log(4), rel=0.1)


def test_groups_without_a_choice_and_rewards_that_are_all_equal_say_nothing() -> None:
    assert choice_worth([[0.0, 1.0, 0.5, 0.2], []], 4) == ChoiceWorth()
    assert choice_worth([[0.5] * 8], 4).slope == USUAL
    assert ChoiceWorth().of(1.0) == 1.0


def test_the_scale_of_rewards_does_not_matter() -> None:
    rows = [row[:16] for row in table("ocr-start")[:4]]
    hundred = [[100 * reward for reward in row] for row in rows]
    assert choice_worth(hundred, 4).slope == pytest.approx(choice_worth(rows, 4).slope)
