"""A whole job that trains on its previews, with fake workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from job_kit import World, job
from town_kit import Town, calm, events, iterations, trained_samples

from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.request_queue import RequestQueue
from spotlight.actors.protocol.trainer import Train
from spotlight.actors.protocol.users import CancelJob
from spotlight.jobs import JobSpec
from spotlight.policies.advantages import group_advantages
from spotlight.policies.exploration.planners import max_variance_subset
from spotlight.policies.exploration.reuse import MOST_DRIFT
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time

SAMPLES = 8
ITERATIONS = 4


def spec(budget: str = "fixed", **changes: Any) -> JobSpec:
    exploration = {"candidates": 2, "budget": budget, "reuse": True}
    return job(iterations=ITERATIONS, exploration=exploration, **changes)


def granted(town: Town, kind: str) -> dict[int, int]:
    """How many requests of a kind each iteration had."""
    return dict(Counter(r.iteration for _, r in town.world.granted if r.kind == kind))


def previews(town: Town) -> list[Request]:
    return [request for _, request in town.world.granted if request.kind == "preview"]


def reused(run: str) -> list[int]:
    return [iteration["samples_reused"] for iteration in iterations(run)]


@pytest.mark.slow
async def test_the_previews_of_an_iteration_are_its_samples(town: Town) -> None:
    end = await town.run(spec())
    assert end.outcome == "finished"
    assert granted(town, "rollout") == {0: SAMPLES}, "only the first iteration has no previews"
    assert {one.iteration - one.weights_version for one in previews(town)} == {1}
    assert reused(end.run_folder) == [0, *[SAMPLES] * (ITERATIONS - 1)]
    assert [len(train.samples) for train in town.world.trained] == [SAMPLES] * ITERATIONS


@pytest.mark.slow
async def test_advantages_are_those_of_the_previews_that_are_trained_on(town: Town) -> None:
    the_job = spec()
    await town.run(the_job)
    for train in town.world.trained[1:]:
        for prompt in {sample.prompt for sample in train.samples}:
            of_group = [
                p for p in previews(town) if (p.iteration, p.prompt) == (train.iteration, prompt)
            ]
            rewards = [World.reward(preview) for preview in of_group]
            kept = max_variance_subset(rewards, 4, tie_break=[one.seed for one in of_group])
            expected = group_advantages(
                [rewards[index] for index in kept],
                [0] * 4,
                baseline=the_job.training.advantage_baseline,
                std="group",
                clip=the_job.training.largest_advantage,
            )
            found = [sample.advantage for sample in train.samples if sample.prompt == prompt]
            ratios = [a / b for a, b in zip(sorted(found), sorted(expected), strict=True)]
            assert ratios == pytest.approx([ratios[0]] * 4), "all but their common scale"


@pytest.mark.slow
async def test_training_goes_on_while_weights_are_published(town: Town) -> None:
    town.world.publish_s = 7.0
    end = await town.run(spec("window"))
    trains = {
        event["iteration"]: event["time_s"]
        for event in events(end.run_folder, "phase")
        if event["phase"] == "train"
    }
    gaps = [trains[iteration] - trains[iteration - 1] for iteration in range(2, ITERATIONS)]
    assert all(gap < town.world.train_s + 1.0 for gap in gaps)
    versions = {one.iteration: one.weights_version for one in previews(town)}
    assert versions == {iteration: iteration - 1 for iteration in range(1, ITERATIONS)}


@pytest.mark.slow
async def test_where_the_weights_have_moved_too_far_seeds_are_denoised_again(town: Town) -> None:
    town.world.drift = 2 * MOST_DRIFT
    end = await town.run(spec())
    assert granted(town, "rollout") == dict.fromkeys(range(ITERATIONS), SAMPLES)
    told = events(end.run_folder, "samples_regenerated")
    assert [(e["iteration"], e["drift"], e["most"]) for e in told] == [
        (iteration, 2 * MOST_DRIFT, MOST_DRIFT) for iteration in range(1, ITERATIONS)
    ]
    assert reused(end.run_folder) == [0] * ITERATIONS


@pytest.mark.slow
async def test_a_drift_that_is_not_a_number_is_too_far(town: Town) -> None:
    town.world.drift = float("nan")
    end = await town.run(spec())
    assert end.outcome == "finished"
    assert granted(town, "rollout") == dict.fromkeys(range(ITERATIONS), SAMPLES)


@pytest.mark.slow
async def test_prompt_groups_that_are_not_whole_are_denoised_with_the_new_weights(
    town: Town,
) -> None:
    town.world.denoise_s = 9.0
    the_job = spec("window", validation={"prompts": 1})
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "train")
    await asyncio.sleep(13.0)  # one batch is there: half of each group
    await town.nodes["spot"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert granted(town, "rollout") == {0: SAMPLES, 1: SAMPLES}, "later on training waits"
    rollouts = [one for _, one in town.world.granted if one.kind == "rollout"]
    assert all(one.weights_version == one.iteration for one in rollouts)
    assert reused(end.run_folder) == [0, 0, SAMPLES, SAMPLES]


@pytest.mark.slow
async def test_previews_that_are_nearly_there_are_waited_for(town: Town) -> None:
    town.world.denoise_s = 5.5  # the second batch ends a little after training
    end = await town.run(spec("window", validation={"prompts": 1}))
    assert reused(end.run_folder)[-1] == SAMPLES


@pytest.mark.sweep
@pytest.mark.parametrize("publish_s", [3.0, 25.0])
@pytest.mark.parametrize("after_s", range(2, 90, 8))
async def test_a_coordinator_may_be_killed_at_any_time(
    town: Town, after_s: int, publish_s: float
) -> None:
    town.world.publish_s, town.world.save_s = publish_s, 2.0
    the_job = spec(validation={"every": 1})
    reference = await calm(town, the_job)
    await town.submit(the_job)
    await asyncio.sleep(after_s + 0.37)
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert trained_samples(_last_of_each(town.world.trained)) == trained_samples(reference)
    assert len(town.world.started) == 1, "the trainers were not built again"


def _last_of_each(trained: list[Train]) -> list[Train]:
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
    assert trained_samples(_last_of_each(town.world.trained)) == trained_samples(reference)


async def test_weights_of_previews_that_nobody_has_any_more_are_trained_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their trainers have trained on, and training waits for the previews."""
    the_job = spec()
    reference = await calm(town, the_job)
    town.world.denoise_s = 25.0
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "publish" and now.weights_version == 3)
    is_lost, losses = Publications.is_lost, [2]

    def lost_once(publications: Publications, version: int) -> bool:
        if version not in losses:
            return is_lost(publications, version)
        losses.remove(version)
        return True

    monkeypatch.setattr(Publications, "is_lost", lost_once)
    end = await town.ended()
    assert end.outcome == "finished"
    (lost,) = events(end.run_folder, "trainers_lost")
    assert lost["reason"] == "no node has the weights of version 2 any more"
    assert trained_samples(_last_of_each(town.world.trained)) == trained_samples(reference)


@pytest.mark.slow
async def test_what_makes_groups_whole_is_handed_out_before_more_is_there_to_choose_from(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers prefer prompts that they know: of all previews at once some group might get few."""
    submitted: list[list[Request]] = []
    submit = RequestQueue.submit

    def noting(queue: RequestQueue, requests: Collection[Request]) -> None:
        if requests and next(iter(requests)).kind == "preview":
            submitted.append(list(requests))
        submit(queue, requests)

    monkeypatch.setattr(RequestQueue, "submit", noting)
    await town.run(spec("window", sampler={"micro_batch": 8}))
    firsts = {one[0].iteration: one for one in reversed(submitted)}
    for first in firsts.values():
        assert Counter(request.group for request in first) == {0: 4, 1: 4}
    assert len(submitted) > len(firsts), "there is more to choose from later"


class TestAnIterationInTwoParts:
    """The groups of the later part are chosen when the first one is trained."""

    SPEC: ClassVar[dict[str, Any]] = {
        "training": {"updates_per_iteration": 2, "rollout_decay": 0.5}
    }

    @pytest.mark.slow
    async def test_half_of_the_groups_are_trained_first(self, town: Town) -> None:
        end = await town.run(spec("window", **self.SPEC))
        assert end.outcome == "finished"
        orders = [(one.iteration, one.part, len(one.samples)) for one in town.world.trained]
        assert orders == [
            (0, "whole", SAMPLES),
            *(
                (iteration, part, SAMPLES // 2)
                for iteration in range(1, ITERATIONS)
                for part in ("first", "rest")
            ),
        ]
        assert all(each["reward_mean"] is not None for each in iterations(end.run_folder))
        for first, rest in pairwise(town.world.trained[1:]):
            if first.iteration == rest.iteration:
                assert {s.prompt for s in first.samples}.isdisjoint(s.prompt for s in rest.samples)

    @pytest.mark.slow
    async def test_nobody_waits_for_previews_that_end_after_training(self, town: Town) -> None:
        """They are for the later part."""
        town.world.denoise_s = 3.0
        town.world.publish_s = 7.0
        exploration = {"candidates": 8, "budget": "window", "reuse": True}
        changes = {"iterations": ITERATIONS, "exploration": exploration, **self.SPEC}
        end = await town.run(job(**changes, validation={"prompts": 1}))
        phases = [each for each in events(end.run_folder, "phase") if each["phase"] == "train"]
        began = {each["iteration"]: each["time_s"] for each in phases}
        chosen = ITERATIONS - 2  # after the last one nobody previews
        assert began[chosen] - began[chosen - 1] < town.world.train_s + 1.0
        told = iterations(end.run_folder)[chosen]
        assert told["samples_reused"] == SAMPLES
        asked = sum(one.iteration == chosen for one in previews(town))
        assert told["previews"] + told["previews_late"] == asked, "none is counted twice, or lost"
        assert told["previews_late"] > 0, "or nothing was there that could have been waited for"

    @pytest.mark.sweep
    @pytest.mark.parametrize("publish_s", [3.0, 25.0])
    @pytest.mark.parametrize("after_s", range(2, 90, 6))
    async def test_a_coordinator_may_be_killed_at_any_time(
        self, town: Town, after_s: int, publish_s: float
    ) -> None:
        """What was trained is not trained again, and a part that was chosen is not chosen anew."""
        town.world.publish_s, town.world.save_s = publish_s, 2.0
        town.world.denoise_s = 4.0
        exploration = {"candidates": 8, "budget": "window", "reuse": True}
        changes = {"iterations": ITERATIONS, "exploration": exploration, **self.SPEC}
        await town.submit(job(**changes, validation={"every": 1}))
        await asyncio.sleep(after_s + 0.37)
        await town.kill()
        await asyncio.sleep(2.0)
        await town.open()
        end = await town.ended()
        assert end.outcome == "finished"
        assert len(town.world.started) == 1, "the trainers were not built again"
        parts = [(one.iteration, one.part) for one in town.world.trained]
        assert len(set(parts)) == len(parts)
        assert sum(len(one.samples) for one in town.world.trained) == SAMPLES * ITERATIONS

    @pytest.mark.slow
    async def test_a_kill_does_not_make_training_shorter_than_it_was(self, town: Town) -> None:
        """Of its two parts, 10 s each, the coordinator hears of one again."""
        town.world.denoise_s = 2.0
        exploration = {"candidates": 8, "budget": "window", "reuse": True}
        await town.submit(job(iterations=ITERATIONS, exploration=exploration, **self.SPEC))
        await town.wait(lambda now: now.phase == "train" and now.iteration == 2)
        await asyncio.sleep(12.0)
        await town.kill()
        await asyncio.sleep(1.0)
        await town.open()
        last = await town.ended()
        assert last.outcome == "finished"
        assert min(one["train_s"] for one in iterations(last.run_folder)) >= 20.0

    @pytest.mark.parametrize("group", [0, 1])
    @pytest.mark.slow
    async def test_where_all_groups_of_a_part_are_dropped_the_rest_is_trained_at_once(
        self, town: Town, group: int
    ) -> None:
        """A job that is resumed denoises its samples again, those of both parts."""
        exploration = {"candidates": 4, "budget": "window", "reuse": True}
        divided = job(iterations=5, exploration=exploration, checkpoint_every=2, **self.SPEC)
        await town.submit(divided)
        now = await town.wait(lambda now: now.phase == "train" and now.iteration == 3)
        await asyncio.sleep(5.0)
        await town.ask(CancelJob(reason="user"))
        await town.ended()
        before = len(town.world.trained)
        town.world.fails = lambda _, requests: any(
            (one.kind, one.group) == ("rollout", group) for one in requests
        )
        await town.submit(divided, now.run_folder, resume=True)
        assert (await town.ended()).outcome == "finished"
        trained = town.world.trained[before:]
        assert "whole" in {one.part for one in trained}
        assert all(one.samples for one in trained)
