"""A node with fake processes, and one recorder for all its workers, for the tests of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from job_kit import STORE, Recorder, job
from msgspec.structs import replace
from node_kit import FakeCoordinator, FakeLauncher, memory_keys
from runtime_kit import Cluster

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.down import JobPlan, Membership, UserNotice, WeightsOffer, WorkerPlan
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport, WorkerUp
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.errors import UserError
from spotlight.policies.notices import Notice
from spotlight.timings import NodeTimings, Timings
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer


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


class Site:
    """A node with fake processes; one recorder stands for all actors of all its workers."""

    def __init__(self) -> None:
        self.launcher = FakeLauncher()
        self.epochs = 0
        self.notices: asyncio.Queue[Notice] = asyncio.Queue()
        self.left = asyncio.Event()
        self.problem = ""
        self.notices_given = 0

    async def open(
        self,
        cluster: Cluster,
        folder: Path,
        workers: int,
        report_s: float,
        pool: Literal["reserved", "spot"] = "spot",
    ) -> None:
        timings = Timings(node=NodeTimings(report_s=report_s))
        self.cluster = cluster
        await self.open_coordinator()
        self.system = await cluster.system("node")
        self.worker = FakeWorker()
        await self.system.spawn(lambda: self.worker, "worker")
        self.store = BundleStore(folder, token="token")
        await self.store.start()
        settings = NodeSettings(
            "n", pool, workers, "127.0.0.1", self.coordinator.ref.address, folder, 1
        )
        self.node = await self.system.spawn(
            lambda: NodeScheduler(
                settings,
                self.store,
                self.launcher,
                memory_keys,
                self._notices(),
                left=self._end,
                timings=timings,
            ),
            "node",
        )
        await asyncio.sleep(0.1)

    def _end(self, error: UserError | None) -> None:
        self.problem = "" if error is None else str(error)
        self.left.set()

    async def _notices(self) -> AsyncIterator[Notice]:
        while True:
            yield await self.notices.get()

    async def open_coordinator(self) -> None:
        self.coordinator_system: ActorSystem = await self.cluster.system("coordinator")
        self.coordinator = FakeCoordinator()
        await self.coordinator_system.spawn(lambda: self.coordinator, "coordinator")

    async def up(self, name: str, wait_s: float = 0.1, device: str = "simulated") -> None:
        self.epochs += 1
        refs = WorkerRefs(name, self.epochs, *[self.worker.ref] * 3)
        keys = self.launcher.keys.get(name)
        start = keys.start if keys is not None else ""
        self.system.tell(self.node, WorkerUp(refs, start, device))
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
