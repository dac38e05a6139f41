"""The node: it joins with the workers that it has, starts them again, and keeps the weights."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from job_kit import STORE, Recorder, job, offer, recorder
from node_kit import FakeLauncher
from runtime_kit import Cluster

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol import (
    Alive,
    AreYouThere,
    Demand,
    Drain,
    Drained,
    EndJob,
    GroupFailed,
    HoldWeights,
    JoinNode,
    Membership,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRefused,
    NoticeGiven,
    PrepareJob,
    WeightsCopied,
    WeightsMissed,
    WorkerRefs,
    WorkerUp,
)
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.errors import TransferFailed
from spotlight.policies.notices import Notice
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
        self.draining = False

    async def on_message(self, message: Message) -> Message | None:
        if isinstance(message, AreYouThere):
            await self.turns.wait()
            return Alive("one of them", 0, "", self.draining)
        if isinstance(message, Drain):
            self.draining = message.stop_in_s is not None
        self.inbox.append(message)
        return None


JOIN_AGAIN_S = 110.0
"""It joins again only when it has something to say, so that its joins can be counted."""


class Site:
    """A node with fake processes; one recorder stands for all actors of all its workers."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher()
        self.answer_after_s = 0.0
        self.epochs = 0
        self.notices: asyncio.Queue[Notice] = asyncio.Queue()
        self.left = asyncio.Event()
        self.problem = ""
        self.refusal = ""
        """Why the coordinator refuses the node; empty if it does not."""

    async def open(self, cluster: Cluster, folder: Path, workers: int, join_again_s: float) -> None:
        timings = Timings(node=NodeTimings(join_again_s=join_again_s))
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
        site = self

        class Coordinator(Recorder):
            async def on_message(self, message: Message) -> Message:
                self.inbox.append(message)
                await asyncio.sleep(site.answer_after_s)
                return NodeRefused(site.refusal) if site.refusal else NodeJoined(self.ref)

        self.coordinator = Coordinator()
        await self.coordinator_system.spawn(lambda: self.coordinator, "coordinator")

    async def up(self, name: str, wait_s: float = 0.1) -> None:
        self.epochs += 1
        refs = WorkerRefs(name, self.epochs, *[self.worker.ref] * 3)
        self.system.tell(self.node, WorkerUp(refs, self.launcher.keys.get(name, "")))
        await asyncio.sleep(wait_s)

    async def end(self, name: str) -> None:
        self.launcher.latest(name).kill()
        await asyncio.sleep(1.0)  # it starts again after a pause

    async def prepare(self) -> None:
        membership = Membership(*[self.worker.ref] * 2, STORE)
        await self.tell(PrepareJob("job", job(), membership))

    async def hold(self, version: int, *keep: int, job_id: str = "job") -> None:
        bundle = self.store.put(f"weights/{version:06d}-rollout", b"weights")
        await self.tell(HoldWeights(job_id, version, bundle, None, keep or (version,)))

    async def tell(self, message: Message) -> None:
        """The coordinator says this, or its job."""
        self.coordinator.tell(self.node, message)
        await asyncio.sleep(0.1)

    async def preempted(self, lead_s: float | None, source: str = "aws") -> None:
        self.notices.put_nowait(Notice(source, "preempt", "event", lead_s))
        await asyncio.sleep(0.1)

    async def drained(self, *epochs: int) -> None:
        for epoch in epochs:
            self.worker.tell(self.node, Drained(f"n/{epoch - 1}", epoch))
        await asyncio.sleep(0.1)

    def stops(self) -> list[float | None]:
        """What leaders were told, each time all of them."""
        return [message.stop_in_s for message in self.worker.all(Drain)]

    def joined(self) -> list[list[tuple[str, int]]]:
        return [
            [(w.worker, w.epoch) for w in join.workers] for join in self.coordinator.all(JoinNode)
        ]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=2, join_again_s=JOIN_AGAIN_S)
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
    for _ in range(4):
        await site.end("n/1")
    assert len(site.launcher.started) == 5
    assert site.joined() == [[("n/0", 1)]]
    await site.end("n/0")
    await site.up("n/0")
    assert site.joined()[-1] == [("n/0", 2)]


async def test_a_change_while_it_joins_is_not_lost(site: Site) -> None:
    site.answer_after_s = 1.0
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/1")  # the coordinator has not answered yet
    await asyncio.sleep(5.0)
    assert site.joined()[-1] == [("n/0", 1)]


async def test_it_joins_again_now_and_then_since_it_may_have_been_forgotten(
    tmp_path: Path,
) -> None:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=1, join_again_s=15.0)
        await site.up("n/0")
        await asyncio.sleep(50.0)
        assert site.joined() == [[("n/0", 1)]] * 4
        await site.store.aclose()


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
    assert [m.version for m in site.worker.all(HoldWeights)] == [0, 0, 1, 1, 2, 2]
    names = sorted(path.name for path in (tmp_path / "weights").iterdir())
    copies = [
        f"{name}.{zlib.crc32(b'weights'):08x}" for name in ("000001-rollout", "000002-rollout")
    ]
    assert names == ["000001-rollout", copies[0], "000002-rollout", copies[1]]
    assert site.worker.last(HoldWeights).rollout.key == f"weights/{copies[1]}"
    await site.tell(EndJob("job"))
    assert not (tmp_path / "weights").exists()


async def test_it_says_that_it_holds_a_version_to_whoever_asked_each_time(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    published = site.store.put("weights/000000-rollout", b"weights")
    for times in (1, 2):
        await site.tell(HoldWeights("job", 0, published, None, (0,)))
        own = site.worker.last(HoldWeights).rollout
        assert site.coordinator.all(WeightsCopied) == [WeightsCopied("n", 0, own, None)] * times
        assert len(site.worker.all(HoldWeights)) == 2 * times, "its workers may be new"


async def test_it_says_which_store_did_not_give_it_a_version_and_tells_no_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **options: object) -> None:
        raise TransferFailed("its holder is gone")

    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    monkeypatch.setattr(site.store, "copy", refuse)
    elsewhere = BundleOffer("weights/000000-rollout", 7, 5, STORE)
    await site.tell(HoldWeights("job", 0, elsewhere, None, (0,)))
    assert site.coordinator.all(WeightsMissed) == [WeightsMissed("n", 0, STORE)]
    assert site.worker.all(HoldWeights) == []


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
    published = site.store.put("weights/000000-rollout", b"weights")
    monkeypatch.setattr(site.store, "copy", slow)
    await site.tell(HoldWeights("job", 0, published, None, (0,)))
    successor = await recorder(site.coordinator_system, "successor")
    membership = Membership(*[successor.ref] * 2, STORE)
    successor.tell(site.node, PrepareJob("job", job(), membership))
    await asyncio.sleep(0.1)
    arrived.set()
    await asyncio.sleep(1.0)
    assert site.worker.all(HoldWeights) == []


async def test_weights_of_another_job_are_ignored(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    await site.hold(0, job_id="another")
    assert site.worker.all(HoldWeights) == []


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


async def test_a_notice_is_passed_on_and_the_node_leaves_when_all_have_drained(warm: Site) -> None:
    await warm.preempted(30.0)
    leaving = NodeLeaving("n", ("n/0", "n/1"), "aws", 30.0)
    assert warm.coordinator.all(NodeLeaving) == [leaving]
    assert warm.stops() == [pytest.approx(25.0, abs=0.2)] * 2
    await warm.drained(1)
    assert warm.coordinator.all(NodeLeft) == []
    await warm.drained(2, 2)
    assert warm.coordinator.all(NodeLeft) == [NodeLeft("n")]


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
    assert warm.stops() == warm.coordinator.all(NodeLeaving) == []


async def test_without_any_time_left_they_stop_at_once(warm: Site) -> None:
    await warm.preempted(0.0)
    assert warm.stops() == [0.0, 0.0]


async def test_the_nearest_of_two_notices_counts(warm: Site) -> None:
    await warm.tell(NoticeGiven(100.0, cancel=False))
    await warm.preempted(10.0)
    assert warm.stops()[::2] == [95.0, pytest.approx(8.0, abs=0.2)]
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] == pytest.approx(95.0, abs=0.5), "the user's notice still stands"
    assert [message.source for message in warm.coordinator.all(NodeLeaving)] == [
        "user",
        "aws",
        "user",
    ]


async def test_a_withdrawn_notice_is_as_if_it_had_not_been(warm: Site) -> None:
    await warm.tell(NoticeGiven(30.0, cancel=False))
    await warm.drained(1)
    await warm.tell(NoticeGiven(0.0, cancel=True))
    assert warm.stops()[-2:] == [None, None]
    assert warm.coordinator.last(NodeLeaving).cancelled
    joins = len(warm.joined())
    await warm.drained(2)
    await asyncio.sleep(100.0)
    assert warm.coordinator.all(NodeLeft) == []
    assert len(warm.joined()) == joins


async def test_a_withdrawal_of_nothing_says_nothing(warm: Site) -> None:
    await warm.tell(NoticeGiven(0.0, cancel=True))
    assert warm.stops() == warm.coordinator.all(NodeLeaving) == []


async def test_a_node_that_left_joins_again_when_its_notice_is_withdrawn(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1, 2)
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] is None
    assert len(warm.joined()) == 2


@pytest.mark.parametrize("drained", [True, False])
async def test_a_node_that_outlives_its_deadline_joins_again(warm: Site, drained: bool) -> None:
    await warm.preempted(30.0)
    if drained:
        await warm.drained(1, 2)
    await asyncio.sleep(80.0)
    assert warm.stops() == [pytest.approx(25.0, abs=0.2)] * 2
    await asyncio.sleep(20.0)
    assert warm.stops()[2:] == [None, None]
    assert len(warm.joined()) == (2 if drained else 1)
    assert warm.coordinator.last(NodeLeaving).cancelled is not drained


async def test_a_worker_that_comes_up_late_drains_too(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.end("n/1")
    await warm.drained(1)
    assert warm.coordinator.all(NodeLeft) == [NodeLeft("n")]
    await warm.up("n/1")
    assert len(warm.stops()) == 3
    assert warm.joined()[-1] == [("n/0", 1)], "what has left does not join"


async def test_a_worker_that_missed_that_its_node_leaves_or_stays_is_told_again(warm: Site) -> None:
    await warm.preempted(1000.0)
    warm.worker.inbox.clear()
    warm.worker.draining = False
    await asyncio.sleep(2.5)
    assert warm.stops() and set(warm.stops()) != {None}
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    warm.worker.inbox.clear()
    warm.worker.draining = True
    await asyncio.sleep(2.5)
    assert set(warm.stops()) == {None}


async def test_what_an_ended_process_said_does_not_count(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1)
    await warm.end("n/0")
    await warm.up("n/0")
    await warm.drained(1, 2)
    assert warm.coordinator.all(NodeLeft) == []
    warm.worker.tell(warm.node, Drained("n/0", 3))
    await asyncio.sleep(0.1)
    assert warm.coordinator.all(NodeLeft) == [NodeLeft("n")]


async def test_a_coordinator_that_comes_back_hears_of_the_notice(warm: Site) -> None:
    await warm.preempted(1000.0)
    await warm.coordinator_system.abort()
    await asyncio.sleep(5.0)
    await warm.open_coordinator()
    await asyncio.sleep(10.0)
    assert len(warm.joined()) == 1
    assert warm.coordinator.last(NodeLeaving) == NodeLeaving("n", ("n/0", "n/1"), "aws", 1000.0)


async def test_workers_do_not_compute_for_ever_without_a_coordinator(warm: Site) -> None:
    await warm.prepare()
    await warm.hold(0)
    await warm.coordinator_system.abort()
    await asyncio.sleep(290.0)
    assert warm.worker.all(EndJob) == []
    await asyncio.sleep(60.0)
    assert set(warm.worker.all(EndJob)) == {EndJob("job")}
    assert len(warm.worker.all(EndJob)) == 4
    assert len(warm.launcher.started) == 2, "the workers stay warm"


async def test_a_coordinator_that_comes_back_in_time_finds_the_job(warm: Site) -> None:
    await warm.prepare()
    for _ in range(3):
        await warm.coordinator_system.abort()
        await asyncio.sleep(200.0)
        await warm.open_coordinator()
        await asyncio.sleep(10.0)
    assert warm.worker.all(EndJob) == []


async def test_what_only_others_may_say_is_refused_from_strangers(warm: Site) -> None:
    """Of the coordinator and its job, and of the node's own workers."""
    stranger = await recorder(await warm.cluster.system("stranger"), "coordinator")
    before, dead = len(warm.worker.inbox), warm.system.dead_letters
    words = [
        PrepareJob("another", job(), Membership(*[stranger.ref] * 2, STORE)),
        HoldWeights("job", 9, offer(), None, (9,)),
        Demand("job", 4, (), None, None, ()),
        EndJob("job"),
        NoticeGiven(0.0, cancel=False),
        GroupFailed(1, "no"),
        Alive("n/0", 1, "job"),
        Drained("n/0", 1),
        WorkerUp(WorkerRefs("n/0", 99, *[stranger.ref] * 3), "guessed"),
    ]
    for word in words:
        stranger.tell(warm.node, word)
    await asyncio.sleep(0.1)
    assert dead.counts["not_allowed"] == len(words)
    assert len(warm.worker.inbox) == before
    assert warm.coordinator.all(NodeLeaving) == []


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


async def test_a_node_whose_name_is_taken_ends_when_that_goes_on(site: Site) -> None:
    site.refusal = "there is a node `n` already"
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(10.0)
    assert not site.left.is_set(), "an earlier self may be found gone yet"
    await asyncio.sleep(10.0)
    assert site.left.is_set()
    assert site.problem == "there is a node `n` already"


async def test_a_node_whose_earlier_self_is_found_gone_joins(site: Site) -> None:
    site.refusal = "there is a node `n` already"
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(5.0)
    site.refusal = ""
    await asyncio.sleep(60.0)
    assert not site.left.is_set()
    await site.prepare()
    assert site.worker.all(PrepareJob)
