"""Jobs that are refused, cancelled or fail: with which reason, and what goes on after them."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from job_kit import job
from job_runner_kit import *  # noqa: F403  (its fixtures)
from job_runner_kit import with_nodes
from town_kit import Town, events, iterations

from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobRefused,
    ListJobs,
    SubmitJob,
)
from spotlight.transport.tensors import BundleStore
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time


async def test_a_failed_prompt_group_is_dropped_and_the_job_goes_on(town: Town) -> None:
    await with_nodes(town)

    def fails(worker: str, scored: tuple[Request, ...]) -> bool:
        return any((r.kind, r.iteration, r.group) == ("rollout", 1, 0) for r in scored)

    town.world.fails = fails
    end = await town.run(job())
    assert end.outcome == "finished"
    assert [r["samples"] for r in iterations(end.run_folder)] == [8, 4, 8]
    dropped = events(end.run_folder, "group_dropped")
    assert {event["iteration"] for event in dropped} == {1}
    assert len(town.world.trained[1].samples) == 4
    assert len(events(end.run_folder, "scorer_failed")) == 3
    artifacts = Path(end.run_folder) / "artifacts.d"
    assert not [path for path in artifacts.rglob("*") if path.is_file()]


async def test_a_failed_prompt_group_stops_the_job_that_asks_for_it(town: Town) -> None:
    await with_nodes(town)
    town.world.fails = lambda worker, scored: scored[0].kind == "rollout"
    end = await town.run(job(scoring={"on_failure": "stop"}))
    assert end.outcome == "failed"
    assert "failed: no luck" in end.reason
    assert town.world.trained == []


async def test_a_validation_without_any_score_fails_the_job(town: Town) -> None:
    await with_nodes(town)
    town.world.fails = lambda worker, scored: scored[0].kind == "evaluation"
    end = await town.run(job())
    assert end.outcome == "failed"
    assert "validation" in end.reason


async def test_a_second_job_waits_until_those_are_free_who_train(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    second = await town.submit(job(name="second"))
    assert isinstance(second, JobAccepted)
    waiting = await town.ask(GetStatus(second.job_id))
    assert (waiting.phase, waiting.note) == ("queued", "waits for 1 reserved worker; 0 are free")
    await town.wait(lambda now: now.job == "second" and now.outcome == "finished")
    ended = {each.name: each for each in (await town.ask(ListJobs())).jobs}
    assert ended["tiny"].state == "finished"
    assert (ended["tiny"].ended_at or math.inf) <= (ended["second"].began_at or 0.0)


async def test_a_run_that_waits_goes_on_with_its_changes(town: Town) -> None:
    await with_nodes(town)
    first = await town.run(job())
    assert isinstance(await town.submit(job(name="second")), JobAccepted)
    changes = ("iterations=5",)
    again = SubmitJob(job(iterations=5), first.run_folder, resume=True, changes=changes)
    accepted = await town.ask(again)
    assert isinstance(accepted, JobAccepted)
    assert (await town.ask(GetStatus(accepted.job_id))).phase == "queued"
    began = await town.wait(lambda now: now.job == "tiny" and not now.outcome)
    assert (began.iterations, began.run_folder) == (5, first.run_folder)


async def test_a_job_that_cannot_run_is_refused_with_the_reason(town: Town) -> None:
    refused = await town.submit(job(model={"checkpoint": "builtin:nothing"}))
    assert isinstance(refused, JobRefused)
    assert "builtin:nothing" in refused.reason
    assert (await town.status()).job == ""


async def test_a_cancelled_job_can_be_resumed_where_it_was(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 2)
    await town.system.ask(town.coordinator, CancelJob(), timeout_s=10.0)
    end = await town.ended()
    assert (end.outcome, end.reason) == ("cancelled", "cancelled by the user")
    await town.submit(None, end.run_folder, resume=True)
    resumed = await town.ended()
    assert resumed.outcome == "finished"
    assert [r["iteration"] for r in iterations(resumed.run_folder)] == [0, 1, 2]


async def test_a_run_folder_is_free_although_its_store_does_not_close(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = BundleStore.aclose

    async def close_late(store: BundleStore) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await close(store)

    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 2)
    with monkeypatch.context() as patch:
        patch.setattr(BundleStore, "aclose", close_late)
        await town.ask(CancelJob())
        end = await town.ended()
    await town.submit(None, end.run_folder, resume=True)
    assert (await town.ended()).outcome == "finished"


async def test_a_crash_of_the_runner_fails_the_job_and_the_coordinator_goes_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)
    with monkeypatch.context() as broken:

        def explode(*_: Any) -> None:
            raise LookupError("a bug")

        broken.setattr("spotlight.actors.coordinator.job.training_phase.training_samples", explode)
        end = await town.run(job())
        await asyncio.sleep(5.0)
    assert end.outcome == "failed"
    assert "crashed" in end.reason
    assert (await town.run(job())).outcome == "finished"


async def test_a_crash_of_the_dispatcher_fails_the_job(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)

    def explode(*_: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("spotlight.policies.requests.table.RequestTable.report", explode)
    await town.submit(job())
    await town.wait(lambda now: now.outcome == "failed")


async def test_a_run_folder_that_cannot_be_written_ends_the_job_and_frees_the_nodes(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spotlight.errors import RunFolderError

    await with_nodes(town)

    def refuse(*_: Any) -> None:
        raise RunFolderError("the disk is full")

    monkeypatch.setattr("spotlight.store.run_folder.RunFolder.record_metrics", refuse)
    end = await town.run(job())
    assert (end.outcome, end.reason) == ("failed", "the disk is full")
    await asyncio.sleep(1.0)
    assert sorted(town.world.freed) == ["reserved/0", "spot/0"]


async def test_a_report_that_cannot_be_written_does_not_end_the_coordinator(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)

    def explode(folder: Path) -> Path:
        raise ZeroDivisionError("a bug in a chart")

    monkeypatch.setattr("spotlight.actors.coordinator.coordinator.write_report", explode)
    assert (await town.run(job())).outcome == "finished"
    assert (await town.run(job())).outcome == "finished"


async def test_a_run_folder_that_is_deleted_ends_the_job_soon_and_says_so(town: Town) -> None:
    await with_nodes(town)
    accepted = await town.submit(job(iterations=40))
    await town.wait(lambda now: now.phase == "train")
    shutil.rmtree(accepted.run_folder)
    began = asyncio.get_running_loop().time()
    end = await town.ended()
    assert asyncio.get_running_loop().time() - began < 10.0
    assert end.outcome == "failed"
    assert "was deleted or moved" in end.reason
    assert (await town.run(job())).outcome == "finished"
