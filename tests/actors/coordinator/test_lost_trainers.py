"""Trainers that are out of reach, and trainers that are lost, on virtual time: the job goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town, calm, events, iterations, trained_samples, validated

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.tenant.job_journal import Checkpoint, JobJournal
from spotlight.actors.protocol.trainer import Train
from spotlight.actors.protocol.users import JobAccepted, JobStatus
from spotlight.policies.trainers import MOST_RECOVERIES
from spotlight.transport.tensors import BundleStore

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


async def test_the_fleet_is_told_who_trains_before_they_do(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[frozenset[str]] = []
    plain = TenantFleet.train_on

    def train_on(fleet: TenantFleet, workers: frozenset[str]) -> None:
        told.append(workers)
        plain(fleet, workers)

    monkeypatch.setattr(TenantFleet, "train_on", train_on)
    await town.submit(job())
    await town.wait(lambda now: now.phase == "rollout")
    assert told == [{"reserved/0"}]


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
    assert "3 recoveries without progress" in end.reason
    await town.join("reserved", "reserved", "reserved at last")
    assert isinstance(await town.submit(spec, end.run_folder, resume=True), JobAccepted)
    assert (await town.ended()).outcome == "finished", "a user may try again"


# --- what carries a job over the loss ---


def rolling_out(now: JobStatus) -> bool:
    return now.phase == "rollout" and now.iteration == 1


async def lose(town: Town, *names: str) -> None:
    for name in names:
        await town.nodes[name].abort()
        if town.workers[name] is not town.nodes[name]:
            await town.workers[name].abort()


def rollouts(town: Town, iteration: int) -> set[str]:
    """Those that were scored."""
    return {id for id in town.world.scored if id.startswith(f"rollout/{iteration}/")}


async def nobody_trains(town: Town) -> JobStatus:
    """Nobody is waited for any more."""
    return await town.wait(lambda now: "0 of 1 are there" in now.note)


async def test_while_nobody_trains_the_published_weights_carry_the_rollout(town: Town) -> None:
    reference = await calm(town, SPEC)
    await town.submit(SPEC)
    await town.wait(rolling_out)
    town.world.denoise_s = 100.0
    await lose(town, "reserved")
    now = await nobody_trains(town)
    assert (now.phase, now.iteration) == ("rollout", 1)
    assert len(rollouts(town, 1)) < SPEC.samples_per_iteration
    now = await town.wait(lambda now: now.phase == "train")
    assert (now.iteration, len(rollouts(town, 1))) == (1, SPEC.samples_per_iteration)
    assert len(town.world.started) == 1
    town.world.denoise_s = 1.0
    await town.join("late", "reserved")
    await finished_as_if_calm(town, reference)
    assert [start.completed for start in town.world.started] == [0, 1]
    assert [train.iteration for train in town.world.trained] == [0, 1, 2], "none was lost"


async def test_a_state_that_turns_out_to_be_gone_is_replaced_by_the_checkpoint(town: Town) -> None:
    spec = job(training={"ranks": 2}, checkpoint_every=9)
    await town.join("second", "reserved")
    reference = await calm(town, spec)
    await town.submit(spec)
    await town.wait(training)
    await lose(town, "reserved")
    town.world.left.clear()
    await town.join("third", "reserved")
    end = await finished_as_if_calm(town, reference, [0, 3])
    assert {order.completed for order in town.world.started[2:]} == {0}
    first, second = events(end.run_folder, "trainers_lost")
    assert (first["goes_on_from"], second["goes_on_from"]) == (1, 0)
    assert "nobody has the state" in second["reason"]


# --- a coordinator that is killed in between ---


class Holdup:
    """Has whoever comes to a method wait, before it or after it, until the test goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.reached = asyncio.Event()
        self._patch, self._owner, self._name = monkeypatch, owner, name
        self._plain = getattr(owner, name)

    def before(self) -> None:
        async def held(*_: object) -> None:
            self.reached.set()
            await asyncio.Event().wait()

        self._patch.setattr(self._owner, self._name, held)

    def after(self) -> None:
        async def held(*args: object) -> None:
            await self._plain(*args)
            self.reached.set()
            await asyncio.Event().wait()

        self._patch.setattr(self._owner, self._name, held)

    def end(self) -> None:
        self._patch.setattr(self._owner, self._name, self._plain)


@pytest.mark.parametrize(
    ("place", "trainers"), [("before", "stay"), ("after", "are lost with the store's copy")]
)
async def test_a_kill_around_a_checkpoint_costs_no_score_and_no_sample(
    town: Town, monkeypatch: pytest.MonkeyPatch, place: str, trainers: str
) -> None:
    """The trainers have left the state, and nothing of it is on record."""
    reference = await calm(town, SPEC)
    holdup = Holdup(monkeypatch, BundleStore, "hand_out")
    await town.submit(SPEC)
    await town.wait(training)
    getattr(holdup, place)()
    await asyncio.wait_for(holdup.reached.wait(), 300.0)
    run = Path((await town.status()).run_folder)
    assert (run / "checkpoints" / "iteration-000002.safetensors").exists() == (place == "after")
    await town.kill()
    holdup.end()
    if trainers != "stay":
        await lose(town, "reserved")
        await town.join_later("reserved", "reserved", "reserved again")
    if "copy" in trainers:
        for state in (run / "artifacts.d" / "state").iterdir():
            state.unlink()
    await town.open()
    await finished_as_if_calm(town, reference)
    begun = [0] if trainers == "stay" else [0, 1]
    assert [order.completed for order in town.world.started] == begun


async def test_a_kill_before_a_checkpoint_is_committed_does_not_cost_it(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the run folder, and the state is on record."""
    reference = await calm(town, SPEC)
    plain = JobJournal.save_checkpoint
    committed: list[int] = []
    reached, came_back = asyncio.Event(), asyncio.Event()

    def save(journal: JobJournal, checkpoint: Checkpoint, *others: Any) -> None:
        if checkpoint.completed == 2 and not came_back.is_set():
            return reached.set()  # it is killed now
        plain(journal, checkpoint, *others)
        committed.append(checkpoint.completed)

    monkeypatch.setattr(JobJournal, "save_checkpoint", save)
    await town.submit(SPEC)
    await asyncio.wait_for(reached.wait(), 300.0)
    await town.kill()
    came_back.set()
    await town.open()
    await finished_as_if_calm(town, reference)
    assert committed == [1, 2, 3]
    assert len(town.world.started) == 1
