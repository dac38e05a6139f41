"""A whole job that loses samples which were made ahead with the node that kept them, with fake
workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from job_kit import job
from town_kit import Town, calm, events, trained_samples

from spotlight.actors.coordinator.tenant.tenant import Tenant
from spotlight.actors.protocol.trainer import Train
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import BundleOffer, Request

pytestmark = pytest.mark.virtual_time

SAMPLES = 8
ITERATIONS = 4
LOST = 2
"""The iteration that is trained, or for which previews are made, when its samples are lost."""

REUSE = {"reuse": True}
FINISH = {"finish": "previous", "preview_steps": 1, "probes": 4, "random_groups": 0}


def spec(exploration: dict[str, Any]) -> JobSpec:
    explored = {"candidates": 2, "budget": "fixed", **exploration}
    return job(name="lost", iterations=ITERATIONS, exploration=explored)


def follows_from_latents(wanted: Request) -> float:
    """A sample is as good as what is denoised, whatever it is called."""
    settings = wanted.settings
    return (
        derived_seed(wanted.weights_version, settings.steps, wanted.prompt, wanted.seed) % 997 / 997
    )


def last_of_each(trained: list[Train]) -> list[Train]:
    return list({train.iteration: train for train in trained}.values())


async def reference(town: Town, the_job: JobSpec) -> list[list[tuple[str, float]]]:
    """What is trained where nothing is lost; from now on nodes that train keep the samples."""
    town.world.reward = follows_from_latents
    found = trained_samples(await calm(town, the_job))
    town.world.reward, town.world.nodes_keep_samples = follows_from_latents, True
    return found


async def train(town: Town, the_job: JobSpec) -> None:
    """Up to the training on the samples that are to be lost."""
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "train" and now.iteration == LOST)


def made_again(run: str) -> list[tuple[int, int, int]]:
    told = events(run, "samples_made_again")
    return [(each["iteration"], each["samples"], each["weights_version"]) for each in told]


@pytest.mark.parametrize("exploration", [REUSE, FINISH], ids=["reuse", "finish"])
async def test_they_are_made_again_with_the_weights_of_their_previews(
    town: Town, exploration: dict[str, Any]
) -> None:
    the_job = spec(exploration)
    expected = await reference(town, the_job)
    await town.join("spare", "reserved")
    await train(town, the_job)
    await town.nodes["reserved"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1)]
    assert trained_samples(last_of_each(town.world.trained)) == expected


@pytest.mark.parametrize("exploration", [REUSE, FINISH], ids=["reuse", "finish"])
async def test_these_weights_are_kept_until_nobody_can_have_to_train_on_them_again(
    town: Town, exploration: dict[str, Any]
) -> None:
    """Newer weights are published long before the next seeds are chosen, and the state is kept."""
    the_job = spec(exploration)
    expected = await reference(town, the_job)
    town.world.denoise_s = 25.0
    await town.join("spare", "reserved")
    await town.submit(the_job)
    await town.wait(lambda now: now.phase == "publish" and now.weights_version == LOST + 1)
    await town.nodes["reserved"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1)]
    assert trained_samples(last_of_each(town.world.trained)) == expected


async def test_a_coordinator_that_is_killed_meanwhile_goes_on_with_them(town: Town) -> None:
    the_job = spec(REUSE)
    expected = await reference(town, the_job)
    town.world.denoise_s = 4.0
    await town.join("spare", "reserved")
    await train(town, the_job)
    await town.nodes["reserved"].abort()
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == LOST)
    await asyncio.sleep(5.0)  # some are there
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert trained_samples(last_of_each(town.world.trained)) == expected
    again = [r for _, r in town.world.granted if (r.kind, r.iteration) == ("rollout", LOST)]
    assert len(again) == len(set(again)) == SAMPLES


async def test_what_was_made_again_is_not_made_a_third_time(town: Town) -> None:
    """The coordinator is killed when all are there again."""
    the_job = spec(REUSE)
    expected = await reference(town, the_job)
    await town.join("spare", "reserved")
    await train(town, the_job)
    await town.nodes["reserved"].abort()
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == LOST)
    await town.wait(lambda now: now.phase == "train" and now.iteration == LOST)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1)]
    assert trained_samples(last_of_each(town.world.trained)) == expected


async def test_what_was_made_again_is_good_when_nobody_has_these_weights_any_more(
    town: Town,
) -> None:
    """It is in the coordinator's store, as nobody trains."""
    the_job = spec(REUSE)
    expected = await reference(town, the_job)
    await train(town, the_job)
    await town.nodes["reserved"].abort()
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == LOST)
    await asyncio.sleep(30.0)
    await town.nodes["spot"].abort()
    await town.kill()
    await town.open()
    await town.join("spare", "reserved")
    end = await town.ended()
    assert end.outcome == "finished"
    assert trained_samples(last_of_each(town.world.trained)) == expected


async def test_who_has_these_weights_may_be_heard_of_after_those_who_train(town: Town) -> None:
    """The coordinator and the trainers' node are started again together."""
    the_job = spec(REUSE)
    expected = await reference(town, the_job)
    await train(town, the_job)
    await town.kill()
    await town.nodes["reserved"].abort()
    await town.open()
    heal = town.cut_off(town.nodes["spot"])
    await town.join("reserved", "reserved", "another-process")
    await asyncio.sleep(1.0)
    heal()
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1)]
    assert trained_samples(last_of_each(town.world.trained)) == expected


async def test_where_nobody_has_these_weights_newer_ones_make_the_samples(town: Town) -> None:
    the_job = spec(REUSE)
    await reference(town, the_job)
    await train(town, the_job)
    await town.nodes["reserved"].abort()
    await town.nodes["spot"].abort()
    await town.join("spare", "reserved")
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST)]


async def test_where_the_last_that_has_these_weights_is_lost_meanwhile_the_job_goes_on(
    town: Town,
) -> None:
    the_job = spec(REUSE)
    await reference(town, the_job)
    await train(town, the_job)
    town.world.denoise_s = 30.0
    await town.nodes["reserved"].abort()
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == LOST)
    await town.nodes["spot"].abort()
    await town.join("spare", "reserved")
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1), (LOST, SAMPLES, LOST)]
    assert len(events(end.run_folder, "trainers_lost")) == 1, "who trains is well"


async def test_a_training_in_two_parts_has_both_made_again(town: Town) -> None:
    exploration = {"candidates": 4, "budget": "window", **REUSE}
    the_job = job(
        iterations=ITERATIONS, exploration=exploration, training={"updates_per_iteration": 2}
    )
    town.world.nodes_keep_samples = True
    await town.join("spare", "reserved")
    await train(town, the_job)
    await asyncio.sleep(0.8 * town.world.train_s)
    await town.nodes["reserved"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    assert made_again(end.run_folder) == [(LOST, SAMPLES, LOST - 1)]
    rollouts = {r.weights_version for _, r in town.world.granted if r.kind == "rollout"}
    assert rollouts == {0, LOST - 1}


async def test_what_still_comes_of_a_dropped_prompt_group_is_not_kept(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the group fails; nobody trains meanwhile."""
    discarded: list[str] = []
    discard = Tenant.discard

    def noting(tenant: Tenant, bundle: BundleOffer) -> None:
        discarded.append(bundle.key)
        discard(tenant, bundle)

    failed: set[str] = set()

    def fails(_: str, requests: tuple[Request, ...]) -> bool:
        if (requests[0].kind, requests[0].iteration) != ("rollout", LOST):
            return False
        failed.update(one.id for one in requests if not failed)
        return requests[0].id in failed

    exploration = {"candidates": 2, "budget": "fixed", **REUSE}
    changes = {"group_size": SAMPLES, "scoring": {"attempts": 1}}
    town.world.nodes_keep_samples = True
    await train(town, job(iterations=ITERATIONS, exploration=exploration, **changes))
    town.world.fails, town.world.score_s = fails, 0.5
    await town.nodes["reserved"].abort()
    monkeypatch.setattr(Tenant, "discard", noting)
    await asyncio.sleep(100.0)
    (dropped,) = events((await town.status()).run_folder, "group_dropped")
    assert dropped["iteration"] == LOST
    gone = {key for key in discarded if key.startswith("samples/")}
    assert len(gone) == 2, "of the batch that failed, and of the one behind it"


async def test_nodes_hold_a_third_version_only_until_the_next_state_is_kept(town: Town) -> None:
    """It is kept when the next seeds are chosen, long after newer weights are published."""
    town.world.denoise_s = 25.0
    await town.run(spec(REUSE))
    latest = [versions for versions in town.world.versions if versions[-1] == LOST + 1]
    assert [LOST - 1 in versions for versions in latest] == [True, False]
    assert latest[-1] == (LOST, LOST + 1)


async def test_where_no_samples_are_made_ahead_nodes_hold_two_versions(town: Town) -> None:
    await town.run(spec({}))
    assert all(len(versions) <= 2 for versions in town.world.versions)
