"""What the job runner knows of prompts, and hands on."""

from __future__ import annotations

from job_kit import job

from spotlight.actors.coordinator.job.exploration_record import ExplorationRecord
from spotlight.actors.coordinator.tenant.job_journal import SavedProgress
from spotlight.actors.coordinator.tenant.request_plans import unexplored
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.prompt_population import Population
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge

CATEGORIES = {"a": "x", "b": "y", "c": "x"}


def exploring(known: Knowledge) -> ExplorationRecord:
    spec = job(exploration={"mode": "bandit"}, prompts={"per_iteration": 2})
    progress = SavedProgress(0, unexplored(spec, 0), ())
    return ExplorationRecord(spec, progress, known, CATEGORIES, [].append)


def test_an_iteration_is_told_what_is_known_of_its_prompts_and_of_all_categories() -> None:
    known = Knowledge(
        {"a": Evidence(1), "c": Evidence(3)}, {"x": Population(1), "y": Population(2)}
    )
    it = exploring(known)
    told = it.plan(0, 0, ["a", "b"], 1.0).knowledge
    assert told == Knowledge({"a": Evidence(1)}, dict(known.categories))
    it.accept(Explored(0, (), (), 0, 0, Knowledge({"b": Evidence(5)}, {"x": Population(9)})))
    assert it.plan(1, 1, ["c", "b"], 1.0).knowledge == Knowledge(
        {"c": Evidence(3), "b": Evidence(5)}, {"x": Population(9), "y": Population(2)}
    )
