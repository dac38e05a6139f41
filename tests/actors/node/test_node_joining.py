"""A node joins its coordinator, again if need be, and passes the plan and the weights on."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest
import structlog
from job_kit import STORE, job, recorder
from msgspec.structs import replace
from runtime_kit import Cluster
from site_kit import Site

from spotlight.actors.protocol.down import (
    Demand,
    JobPlan,
    Membership,
    NodePlan,
    UserNotice,
    WorkerPlan,
)
from spotlight.actors.protocol.up import MissedWeights, WorkerRefs, WorkerReport, WorkerUp
from spotlight.errors import TransferFailed
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time


async def test_it_joins_once_all_workers_are_up(site: Site) -> None:
    await site.up("n/0")
    assert site.joined() == []
    await site.up("n/1")
    assert site.joined() == [[("n/0", 1), ("n/1", 2)]]


async def test_a_change_while_it_joins_is_not_lost(site: Site) -> None:
    site.coordinator.answer_after_s = 1.0
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/1")  # the coordinator has not answered yet
    await asyncio.sleep(5.0)
    assert site.joined()[-1] == [("n/0", 1)]


async def test_it_reports_now_and_then_since_it_may_have_been_forgotten(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=1, report_s=15.0)
        await site.up("n/0")
        site.coordinator.inbox.clear()
        await asyncio.sleep(50.0)
        numbers = [report.number for report in site.coordinator.reports]
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        await site.store.aclose()


async def test_a_plan_that_was_lost_is_told_when_the_report_does_not_agree(
    tmp_path: Path,
) -> None:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=1, report_s=4.0)
        await site.up("n/0")
        membership = Membership(*[site.worker.ref] * 2, STORE)
        site.coordinator.change(job=JobPlan("job", membership, spec=job().work))
        await asyncio.sleep(9.0)
        report = site.coordinator.report
        assert (report.plan, report.job_id) == (site.coordinator.current.number, "job")
        assert site.coordinator.current.number == 2
        await site.store.aclose()


async def test_an_older_plan_changes_nothing(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    before = site.coordinator.current
    await site.prepare()
    site.coordinator.tell(site.node, replace(before, over=True))
    await asyncio.sleep(0.1)
    assert site.worker.last(WorkerPlan).job is not None


async def test_a_job_of_which_the_spec_is_missing_is_told_again(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    membership = Membership(*[site.worker.ref] * 2, STORE)
    await site.plan(job=JobPlan("job", membership))
    assert {plan.job for plan in site.worker.all(WorkerPlan)} == {None}
    await site.prepare()
    assert site.worker.last(WorkerPlan).job is not None


async def test_it_joins_again_when_the_coordinator_is_back(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.coordinator_system.abort()
    await asyncio.sleep(30.0)
    await site.open_coordinator()
    await asyncio.sleep(30.0)
    assert site.joined() == [[("n/0", 1), ("n/1", 2)]]
    assert len(site.launcher.started) == 2, "the workers stayed warm"


async def test_weights_are_passed_on_and_old_ones_dropped(site: Site, tmp_path: Path) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    await site.hold(0)
    await site.hold(1, 0, 1)
    await site.hold(2, 1, 2)
    assert site.worker.offered() == [(), (0,), (0, 1), (1,), (1, 2)]
    names = sorted(path.name for path in (tmp_path / "weights").iterdir())
    copies = [
        f"{name}.{zlib.crc32(b'weights'):08x}" for name in ("000001-rollout", "000002-rollout")
    ]
    assert names == ["000001-rollout", copies[0], "000002-rollout", copies[1]]
    planned = site.worker.last(WorkerPlan).job
    assert planned is not None
    assert planned.weights[-1].rollout[0].key == f"weights/{copies[1]}"
    assert site.coordinator.report.weights == planned.weights, "others pull its copies"
    await site.plan(job=None, over=True)
    assert not (tmp_path / "weights").exists()


async def test_it_reports_which_store_did_not_give_it_a_version_and_offers_it_to_no_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **options: object) -> None:
        raise TransferFailed("its holder is gone")

    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(site.store, "copy", refuse)
        await site.hold(0, offer=BundleOffer("weights/000000-rollout", 7, 5, STORE))
    assert site.coordinator.report.missed == (MissedWeights(0, STORE),)
    assert site.worker.offered() == [()]
    await site.hold(0)
    assert site.coordinator.report.missed == ()
    assert site.worker.offered() == [(), (0,)]


async def test_weights_that_come_after_their_runner_has_gone_are_not_passed_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may have gone back to a checkpoint, and mean others by that version."""
    arrived, copy = asyncio.Event(), site.store.copy

    async def slow(*arguments: Any, **options: Any) -> BundleOffer:
        await arrived.wait()
        return await copy(*arguments, **options)

    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    monkeypatch.setattr(site.store, "copy", slow)
    await site.hold(0)
    await site.prepare(runner=await recorder(site.coordinator_system, "successor"))
    arrived.set()
    await asyncio.sleep(1.0)
    assert site.worker.offered() == [()]


async def test_what_the_spec_says_is_told_once_to_each_worker(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    for name, epoch in (("n/0", 1), ("n/1", 2)):
        await site.reports(name, epoch, job_id="job")
    site.worker.inbox.clear()
    await site.hold(0)
    assert {plan.job.spec for plan in site.worker.all(WorkerPlan) if plan.job} == {None}


async def test_workers_do_not_compute_for_ever_without_a_coordinator(warm: Site) -> None:
    await warm.prepare()
    await warm.hold(0)
    await warm.coordinator_system.abort()
    await asyncio.sleep(290.0)
    assert warm.worker.last(WorkerPlan).job is not None
    await asyncio.sleep(60.0)
    assert warm.worker.last(WorkerPlan).job is None
    assert len(warm.launcher.started) == 2, "the workers stay warm"


async def test_a_coordinator_that_comes_back_in_time_finds_the_job(warm: Site) -> None:
    await warm.prepare()
    for _ in range(3):
        await warm.coordinator_system.abort()
        await asyncio.sleep(200.0)
        await warm.open_coordinator()
        await asyncio.sleep(10.0)
    assert warm.worker.last(WorkerPlan).job is not None


async def test_what_only_others_may_say_is_refused_from_strangers(warm: Site) -> None:
    """Of the coordinator and its job, and of the node's own workers."""
    stranger = await recorder(await warm.cluster.system("stranger"), "coordinator")
    before, dead = len(warm.worker.inbox), warm.system.dead_letters
    membership = Membership(*[stranger.ref] * 2, STORE)
    words = [
        NodePlan(99, stranger.ref, JobPlan("another", membership, spec=job().work)),
        NodePlan(99, warm.coordinator.ref, over=True),
        NodePlan(99, warm.coordinator.ref, demand=Demand("job", 4, (), None, None, ())),
        NodePlan(99, warm.coordinator.ref, notice=UserNotice(9, 0.0, cancel=False)),
        WorkerReport("n/0", 1, group=1, failure="no"),
        WorkerReport("n/0", 1, job_id="job", rollout=(0,)),
        WorkerReport("n/0", 1, plan=1, drained=True),
        WorkerUp(WorkerRefs("n/0", 99, *[stranger.ref] * 3), "guessed", "simulated"),
    ]
    for word in words:
        stranger.tell(warm.node, word)
    await asyncio.sleep(0.1)
    assert dead.counts["not_allowed"] == len(words)
    assert len(warm.worker.inbox) == before
    assert warm.coordinator.notices() == [None]


async def test_a_node_whose_name_is_taken_ends_when_that_goes_on(site: Site) -> None:
    site.coordinator.refusal = "there is a node `n` already"
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(10.0)
    assert not site.left.is_set(), "an earlier self may be found gone yet"
    await asyncio.sleep(10.0)
    assert site.left.is_set()
    assert site.problem == "there is a node `n` already"


async def test_a_node_whose_earlier_self_is_found_gone_joins(site: Site) -> None:
    site.coordinator.refusal = "there is a node `n` already"
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(5.0)
    site.coordinator.refusal = ""
    await asyncio.sleep(60.0)
    assert not site.left.is_set()
    await site.prepare()
    assert site.worker.last(WorkerPlan).job is not None


def lines(logs: list[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


async def test_a_refusal_is_logged_once_a_minute_however_often_the_node_tries(site: Site) -> None:
    site.coordinator.refusal = "there is a node `n` already"
    with structlog.testing.capture_logs() as logs:
        await site.up("n/0")
        await site.up("n/1")
        await asyncio.sleep(14.0)
    assert not site.left.is_set()
    assert [line["reason"] for line in lines(logs, "join_refused")] == [site.coordinator.refusal]


async def test_a_coordinator_that_is_away_is_told_of_once_a_minute_and_its_return_too(
    warm: Site,
) -> None:
    with structlog.testing.capture_logs() as logs:
        await warm.coordinator_system.abort()
        await asyncio.sleep(170.0)
        await warm.open_coordinator()
        await asyncio.sleep(10.0)
    assert 2 <= len(lines(logs, "waiting_for_coordinator")) <= 4
    assert len(lines(logs, "joined")) == 1
