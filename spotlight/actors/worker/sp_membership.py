"""A member's seat in its SP group: it forms groups, leaves broken ones behind, and says with whom
the next steps are taken.

Invariants:
- One group at a time, that of the latest order; what carries an older epoch is refused and logged.
- No collective is waited for once its group is given up: the accelerator's thread that is stuck in
  it is left behind.
- Every wait is bounded; a group that does not form, or breaks, is reported with its epoch and the
  members at fault, and a new order is awaited.
- A word that is lost is said again: until the group has formed, or the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import GroupPlan, Seat
from spotlight.actors.protocol.peers import CannotFollow, Follow, Introduce
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.group_connector import GroupConnector
from spotlight.actors.worker.joining import JoiningGroup
from spotlight.actors.worker.step_group import GroupSteps, StepGroup
from spotlight.errors import CannotShard, SpotlightError, TransportError
from spotlight.timings import WorkerTimings
from spotlight.types import Request

if TYPE_CHECKING:
    from spotlight.actors.worker.member import Member

log = structlog.get_logger(__name__)

_EARLY = 64


@dataclass(eq=False)
class _StepRun:
    """See `step_loop.StepRun`."""

    seat: SPMembership
    epoch: int
    number: int
    group: StepGroup
    broken: asyncio.Future[None]
    call: Follow | None = None
    """What the others were called with, if this member leads."""
    others: tuple[Seat, ...] = ()

    def over(self, error: TransportError | None = None) -> None:
        """See `step_loop.StepRun.over`."""
        self.seat.end(self, error)


class SPMembership:
    """See the module's docstring; a member in a group of one to begin with.

    Args:
        member: tells on the seat's behalf, and reports when the group has formed, or is no more.
        worker: its name.
    """

    def __init__(
        self,
        member: Member,
        worker: str,
        connector: GroupConnector,
        timings: WorkerTimings,
    ) -> None:
        self._member = member
        self._worker = worker
        self._connector = connector
        self._timings = timings
        self._order: GroupPlan | None = None
        self._forming: asyncio.Task[None] | None = None
        self._joining: JoiningGroup | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._early: list[tuple[Introduce, ActorRef]] = []
        self._group = connector.alone
        self._formed = asyncio.Event()
        self._formed.set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open: dict[_StepRun, None] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._runs = 0
        """Number of the latest that was led, or that a call to follow named."""
        self._ended = (0, 0)
        """Epoch and number of the latest that came to its end here."""
        self.failure = ""
        """Why there is no group, until there is another plan; empty while nothing has failed."""
        self.culprits: tuple[str, ...] = ()
        """The members that are why; nobody if that is not known."""
        self.changing = False
        """Steps should end soon: read by the accelerator's thread."""

    @property
    def epoch(self) -> int:
        """Of the latest order; 0 before the first."""
        return self._order.epoch if self._order is not None else 0

    @property
    def stands(self) -> bool:
        """Whether the group of the latest order can denoise."""
        return self._formed.is_set()

    @property
    def leads(self) -> bool:
        """Whether this member has rank 0."""
        return self._rank() == 0

    # --- forming ---

    def take(self, order: GroupPlan) -> bool:
        """Leave the group and form the one of the order; False if the order is known, or an old
        one.
        """
        if order.epoch <= self.epoch:
            return False
        self._order, self._runs = order, 0
        self.failure, self.culprits = "", ()
        self.changing = True
        self._formed.clear()
        self._stop_repeating()
        if self._forming is not None:
            self._forming.cancel()
        if self._joining is not None:
            self._joining.close("a newer group was planned")
            self._joining = None
        if order.at_once:
            self._leave_behind()
        self._forming = self._member.run_task(self._form(order))
        return True

    async def _form(self, order: GroupPlan) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            joining = self._begin_to_join(order) if len(order.seats) > 1 else None
            await self._leave()
            group = await self._meet(order, joining) if joining else self._connector.alone
        except TransportError as error:
            known = self._joining.culprits if self._joining is not None else (self._worker,)
            self._fail(str(error), known)
            return
        except CannotShard as error:
            self._fail(str(error), (self._worker,))
            return
        self._join(group, loop.time() - began)

    def _join(self, group: StepGroup, seconds: float) -> None:
        """The group stands, so long after it was planned."""
        self._group = group
        self._broken = asyncio.get_running_loop().create_future()
        self.changing = False
        self._formed.set()
        log.info("group_formed", epoch=self.epoch, seconds=round(seconds, 4))
        self._member.report()

    def _begin_to_join(self, order: GroupPlan) -> JoiningGroup:
        fingerprint = self._connector.fingerprint()
        if fingerprint is None:
            raise TransportError("no job is prepared on this member")

        def tell(seat: Seat, message: Introduce) -> None:
            try_tell(self._member, seat.member, message)

        joining = self._joining = JoiningGroup(order, self._rank(), fingerprint, tell)
        joining.introduce()
        self._repeating = self._member.run_task(self._repeat(joining))
        early, self._early = self._early, []
        for message, sender in early:
            self.accept_introduction(message, sender)
        return joining

    async def _leave(self) -> None:
        """Steps under way end by themselves, unless the group is broken already."""
        try:
            async with asyncio.timeout(self._timings.leave_limit_s):
                await self._quiet.wait()
        except TimeoutError:
            log.warning("step_takes_too_long", seconds=self._timings.leave_limit_s)
            self._leave_behind()
        self._connector.leave(self._group)
        self._group = self._connector.alone

    async def _meet(self, order: GroupPlan, joining: JoiningGroup) -> StepGroup:
        await joining.all_introduced()
        meeting = self._connector.meet(order, self._rank(), joining.set_entry)
        joining.deliver_to(meeting)
        return GroupSteps(await meeting.collective())

    def accept_introduction(self, message: Introduce, sender: ActorRef) -> None:
        """A member introduces itself, or sets an entry of the rendezvous."""
        if message.epoch < self.epoch:
            self._refuse_old(message.epoch)
        elif message.epoch > self.epoch or self._joining is None:
            self._early = [*self._early[-_EARLY:], (message, sender)]  # our order is on its way
        elif self._has_rank(sender, message.rank):
            self._joining.accept(message)
        else:
            self._refuse_stranger(message, sender)

    async def _repeat(self, joining: JoiningGroup) -> None:
        """Anything that we said may be lost."""
        loop = asyncio.get_running_loop()
        introduced_by = loop.time() + self._timings.introduction_limit_s
        while True:
            await asyncio.sleep(self._timings.repeat_s)
            if not self._formed.is_set():
                joining.introduce()
                if loop.time() >= introduced_by:
                    joining.give_up_absent()
            for run in self._open:
                self._call(run)

    def _stop_repeating(self) -> None:
        if self._repeating is not None:
            self._repeating.cancel()
            self._repeating = None

    # --- steps ---

    async def lead(self, requests: tuple[Request, ...], checksum: int) -> _StepRun | None:
        """Call the group together for some steps of a batch, once it has formed; None if this
        member does not lead it, or no group forms for long.
        """
        if not await self._has_formed() or not self.leads:
            return None
        self._runs += 1
        run = self._begin(self._runs)
        run.call = Follow(self.epoch, run.number, requests, checksum)
        run.others = self._order.seats[1:] if self._order is not None else ()
        self._call(run)
        return run

    def _call(self, run: _StepRun) -> None:
        if run.call is not None:
            for seat in run.others:
                try_tell(self._member, seat.member, run.call)

    def should_follow(self, message: Follow, rank_0: ActorRef) -> bool:
        """Whether to follow: not to a group that is gone, nor when we do so already."""
        called = (message.epoch, message.run)
        if called <= self._ended or any((it.epoch, it.number) == called for it in self._open):
            return False
        if message.epoch != self.epoch:
            self._refuse_call(message, rank_0)
            return False
        if not self._has_rank(rank_0, 0):
            self._refuse_stranger(message, rank_0)
            return False
        is_new = message.run > self._runs
        self._runs = max(self._runs, message.run)
        return is_new

    def refuse(self, message: Follow, rank_0: ActorRef, reason: str) -> None:
        """This member cannot follow; it says so again when it is called again."""
        log.warning("cannot_follow", epoch=message.epoch, reason=reason)
        if message.epoch == self.epoch:
            self._runs = message.run - 1
            reason = f"{self._worker}: {reason}"
            try_tell(self._member, rank_0, CannotFollow(message.epoch, self._worker, reason))

    def _refuse_call(self, message: Follow, rank_0: ActorRef) -> None:
        self._refuse_old(message.epoch)
        reason = f"{self._worker} is in the group of epoch {self.epoch}"
        try_tell(self._member, rank_0, CannotFollow(message.epoch, self._worker, reason))

    async def follow(
        self,
        message: Follow,
        rank_0: ActorRef,
        take_steps: Callable[[StepGroup], asyncio.Future[int]],
    ) -> None:
        """Take part in a run that rank 0 leads; the caller has the accelerator's turn."""
        group = self._group
        if message.epoch != self.epoch or group is self._connector.alone:
            self._refuse_call(message, rank_0)
            return
        run = self._begin(message.run)
        broke: TransportError | None = None
        culprits: tuple[str, ...] = ()
        try:
            steps = take_steps(group)
            await asyncio.wait((steps, run.broken), return_when=asyncio.FIRST_COMPLETED)
            if steps.done():
                steps.result()
            else:
                steps.cancel()  # how it ends is of no interest
        except TransportError as error:
            broke = error.with_traceback(None)  # or this frame would keep the group alive
        except CannotShard as error:  # nobody's fault: it is so for all ranks
            broke = TransportError(str(error))
        except (SpotlightError, ValueError, RuntimeError) as error:  # of this member alone
            broke = TransportError(f"{type(error).__name__}: {error}")
            culprits = (self._worker,)
        finally:
            self.end(run, broke, culprits)

    async def formed(self, epoch: int) -> bool:
        """Wait until the group of that epoch has formed; False if there is another by now, or none
        forms for long.
        """
        return epoch == self.epoch and await self._has_formed() and epoch == self.epoch

    def accept_refusal(self, message: CannotFollow, sender: ActorRef) -> None:
        """A member cannot take part: the group is given up, for its sake; or it has gone on to the
        next one before us, and nobody is to wait for it.
        """
        seats = self._order.seats if self._order is not None else ()
        if message.epoch == self.epoch and all(
            (seat.worker, seat.member) != (message.worker, sender) for seat in seats
        ):
            self._refuse_stranger(message, sender)
        elif message.epoch == self.epoch:
            self._fail(message.reason, (message.worker,))
        elif any(run.epoch == message.epoch for run in self._open):
            self._leave_behind()

    def end(
        self,
        run: _StepRun,
        error: TransportError | None,
        culprits: tuple[str, ...] = (),
    ) -> None:
        """A run is over; with what broke the group, and who is to blame for it."""
        was_open = run in self._open
        self._open.pop(run, None)
        if was_open and error is None:
            self._ended = max(self._ended, (run.epoch, run.number))
        if not self._open:
            self._quiet.set()
        if error is not None and run.epoch == self.epoch and self._formed.is_set():
            self._fail(str(error), culprits)

    def _begin(self, number: int) -> _StepRun:
        run = _StepRun(self, self.epoch, number, self._group, self._broken)
        self._open[run] = None
        self._quiet.clear()
        return run

    async def _has_formed(self) -> bool:
        try:
            async with asyncio.timeout(self._timings.order_limit_s):
                while not self._formed.is_set():  # by now, it may not be any more
                    await self._formed.wait()
        except TimeoutError:
            log.error("no_group", seconds=self._timings.order_limit_s, epoch=self.epoch)
            return False
        return True

    # --- failing ---

    def _fail(self, reason: str, culprits: tuple[str, ...] = ()) -> None:
        """Give the group up, and wait for a new order."""
        log.warning("group_failed", epoch=self.epoch, reason=reason, culprits=culprits)
        self._stop_repeating()
        self._leave_behind()
        self._formed.clear()
        self.failure, self.culprits = reason, culprits
        log.debug("group_lost", epoch=self.epoch)
        self._member.report()

    def _leave_behind(self) -> None:
        """Whoever waits in the group does so without us; one who is alone waits for nobody."""
        if self._group is self._connector.alone:
            return
        self._connector.leave_behind(self._group)
        self._group = self._connector.alone
        if not self._broken.done():
            self._broken.set_result(None)
        self._open.clear()
        self._quiet.set()

    def _refuse_old(self, epoch: int) -> None:
        log.warning(
            "old_epoch_refused", epoch=epoch, now=self.epoch, sender=str(self._member.sender)
        )

    def _refuse_stranger(
        self, message: Introduce | Follow | CannotFollow, sender: ActorRef
    ) -> None:
        log.warning("stranger_refused", said=type(message).__name__, sender=str(sender))

    def _has_rank(self, member: ActorRef, rank: int) -> bool:
        seats = self._order.seats if self._order is not None else ()
        return 0 <= rank < len(seats) and seats[rank].member == member

    def _rank(self) -> int:
        if self._order is None:
            return 0
        workers = [seat.worker for seat in self._order.seats]
        return workers.index(self._worker)
