"""What simulated processes send to each other and hear from each other, as their runtimes see it.

The checks that feed on this depend on no log line of who is checked: a receipt counts when it is
with the worker that waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from spotlight.actors.protocol.down import Grant, NodePlan, Receipt
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import CommitSteps, Completed, NodeReport, ReturnLease
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message
from spotlight.actors.runtime.mailbox import Delivery
from spotlight.actors.runtime.remote import RemoteDelivery
from spotlight.transport.control import (
    BadInput,
    ControlTransport,
    Envelope,
    Kind,
    decode_envelope,
    decode_message,
)
from spotlight_simulation.actor_logs import ActorLogs
from spotlight_simulation.freezing import as_tenant, current_process
from spotlight_simulation.history import History
from spotlight_simulation.ledger_watch import LedgerWatch

RECEIPT_ARRIVED = "receipt.arrived"
"""Where a coordinator may be killed: a worker has just heard that something of its is durable."""


class Wiretap:
    """See the module's docstring.

    Args:
        logs: what the actors say of themselves.
        ledgers: told what nodes say of their time.
        reached: called with `RECEIPT_ARRIVED` when that is so.
    """

    def __init__(
        self,
        history: History,
        logs: ActorLogs,
        ledgers: LedgerWatch,
        reached: Callable[[str], None],
    ) -> None:
        self._history = history
        self._logs = logs
        self._ledgers = ledgers
        self._reached = reached
        self._heard: defaultdict[str, Counter[tuple[str, int, int]]] = defaultdict(Counter)
        """How often each process has heard each frame."""
        self._latest: dict[tuple[str, str, int], int] = {}
        """The highest number of a frame that a process has heard, by process and sender."""
        self._taken: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        """The frames that were given to an actor of each process."""
        self.to_lose: list[tuple[str, float]] = []
        """Types of messages; the next one of each is lost."""
        self.to_hold: list[tuple[str, float]] = []
        """Types of answers, and how much later they arrive now, in seconds."""
        self.held = 0
        """Answers that came late."""
        self._awaited: list[tuple[str, asyncio.Future[None]]] = []
        """Types of messages, and who waits for the next one."""

    async def pass_of(self, message: str) -> None:
        """Return when the next message of a type arrives somewhere."""
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((message, passed))
        try:
            await passed
        finally:
            self._awaited.remove((message, passed))

    def heard(self, process: str, envelope: Envelope) -> None:
        """A frame arrives at a process."""
        frame = _name(envelope)
        count = self._heard[process]
        count[frame] += 1
        if count[frame] > 1:
            asked = envelope.kind is Kind.ASK
            self._history.came_about("an ask came twice" if asked else "a message came twice")
        sender = (process, *frame[:2])
        if frame[2] < self._latest.get(sender, 0):
            self._history.came_about("a message was overtaken")
        else:
            self._latest[sender] = frame[2]

    def taken(self, process: str, envelope: Envelope, message: Message) -> None:
        """It is given to an actor, which must happen once."""
        frame, taken = _name(envelope), self._taken[process]
        if frame in taken:
            name = type(message).__name__
            self._history.violation(f"{process} takes a {name} of {frame[0]} twice")
        taken.add(frame)
        if isinstance(message, NodeReport):
            self._ledgers.heard(message)

    def refused(self, process: str, address: str, message: Message) -> None:
        """It came from one who may not say it."""
        self._history.add("not_allowed", at=process, by=address, message=type(message).__name__)

    def may_arrive(self, envelope: Envelope) -> float | None:
        """When, in seconds from now; None: it is lost."""
        if not self.to_lose and not self.to_hold and not self._awaited:
            return 0.0
        name = type(decode_message(envelope.body)).__name__
        for _, passed in (each for each in self._awaited if each[0] == name):
            if not passed.done():
                passed.set_result(None)
        for lost in (each for each in self.to_lose if each[0] == name):
            self.to_lose.remove(lost)
            self._history.came_about(f"a message was lost: {name}")
            return None
        for held in (each for each in self.to_hold if each[0] == name):
            if envelope.kind is Kind.REPLY:  # anything else that is overtaken is not taken
                self.held += 1
                self._history.came_about(f"an answer came late: {name}")
                return held[1]
        return 0.0

    def sent(self, message: Message) -> None:
        """An actor tells another process something."""
        if isinstance(message, Grant):
            self._logs.acks.check(message)
        elif isinstance(message, ReturnLease):
            self._logs.gives_back(message)
        elif isinstance(message, NodeReport):
            self._ledgers.said(current_process(), message)

    def asked(self, message: Message) -> None:
        """An actor asks another process something."""
        if isinstance(message, CommitSteps):
            self._logs.delivers(message)
        elif isinstance(message, NodeReport):
            self._ledgers.said(current_process(), message)

    def answered(self, message: Message, answer: Message) -> None:
        """An actor answers what another process asked."""
        if _counts(message, answer):
            assert isinstance(message, CommitSteps | Completed)
            self._logs.acks.acknowledging(message)
        elif isinstance(message, NodeReport):
            self._ledgers.answered(message, answer)

    def answer_came(self, message: Message, answer: Message) -> None:
        """Who has asked gets his answer."""
        if isinstance(answer, NodePlan) and self._logs.is_old(answer):
            self._history.came_about("an old plan arrives")
        if _counts(message, answer):
            assert isinstance(message, CommitSteps | Completed)
            self._logs.acknowledged(message)
            self._reached(RECEIPT_ARRIVED)


class WatchedSystem(ActorSystem):
    """The actors of a process whose messages are watched. `process` is its identity."""

    def __init__(
        self, transport: ControlTransport, tap: Wiretap, process: str, *, rng: random.Random
    ) -> None:
        super().__init__(transport, rng=rng, rights=MAY_SAY)
        self._tap = tap
        self._process = process
        self.post: _WatchedPost = _WatchedPost(self, transport, tap, process)

    async def spawn(self, factory: Callable[[], Actor], name: str, **options: Any) -> ActorRef:
        """See `ActorSystem`."""
        with as_tenant(name):
            return await super().spawn(factory, name, **options)

    def tell(self, ref: ActorRef, message: Message, *, sender: ActorRef | None = None) -> None:
        """See `ActorSystem`."""
        if ref.address != self.address:
            self._tap.sent(message)
        super().tell(ref, message, sender=sender)

    async def ask(
        self,
        ref: ActorRef,
        message: Message,
        *,
        timeout_s: float,
        sender: ActorRef | None = None,
    ) -> Message:
        """See `ActorSystem`."""
        if ref.address != self.address:
            self._tap.asked(message)
        answer = await super().ask(ref, message, timeout_s=timeout_s, sender=sender)
        self._tap.answer_came(message, answer)
        return answer

    def answer(self, delivery: Delivery, responder: ActorRef, reply: Message) -> None:
        """See `ActorSystem`."""
        self._tap.answered(delivery.message, reply)
        super().answer(delivery, responder, reply)

    def deliver(self, delivery: Delivery, destination: ActorRef) -> None:
        """See `ActorSystem`."""
        arriving = self.post.arriving
        if arriving is not None:
            self._tap.taken(self._process, arriving, delivery.message)
        super().deliver(delivery, destination)


class _WatchedPost(RemoteDelivery):
    """Its half that knows frames."""

    def __init__(
        self, system: ActorSystem, transport: ControlTransport, tap: Wiretap, process: str
    ) -> None:
        super().__init__(system, transport)
        self._tap = tap
        self._process = process
        self.arriving: Envelope | None = None
        """The frame that is looked at now."""

    def frame_received(self, address: str, frame: bytes) -> None:
        """See `RemoteDelivery`."""
        envelope = decode_envelope(frame)
        late_s = self._tap.may_arrive(envelope)
        if late_s:
            asyncio.get_running_loop().call_later(late_s, self._receive, address, frame, envelope)
        elif late_s is not None:
            self._receive(address, frame, envelope)

    def _receive(self, address: str, frame: bytes, envelope: Envelope) -> None:
        if self._system.aborted or address not in self._peers:  # or lost, while this was held
            return
        self._tap.heard(self._process, envelope)
        self.arriving = envelope
        try:
            super().frame_received(address, frame)
        finally:
            self.arriving = None

    def require_right(self, address: str, message: Message) -> None:
        """See `RemoteDelivery`."""
        try:
            super().require_right(address, message)
        except BadInput:
            self._tap.refused(self._process, address, message)
            raise


def _name(envelope: Envelope) -> tuple[str, int, int]:
    """Of a frame: the process that sent it, and its number there."""
    return envelope.source.address, envelope.source.process, envelope.sequence


def _counts(message: Message, answer: Message) -> bool:
    """Whether that is a receipt which says that something is durable."""
    is_delivery = isinstance(message, CommitSteps | Completed)
    return is_delivery and isinstance(answer, Receipt) and answer.accepted > 0
