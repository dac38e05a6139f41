"""The user's side of a session with a coordinator, which it keeps alive.

Every message is repeated until it is answered. After a loss of the coordinator the session
continues: published weights are offered again, and unfinished groups are submitted again, which
changes nothing where they are known. A group that arrives twice is delivered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import structlog

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.sessions import (
    BeginSession,
    DoneGroup,
    EndSession,
    Fleet,
    GetFleet,
    GroupOrder,
    GroupsDone,
    OfferWeights,
    SessionBegan,
    SessionRefused,
    SubmitGroups,
    TakeGroups,
    TensorShape,
    WithdrawGroups,
)
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem
from spotlight.errors import (
    ActorError,
    NotAdmitted,
    NotAllowed,
    OtherVersion,
    RemoteError,
    RequestRefused,
    SessionEnded,
    SpotlightError,
    TransferFailed,
)
from spotlight.jobs import WorkSpec
from spotlight.timings import Timings
from spotlight.transport.control import Message

if TYPE_CHECKING:
    from spotlight.rollouts.rollouts import Rollouts

log = structlog.get_logger(__name__)

AnswerT = TypeVar("AnswerT", bound=Message)

_GROUPS_AT_ONCE = 256
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bytes of prompts and seeds in one submission: a frame has 16 MiB."""


class SessionUser(Actor):
    """The actor that the coordinator watches: the session's user is there while it lives."""


class SessionLink:
    """See the module's docstring.

    Args:
        session: names it, unlike any other.
        offers: the weights that are published and kept, by version.
        program: whose session it is.
        weight: the share of the nodes is in proportion to it.
    """

    def __init__(
        self,
        system: ActorSystem,
        coordinator: ActorRef,
        session: str,
        work: WorkSpec,
        *,
        offers: Mapping[int, WeightsOffer],
        program: Rollouts,
        weight: float = 1.0,
        timings: Timings = Timings(),
    ) -> None:
        self._system = system
        self._coordinator = coordinator
        self._session = session
        self._work = work
        self._offers = offers
        self._program = program
        self._weight = weight
        self._timings = timings
        self._open: dict[int, GroupOrder] = {}
        """Submitted, and not delivered yet."""
        self._taken: set[int] = set()
        """Delivered, and perhaps not known as such to the coordinator."""
        self._runner: ActorRef | None = None
        self._going_on = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._ended: SpotlightError | None = None
        self._silent_since: float | None = None
        """When an answer did not come; None if one has come since."""

    # --- life ---

    async def begin(self) -> tuple[TensorShape, ...]:
        """Begin the session; returns the tensors that a publication must have. Raises
        `RequestRefused` with the coordinator's reason, or `ActorError` if it does not answer.
        """
        self.user = await self._system.spawn(SessionUser, "session-user")
        began = await self._ask_to_begin(goes_on=False)
        self._runner = began.runner
        self._polling = asyncio.create_task(self._poll())
        return began.tensors

    async def end(self) -> None:
        """Nothing more is wanted. What the coordinator cannot be told it finds out by itself."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait((self._polling,))
        if self._runner is None or self._ended is not None:
            return
        self._ended = SessionEnded("the session was ended by its user")
        try:
            limit_s = self._timings.delivery.answer_limit_s
            await self._system.ask(self._runner, EndSession(), timeout_s=limit_s, sender=self.user)
        except ActorError as error:
            log.info("session_end_not_told", reason=str(error))

    # --- what is said ---

    async def offer(self, offer: WeightsOffer, keep: Iterable[int]) -> None:
        """Have nodes pull a version; of the others those in `keep` are still needed."""
        await self._acknowledged(OfferWeights(offer, tuple(sorted(keep))))

    async def submit(self, orders: Iterable[GroupOrder]) -> None:
        """Have groups denoised. Raises `RequestRefused` if they cannot be, and then none of those
        is open that were refused.
        """
        for some in _portions(orders):
            self._open |= {order.number: order for order in some}
            try:
                await self._acknowledged(SubmitGroups(tuple(some)))
            except SpotlightError:
                for order in some:
                    self._open.pop(order.number, None)
                raise

    async def withdraw(self, numbers: Iterable[int]) -> None:
        """Nobody wants these any more."""
        gone = [number for number in numbers if self._open.pop(number, None) is not None]
        if gone and self._ended is None:
            await self._acknowledged(WithdrawGroups(tuple(gone)))

    async def fleet(self) -> Fleet:
        """Who is there, and what was done so far."""
        return await self._ask(GetFleet(), Fleet)

    @property
    def versions_in_use(self) -> frozenset[int]:
        """Of the weights that open groups name."""
        return frozenset(order.version for order in self._open.values())

    # --- inside ---

    async def _acknowledged(self, message: Message) -> None:
        await self._ask(message, Acknowledged)

    async def _ask(self, message: Message, kind: type[AnswerT]) -> AnswerT:
        """Ask until there is an answer. Raises `RequestRefused`, and `SessionEnded`."""
        timings = self._timings
        limit_s = timings.delivery.answer_limit_s + timings.coordinator.session_poll_s
        while True:
            if self._ended is not None:
                raise self._ended
            runner = self._runner
            assert runner is not None, "the session has begun"
            try:
                answer = await self._system.ask(
                    runner, message, timeout_s=limit_s, sender=self.user
                )
            except NotAllowed as error:
                raise self._end(f"the coordinator refuses it: {error}") from error
            except RemoteError as error:  # the same again would fail the same
                raise self._end(f"the coordinator failed: {error}") from error
            except ActorError as error:
                log.info("session_not_answered", reason=str(error))
                await self._go_on(runner)
                continue
            self._silent_since = None
            if isinstance(answer, SessionRefused):
                raise RequestRefused(answer.reason)
            assert isinstance(answer, kind)
            return answer

    async def _go_on(self, lost: ActorRef) -> None:
        """Find the session's runner, which may be another one by now, and tell it what it may not
        know. Raises `SessionEnded` when nothing was heard of it for too long.
        """
        loop, delivery = asyncio.get_running_loop(), self._timings.delivery
        async with self._going_on:
            while self._runner == lost and self._ended is None:
                if self._silent_since is None:
                    self._silent_since = loop.time()
                try:
                    began = await self._ask_to_begin(goes_on=True)
                    if began.runner != lost:
                        await self._repeat(began.runner)
                    self._runner = began.runner
                    self._silent_since = None
                    return
                except (RequestRefused, NotAdmitted, NotAllowed, OtherVersion) as error:
                    raise self._end(str(error)) from error
                except ActorError as error:
                    if self._is_given_up(loop.time()):
                        raise self._end(f"the coordinator is unreachable: {error}") from error
                await asyncio.sleep(delivery.retry_pause_s)

    def _is_given_up(self, now: float) -> bool:
        since, limit_s = self._silent_since, self._timings.delivery.away_limit_s
        return since is not None and now - since >= limit_s

    async def _repeat(self, runner: ActorRef) -> None:
        """Say again what is published, and what is open."""
        limit_s = self._timings.delivery.answer_limit_s
        messages: list[Message] = [
            OfferWeights(offer, tuple(self._offers)) for offer in self._offers.values()
        ]
        messages += [SubmitGroups(tuple(some)) for some in _portions(self._open.values())]
        for message in messages:
            answer = await self._system.ask(runner, message, timeout_s=limit_s, sender=self.user)
            if isinstance(answer, SessionRefused):
                raise RequestRefused(answer.reason)

    async def _ask_to_begin(self, *, goes_on: bool) -> SessionBegan:
        message, timings = (
            BeginSession(self._session, self.user, self._work, goes_on, self._weight),
            self._timings,
        )
        # To begin it reads files; to go on it need not, and is asked again in time.
        limit_s = (
            timings.delivery.answer_limit_s if goes_on else timings.coordinator.submit_answer_s
        )
        answer = await self._system.ask(
            self._coordinator, message, timeout_s=limit_s, sender=self.user
        )
        if isinstance(answer, SessionRefused):
            raise RequestRefused(answer.reason)
        assert isinstance(answer, SessionBegan)
        return answer

    async def _poll(self) -> None:
        """Take what is done. Also while nothing is open: the coordinator hears that the program is
        there, and has it back after a loss.
        """
        try:
            while True:
                taken = tuple(sorted(self._taken))
                done = await self._ask(TakeGroups(taken), GroupsDone)
                self._taken.difference_update(taken)
                await asyncio.gather(*(self._take(group) for group in done.groups))
        except (SpotlightError, OSError) as error:
            self._end(str(error))

    async def _take(self, group: DoneGroup) -> None:
        if group.number in self._open:
            try:
                await self._program.deliver(group)
            except TransferFailed as error:
                log.warning("group_not_fetched", number=group.number, reason=str(error))
                await asyncio.sleep(self._timings.delivery.retry_pause_s)
                return  # it is told again
        self._open.pop(group.number, None)
        self._taken.add(group.number)

    def _end(self, reason: str) -> SpotlightError:
        if self._ended is None:
            self._ended = SessionEnded(reason)
            self._program.lose(self._ended)
        return self._ended


def _portions(orders: Iterable[GroupOrder]) -> Iterator[list[GroupOrder]]:
    """As much as fits a message at a time."""
    some: list[GroupOrder] = []
    nbytes = 0
    for order in orders:
        size = 4 * len(order.prompt) + 9 * len(order.seeds)
        if some and (len(some) == _GROUPS_AT_ONCE or nbytes + size > _BYTES_AT_ONCE):
            yield some
            some, nbytes = [], 0
        some.append(order)
        nbytes += size
    if some:
        yield some
