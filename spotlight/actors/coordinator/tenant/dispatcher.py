"""The pull scheduler as an actor: group leaders say here what they can take and what they did, and
the table of requests decides.

Messages in: Pull, CommitSteps, Completed, LeaseFailed, ReturnLease (group leaders).
Messages out: Grant, Revoke, Recall (group leaders).

Whoever wants requests done, or knows who works, calls its `queue`. Whatever is acknowledged is in
the journal before; a request that is submitted again after a restart goes on, or is answered, from
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import structlog

from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_queue import RequestQueue, RequestsOwner
from spotlight.actors.protocol.down import Receipt
from spotlight.actors.protocol.gradients import GRADIENTS
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed, Pull, ReturnLease
from spotlight.actors.runtime import Actor, handles
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.policies.requests.table import RequestTable
from spotlight.timings import DispatchTimings
from spotlight.types import RequestId

log = structlog.get_logger(__name__)

DeliveryT = TypeVar("DeliveryT", CommitSteps, Completed)
_FromLeader = Pull | CommitSteps | Completed | LeaseFailed | ReturnLease


class Dispatcher(Actor):
    """See the module's docstring, and `RequestQueue` for the arguments."""

    def __init__(
        self,
        owner: RequestsOwner,
        table: RequestTable,
        journal: JobJournal,
        metadata: Mapping[str, str] = {},
        timings: DispatchTimings = DispatchTimings(),
    ) -> None:
        self._owner = owner
        self._table = table
        self._tick_s = timings.tick_s
        self._journal = journal
        self._log = LimitedLog(log)
        self.queue = RequestQueue(
            owner,
            self,
            table=table,
            journal=journal,
            metadata=metadata,
        )

    def _from_its_leader(self, message: _FromLeader) -> bool:
        """Of that worker; what one says that is not here any more is counted, not refused."""
        leader = self.queue.leader_of(message.worker)
        return leader is None or self.sender == leader

    async def started(self) -> None:
        """Leases expire even when nothing else happens."""
        self.run_task(self._tick())

    async def stopping(self, reason: str) -> None:
        """Who waits for a receipt is told that there will be none."""
        self.queue.close()

    @handles(Pull, only=_from_its_leader)
    async def on_pull(self, message: Pull) -> None:
        """The group's latest word on what it can take and what it holds."""
        who = message.worker, message.epoch
        self.queue.carry_out(self._table.report(*who, message, self._now()))

    @handles(CommitSteps, only=_from_its_leader)
    async def on_commit(self, message: CommitSteps) -> Receipt | asyncio.Future[Receipt]:
        """Steps that need not be done again should the group be lost."""
        is_gradient = any(map(_is_gradient, message.requests))
        if is_gradient or not self._may_count(message, "commits", "samples"):
            return self._refuse_bundle(message)
        who = message.worker, message.epoch
        return self.queue.receipt_after(
            self._table.commit(*who, self._in_this_store(message), self._now())
        )

    @handles(Completed, only=_from_its_leader)
    async def on_completed(self, message: Completed) -> Receipt | asyncio.Future[Receipt]:
        """A batch is denoised and scored, or a gradient is computed: its requests are finished."""
        is_gradient = all(map(_is_gradient, message.requests))
        counts = _is_own_gradient(message) if is_gradient else self._may_count(message, "samples")
        if not counts:
            return self._refuse_bundle(message)
        who = message.worker, message.epoch
        found = message if is_gradient else self._in_this_store(message)
        return self.queue.receipt_after(self._table.complete(*who, found, self._now()))

    @handles(LeaseFailed, only=_from_its_leader)
    async def on_lease_failed(self, message: LeaseFailed) -> None:
        """A batch could not be done there: try elsewhere, or give up; never a reward."""
        who = message.worker, message.epoch, message.lease
        failure = message.error, message.what, message.failed
        self.queue.carry_out(
            self._table.fail(*who, *failure, self._now(), traceback=message.traceback)
        )

    @handles(ReturnLease, only=_from_its_leader)
    async def on_return(self, message: ReturnLease) -> None:
        """Others must do it."""
        who = message.worker, message.epoch, message.lease
        self.queue.carry_out(self._table.give_back(*who, self._now()))

    def _may_count(self, message: CommitSteps | Completed, *places: str) -> bool:
        """Whether a bundle is the worker's own, and where it says. Until something is submitted it
        is not known who keeps bundles, and nothing counts."""
        is_there = self._owner.has(message.bundle) or not self._table.has_begun
        return is_there and _is_own(message, *places)

    def _in_this_store(self, message: DeliveryT) -> DeliveryT:
        """It may have been uploaded to an earlier coordinator."""
        return msgspec.structs.replace(message, bundle=self._journal.in_this_store(message.bundle))

    def _refuse_bundle(self, message: CommitSteps | Completed) -> Receipt:
        """Nothing of another one's is accepted, nor deleted."""
        worker, key = message.worker, message.bundle.key
        self._log.error("not_its_own_bundle", about=worker, worker=worker, bundle=key)
        return Receipt(0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self.queue.carry_out(self._table.tick(self._now(), self._tick_s))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _is_gradient(request_id: str) -> bool:
    known = RequestId.parse(request_id)
    return known is not None and known.kind == "gradient"


def _is_own_gradient(message: Completed) -> bool:
    return message.bundle.key.startswith(f"{GRADIENTS}/{message.worker}/")


def _is_own(message: CommitSteps | Completed, *places: str) -> bool:
    """Whether a bundle's key is one of those under which that worker process leaves its work."""
    own = f"{message.worker}/{message.epoch}-{message.lease}"
    return any(
        message.bundle.key == f"{place}/{own}" or message.bundle.key.startswith(f"{place}/{own}-")
        for place in places
    )
