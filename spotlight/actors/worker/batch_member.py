"""What every member does, whatever it denoises with: it keeps track of the batches that are wanted,
stops them in time, and takes its seat in an SP group.

Messages in: FormGroup, Denoise, Revoke, Recall, Drain (its leader); Introduce, Follow, CannotFollow
(other members).
Messages out: GroupReady, GroupFailed, and at the end of a batch Denoised, Yielded or DenoiseError
(its leader); Introduce, Follow, CannotFollow (other members).

When its node must leave, batches that have not begun are given back at once, and those that run
when the time is up. The member of rank 0 works on batches, the others follow it; one that loses
rank 0 gives back what it has.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from spotlight.actors.protocol import (
    CannotFollow,
    Denoise,
    Denoised,
    DenoiseError,
    Drain,
    Follow,
    FormGroup,
    Introduce,
    Recall,
    Revoke,
    WorkerState,
    Yielded,
)
from spotlight.actors.protocol.delivery import until_transferred
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    from_an_actor,
    from_this_process,
    handles,
)
from spotlight.actors.runtime.bounded_set import Recent
from spotlight.actors.worker.sp_membership import CompanyT, Connector, GroupSeat
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import (
    CommitRefused,
    NotFinite,
    SpotlightError,
    WrongWeights,
)
from spotlight.types import BundleOffer, RequestKind

log = structlog.get_logger(__name__)

STATES: dict[RequestKind, WorkerState] = {
    "rollout": "rollout",
    "preview": "explore",
    "evaluation": "evaluate",
}
_REVOKED_LEASES = 1024


@dataclass(eq=False)
class Batch:
    """A batch at a member; subclasses add how far it is."""

    message: Denoise
    leader: ActorRef
    begun: bool = False
    recalled: bool = False


class Unwanted(Exception):
    """The batch was revoked or given back while it was in work."""


BatchT = TypeVar("BatchT", bound=Batch)


class BatchMember(Actor, ABC, Generic[BatchT, CompanyT]):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, connector: Connector[CompanyT]) -> None:
        self._context = context
        self._seat = GroupSeat(self, context.name, connector)
        self._wanted: dict[int, BatchT] = {}
        """Batches whose results are wanted, by lease. Leases of different jobs may bear the same
        number.
        """
        self._revoked: Recent[int] = Recent(_REVOKED_LEASES)
        self._stop_at: float | None = None

    # --- what a subclass knows ---

    @abstractmethod
    def _make_batch(self, message: Denoise, leader: ActorRef) -> BatchT:
        """One that has not begun."""

    @abstractmethod
    async def _denoise(self, batch: BatchT) -> Denoised | Yielded:
        """Work on it until it is done, or must be given back; raises `Unwanted` when nobody wants
        it any more, and other errors of ours, `ValueError` or `RuntimeError` when it fails.
        """

    @abstractmethod
    def _follower(self, message: Follow) -> Callable[[CompanyT], asyncio.Future[int]]:
        """How to take part in the steps that rank 0 leads; raises `WrongWeights`."""

    # --- the group ---

    @handles(FormGroup, only=from_this_process)
    async def on_form_group(self, message: FormGroup) -> None:
        """Take a seat in another group."""
        assert self.sender is not None
        if self._seat.take(message, self.sender) and not self._seat.leads:
            self._recall(list(self._wanted.values()))

    @handles(Introduce, only=from_an_actor)
    async def on_introduce(self, message: Introduce) -> None:
        """Another member of the group that forms."""
        assert self.sender is not None
        self._seat.hear(message, self.sender)

    @handles(Follow, only=from_an_actor)
    async def on_follow(self, message: Follow) -> None:
        """Take part in the next steps of the group."""
        assert self.sender is not None
        if self._seat.expects(message, self.sender):
            self.run_task(self._follow(message, self.sender))

    @handles(CannotFollow, only=from_an_actor)
    async def on_cannot_follow(self, message: CannotFollow) -> None:
        """A member of the group cannot take part."""
        assert self.sender is not None
        self._seat.cannot(message, self.sender)

    async def _follow(self, message: Follow, rank_0: ActorRef) -> None:
        try:
            if not await self._seat.formed(message.epoch):
                return
            take_steps = self._follower(message)
        except WrongWeights as error:
            self._seat.refuse(message, rank_0, str(error))
            return
        state = STATES[message.requests[0].kind]
        async with self._context.accelerator_turn():
            with self._context.busy(state, f"follows {rank_0.address}"):
                await self._seat.follow(message, rank_0, take_steps)

    # --- batches ---

    @handles(Denoise, only=from_this_process)
    async def on_denoise(self, message: Denoise) -> None:
        """Work on a batch; the answer is a message."""
        assert self.sender is not None
        if message.lease in self._revoked:  # which may have come before it
            return
        if self._stop_at is not None or not self._seat.leads:
            self.tell(self.sender, Yielded(message.lease))
            return
        batch = self._wanted[message.lease] = self._make_batch(message, self.sender)
        self.run_task(self._work(batch))

    @handles(Revoke, only=from_this_process)
    async def on_revoke(self, message: Revoke) -> None:
        """Nobody wants these any more: stop before the next step."""
        for lease in message.leases:
            self._wanted.pop(lease, None)
            self._revoked.add(lease)

    @handles(Recall, only=from_this_process)
    async def on_recall(self, message: Recall) -> None:
        """Commit and give back what others are free to go on with."""
        self._recall([self._wanted[lease] for lease in message.leases if lease in self._wanted])

    @handles(Drain, only=from_this_process)
    async def on_drain(self, message: Drain) -> None:
        """Commit what runs, give back what has not begun, and stop in time; or go on as before."""
        if message.stop_in_s is None:
            self._stop_at = None
            return
        self._stop_at = asyncio.get_running_loop().time() + message.stop_in_s
        for batch in list(self._wanted.values()):
            if not batch.begun:
                self._end(batch, Yielded(batch.message.lease))

    def _recall(self, batches: list[BatchT]) -> None:
        for batch in batches:
            batch.recalled = True
            if not batch.begun:
                self._end(batch, Yielded(batch.message.lease))

    async def _work(self, batch: BatchT) -> None:
        lease = batch.message.lease
        try:
            self._end(batch, await self._denoise(batch))
        except Unwanted:
            return
        except (SpotlightError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            requests = batch.message.requests
            rows = error.rows if isinstance(error, NotFinite) else ()
            failed = tuple(requests[row].id for row in rows)
            refused = isinstance(error, CommitRefused)
            if self._end(batch, DenoiseError(lease, reason, refused, failed)):
                log.warning("denoise_error", lease=lease, error=reason)

    def _end(self, batch: BatchT, answer: Denoised | Yielded | DenoiseError) -> bool:
        """Tell the leader how the batch ended, unless nobody wants to know."""
        if not self._is_wanted(batch):
            return False
        del self._wanted[batch.message.lease]
        self.tell(batch.leader, answer)
        return True

    def _is_wanted(self, batch: BatchT) -> bool:
        return self._wanted.get(batch.message.lease) is batch

    def _require_wanted(self, batch: BatchT) -> None:
        if not self._is_wanted(batch):
            raise Unwanted

    def _forget_batches(self) -> None:
        self._wanted.clear()
        self._revoked = Recent(_REVOKED_LEASES)

    async def _until_uploaded(
        self, batch: BatchT, key: str, upload: Callable[[], Awaitable[BundleOffer]]
    ) -> BundleOffer:
        """Leave something in the job's sink, whichever that is by then; a coordinator may be away
        for a while. Raises `TransferFailed`, and `Unwanted`.
        """
        return await until_transferred(
            upload, key, require_wanted=lambda: self._require_wanted(batch)
        )
