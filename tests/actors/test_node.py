"""The node: it joins with the workers that it has, starts them again, and keeps the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from job_kit import STORE, Recorder, job, recorder
from runtime_kit import Cluster

from spotlight.actors.messages import (
    EndJob,
    HoldWeights,
    JoinNode,
    Membership,
    NodeJoined,
    PrepareJob,
    WorkerRefs,
    WorkerUp,
)
from spotlight.actors.node import NodeScheduler, NodeSettings
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleOffer, BundleStore

pytestmark = pytest.mark.virtual_time


class FakeProcess:
    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 1
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self._code.done():
            self._code.set_result(-9)


class FakeLauncher:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], name: str, log_path: Path
    ) -> FakeProcess:
        self.started.append(FakeProcess(name))
        return self.started[-1]

    def latest(self, name: str) -> FakeProcess:
        return [process for process in self.started if process.name == name][-1]


class Site:
    """A node with fake processes; one recorder stands for all actors of all its workers."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher()
        self.answer_after_s = 0.0
        self.epochs = 0

    async def open(self, cluster: Cluster, folder: Path, workers: int) -> None:
        self.cluster = cluster
        await self.open_coordinator()
        self.system = await cluster.system("node")
        self.worker = await recorder(self.system, "worker")
        self.store = BundleStore(folder, token="token")
        await self.store.start()
        settings = NodeSettings(
            "n", "spot", workers, "127.0.0.1", 1, self.coordinator.ref.address, folder, 1
        )
        self.node = await self.system.spawn(
            lambda: NodeScheduler(settings, self.store, self.launcher), "node"
        )
        await asyncio.sleep(0.1)

    async def open_coordinator(self) -> None:
        self.coordinator_system: ActorSystem = await self.cluster.system("coordinator")
        site = self

        class Coordinator(Recorder):
            async def on_message(self, message: Message) -> Message:
                self.inbox.append(message)
                await asyncio.sleep(site.answer_after_s)
                return NodeJoined(self.ref)

        self.coordinator = Coordinator()
        await self.coordinator_system.spawn(lambda: self.coordinator, "coordinator")

    async def up(self, name: str, wait_s: float = 0.1) -> None:
        self.epochs += 1
        self.system.tell(self.node, WorkerUp(WorkerRefs(name, self.epochs, *[self.worker.ref] * 4)))
        await asyncio.sleep(wait_s)

    async def end(self, name: str) -> None:
        self.launcher.latest(name).kill()
        await asyncio.sleep(0.1)

    async def tell(self, message: Message) -> None:
        self.system.tell(self.node, message)
        await asyncio.sleep(0.1)

    async def prepare(self) -> None:
        membership = Membership(self.worker.ref, self.worker.ref, STORE)
        await self.tell(PrepareJob("job", job(), membership))

    async def hold(self, version: int, *keep: int, job_id: str = "job") -> None:
        bundle = self.store.put(f"weights/{version:06d}-rollout", b"weights")
        await self.tell(HoldWeights(job_id, version, bundle, None, keep or (version,)))

    def joined(self) -> list[list[tuple[str, int]]]:
        return [
            [(w.worker, w.epoch) for w in join.workers] for join in self.coordinator.all(JoinNode)
        ]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=2)
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
    assert names == ["000001-rollout", "000002-rollout"]
    await site.tell(EndJob("job"))
    assert not (tmp_path / "weights").exists()


async def test_weights_that_cannot_be_fetched_are_left_out_and_the_next_are_passed_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(offer: BundleOffer) -> bytes:
        raise TransferFailed("its holder is gone")

    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    with monkeypatch.context() as patch:
        patch.setattr("spotlight.actors.node.fetch", fail)
        elsewhere = BundleOffer("weights/000000-rollout", 7, 0, STORE)
        await site.tell(HoldWeights("job", 0, elsewhere, None, (0,)))
    assert site.worker.all(HoldWeights) == []

    await site.hold(1)

    assert [m.version for m in site.worker.all(HoldWeights)] == [1, 1]


async def test_weights_of_another_job_are_ignored(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    await site.hold(0, job_id="another")
    assert site.worker.all(HoldWeights) == []


async def test_its_workers_end_with_it(site: Site) -> None:
    await site.system.stop(site.node)
    assert [await process.wait() for process in site.launcher.started] == [-9, -9]
