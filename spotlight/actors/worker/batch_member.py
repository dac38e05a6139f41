"""What every member does, whatever it denoises and scores with: it keeps track of the batches that
are wanted, stops them in time, and takes its seat in an SP group.

Messages in: FormGroup, Grant, Revoke, Recall, Drain (its leader); Introduce, Follow, CannotFollow
(other members).
Messages out: GroupReady, GroupFailed, CommitSteps, and at the end of a batch Completed, ReturnLease
or LeaseFailed (its leader); Introduce, Follow, CannotFollow (other members).

A batch that is denoised is committed once more, and scored while that is delivered: whoever takes
it over only scores it. When its node must leave, batches that have not begun are given back at
once, and those in work when the time is up. The member of rank 0 works on batches, the others
follow it; one that loses rank 0 gives back what it denoises, and scores what is denoised.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import structlog

from spotlight.actors.protocol import (
    CannotFollow,
    CommitSteps,
    Completed,
    Drain,
    Follow,
    FormGroup,
    Grant,
    Introduce,
    LeaseFailed,
    Recall,
    ReturnLease,
    Revoke,
    WorkerState,
)
from spotlight.actors.protocol.delivery import until_transferred
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    from_an_actor,
    from_this_process,
    handles,
)
from spotlight.actors.runtime.bounded_set import BoundedSet
from spotlight.actors.worker.sp_membership import Connector, SPMembership, StepGroupT
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import (
    CommitRefused,
    NotFinite,
    ScoringError,
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

    message: Grant
    leader: ActorRef
    begun: bool = False
    recalled: bool = False
    scoring: asyncio.Timeout | None = None
    """Ends its scoring when the time is up, or nobody wants it any more."""

    @property
    def steps(self) -> int:
        """Those that denoising it takes in all."""
        return self.message.requests[0].settings.steps

    def score_until(self, when: float | None) -> None:
        """Should it be scored now, give that up at this time on the loop's clock."""
        if self.scoring is not None and not self.scoring.expired():
            self.scoring.reschedule(when)


@dataclass(frozen=True)
class Scored:
    """What scoring a batch gave."""

    rewards: tuple[float, ...]
    """In [0, 1], in the order of the requests."""
    seconds: float


@dataclass(frozen=True)
class StepsTaken:
    """The denoising steps of a batch that were taken here; the fields are those of `Completed`."""

    steps: int
    seconds: float
    members: int


NO_STEPS = StepsTaken(0, 0.0, 0)


class Unwanted(Exception):
    """The batch was revoked or given back while it was in work."""


BatchT = TypeVar("BatchT", bound=Batch)


class BatchMember(Actor, ABC, Generic[BatchT, StepGroupT]):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, connector: Connector[StepGroupT]) -> None:
        self._context = context
        self._seat = SPMembership(self, context.name, connector, context.timings.worker)
        self._wanted: dict[int, BatchT] = {}
        """Batches whose results are wanted, by lease. Leases of different jobs may bear the same
        number.
        """
        self._revoked: BoundedSet[int] = BoundedSet(_REVOKED_LEASES)
        self._stop_at: float | None = None

    # --- what a subclass knows ---

    @abstractmethod
    def _make_batch(self, message: Grant, leader: ActorRef) -> BatchT:
        """One that has not begun."""

    @abstractmethod
    async def _carry_out(self, batch: BatchT) -> Completed | ReturnLease:
        """Denoise and score it until it is done, or must be given back; raises `Unwanted` when
        nobody wants it any more, and other errors of ours, `ValueError` or `RuntimeError` when it
        fails.
        """

    @abstractmethod
    def _follower(self, message: Follow) -> Callable[[StepGroupT], asyncio.Future[int]]:
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

    @handles(Grant, only=from_this_process)
    async def on_grant(self, message: Grant) -> None:
        """Work on a batch; the answer is a message."""
        assert self.sender is not None
        if message.lease in self._revoked:  # which may have come before it
            return
        batch = self._make_batch(message, self.sender)
        if self._stop_at is not None or not self._seat.leads:
            self.tell(self.sender, self._returned(batch))
            return
        self._wanted[message.lease] = batch
        self.run_task(self._work(batch))

    @handles(Revoke, only=from_this_process)
    async def on_revoke(self, message: Revoke) -> None:
        """Nobody wants these any more: stop before the next step, or while they are scored."""
        for lease in message.leases:
            self._revoked.add(lease)
            batch = self._wanted.pop(lease, None)
            if batch is not None:
                batch.score_until(asyncio.get_running_loop().time())

    @handles(Recall, only=from_this_process)
    async def on_recall(self, message: Recall) -> None:
        """Commit and give back what others are free to go on with; what is denoised is done
        sooner here.
        """
        self._recall([self._wanted[lease] for lease in message.leases if lease in self._wanted])

    @handles(Drain, only=from_this_process)
    async def on_drain(self, message: Drain) -> None:
        """Commit what runs, give back what has not begun, and stop in time; or go on as before."""
        now, left_s = asyncio.get_running_loop().time(), message.stop_in_s
        self._stop_at = now + left_s if left_s is not None else None
        for batch in list(self._wanted.values()):
            batch.score_until(self._stop_at)
            if self._stop_at is not None and not batch.begun:
                self._end(batch, self._returned(batch))

    def _recall(self, batches: list[BatchT]) -> None:
        for batch in batches:
            batch.recalled = True
            if not batch.begun:
                self._end(batch, self._returned(batch))

    async def _work(self, batch: BatchT) -> None:
        try:
            self._end(batch, await self._carry_out(batch))
        except Unwanted:
            return
        except (SpotlightError, ValueError, RuntimeError) as error:
            failed = self._failed(batch, error)
            if self._end(batch, failed):
                log.warning("lease_failed", lease=failed.lease, what=failed.what, error=str(error))

    def _failed(self, batch: BatchT, error: Exception) -> LeaseFailed:
        requests = batch.message.requests
        rows = error.rows if isinstance(error, NotFinite) else ()
        return LeaseFailed(
            self._context.name,
            self._context.epoch,
            batch.message.lease,
            f"{type(error).__name__}: {error}",
            _part_of(error),
            tuple(requests[row].id for row in rows),
        )

    def _returned(self, batch: BatchT) -> ReturnLease:
        return ReturnLease(self._context.name, self._context.epoch, batch.message.lease)

    def _end(self, batch: BatchT, answer: Completed | ReturnLease | LeaseFailed) -> bool:
        """Tell the leader how the batch ended, unless nobody wants to know."""
        if not self._is_wanted(batch):
            return False
        del self._wanted[batch.message.lease]
        self.tell(batch.leader, answer)
        return True

    async def _complete(
        self,
        batch: BatchT,
        taken: StepsTaken,
        *,
        deliver: Callable[[], Awaitable[BundleOffer]],
        score: Callable[[], Awaitable[Scored]],
    ) -> Completed | ReturnLease:
        """Deliver and score what is denoised, at the same time. Whatever becomes of the rewards,
        the delivery is not given up for it: the next one needs only score.
        """
        bundle, scored = await asyncio.gather(
            deliver(), self._score_in_time(batch, score), return_exceptions=True
        )
        if isinstance(bundle, BaseException):
            raise bundle
        if isinstance(scored, BaseException):
            raise scored
        if scored is None:
            return self._returned(batch)
        return Completed(
            self._context.name,
            self._context.epoch,
            batch.message.lease,
            tuple(request.id for request in batch.message.requests),
            bundle,
            scored.rewards,
            taken.steps,
            taken.seconds,
            taken.members,
            scored.seconds,
        )

    async def _score_in_time(
        self, batch: BatchT, score: Callable[[], Awaitable[Scored]]
    ) -> Scored | None:
        """None if the time was up before; raises `Unwanted`."""
        try:
            async with asyncio.timeout_at(self._stop_at) as batch.scoring:
                self._require_wanted(batch)
                with self._context.busy("score", f"{len(batch.message.requests)} images"):
                    return await score()
        except TimeoutError:
            self._require_wanted(batch)
            return None
        finally:
            batch.scoring = None

    def _tell_commit(self, batch: BatchT, step: int, bundle: BundleOffer, cost_s: float) -> None:
        """To the leader, unless nobody wants to know."""
        if self._is_wanted(batch):
            name, epoch, lease = self._context.name, self._context.epoch, batch.message.lease
            ids = tuple(request.id for request in batch.message.requests)
            self.tell(batch.leader, CommitSteps(name, epoch, lease, ids, step, bundle, cost_s))

    def _key(self, batch: BatchT, step: int) -> str:
        """Of the bundle with the batch's progress after so many steps."""
        stem = f"{self._context.name}/{self._context.epoch}-{batch.message.lease}"
        return f"samples/{stem}" if step == batch.steps else f"commits/{stem}-{step}"

    def _is_wanted(self, batch: BatchT) -> bool:
        return self._wanted.get(batch.message.lease) is batch

    def _require_wanted(self, batch: BatchT) -> None:
        if not self._is_wanted(batch):
            raise Unwanted

    def _forget_batches(self) -> None:
        forgotten = list(self._wanted.values())
        self._wanted.clear()
        for batch in forgotten:
            batch.score_until(asyncio.get_running_loop().time())
        self._revoked = BoundedSet(_REVOKED_LEASES)

    async def _until_uploaded(
        self, batch: BatchT, key: str, upload: Callable[[], Awaitable[BundleOffer]]
    ) -> BundleOffer:
        """Leave something in the job's sink, whichever that is by then; a coordinator may be away
        for a while. Raises `TransferFailed`, and `Unwanted`.
        """
        return await until_transferred(
            upload,
            key,
            timings=self._context.timings.delivery,
            require_wanted=lambda: self._require_wanted(batch),
        )


def _part_of(error: Exception) -> Literal["denoising", "commits", "scoring"]:
    """Which part of the work an error is of."""
    if isinstance(error, CommitRefused):
        return "commits"
    return "scoring" if isinstance(error, ScoringError) else "denoising"
