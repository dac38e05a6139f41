"""A whole job whose kept seeds are finished while the iteration before is trained, with fake
workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from job_kit import World, job
from town_kit import Town, calm, events, iterations, trained_samples

from spotlight.actors.protocol.trainer import Train
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.policies.exploration.reuse import MOST_DRIFT
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time

SAMPLES = 8
ITERATIONS = 4
PROBES = 4
TRIES = 24


def spec(budget: str = "fixed", iterations: int = ITERATIONS, **changes: Any) -> JobSpec:
    exploration = {
        "candidates": 4,
        "budget": budget,
        "finish": "previous",
        "preview_steps": 1,
        "probes": 0,
        "random_groups": 0,
        **changes.pop("exploration", {}),
    }
    return job(iterations=iterations, exploration=exploration, **changes)


def faithful(wanted: Request) -> float:
    """A seed is as good in a preview as in full."""
    return derived_seed(wanted.prompt, wanted.seed) % 1000 / 1000


def misleading(wanted: Request) -> float:
    """A preview of few steps says nothing."""
    return derived_seed(wanted.settings.steps, wanted.prompt, wanted.seed) % 1000 / 1000


def rollouts(town: Town, *, lag: int) -> dict[int, int]:
    """How many each iteration had that were made with weights so much older."""
    granted = (request for _, request in town.world.granted if request.kind == "rollout")
    return dict(Counter(r.iteration for r in granted if r.iteration - r.weights_version == lag))


def finished(run: str) -> list[int]:
    return [iteration["samples_finished"] for iteration in iterations(run)]


def trains(run: str) -> dict[int, float]:
    """When each iteration began to be trained."""
    phases = [event for event in events(run, "phase") if event["phase"] == "train"]
    return {event["iteration"]: event["time_s"] for event in phases}


@pytest.mark.parametrize("budget", ["fixed", "window"])
async def test_kept_seeds_are_finished_with_the_weights_of_their_previews(
    town: Town, budget: str
) -> None:
    end = await town.run(spec(budget))
    assert end.outcome == "finished"
    assert rollouts(town, lag=0) == {0: SAMPLES}, "only the first iteration has no previews"
    assert rollouts(town, lag=1) == dict.fromkeys(range(1, ITERATIONS), SAMPLES)
    assert finished(end.run_folder) == [0, *[SAMPLES] * (ITERATIONS - 1)]
    assert [len(train.samples) for train in town.world.trained] == [SAMPLES] * ITERATIONS


async def test_training_does_not_wait_for_a_rollout(town: Town) -> None:
    town.world.publish_s = 7.0
    end = await town.run(spec("window", validation={"prompts": 1}))
    began = trains(end.run_folder)
    gaps = [began[iteration] - began[iteration - 1] for iteration in range(2, ITERATIONS)]
    assert max(gaps) < town.world.train_s + 1.0
    told = iterations(end.run_folder)[2:]
    assert min(each["previews"] for each in told) > 2 * SAMPLES, "the time was used"


async def test_what_is_not_finished_when_training_ends_is_waited_for(town: Town) -> None:
    town.world.denoise_s = 9.0
    end = await town.run(spec("window", validation={"prompts": 1}))
    assert rollouts(town, lag=0) == {0: SAMPLES}
    assert finished(end.run_folder)[1:] == [SAMPLES] * (ITERATIONS - 1)


@pytest.mark.slow
async def test_without_spot_nodes_reserved_ones_finish_when_they_have_trained(town: Town) -> None:
    the_job = spec("window", validation={"prompts": 1})
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.nodes["spot"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert rollouts(town, lag=0) == {0: SAMPLES}
    assert [each["samples"] for each in iterations(end.run_folder)] == [SAMPLES] * ITERATIONS


@pytest.mark.slow
async def test_a_prompt_group_that_cannot_be_finished_is_made_anew(town: Town) -> None:
    town.world.fails = lambda _, requests: any(
        one.kind == "rollout" and one.group == 1 and one.weights_version < one.iteration
        for one in requests
    )
    end = await town.run(spec())
    assert end.outcome == "finished"
    half = dict.fromkeys(range(1, ITERATIONS), SAMPLES // 2)
    assert rollouts(town, lag=0) == {0: SAMPLES, **half}
    assert finished(end.run_folder)[1:] == [SAMPLES // 2] * (ITERATIONS - 1)
    assert [len(train.samples) for train in town.world.trained] == [SAMPLES] * ITERATIONS


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["fixed", "window"])
async def test_where_the_weights_have_moved_too_far_seeds_are_denoised_with_the_new_ones(
    town: Town, budget: str
) -> None:
    town.world.drift = 2 * MOST_DRIFT
    end = await town.run(spec(budget))
    assert rollouts(town, lag=0) == dict.fromkeys(range(ITERATIONS), SAMPLES)
    assert len(events(end.run_folder, "samples_regenerated")) == ITERATIONS - 1
    assert finished(end.run_folder) == [0] * ITERATIONS


@pytest.mark.slow
async def test_probes_are_finished_beside_the_samples_and_not_trained_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(spec(exploration={"probes": PROBES}))
    told = iterations(end.run_folder)[1:]
    assert {each["probes"] for each in told} == {PROBES}
    assert {each["probe_tau"] for each in told} == {1.0}
    assert {each["samples"] for each in told} == {SAMPLES}
    assert rollouts(town, lag=0) == {0: SAMPLES}


async def test_where_cheap_previews_foretell_nothing_previews_become_the_samples(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(misleading))
    end = await town.run(spec(iterations=TRIES, exploration={"probes": 7}))
    told = events(end.run_folder, "previews_misled")
    assert told
    assert all(each["agreement"] < each["least"] for each in told)
    misled = {each["iteration"] for each in told}
    for each in iterations(end.run_folder)[1:]:
        assert each["samples_reused"] == SAMPLES
        assert each["samples_finished"] == (0 if each["iteration"] in misled else SAMPLES)
    steps = {
        request.iteration: request.settings.steps
        for _, request in town.world.granted
        if request.kind == "preview"
    }
    assert {steps[iteration] for iteration in misled} == {2}
    after = range(min(misled), TRIES)
    assert any(iteration not in misled for iteration in after), "cheap ones are tried again"


@pytest.mark.slow
async def test_a_noisy_reward_of_a_finished_sample_had_no_say_in_its_choice(town: Town) -> None:
    """So nothing is drawn twice to train on."""
    end = await town.run(spec(rewards=[{"noisy": True}]))
    assert end.outcome == "finished"
    assert finished(end.run_folder)[1:] == [SAMPLES] * (ITERATIONS - 1)


@pytest.mark.sweep
@pytest.mark.parametrize("publish_s", [3.0, 25.0])
@pytest.mark.parametrize("after_s", range(2, 110, 6))
async def test_a_coordinator_may_be_killed_at_any_time(
    town: Town, after_s: int, publish_s: float
) -> None:
    town.world.publish_s, town.world.save_s = publish_s, 2.0
    the_job = spec(validation={"every": 1}, exploration={"probes": PROBES})
    reference = await calm(town, the_job)
    await town.submit(the_job)
    await asyncio.sleep(after_s + 0.37)
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert trained_samples(last_of_each(town.world.trained)) == trained_samples(reference)
    assert len(town.world.started) == 1, "the trainers were not built again"


def last_of_each(trained: list[Train]) -> list[Train]:
    return list({train.iteration: train for train in trained}.values())


@pytest.mark.slow
async def test_trainers_that_are_lost_begin_again_with_the_same_samples(town: Town) -> None:
    the_job = spec()
    reference = await calm(town, the_job)
    await town.join("spare", "reserved")
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 2)
    await town.nodes["reserved"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert trained_samples(last_of_each(town.world.trained)) == trained_samples(reference)
