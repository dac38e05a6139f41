"""The batches at a member: which are wanted, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from spotlight.actors.protocol.down import Grant, Keeper
from spotlight.actors.protocol.up import ReturnLease
from spotlight.actors.runtime import ActorRef
from spotlight.actors.runtime.bounded_set import BoundedSet
from spotlight.actors.worker.engine import Model
from spotlight.jobs import WorkSpec
from spotlight.types import StoreEndpoint

_REVOKED_LEASES = 1024


class Unwanted(Exception):
    """The batch was revoked or given back while it was in work."""


@dataclass
class MemberJob:
    """The job that a member is prepared for."""

    id: str
    model: Model
    work: WorkSpec
    sink: StoreEndpoint
    """The store of the coordinator that is there now."""
    keeper: Keeper | None
    """Where samples and commits are left rather than there."""
    fingerprint: str
    """The same in all members that have this job and this model."""


@dataclass(eq=False)
class Batch:
    """What one lease is about, at a member."""

    message: Grant
    leader: ActorRef
    job: MemberJob | None
    """The job that it came for."""
    begun: bool = False
    recalled: bool = False
    scoring: asyncio.Timeout | None = None
    """Ends its scoring when the time is up, or nobody wants it any more."""

    @property
    def steps(self) -> int:
        """Those that denoising it takes in all."""
        return self.message.requests[0].settings.steps

    @property
    def version(self) -> tuple[int, bool]:
        """Of the weights that it is denoised with, and whether they are those of an evaluation."""
        first = self.message.requests[0]
        return first.weights_version, first.kind == "evaluation"

    def score_until(self, when: float | None) -> None:
        """Should it be scored now, give that up at this time on the loop's clock."""
        if self.scoring is not None and not self.scoring.expired():
            self.scoring.reschedule(when)


class Batches:
    """Those whose results are wanted, by lease. Leases of different jobs may bear the same number.

    `stop_at` is when the member must have stopped, on the loop's clock; None: not before it is
    told to.
    """

    def __init__(self) -> None:
        self._wanted: dict[int, Batch] = {}
        self._revoked: BoundedSet[int] = BoundedSet(_REVOKED_LEASES)
        self.stop_at: float | None = None

    def __iter__(self) -> Iterator[Batch]:
        return iter(list(self._wanted.values()))

    def add(self, batch: Batch) -> None:
        """Somebody wants it."""
        self._wanted[batch.message.lease] = batch

    def get(self, lease: int) -> Batch | None:
        """The batch of a lease, if it is wanted."""
        return self._wanted.get(lease)

    def is_revoked(self, lease: int) -> bool:
        """Whether it was revoked, perhaps before it came."""
        return lease in self._revoked

    def wants(self, batch: Batch) -> bool:
        """Whether somebody wants it; read by the accelerator's thread too."""
        return self._wanted.get(batch.message.lease) is batch

    def require_wanted(self, batch: Batch) -> None:
        """Raises `Unwanted` if nobody wants it."""
        if not self.wants(batch):
            raise Unwanted

    def end(self, batch: Batch) -> bool:
        """It is over; False if nobody wanted it any more."""
        if not self.wants(batch):
            return False
        del self._wanted[batch.message.lease]
        return True

    def revoke(self, lease: int) -> None:
        """Nobody wants it any more: stop before the next step, or while it is scored."""
        self._revoked.add(lease)
        batch = self._wanted.pop(lease, None)
        if batch is not None:
            batch.score_until(asyncio.get_running_loop().time())

    def must_stop_at(self, batch: Batch) -> float | None:
        """When its steps must have ended; None: not before they are all taken."""
        return asyncio.get_running_loop().time() if batch.recalled else self.stop_at

    def forget_all(self) -> None:
        """The job has ended."""
        for batch in self:
            self.end(batch)
            batch.score_until(asyncio.get_running_loop().time())
        self._revoked = BoundedSet(_REVOKED_LEASES)


def returned(worker: str, epoch: int, batch: Batch) -> ReturnLease:
    """The answer about a batch that others go on with."""
    return ReturnLease(worker, epoch, batch.message.lease)
