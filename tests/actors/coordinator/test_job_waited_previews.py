"""A whole job that has too few spot workers, with fake workers: training waits for previews."""

from __future__ import annotations

import pytest
from job_kit import job
from town_kit import Town, events, iterations

from spotlight.jobs import JobSpec

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


async def test_without_a_spot_worker_training_waits_for_the_previews_of_reserved_ones(
    town: Town,
) -> None:
    await lose_spot(town, spec(5))
    end = await town.ended()
    assert end.outcome == "finished"
    (told,) = events(end.run_folder, "training_waits")
    assert told["previews"] == 2.0
    assert reused(end.run_folder)[told["iteration"] + 2 :] == [SAMPLES] * 2
    assert not any(reused(end.run_folder)[1 : told["iteration"]]), "not before"


async def test_with_a_spot_worker_again_whose_previews_are_enough_training_goes_on_at_once(
    town: Town,
) -> None:
    await lose_spot(town, spec(6))
    await town.wait(lambda now: now.iteration == 3)
    await town.join("another", "spot")
    end = await town.ended()
    told = events(end.run_folder, "training_waits")
    assert [event["previews"] for event in told] == [2.0, 0.0]
    assert reused(end.run_folder)[-2:] == [SAMPLES] * 2


async def test_a_job_that_explores_nothing_waits_for_nothing(town: Town) -> None:
    await lose_spot(town, spec(3, mode="none", reuse=False))
    end = await town.ended()
    assert not events(end.run_folder, "training_waits")
    assert not any(reused(end.run_folder))


async def test_a_coordinator_that_was_killed_goes_on_waiting(town: Town) -> None:
    await lose_spot(town, spec(5))
    await town.wait(lambda now: now.iteration == 2)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(events(end.run_folder, "training_waits")) == 1
    assert reused(end.run_folder)[-2:] == [SAMPLES] * 2
