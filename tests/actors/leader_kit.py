"""A group leader with its member, its node and its dispatcher, who only record."""

from __future__ import annotations

import asyncio

from job_kit import STORE, Recorder, job, offer, recorder, requests
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    Acknowledged,
    CommitSteps,
    Completed,
    Grant,
    GroupFailed,
    GroupReady,
    HoldWeights,
    LeaseFailed,
    Membership,
    PrepareJob,
    Pull,
    Recall,
    Receipt,
    ReturnLease,
    Revoke,
)
from spotlight.actors.runtime import Actor, Message, handles
from spotlight.actors.worker.group_leader import GroupLeader
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import CheckpointError, TransferFailed
from spotlight.types import Commit

_MEMBERS_WORDS = (CommitSteps, Completed, ReturnLease, LeaseFailed, GroupReady, GroupFailed)


class SlowMember(Recorder):
    """Acknowledges weights only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = asyncio.Event()
        self.broken = False
        self.has_model = True

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Message:
        self.inbox.append(message)
        if not self.has_model:
            raise CheckpointError("model.checkpoint: transformer lacks proj_out.weight")
        return Acknowledged()

    @handles(HoldWeights)
    async def on_hold(self, message: HoldWeights) -> Message:
        await self.loaded.wait()
        if self.broken:
            raise TransferFailed("the bundle is gone")
        return Acknowledged()


class Crew:
    """A leader on a worker, with its member there and its dispatcher elsewhere."""

    async def open(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.receipt: Receipt | None = Receipt(1)
        """What the dispatcher answers; None for an error."""
        await self.open_coordinator()
        self.system = await cluster.system("worker")
        self.node = await recorder(self.system, "node")
        self.member = SlowMember()
        await self.system.spawn(lambda: self.member, "member")
        self.context = WorkerContext("w", 7, self.system.address)
        self.leader = await self.system.spawn(
            lambda: GroupLeader(self.context, self.member.ref), "leader"
        )

    async def open_coordinator(self) -> None:
        """The first, or one that came back: new incarnations at the same address."""
        self.coordinator, self.transport = await self.cluster.process("coordinator")
        self.dispatcher = await recorder(self.coordinator, "dispatcher", answer=self._receipt)
        self.runner = await recorder(self.coordinator, "runner")
        self.membership = Membership(self.runner.ref, self.dispatcher.ref, STORE)

    def _receipt(self, message: Message) -> Message | None:
        if isinstance(message, Completed | CommitSteps):
            if self.receipt is None:
                raise RuntimeError("not now")
            return self.receipt
        return None

    async def tell(self, message: Message, sender: Actor | None = None) -> None:
        """Whose message it is says it, unless another sender is named."""
        if isinstance(message, Grant | Revoke | Recall):
            (sender or self.dispatcher).tell(self.leader, message)
        elif isinstance(message, _MEMBERS_WORDS):
            (sender or self.member).tell(self.leader, message)
        else:
            self.system.tell(self.leader, message, sender=sender.ref if sender else None)
        await asyncio.sleep(0.01)

    async def grant(self, lease: int, count: int = 1, commit: Commit | None = None) -> Grant:
        grant = Grant(lease, 15.0, requests(count), (commit,) * count, 3)
        self.dispatcher.tell(self.leader, grant)
        await asyncio.sleep(0.01)
        return grant

    async def prepare(self, version: int | None = 0, job_id: str = "job") -> None:
        await self.tell(PrepareJob(job_id, job(), self.membership))
        if version is not None:
            self.member.loaded.set()
            await self.hold(version, job_id=job_id)

    async def hold(
        self, version: int, *, evaluation: bool = False, keep: tuple[int, ...] = (), job_id="job"
    ) -> None:
        extra = offer() if evaluation else None
        await self.tell(HoldWeights(job_id, version, offer(), extra, keep or (version,)))

    async def working(self, *leases: int) -> None:
        """Prepared, and with these leases."""
        await self.prepare()
        for lease in leases:
            await self.grant(lease)

    def held(self) -> tuple[int, ...]:
        """The leases that the latest pull renews."""
        return tuple(lease.lease for lease in self.dispatcher.last(Pull).leases)


def completed(lease: int, count: int = 1) -> Completed:
    ids = tuple(each.id for each in requests(count))
    return Completed("w", 7, lease, ids, offer(f"samples/{lease}"), (0.5,) * count, 5, 1.5)


def committed(lease: int, step: int) -> CommitSteps:
    return CommitSteps("w", 7, lease, (), step, offer(f"commits/{lease}-{step}"), 0.25)


def returned(lease: int) -> ReturnLease:
    return ReturnLease("w", 7, lease)
