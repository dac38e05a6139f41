"""The group leader: it pulls only with acknowledged weights, and delivers what it denoised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from job_kit import STORE, Recorder, job, offer, recorder, requests, settle
from runtime_kit import Cluster

from spotlight.actors.group_leader import GroupLeader
from spotlight.actors.messages import (
    Acknowledged,
    Completed,
    Denoise,
    Denoised,
    DenoiseError,
    DenoiseFailed,
    EndJob,
    Grant,
    HoldWeights,
    Membership,
    PrepareJob,
    Pull,
    Receipt,
    RenewLease,
    Revoke,
)
from spotlight.actors.runtime import Actor, Message, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import TransferFailed

pytestmark = pytest.mark.virtual_time


class SlowMember(Recorder):
    """Acknowledges weights only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = asyncio.Event()
        self.broken = False

    @handles(HoldWeights)
    async def on_hold(self, message: HoldWeights) -> Message:
        await self.loaded.wait()
        if self.broken:
            raise TransferFailed("the bundle is gone")
        return Acknowledged()


class Crew:
    """A leader on a worker, with its member there and its dispatcher elsewhere."""

    async def open(self, cluster: Cluster) -> None:
        self.coordinator, self.transport = await cluster.process("coordinator")
        self.system = await cluster.system("worker")
        self.accepts = True
        self.dispatcher = await recorder(self.coordinator, "dispatcher", answer=self._receipt)
        self.ledger = await recorder(self.coordinator, "ledger")
        self.member = SlowMember()
        await self.system.spawn(lambda: self.member, "member")
        context = WorkerContext("w", epoch=7)
        self.leader = await self.system.spawn(
            lambda: GroupLeader(context, self.member.ref), "leader"
        )
        self.membership = Membership(self.dispatcher.ref, self.ledger.ref, STORE)

    def _receipt(self, message: Message) -> Message | None:
        if isinstance(message, Completed):
            if not self.accepts:
                raise RuntimeError("not now")
            return Receipt(1)
        return None

    async def tell(self, message: Message, sender: Actor | None = None) -> None:
        self.system.tell(self.leader, message, sender=sender.ref if sender else None)
        await asyncio.sleep(0.01)

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


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with Cluster() as cluster:
        crew = Crew()
        await crew.open(cluster)
        yield crew


async def test_it_pulls_only_after_the_member_has_acknowledged(crew: Crew) -> None:
    await crew.prepare(version=None)
    await crew.hold(3)
    await asyncio.sleep(30.0)
    assert crew.dispatcher.all(Pull) == []
    crew.member.loaded.set()
    await asyncio.sleep(0.01)
    pull = crew.dispatcher.last(Pull)
    assert (pull.worker, pull.epoch, pull.rollout_versions) == ("w", 7, (3,))
    assert pull.batch == job().sampler.micro_batch


async def test_it_names_exactly_the_versions_that_are_held(crew: Crew) -> None:
    await crew.prepare()
    await crew.hold(1, evaluation=True, keep=(0, 1))
    assert crew.dispatcher.last(Pull).rollout_versions == (0, 1)
    assert crew.dispatcher.last(Pull).evaluation_versions == (1,)
    await crew.hold(2, keep=(1, 2))
    assert crew.dispatcher.last(Pull).rollout_versions == (1, 2)
    await crew.hold(3, keep=(2, 3))
    assert crew.dispatcher.last(Pull).evaluation_versions == ()


async def test_a_version_that_the_member_cannot_load_is_not_served_and_the_next_is(
    crew: Crew,
) -> None:
    await crew.prepare(version=None)
    crew.member.broken = True
    crew.member.loaded.set()
    await crew.hold(0)
    assert crew.dispatcher.all(Pull) == []

    crew.member.broken = False
    await crew.hold(1)

    assert crew.dispatcher.all(Pull)[-1].rollout_versions == (1,)


async def test_weights_of_another_job_are_ignored(crew: Crew) -> None:
    await crew.prepare(version=None)
    crew.member.loaded.set()
    await crew.hold(1, job_id="another")
    assert crew.dispatcher.all(Pull) == []


async def test_a_new_job_starts_without_weights(crew: Crew) -> None:
    await crew.prepare()
    await crew.prepare(version=5, job_id="next")
    assert crew.dispatcher.last(Pull).rollout_versions == (5,)


async def test_a_grant_goes_to_the_member_and_the_result_to_the_dispatcher(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(2)))
    assert crew.member.last(Denoise) == Denoise(4, requests(2))
    await crew.tell(Denoised(4, offer(), 1.5))
    assert crew.dispatcher.all(Completed) == [Completed("w", 7, 4, offer(), 1.5)]


async def test_a_completion_is_delivered_again_until_it_is_acknowledged(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    crew.accepts = False
    await crew.tell(Denoised(4, offer(), 1.5))
    await asyncio.sleep(2.5)
    crew.accepts = True
    await asyncio.sleep(60.0)
    assert len(crew.dispatcher.all(Completed)) == 4
    assert len(set(crew.dispatcher.all(Completed))) == 1


async def test_leases_are_renewed_while_they_are_held(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    await asyncio.sleep(13.0)
    assert crew.dispatcher.all(RenewLease) == [RenewLease("w", 7, 4, "denoise")] * 3
    await crew.tell(Denoised(4, offer(), 1.5))
    await asyncio.sleep(30.0)
    assert len(crew.dispatcher.all(RenewLease)) == 3


async def test_what_the_member_cannot_do_is_given_back(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    await crew.tell(DenoiseError(4, "out of memory"))
    assert crew.dispatcher.last(DenoiseFailed) == DenoiseFailed("w", 7, 4, "out of memory")
    await asyncio.sleep(30.0)
    assert crew.dispatcher.all(RenewLease) == []


async def test_a_revoked_lease_is_neither_renewed_nor_delivered(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    await crew.tell(Revoke((4,)))
    assert crew.member.last(Revoke) == Revoke((4,))
    await crew.tell(Denoised(4, offer(), 1.5))
    await asyncio.sleep(30.0)
    assert crew.dispatcher.all(Completed) == crew.dispatcher.all(RenewLease) == []


async def test_after_the_end_of_the_job_nothing_is_delivered(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    await crew.tell(EndJob("job"))
    await crew.tell(Denoised(4, offer(), 1.5))
    await crew.tell(Grant(5, 15.0, requests(1)))
    assert crew.dispatcher.all(Completed) == []
    assert crew.member.last(EndJob) == EndJob("job")
    assert [message.lease for message in crew.member.all(Denoise)] == [4]


async def test_it_outlives_its_coordinator(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Grant(4, 15.0, requests(1)))
    await crew.coordinator.abort()
    await asyncio.sleep(30.0)
    await crew.tell(Denoised(4, offer(), 1.5))
    await asyncio.sleep(120.0)
    await settle()
    assert "leader" in crew.system.statistics().mailboxes
