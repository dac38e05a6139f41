"""What is known of prompts, and handed on to the next exploration."""

from __future__ import annotations

from typing import Any

from explorer_kit import NOTHING, settings

from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import Agreement, ChoiceWorth, Gain
from spotlight.policies.exploration.record import ExplorationRecord
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge, Population

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
