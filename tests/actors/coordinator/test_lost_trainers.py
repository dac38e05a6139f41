"""Trainers that are out of reach, and trainers that are lost, on virtual time: the job goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town, calm, events, iterations, trained_samples, validated

from spotlight.actors.protocol import CancelJob, JobAccepted, JobStatus, Train
from spotlight.policies.trainer_ranks import MOST_RECOVERIES

pytestmark = pytest.mark.virtual_time

SPEC = job(validation={"every": 1})


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved", apart=True)
        await town.join("spot", "spot")
        yield town


def training(now: JobStatus) -> bool:
    return now.phase == "train" and now.iteration == 1


def by_iteration(trained: list[Train]) -> dict[int, list[tuple[str, float]]]:
    """What was trained last of each iteration."""
    samples = trained_samples(trained)
    return {train.iteration: each for train, each in zip(trained, samples, strict=True)}


async def finished_as_if_calm(
    town: Town, reference: list[Train], versions: Sequence[int] = (0, 1, 2, 3)
) -> JobStatus:
    """By itself, with every iteration and validation on record once, and the same samples."""
    end = await town.ended()
    assert (end.outcome, end.reason) == ("finished", "")
    assert [record["iteration"] for record in iterations(end.run_folder)] == [0, 1, 2]
    assert sorted(validated(end.run_folder)) == list(versions)
    assert by_iteration(town.world.trained) == by_iteration(reference)
    return end


@pytest.mark.parametrize("seconds", [2.0, 15.0, 45.0])
async def test_a_trainer_that_is_out_of_reach_for_a_while_is_waited_for(
    town: Town, seconds: float
) -> None:
    reference = await calm(town, SPEC)
    await town.submit(SPEC)
    await town.wait(training)
    heal = town.cut_off(town.nodes["reserved"], town.workers["reserved"])
    await asyncio.sleep(seconds)
    heal()
    end = await finished_as_if_calm(town, reference)
    assert len(town.world.started) == 1, "the trainer is the same"
    assert [train.iteration for train in town.world.trained] == [0, 1, 2]
    (silent,) = events(end.run_folder, "trainer_out_of_reach")
    assert (silent["worker"], silent["patience_s"]) == ("reserved/0", 60.0)
    assert events(end.run_folder, "trainers_lost") == []


async def test_a_trainer_that_answers_itself_trains_on_however_long_its_node_is_away(
    town: Town,
) -> None:
    reference = await calm(town, SPEC)
    town.world.train_s = 100.0
    await town.submit(SPEC)
    await town.wait(training)
    heal = town.cut_off(town.nodes["reserved"])
    await finished_as_if_calm(town, reference)
    heal()
    assert len(town.world.started) == 1


async def test_the_status_says_what_the_job_waits_for(town: Town) -> None:
    await town.submit(SPEC)
    await town.wait(training)
    assert (await town.status()).note == ""
    heal = town.cut_off(town.nodes["reserved"], town.workers["reserved"])
    await asyncio.sleep(10.0)
    note = (await town.status()).note
    assert "reserved/0" in note
    assert "60 s" in note
    heal()
    await asyncio.sleep(10.0)
    assert (await town.status()).note == ""


async def test_one_that_is_out_of_reach_for_too_long_is_replaced(town: Town) -> None:
    reference = await calm(town, SPEC)
    await town.submit(SPEC)
    await town.wait(training)
    town.cut_off(town.nodes["reserved"], town.workers["reserved"])
    await town.join("another", "reserved")
    end = await finished_as_if_calm(town, reference)
    first, second = town.world.started
    assert (second.completed, second.term > first.term) == (1, True)
    (lost,) = events(end.run_folder, "trainers_lost")
    assert "trainer rank on reserved/0 is lost (nobody has heard of it for 60 s)" in lost["reason"]
    assert (lost["recovery"], lost["goes_on_from"]) == (1, 1)


async def test_the_patience_is_the_jobs(town: Town) -> None:
    spec = job(training={"patience_s": 5.0})
    await town.submit(spec)
    await town.wait(training)
    heal = town.cut_off(town.nodes["reserved"], town.workers["reserved"])
    await asyncio.sleep(20.0)
    heal()
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(town.world.started) == 2


async def test_a_replaced_trainer_that_comes_back_frees_what_it_held(town: Town) -> None:
    await town.submit(SPEC)
    await town.wait(training)
    heal = town.cut_off(town.nodes["reserved"], town.workers["reserved"])
    await town.join("another", "reserved")
    await town.wait(lambda now: now.phase == "train" and len(town.world.started) == 2)
    heal()
    await asyncio.sleep(30.0)
    worker = next(
        cell._actor  # type: ignore[attr-defined]
        for cell in town.workers["reserved"].cells.values()
    )
    assert worker.trainer is None
    assert (await town.ended()).outcome == "finished"


@pytest.mark.parametrize(("every", "versions"), [(1, [0, 1, 2, 3]), (9, [0, 3])])
async def test_a_trainer_whose_process_ended_is_replaced_at_once(
    town: Town, every: int, versions: list[int]
) -> None:
    spec = job(validation={"every": every}, checkpoint_every=every)
    reference = await calm(town, spec)
    await town.submit(spec)
    await town.wait(training)
    began = asyncio.get_running_loop().time()
    await town.nodes["reserved"].abort()
    await town.workers["reserved"].abort()
    await town.join("reserved", "reserved", "reserved again")
    await town.wait(lambda now: len(town.world.started) == 2)
    assert asyncio.get_running_loop().time() - began < 60.0, "its node says that it is gone"
    end = await finished_as_if_calm(town, reference, versions)
    (lost,) = events(end.run_folder, "trainers_lost")
    assert "its process ended" in lost["reason"]
    assert lost["goes_on_from"] == (1 if every == 1 else 0)


async def test_without_a_reserved_worker_the_job_waits_for_one_and_says_so(town: Town) -> None:
    reference = await calm(town, SPEC)
    await town.submit(SPEC)
    await town.wait(training)
    await town.nodes["reserved"].abort()
    await town.workers["reserved"].abort()
    await asyncio.sleep(1000.0)
    now = await town.status()
    assert not now.outcome
    assert "waits for reserved workers for training: 0 of 1 are there" in now.note
    await town.join("late", "reserved")
    await finished_as_if_calm(town, reference)


async def test_a_job_whose_trainers_are_always_lost_ends_with_the_reason(town: Town) -> None:
    spec = job(checkpoint_every=9)
    await town.submit(spec)
    for number in range(MOST_RECOVERIES + 1):
        await town.wait(lambda now: now.phase == "train" and bool(town.world.trained))
        town.world.trained.clear()
        await town.nodes["reserved"].abort()
        await town.workers["reserved"].abort()
        if number < MOST_RECOVERIES:
            await town.join("reserved", "reserved", f"reserved {number}")
    end = await town.ended()
    assert end.outcome == "failed"
    assert "trainer rank on reserved/0 is lost" in end.reason
    assert "3 recoveries without a new checkpoint" in end.reason
    await town.join("reserved", "reserved", "reserved at last")
    assert isinstance(await town.submit(spec, end.run_folder, resume=True), JobAccepted)
    assert (await town.ended()).outcome == "finished", "a user may try again"


async def test_recoveries_with_checkpoints_between_them_do_not_add_up(town: Town) -> None:
    spec = job(iterations=8)
    await town.submit(spec)
    for number in range(MOST_RECOVERIES + 2):
        await town.wait(lambda now, number=number: now.phase == "train" and now.iteration > number)
        await town.nodes["reserved"].abort()
        await town.join("reserved", "reserved", f"reserved {number}")
    end = await town.ended()
    assert end.outcome == "finished"
    recoveries = [event["recovery"] for event in events(end.run_folder, "trainers_lost")]
    assert recoveries == [1] * (MOST_RECOVERIES + 2)


async def test_a_coordinator_that_comes_back_asks_the_trainer_before_its_node_is_there(
    town: Town,
) -> None:
    """The node stands still meanwhile; another reserved one is there at once."""
    reference = await calm(town, SPEC)
    await town.submit(SPEC)
    await town.wait(training)
    await town.kill()
    heal = town.cut_off(town.nodes["reserved"])
    await town.open()
    await town.join("another", "reserved")
    await asyncio.sleep(100.0)
    heal()
    await finished_as_if_calm(town, reference)
    assert len(town.world.started) == 1


async def test_a_job_can_be_cancelled_while_it_waits(town: Town) -> None:
    await town.submit(SPEC)
    await town.wait(training)
    await town.nodes["reserved"].abort()
    await town.workers["reserved"].abort()
    await asyncio.sleep(100.0)
    await town.ask(CancelJob())
    assert (await town.ended()).outcome == "cancelled"
