"""The node: it joins with the workers that it has, starts them again, and keeps the weights."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from job_kit import STORE, Recorder, job, recorder
from msgspec.structs import replace
from node_kit import FakeCoordinator, FakeLauncher
from runtime_kit import Cluster

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol import (
    Demand,
    JobPlan,
    Membership,
    MissedWeights,
    NodeNotice,
    NodePlan,
    SickWorker,
    UserNotice,
    WeightsOffer,
    WorkerPlan,
    WorkerRefs,
    WorkerReport,
    WorkerUp,
)
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.errors import TransferFailed
from spotlight.policies.notices import Notice
from spotlight.policies.restarts import MOST_BAD_LIVES
from spotlight.timings import NodeTimings, Timings
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time


class FakeWorker(Recorder):
    """All actors of all workers; may hang."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = asyncio.Event()
        self.turns.set()

    async def on_message(self, message: Message) -> Message | None:
        if not isinstance(message, WorkerPlan):
            self.inbox.append(message)
            return None
        await self.turns.wait()
        if self.all(WorkerPlan)[-1:] != [message]:
            self.inbox.append(message)
        job_id = message.job.job_id if message.job is not None else ""
        return WorkerReport("one of them", 0, plan=message.number, job_id=job_id)

    def offered(self) -> list[tuple[int, ...]]:
        """Which weights versions the plans named, each time that it changed."""
        jobs = [plan.job for plan in self.all(WorkerPlan) if plan.job is not None]
        return [v for v, _ in groupby(tuple(it.version for it in job.weights) for job in jobs)]


REPORT_S = 110.0
"""It reports only when it has something to say, so that its reports can be counted."""


class Site:
    """A node with fake processes; one recorder stands for all actors of all its workers."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher()
        self.epochs = 0
        self.notices: asyncio.Queue[Notice] = asyncio.Queue()
        self.left = asyncio.Event()
        self.problem = ""
        self.notices_given = 0

    async def open(self, cluster: Cluster, folder: Path, workers: int, report_s: float) -> None:
        timings = Timings(node=NodeTimings(report_s=report_s))
        self.cluster = cluster
        await self.open_coordinator()
        self.system = await cluster.system("node")
        self.worker = FakeWorker()
        await self.system.spawn(lambda: self.worker, "worker")
        self.store = BundleStore(folder, token="token")
        await self.store.start()
        settings = NodeSettings(
            "n", "spot", workers, "127.0.0.1", self.coordinator.ref.address, folder, 1
        )
        self.node = await self.system.spawn(
            lambda: NodeScheduler(
                settings,
                self.store,
                self.launcher,
                self._notices(),
                left=self._end,
                timings=timings,
            ),
            "node",
        )
        await asyncio.sleep(0.1)

    def _end(self, problem: str) -> None:
        self.problem = problem
        self.left.set()

    async def _notices(self) -> AsyncIterator[Notice]:
        while True:
            yield await self.notices.get()

    async def open_coordinator(self) -> None:
        self.coordinator_system: ActorSystem = await self.cluster.system("coordinator")
        self.coordinator = FakeCoordinator()
        await self.coordinator_system.spawn(lambda: self.coordinator, "coordinator")

    async def up(self, name: str, wait_s: float = 0.1) -> None:
        self.epochs += 1
        refs = WorkerRefs(name, self.epochs, *[self.worker.ref] * 3)
        self.system.tell(self.node, WorkerUp(refs, self.launcher.keys.get(name, "")))
        await asyncio.sleep(wait_s)

    async def end(self, name: str, wait_s: float = 1.0) -> None:
        self.launcher.latest(name).kill()
        await asyncio.sleep(wait_s)  # it starts again after a pause

    async def prepare(self, job_id: str = "job", runner: Recorder | None = None) -> None:
        membership = Membership(*[(runner or self.worker).ref] * 2, STORE)
        await self.plan(job=JobPlan(job_id, membership, spec=job().work))

    async def hold(self, version: int, *keep: int, offer: BundleOffer | None = None) -> None:
        """Every version that is kept is offered again."""
        known = self.coordinator.current.job
        assert known is not None
        bundle = offer or self.store.put(f"weights/{version:06d}-rollout", b"weights")
        versions = keep or (version,)
        offers = {each.version: each for each in known.weights if each.version in versions}
        offers[version] = WeightsOffer(version, (bundle,))
        weights = tuple(offers[number] for number in sorted(offers))
        await self.plan(job=replace(known, weights=weights, versions=versions))

    async def plan(self, **fields: Any) -> None:
        """The coordinator has another plan, and tells it."""
        self.coordinator.tell(self.node, self.coordinator.change(**fields))
        await asyncio.sleep(0.1)

    async def user_gives(self, notice_s: float, *, cancel: bool = False) -> None:
        self.notices_given += 1
        await self.plan(notice=UserNotice(self.notices_given, notice_s, cancel))

    async def preempted(self, lead_s: float | None, source: str = "aws") -> None:
        self.notices.put_nowait(Notice(source, "preempt", "event", lead_s))
        await asyncio.sleep(0.1)

    async def drained(self, *epochs: int) -> None:
        for epoch in epochs:
            await self.reports(f"n/{epoch - 1}", epoch, drained=True)

    async def reports(self, name: str, epoch: int, **fields: Any) -> None:
        """A worker does, and knows its latest plan."""
        number = max(plan.number for plan in self.worker.all(WorkerPlan))
        for plan in range(number + 1):  # whichever it is of this worker
            self.worker.tell(self.node, WorkerReport(name, epoch, plan=plan, **fields))
        await asyncio.sleep(0.1)

    def stops(self) -> list[float | None]:
        """What leaders were told, each time that it changed."""
        told = [message.stop_in_s for message in self.worker.all(WorkerPlan)]
        return [stop for stop, _ in groupby(told)]

    def joined(self) -> list[list[tuple[str, int]]]:
        """With which workers, each time that they changed."""
        told = [[(w.worker, w.epoch) for w in it.workers] for it in self.coordinator.reports]
        return [workers for workers, _ in groupby(told)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=2, report_s=REPORT_S)
        yield site
        await site.store.aclose()


async def test_it_joins_once_all_workers_are_up(site: Site) -> None:
    await site.up("n/0")
    assert site.joined() == []
    await site.up("n/1")
    assert site.joined() == [[("n/0", 1), ("n/1", 2)]]


async def test_a_worker_that_ends_is_reported_and_started_again(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/1")
    assert site.joined()[-1] == [("n/0", 1)]
    assert [process.name for process in site.launcher.started].count("n/1") == 2
    await site.up("n/1")
    assert site.joined()[-1] == [("n/0", 1), ("n/1", 3)]


async def test_a_worker_that_keeps_ending_is_given_up_and_the_others_still_join(
    site: Site,
) -> None:
    await site.up("n/0")
    for _ in range(MOST_BAD_LIVES):
        await site.end("n/1", 60.0)
    assert len(site.launcher.started) == 1 + MOST_BAD_LIVES
    assert site.joined() == [[("n/0", 1)]]
    await site.end("n/0")
    await site.up("n/0")
    assert site.joined()[-1] == [("n/0", 2)]


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


async def test_its_workers_end_with_it(site: Site) -> None:
    await site.system.stop(site.node)
    assert [await process.wait() for process in site.launcher.started] == [-9, -9]


# --- workers that hang ---


async def test_a_worker_that_does_not_answer_is_ended_and_started_again(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(60.0)
    assert len(site.launcher.started) == 2
    site.worker.turns.clear()
    await asyncio.sleep(20.0)
    assert len(site.launcher.started) == 4
    assert site.joined()[-1] == []


async def test_a_worker_that_is_slow_to_answer_is_left_alone(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    for _ in range(10):
        site.worker.turns.clear()
        await asyncio.sleep(6.0)
        site.worker.turns.set()
        await asyncio.sleep(6.0)
    assert len(site.launcher.started) == 2


async def test_a_worker_that_never_comes_up_is_started_again(site: Site) -> None:
    await asyncio.sleep(400.0)
    assert len(site.launcher.started) == 4


# --- leaving ---


@pytest.fixture
async def warm(site: Site) -> Site:
    """Two workers, joined."""
    await site.up("n/0")
    await site.up("n/1")
    return site


async def test_a_notice_is_reported_and_the_node_leaves_when_all_have_drained(warm: Site) -> None:
    await warm.preempted(30.0)
    assert warm.coordinator.notices() == [None, NodeNotice("aws", 30.0)]
    assert warm.stops() == [None, pytest.approx(25.0, abs=0.2)]
    await warm.drained(1)
    assert warm.coordinator.departures() == [False]
    await warm.drained(2, 2)
    assert warm.coordinator.departures() == [False, True]


@pytest.mark.parametrize("source", ["signal", "aws"])
async def test_only_a_node_that_was_told_to_end_ends_when_it_has_left(
    warm: Site, source: str
) -> None:
    await warm.preempted(30.0, source)
    await warm.drained(1)
    assert not warm.left.is_set()
    await warm.drained(2)
    assert warm.left.is_set() is (source == "signal")


async def test_an_advice_changes_nothing(warm: Site) -> None:
    warm.notices.put_nowait(Notice("aws", "advise", "event"))
    await asyncio.sleep(1.0)
    assert (warm.stops(), warm.coordinator.notices()) == ([None], [None])


async def test_without_any_time_left_they_stop_at_once(warm: Site) -> None:
    await warm.preempted(0.0)
    assert warm.stops() == [None, 0.0]


async def test_the_nearest_of_two_notices_counts(warm: Site) -> None:
    await warm.user_gives(100.0)
    await warm.preempted(10.0)
    assert warm.stops()[:3] == [None, 95.0, pytest.approx(8.0, abs=0.2)]
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] == pytest.approx(95.0, abs=0.5), "the user's notice still stands"
    sources = [notice and notice.source for notice in warm.coordinator.notices()]
    assert sources == [None, "user", "aws", "user"]


async def test_a_users_notice_counts_once_however_often_it_is_told(warm: Site) -> None:
    await warm.user_gives(100.0)
    await asyncio.sleep(20.0)
    await warm.plan(notice=UserNotice(1, 100.0, cancel=False))
    assert len(warm.coordinator.notices()) == 2
    last = warm.stops()[-1]
    assert last is not None
    assert last < 76.0


async def test_a_withdrawn_notice_is_as_if_it_had_not_been(warm: Site) -> None:
    await warm.user_gives(30.0)
    await warm.drained(1)
    await warm.user_gives(0.0, cancel=True)
    assert warm.stops()[-1] is None
    assert warm.coordinator.notices()[-1] is None
    reports = len(warm.coordinator.reports)
    await warm.drained(2)
    await asyncio.sleep(50.0)
    assert warm.coordinator.departures() == [False]
    assert len(warm.coordinator.reports) == reports


async def test_a_withdrawal_of_nothing_says_nothing(warm: Site) -> None:
    await warm.user_gives(0.0, cancel=True)
    assert (warm.stops(), warm.coordinator.notices()) == ([None], [None])


async def test_a_node_that_left_joins_again_when_its_notice_is_withdrawn(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1, 2)
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] is None
    assert warm.coordinator.departures() == [False, True, False]


@pytest.mark.parametrize("drained", [True, False])
async def test_a_node_that_outlives_its_deadline_joins_again(warm: Site, drained: bool) -> None:
    await warm.preempted(30.0)
    if drained:
        await warm.drained(1, 2)
    await asyncio.sleep(80.0)
    assert warm.coordinator.report.notice is not None
    await asyncio.sleep(20.0)
    assert warm.stops()[-1] is None
    assert warm.coordinator.report.notice is None
    assert warm.coordinator.departures() == ([False, True, False] if drained else [False])


async def test_a_worker_that_comes_up_late_drains_too(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.end("n/1")
    await warm.drained(1)
    assert warm.coordinator.departures() == [False, True]
    warm.worker.inbox.clear()
    await warm.up("n/1")
    assert None not in warm.stops()
    assert warm.coordinator.departures() == [False, True], "what has left does not join"


async def test_a_worker_is_told_again_and_again_whether_its_node_leaves(warm: Site) -> None:
    await warm.preempted(1000.0)
    warm.worker.inbox.clear()
    await asyncio.sleep(2.5)
    assert warm.stops() and None not in warm.stops()
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    warm.worker.inbox.clear()
    await asyncio.sleep(2.5)
    assert warm.stops() == [None]


async def test_what_an_ended_process_said_does_not_count(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1)
    await warm.end("n/0")
    await warm.up("n/0")
    await warm.drained(1, 2)
    assert warm.coordinator.departures() == [False]
    await warm.reports("n/0", 3, drained=True)
    assert warm.coordinator.departures() == [False, True]


async def test_what_a_worker_said_before_it_heard_of_the_notice_does_not_count(
    warm: Site,
) -> None:
    await warm.preempted(30.0)
    await warm.drained(1)
    warm.worker.tell(warm.node, WorkerReport("n/1", 2, plan=0, drained=True))
    await asyncio.sleep(0.1)
    assert warm.coordinator.departures() == [False]


async def test_a_coordinator_that_comes_back_hears_of_the_notice(warm: Site) -> None:
    await warm.preempted(1000.0)
    await warm.coordinator_system.abort()
    await asyncio.sleep(5.0)
    await warm.open_coordinator()
    await asyncio.sleep(10.0)
    assert warm.coordinator.notices() == [NodeNotice("aws", 1000.0)]


async def test_a_users_notice_outlives_the_coordinator(warm: Site) -> None:
    await warm.user_gives(1000.0)
    await warm.coordinator_system.abort()
    await warm.open_coordinator()
    await asyncio.sleep(10.0)
    assert warm.coordinator.notices() == [NodeNotice("user", 1000.0)]


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
        WorkerUp(WorkerRefs("n/0", 99, *[stranger.ref] * 3), "guessed"),
    ]
    for word in words:
        stranger.tell(warm.node, word)
    await asyncio.sleep(0.1)
    assert dead.counts["not_allowed"] == len(words)
    assert len(warm.worker.inbox) == before
    assert warm.coordinator.notices() == [None]


async def test_a_worker_that_is_not_the_nodes_does_not_come_up(site: Site) -> None:
    await site.up("n/7")
    await site.up("somebody")
    await site.up("n/0")
    await site.up("n/1")
    assert [name for name, _ in site.joined()[-1]] == ["n/0", "n/1"]


async def test_a_worker_speaks_for_its_own_actors_only(site: Site) -> None:
    elsewhere = await recorder(await site.cluster.system("elsewhere"), "leader")
    refs = WorkerRefs("n/0", 1, elsewhere.ref, *[site.worker.ref] * 2)
    site.system.tell(site.node, WorkerUp(refs, site.launcher.keys["n/0"]))
    await asyncio.sleep(0.1)
    assert site.system.dead_letters.counts["not_allowed"] == 1


async def test_what_a_worker_said_before_it_ended_does_not_bring_it_up(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/0", wait_s=0.1)
    await site.up("n/0")
    assert site.joined()[-1] == [("n/1", 2)]


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


async def test_a_worker_that_the_plan_names_as_sick_is_ended_and_another_one_started(
    site: Site,
) -> None:
    await site.up("n/0")
    await site.up("n/1")
    first = site.launcher.latest("n/1")
    await site.plan(sick=(SickWorker("n/1", 2, "it failed what others could do"),))
    assert first.has_ended
    assert site.joined()[-1] == [("n/0", 1)]
    (trouble,) = site.coordinator.report.troubles
    assert (trouble.worker, trouble.reason) == ("n/1", "it failed what others could do")
    await asyncio.sleep(1.0)
    await site.up("n/1")
    assert site.joined()[-1] == [("n/0", 1), ("n/1", 3)], "the plan names another process"


async def test_a_worker_that_was_given_up_is_tried_again_for_another_runner(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    for _ in range(MOST_BAD_LIVES):
        await site.end("n/1", 60.0)
    assert [trouble.given_up for trouble in site.coordinator.report.troubles] == [True]
    started = len(site.launcher.started)
    await site.prepare("another")
    assert len(site.launcher.started) == started + 1
