"""What is known of prompts, and handed on to the next exploration."""

from __future__ import annotations

import random
from typing import Any

import pytest
from explorer_kit import NOTHING, settings

from spotlight.policies.exploration.choice_worth import ChoiceWorth, choice_worth
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import Agreement, Gain
from spotlight.policies.exploration.record import ExplorationRecord
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge, Population
from spotlight.record.run_metrics import IterationMetrics

NO_PROBES = Agreement()
CATEGORIES = {"a": "x", "b": "y", "c": "x"}


def exploring(
    known: Knowledge, agreement: Agreement = NO_PROBES, **asked: Any
) -> ExplorationRecord:
    return ExplorationRecord(
        settings(planner="bandit", **asked),
        Explored(0, (), (), 0, 0),
        known,
        categories=CATEGORIES,
        agreement=agreement,
        gain=Gain(),
        worth=ChoiceWorth(),
    )


def test_an_iteration_is_told_what_is_known_of_its_prompts_and_of_all_categories() -> None:
    known = Knowledge(
        {"a": Evidence(1), "c": Evidence(3)}, {"x": Population(1), "y": Population(2)}
    )
    it = exploring(known)
    told = it.plan(0, ["a", "b"], 1.0).knowledge
    assert told == Knowledge({"a": Evidence(1)}, dict(known.categories))
    it.accept(Explored(0, (), (), 0, 0, Knowledge({"b": Evidence(5)}, {"x": Population(9)})))
    assert it.plan(1, ["c", "b"], 1.0).knowledge == Knowledge(
        {"c": Evidence(3), "b": Evidence(5)}, {"x": Population(9), "y": Population(2)}
    )


def test_previews_that_do_not_agree_with_samples_are_not_worth_making_and_it_is_told() -> None:
    it = exploring(NOTHING, Agreement(concordant=500.0, discordant=500.0))
    plan = it.plan(3, ["a"], 1.0)
    assert plan.share == 0.0
    reduction = it.reduction(plan)
    assert reduction is not None
    assert (reduction.iteration, reduction.share, reduction.pairs) == (3, 0.0, 1000.0)


def test_nothing_is_told_where_all_previews_are_worth_making() -> None:
    it = exploring(NOTHING)
    assert it.reduction(it.plan(3, ["a"], 1.0)) is None


def test_where_cheap_previews_foretell_too_little_all_are_made_with_all_steps_and_it_is_told() -> (
    None
):
    known = Agreement(concordant=500.0, discordant=500.0)
    it = exploring(NOTHING, known, finishes=True)
    misled = it.misled(3)
    assert misled is not None
    assert (misled.iteration, misled.agreement, misled.pairs) == (3, 0.0, 1000.0)
    assert misled.agreement < misled.least
    assert it.plan(3, ["a"], 1.0).share == 1.0


def test_nothing_is_told_where_cheap_previews_foretell_enough_or_are_not_finished() -> None:
    good, bad = Agreement(concordant=90.0, discordant=10.0), Agreement(discordant=100.0)
    assert exploring(NOTHING, good, finishes=True).misled(3) is None
    assert exploring(NOTHING, bad).misled(3) is None


def explored(iteration: int, groups: int) -> Explored:
    """Of groups that pass and fail alike, with two previews for each of 8 samples."""
    told = choice_worth([[0.0, 1.0] * 4] * groups, 4, random.Random(0))
    return Explored(iteration, ((), ()), ((), ()), previews=16, late=0, worth=told)


def test_it_is_told_what_choosing_is_worth_and_what_twice_the_previews_would_be() -> None:
    it, metrics = exploring(NOTHING), IterationMetrics(iteration=1)
    it.accept(explored(1, groups=40))
    it.evaluate([], metrics)
    assert metrics.choice_worth == pytest.approx(
        7 / 6
    )  # of 8, the variance of 4 random ones is 3/14
    assert metrics.choice_worth_doubled is not None
    assert metrics.choice_worth <= metrics.choice_worth_doubled < 1.3


def test_what_choosing_is_worth_is_not_told_by_a_few_previews() -> None:
    it, metrics = exploring(NOTHING), IterationMetrics(iteration=1)
    it.accept(explored(1, groups=1))
    it.evaluate([], metrics)
    assert (metrics.choice_worth, metrics.choice_worth_doubled) == (None, None)
