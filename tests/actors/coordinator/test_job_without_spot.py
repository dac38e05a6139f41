"""A whole job that has no spot worker for long, with fake workers."""

from __future__ import annotations

import pytest
from job_kit import job
from town_kit import Town, events, iterations

from spotlight.jobs import JobSpec
from spotlight.policies.spot_time import LONG

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

SAMPLES = 8


def spec(iterations: int, **exploration: object) -> JobSpec:
    asked = {"candidates": 2, "budget": "window", "reuse": True, **exploration}
    return job(iterations=iterations, exploration=asked, validation={"prompts": 1})


async def lose_spot(town: Town, the_job: JobSpec) -> None:
    """In the first iteration."""
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "train")
    await town.nodes["spot"].abort()


def reused(run: str) -> list[int]:
    return [iteration["samples_reused"] for iteration in iterations(run)]


async def test_after_a_while_training_waits_for_the_previews_of_reserved_workers(
    town: Town,
) -> None:
    await lose_spot(town, spec(LONG + 4))
    end = await town.ended()
    assert end.outcome == "finished"
    (told,) = events(end.run_folder, "settings_without_spot")
    assert (told["without_spot"], told["previews"]) == (True, 2.0)
    assert reused(end.run_folder)[told["iteration"] + 2 :] == [SAMPLES] * 2
    assert not any(reused(end.run_folder)[1 : told["iteration"]]), "not before"


async def test_with_a_spot_worker_again_the_job_has_its_own_settings(town: Town) -> None:
    await lose_spot(town, spec(LONG + 6))
    await town.wait(lambda now: now.iteration == LONG + 2)
    await town.join("another", "spot")
    end = await town.ended()
    told = events(end.run_folder, "settings_without_spot")
    assert [(event["without_spot"], event["previews"]) for event in told] == [
        (True, 2.0),
        (False, 0.0),
    ]


async def test_a_job_that_explores_nothing_keeps_its_settings(town: Town) -> None:
    await lose_spot(town, spec(LONG + 3, mode="none", reuse=False))
    end = await town.ended()
    assert not events(end.run_folder, "settings_without_spot")
    assert not any(reused(end.run_folder))


async def test_a_coordinator_that_was_killed_goes_on_waiting(town: Town) -> None:
    await lose_spot(town, spec(LONG + 5))
    await town.wait(lambda now: now.iteration == LONG + 2)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(events(end.run_folder, "settings_without_spot")) == 1
    assert reused(end.run_folder)[-2:] == [SAMPLES] * 2
