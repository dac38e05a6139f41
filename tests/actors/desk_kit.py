"""A dispatcher on a journal of its own, and workers that only record what they are given."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from job_kit import STORE, ReachedAt, Recorder, offer, recorder, requests, settle
from runtime_kit import Cluster

from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_queue import Ended, RequestQueue
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.protocol.down import Grant, Receipt
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    HeldLease,
    LeaseFailed,
    Pull,
    WorkerRefs,
)
from spotlight.actors.runtime import Message
from spotlight.errors import JournalError
from spotlight.policies.requests.instructions import EndWorker, RequestsFinished
from spotlight.policies.requests.matching import Backlog
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_events import RunEvent
from spotlight.store.journal import Journal
from spotlight.types import BundleOffer, Request


def ids(grant: Grant) -> list[str]:
    return [request.id for request in grant.requests]


def images(name: str, grant: Grant, epoch: int = 1) -> BundleOffer:
    return offer(f"samples/{name}/{epoch}-{grant.lease}")


def steps_of(name: str, grant: Grant, step: int, epoch: int = 1) -> BundleOffer:
    return offer(f"commits/{name}/{epoch}-{grant.lease}-{step}")


def steps(grant: Grant) -> list[int]:
    """After how many steps each request of a grant goes on."""
    return [commit.step if commit else 0 for commit in grant.commits]


EventT = TypeVar("EventT", bound=RunEvent)


class Desk:
    """A dispatcher, one who submits, and workers that only record what they are given."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster = cluster
        self.path = path
        self.discarded: list[BundleOffer] = []
        self.keepers = {""}
        """Who keeps bundles; the empty name is that of the coordinator's store."""
        self.events: list[RunEvent] = []
        self.workers: dict[str, Recorder] = {}
        self.epochs: dict[str, int] = {}
        self.failures: list[JournalError] = []
        self.profile = StepProfile("model", StepTimes())
        self.backlogs: list[tuple[Backlog, ...]] = []
        """What waited whenever the dispatcher said that it changed."""
        self.ended_workers: list[EndWorker] = []
        self.ended: list[Ended] = []
        """What was told to whoever submits, of the latest life."""
        self.slices: dict[str, SliceOrder] = {}
        """What the gradients are of that are needed, by request."""
        self.lives = 0

    async def open(self) -> None:
        self.system = await self.cluster.system("coordinator")
        await self.begin()

    async def begin(self) -> None:
        """A dispatcher on what the journal holds."""
        self.lives += 1
        self.file = Journal.open(self.path, "owner")
        self.journal = JobJournal(self.file, ReachedAt(STORE), self.failures.append)  # type: ignore[arg-type]
        listen_s = 3.0 if self.lives > 1 else 0.0
        self.table = RequestTable(
            pace=Pace(self.profile),
            first_lease=self.journal.first_lease,
            grants_from=asyncio.get_running_loop().time() + listen_s,
        )
        self.ended = []
        dispatcher = Dispatcher(self, self.table, self.journal)
        self.queue: RequestQueue = dispatcher.queue
        name = f"dispatcher-{self.lives}"
        self.dispatcher = await self.system.spawn(lambda: dispatcher, name)

    # --- what the dispatcher says ---

    def requests_ended(self, ended: Ended) -> None:
        self.ended.append(ended)

    def slice_of(self, request: Request) -> SliceOrder | None:
        return self.slices.get(request.id)

    def discard(self, bundle: BundleOffer) -> None:
        self.discarded.append(bundle)

    def has(self, bundle: BundleOffer) -> bool:
        return bundle.keeper in self.keepers

    def event(self, event: RunEvent) -> None:
        self.events.append(event)

    def backlog_changed(self) -> None:
        self.backlogs.append(self.table.backlog())

    def end_worker(self, end: EndWorker) -> None:
        self.ended_workers.append(end)

    # --- lives ---

    async def restart(self, *, listening: bool = False) -> None:
        """The coordinator is killed and comes back; workers have not been heard yet. It grants
        again, unless it is still `listening`."""
        await self.system.stop(self.dispatcher)
        await self.system.wait_stopped(self.dispatcher)
        self.file.close()
        await self.begin()
        if not listening:
            await asyncio.sleep(3.0)

    async def meet(self, *names: str) -> None:
        """Workers are there again after a restart; they can take nothing yet."""
        for name in names:
            await self.join(name, self.epochs[name])

    async def join(self, name: str, epoch: int, pool: str = "spot") -> None:
        """Its node says that it is there."""
        refs = WorkerRefs(name, epoch, *[self.workers[name].ref] * 3)
        self.queue.add_workers(f"node of {name}", pool, (refs,))
        await settle()

    async def tell(self, message: Any) -> None:
        """The worker that the message names says this."""
        self.system.tell(self.dispatcher, message, sender=self.workers[message.worker].ref)
        await settle()

    async def ask(self, message: Any) -> Message:
        """The worker that the message names asks."""
        sender = self.workers[message.worker].ref
        answer = await self.system.ask(self.dispatcher, message, timeout_s=10.0, sender=sender)
        await settle()
        return answer

    async def submit(self, *wanted: Request) -> None:
        self.queue.submit(wanted)
        await settle()

    async def add(self, name: str, epoch: int = 1, pool: str = "spot", **pull: Any) -> Recorder:
        """A worker that pulls both kinds of work; its earlier self's inbox is kept."""
        if name not in self.workers:
            self.workers[name] = await recorder(self.system, name)
        self.epochs[name] = epoch
        await self.join(name, epoch, pool)
        await self.pull(name, **pull)
        return self.workers[name]

    async def pull(
        self,
        name: str,
        *,
        credits: int = 2,
        batch: int = 4,
        rollout: tuple[int, ...] = (0,),
        evaluation: tuple[int, ...] = (0,),
        prompts: tuple[str, ...] = (),
        holds: tuple[Grant, ...] = (),
        followers: tuple[str, ...] = (),
        follows: bool = False,
    ) -> None:
        leases = tuple(HeldLease(grant.lease, tuple(ids(grant))) for grant in holds)
        members, epoch = 0 if follows else 1 + len(followers), self.epochs[name]
        versions = rollout, evaluation
        await self.tell(
            Pull(name, epoch, members, credits, batch, *versions, prompts, leases, followers)
        )

    async def deliver(self, name: str, grant: Grant, **changes: Any) -> Receipt:
        """What a leader says when a batch is done, and the answer."""
        epoch = changes.get("epoch", self.epochs[name])
        bundle = images(name, grant, epoch)
        rewards = tuple((reward,) for reward in changes.pop("rewards", [0.5] * len(grant.requests)))
        done = Completed(name, epoch, grant.lease, tuple(ids(grant)), bundle, rewards, 2, 2.0)
        receipt = await self.ask(msgspec.structs.replace(done, **changes))
        assert isinstance(receipt, Receipt)
        return receipt

    async def complete(self, name: str, lease: int, epoch: int | None = None) -> int:
        """Deliver a batch that the worker was granted; how many of it counted."""
        granted = [g for g in self.grants() if g.lease == lease]
        grant = granted[0] if granted else Grant(lease, requests(1), (None,), 0)
        changes = {"epoch": epoch} if epoch else {}
        return (await self.deliver(name, grant, **changes)).accepted

    def grants(self) -> list[Grant]:
        return [grant for worker in self.workers.values() for grant in worker.all(Grant)]

    async def commit(self, name: str, grant: Grant, step: int, **changes: Any) -> Receipt:
        """What a leader says when progress is in the sink, and the answer."""
        epoch = changes.get("epoch", self.epochs[name])
        bundle = steps_of(name, grant, step, epoch)
        said = CommitSteps(name, epoch, grant.lease, tuple(ids(grant)), step, bundle, 0.1)
        receipt = await self.ask(msgspec.structs.replace(said, **changes))
        assert isinstance(receipt, Receipt)
        return receipt

    async def leave(self, name: str, *, cancelled: bool = False) -> None:
        """Notice for a worker's node."""
        self.queue.set_leaving((name,), leaving=not cancelled)
        await settle()

    async def fail_score(self, name: str, grant: Grant, epoch: int | None = None) -> None:
        """Its scorer broke."""
        failed = LeaseFailed(
            name, epoch or self.epochs[name], grant.lease, "the scorer broke", "scoring"
        )
        await self.tell(failed)

    def finished(self) -> list[RequestsFinished]:
        return [ended for ended in self.ended if isinstance(ended, RequestsFinished)]

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def gone(self) -> list[str]:
        """Keys of the bundles that were deleted."""
        return [bundle.key for bundle in self.discarded]
