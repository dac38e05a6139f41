"""A whole job that trains on its previews by a reward that is noisy, with fake workers."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from statistics import fmean
from typing import Any

import pytest
from job_kit import World, job
from town_kit import Town, events, iterations

from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time

SAMPLES = 8
MERIT = 0.4
"""What every sample deserves."""
LUCK, RARELY = 0.5, 0.1
"""Added to one score in ten, so that the most contrast has whoever was lucky."""
STEADY = {"name": "steady"}


def spec(*rewards: dict[str, Any], iterations: int = 4, **changes: Any) -> JobSpec:
    exploration = {"candidates": 4, "budget": "fixed", "reuse": True, "probes": 0}
    changes = {"validation": {"prompts": 1}, "exploration": exploration, **changes}
    return job(iterations=iterations, rewards=list(rewards), **changes)


class Noise:
    """Scores of which no two of the same sample need be alike, even after a failure."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._rng = random.Random(0)

    def score(self) -> float:
        return MERIT + (LUCK if self._rng.random() < RARELY else 0.0)

    def __call__(self, wanted: Request) -> tuple[float, ...]:
        twice = self._again and wanted.kind == "preview"
        return (self.score(), self.score()) if twice else (self.score(),)


async def excess(town: Town, *, noisy: bool) -> float:
    """What samples that were chosen among previews are trained with on average, over what they
    should be: in standard errors."""
    town.world.reward = Noise(again=noisy)  # type: ignore[method-assign]
    town.world.denoise_s = 0.02
    end = await town.run(spec({"noisy": noisy}, prompts={"per_iteration": 32}))
    assert end.outcome == "finished"
    _, *of_previews = iterations(end.run_folder)
    assert {one["samples_reused"] for one in of_previews} == {32 * 4}
    mean = fmean(one["reward_mean"] for one in of_previews)
    error = LUCK * (RARELY * (1 - RARELY) / (len(of_previews) * 32 * 4)) ** 0.5
    return (mean - MERIT - LUCK * RARELY) / error


@pytest.mark.slow
async def test_luck_that_chose_a_sample_is_no_part_of_its_reward(town: Town) -> None:
    assert abs(await excess(town, noisy=True)) < 3
    assert await excess(town, noisy=False) > 10


@pytest.mark.slow
async def test_only_the_rewards_that_are_noisy_are_drawn_again(town: Town) -> None:
    def rewards(wanted: Request) -> tuple[float, ...]:
        steady = derived_seed(wanted.seed) % 1000 / 1000
        return (0.25, steady, 0.75) if wanted.kind == "preview" else (0.25, steady)

    town.world.reward = rewards  # type: ignore[method-assign, assignment]
    end = await town.run(spec({"name": "noisy", "noisy": True}, STEADY))
    assert end.outcome == "finished"
    first, *others = iterations(end.run_folder)
    assert first["rewards"]["noisy"] == 0.25
    assert {one["rewards"]["noisy"] for one in others} == {0.75}
    assert {one["rank_correlation"] for one in others} == {1.0}, "by the steady one"


@pytest.mark.slow
async def test_a_choice_by_luck_alone_keeps_its_promise_nowhere_and_stops_exploration(
    town: Town,
) -> None:
    town.world.reward = Noise(again=True)  # type: ignore[method-assign]
    town.world.train_s, town.world.denoise_s = 1.0, 0.1
    end = await town.run(spec({"noisy": True}, iterations=30))
    reduced = events(end.run_folder, "exploration_reduced")
    assert reduced[-1]["realised"] < 0.14
    assert 0.0 in {event["share"] for event in reduced}


@pytest.mark.slow
async def test_without_reuse_every_sample_is_scored_afresh_anyway(town: Town) -> None:
    town.world.reward = Noise(again=False)  # type: ignore[method-assign]
    end = await town.run(spec({"noisy": True}, exploration={"reuse": False}))
    assert end.outcome == "finished", "previews have one reward"


@pytest.mark.slow
async def test_a_preview_that_lacks_the_second_reward_is_a_failure_of_the_scorer(
    town: Town,
) -> None:
    town.world.reward = Noise(again=False)  # type: ignore[method-assign]
    end = await town.run(spec({"noisy": True}))
    failed = events(end.run_folder, "scorer_failed")
    assert {event["error"] for event in failed} == {"1 rewards of an image that has 2"}
    assert {one["samples_reused"] for one in iterations(end.run_folder)} == {0}


@pytest.mark.parametrize("after_s", range(21, 70, 8))
@pytest.mark.slow
async def test_a_coordinator_that_comes_back_draws_nothing_again_that_it_has(
    town: Town, after_s: int
) -> None:
    town.world.reward = Noise(again=True)  # type: ignore[method-assign]
    town.world.publish_s, town.world.save_s = 3.0, 2.0
    await town.submit(spec({"noisy": True}))
    await asyncio.sleep(after_s + 0.37)
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert_trained_on_one_draw(town.world)


@pytest.mark.slow
async def test_trainers_that_are_lost_begin_again_with_the_same_draws(town: Town) -> None:
    town.world.reward = Noise(again=True)  # type: ignore[method-assign]
    await town.join("spare", "reserved")
    await town.submit(spec({"noisy": True}))
    await town.wait(lambda now: now.phase == "train" and now.iteration == 2)
    await town.nodes["reserved"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(town.world.trained) > 4, "an iteration was trained twice"
    assert_trained_on_one_draw(town.world)


@pytest.mark.slow
async def test_a_worker_that_is_lost_and_a_scorer_that_fails_cost_only_time(town: Town) -> None:
    noise, failed = Noise(again=True), set[str]()

    def fails(worker: str, requests: tuple[Request, ...]) -> bool:
        first = requests[0].id not in failed
        failed.update(request.id for request in requests)
        return first and requests[0].kind == "preview"

    town.world.reward, town.world.fails = noise, fails  # type: ignore[method-assign]
    await town.join("lost", "spot")
    await town.submit(spec({"noisy": True}))
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.nodes["lost"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert {one["samples_reused"] for one in iterations(end.run_folder)[1:]} == {SAMPLES}
    assert events(end.run_folder, "scorer_failed")


def assert_trained_on_one_draw(world: World) -> None:
    """However often an iteration is trained, it is on the same samples with the same rewards."""
    found: defaultdict[int, set[Any]] = defaultdict(set)
    for train in world.trained:
        found[train.iteration].add(tuple((s.prompt, s.advantage) for s in train.samples))
    assert [len(found[iteration]) for iteration in range(4)] == [1] * 4
