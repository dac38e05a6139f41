"""All actors of one process and their connection to those of others.

Semantics (docs/actors.md has the full list, tested line by line):
- `tell` is at most once, in order for each pair of processes, and raises when the message cannot be
  queued;
- `ask` always has a deadline, which travels: a receiver drops work that nobody waits for any more;
- a message to an ended incarnation is a counted dead letter, and an ask to it fails at once;
- local delivery skips the codec, never the mailbox;
- what comes from another process is taken only if the role of its key may say it.

Everything here runs in one event loop, so there is no lock. Time is the loop's clock, chance is the
generator handed in.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Mapping

import structlog

from spotlight.actors.runtime.actor import Actor
from spotlight.actors.runtime.actor_context import ActorContext
from spotlight.actors.runtime.asks import PendingAsks
from spotlight.actors.runtime.dead_letters import DeadLetter, DeadLetters, Reason
from spotlight.actors.runtime.envelopes import Down, EndReason, Failure
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.actors.runtime.mailbox import Delivery
from spotlight.actors.runtime.remote import RemoteDelivery
from spotlight.actors.runtime.watches import Watches, lives_in
from spotlight.errors import (
    ActorDied,
    FrameRejected,
    MailboxFull,
    NotAdmitted,
    OtherVersion,
    PeerUnreachable,
)
from spotlight.timings import RuntimeTimings
from spotlight.transport.control import (
    NOT_ADMITTED,
    ActorRef,
    ControlTransport,
    Guests,
    Kind,
    Message,
    actor_incarnation,
    decode_message,
    encode_message,
    key_of,
)
from spotlight.transport.control.keys import place_of

log = structlog.get_logger(__name__)


class ActorSystem:
    """Spawns actors and carries messages between them, in this process and to others."""

    def __init__(
        self,
        transport: ControlTransport,
        *,
        rng: random.Random,
        rights: Mapping[type[Message], Collection[str]],
        force_codec: bool = False,
        timings: RuntimeTimings = RuntimeTimings(),
    ) -> None:
        """`rights` are the roles that may say each message to another process: those of `guests`.
        `force_codec` encodes and decodes local messages too, for tests. `timings` says how long
        actors may take."""
        self.rng = rng
        self.timings = timings
        self.dead_letters = DeadLetters()
        self.undelivered_log = LimitedLog(log)
        """The log of those who tell and go on when it cannot be sent."""
        self.failure: BaseException | None = None
        """The crash that stopped the whole system, if one did."""
        self.asks = PendingAsks()
        self.watches = Watches(self, timings.watch_renewal_s)
        self.rights = rights
        self.post = RemoteDelivery(self, transport)
        self._force_codec = force_codec
        self.cells: dict[str, ActorContext] = {}
        """The actors that are there, by name. For the parts of the runtime."""
        self._actors_opened = itertools.count(1)
        self._closed: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.aborted = False
        """Whether it ended as if its process had been killed."""

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the transport. Raises `AddressInUse`."""
        self._loop = asyncio.get_running_loop()
        await self.post.transport.start(self.post)
        self._closed = self._loop.create_future()
        self.address = self.post.transport.address
        self.ref = ActorRef(self.address, "", actor_incarnation(self.post.transport.incarnation, 0))

    async def aclose(self) -> None:
        """Stop all actors, children first, and close the transport. Idempotent; leaves no task.

        A system that was never started, or could not be, is closed already."""
        if self._closed is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close actor system")
        await asyncio.shield(self._closing)

    async def wait_closed(self) -> None:
        """Return when the system has closed. Raises `ActorDied` if a crash closed it."""
        if self._closed is not None:
            await asyncio.shield(self._closed)
        if self.failure is not None:
            raise ActorDied(f"the actor system of {self.address} stopped: {self.failure!r}")

    async def abort(self) -> None:
        """End at once, as if the process were killed: no hook runs and nothing is sent."""
        self.aborted = True
        self.post.transport.abort()
        tasks = [cell.task for cell in self.cells.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.timings.stop_grace_s)
        await self.aclose()

    async def _close(self) -> None:
        roots = [cell for cell in reversed(self.cells.values()) if cell.parent is None]
        await asyncio.gather(*(root.stop() for root in roots))
        self.watches.close()
        for ask in self.asks.all():
            ask.fail(ActorDied(f"the actor system of {self.address} closed"))
        await self.post.transport.aclose()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def fail(self, name: str, error: BaseException) -> None:
        """An actor without a parent that is linked crashed: stop everything."""
        if self.failure is None:
            self.failure = error
        log.critical("actor_system_fails", actor=name, error=repr(error))
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close actor system")

    # --- other processes --------------------------------------------------------------

    @property
    def guests(self) -> Guests:
        """The keys whose processes may connect, and as what."""
        return self.post.transport.guests

    def dismiss(self, key: str, reason: str) -> None:
        """Take no connections of a key any more; those that it has end now, and its processes are
        told why."""
        self.post.transport.dismiss(key, reason)

    # --- actors -----------------------------------------------------------------------

    async def spawn(
        self,
        factory: Callable[[], Actor],
        name: str,
        *,
        mailbox: int = 1024,
        linked: bool = False,
        parent: ActorContext | None = None,
    ) -> ActorRef:
        """Start an actor and return when its `started` hook is done.

        `mailbox` bounds each lane. The crash of an actor that is `linked` is a crash of its
        `parent`, or stops the whole system if it has none; else it concerns its watchers only.
        Raises what its start raised, and `ValueError` when the name is taken or holds a slash.
        """
        full_name = name if parent is None else f"{parent.ref.name}/{name}"
        if not name or "/" in name:
            raise ValueError(f"{name!r} is not a name of an actor: it is empty or holds a slash")
        if full_name in self.cells:
            raise ValueError(f"there is an actor {full_name} already; choose another name")
        if self._closing is not None or (parent is not None and not parent.accepts):
            raise ActorDied(f"{full_name} cannot start: its parent or its system is stopping")
        process = self.post.transport.incarnation
        ref = ActorRef(
            self.address, full_name, actor_incarnation(process, next(self._actors_opened))
        )
        cell = ActorContext(self, ref, factory, capacity=mailbox, parent=parent, linked=linked)
        self.cells[full_name] = cell
        if parent is not None:
            parent.children[full_name] = cell
        try:
            return await cell.started
        except asyncio.CancelledError:
            cell.end("stopped")
            raise

    async def stop(self, ref: ActorRef) -> None:
        """Stop an actor of this process and return when everything of it is over. An ended one is
        stopped already."""
        self._require_local(ref)
        cell = self.find_open(ref)
        if cell is not None:
            await cell.stop()

    async def wait_stopped(self, ref: ActorRef) -> EndReason:
        """Wait until an actor of this process ends, and return why. Watch those of others."""
        self._require_local(ref)
        cell = self.find_open(ref)
        if cell is None:
            return self.watches.reason_of(ref)
        return await asyncio.shield(cell.ended)

    def well_known(self, address: str, name: str) -> ActorRef:
        """A reference to whichever incarnation of that name is there when a message arrives."""
        return ActorRef(address, name, 0)

    def _require_local(self, ref: ActorRef) -> None:
        if ref.address != self.address:
            raise ValueError(f"{ref} lives in another process; only that one can stop it")

    # --- called by actors -------------------------------------------------------------

    def close_cell(self, cell: ActorContext, reason: EndReason) -> None:
        """An actor is over: answer what was queued and tell those who watch."""
        del self.cells[cell.ref.name]
        self.watches.remember(cell.ref, reason)
        if not self.aborted:
            for delivery in cell.mailbox.drain():
                if delivery.kind is Kind.ASK:
                    self.answer(delivery, cell.ref, _ended_failure(cell.ref))
                elif not isinstance(delivery.message, Down):
                    self.dead_letter("actor_ended", cell.ref, delivery.source, delivery.message)
            self.watches.end(cell, reason)
        if not cell.ended.done():
            cell.ended.set_result(reason)

    def watch(self, cell: ActorContext, ref: ActorRef) -> None:
        """Called by `Actor.watch`."""
        self.watches.place(cell, ref)

    def answer(self, delivery: Delivery, responder: ActorRef, reply: Message) -> None:
        """Send the reply or failure of an ask back to where it came from."""
        try:
            self._send_reply(delivery, responder, reply)
        except FrameRejected as error:
            text = f"the reply cannot be sent: {error}"
            self._send_reply(delivery, responder, Failure("RemoteError", text, "FrameRejected"))

    def _send_reply(self, delivery: Delivery, responder: ActorRef, reply: Message) -> None:
        if delivery.source.address != self.address:
            self.post.answer(delivery, responder, reply)
            return
        reply = self._through_codec(reply)
        ask = self.asks.find(delivery.correlation)
        if ask is None:
            self.dead_letter("late_reply", delivery.source, responder, reply)
        else:
            ask.settle(reply)

    def dead_letter(
        self, reason: Reason, destination: ActorRef, source: ActorRef, message: Message | None
    ) -> None:
        """Count a message that no actor handled."""
        name = type(message).__name__ if message is not None else ""
        self.count_dead_letter(reason, destination, source, name)

    def count_dead_letter(
        self, reason: Reason, destination: ActorRef, source: ActorRef, message_type: str
    ) -> None:
        """The same when only the name of its type is known, or not even that."""
        letter = DeadLetter(reason, destination, source, message_type)
        self.dead_letters.add(letter)

    # --- tell and ask -----------------------------------------------------------------

    def tell(self, ref: ActorRef, message: Message, *, sender: ActorRef | None = None) -> None:
        """Send and forget, at most once.

        Raises `MailboxFull` when the receiver pushes back, `PeerUnreachable` when there is no way
        to its process, and `FrameRejected` when the message is too large, cannot be encoded, or is
        one that nobody may say to another process. A message to an actor that ended is a dead
        letter here, or in the process where it lived; so is one that our key may not say, there.
        """
        source = sender or self.ref
        if ref.address == self.address:
            cell = self.find(ref)
            if cell is None:
                self.dead_letter(_absence(ref), ref, source, message)
                return
            delivery = Delivery(self._through_codec(message), source, Kind.TELL, 0, None)
            if not cell.mailbox.offer(delivery):
                raise MailboxFull(f"the mailbox of {ref} is full; retry later")
            return
        self.post.tell(source, ref, message)

    async def ask(
        self,
        ref: ActorRef,
        message: Message,
        *,
        timeout_s: float,
        sender: ActorRef | None = None,
    ) -> Message:
        """Send and wait for the reply; `Done` when the handler returned nothing.

        Raises `AskTimeout` (the request may have run), `RemoteError` (the handler raised),
        `ActorDied`, `MailboxFull`, `PeerUnreachable` (`NotAdmitted` if the process is there and
        does not know our key), `NotAllowed` (our key may not say this) and `FrameRejected`.
        """
        source = sender or self.ref
        ask = self.asks.open(ref, timeout_s)
        try:
            if ref.address == self.address:
                self._ask_local(ref, message, source, ask.correlation, timeout_s)
            else:
                self.post.ask(source, ref, message, ask.correlation, timeout_s)
            return await ask.future
        finally:
            self.asks.close(ask)

    def _ask_local(
        self, ref: ActorRef, message: Message, source: ActorRef, correlation: int, timeout_s: float
    ) -> None:
        cell = self.find(ref)
        if cell is None:
            raise ActorDied(f"{ref} is not there: {_absence(ref)}")
        deadline = self._loop.time() + timeout_s
        delivery = Delivery(self._through_codec(message), source, Kind.ASK, correlation, deadline)
        if not cell.mailbox.offer(delivery):
            raise MailboxFull(f"the mailbox of {ref} is full; retry later")

    def _through_codec(self, message: Message) -> Message:
        return decode_message(encode_message(message)) if self._force_codec else message

    def find(self, ref: ActorRef) -> ActorContext | None:
        """The cell that a message to `ref` reaches now."""
        cell = self.find_open(ref)
        return cell if cell is not None and cell.accepts else None

    def find_open(self, ref: ActorRef) -> ActorContext | None:
        cell = self.cells.get(ref.name)
        if cell is not None and ref.incarnation in (0, cell.ref.incarnation):
            return cell
        return None

    # --- called by the post -----------------------------------------------------------

    def deliver(self, delivery: Delivery, destination: ActorRef) -> None:
        """Put a message from another process into a mailbox, or say why not."""
        is_ask = delivery.kind is Kind.ASK
        cell = self.find(destination)
        if cell is None:
            if is_ask:
                self.answer(delivery, destination, _ended_failure(destination))
            else:
                reason = _absence(destination)
                self.dead_letter(reason, destination, delivery.source, delivery.message)
        elif not cell.mailbox.offer(delivery):
            if is_ask:
                text = f"the mailbox of {cell.ref} is full; retry later"
                self.answer(delivery, cell.ref, Failure("MailboxFull", text))
            else:
                self.dead_letter("mailbox_full", cell.ref, delivery.source, delivery.message)
                self.post.push_back(cell, destination, delivery.source.address)

    def lose_process(self, address: str, incarnation: int, reason: str) -> None:
        """Fail the asks to a lost process, and report its actors to those who watch them."""
        for ask in self.asks.all():
            if lives_in(ask.ref, address, incarnation):
                ask.fail(self._loss(address, reason))
        for cell in self.cells.values():
            cell.pushed_back_at.pop(address, None)
        self.watches.lose_process(address, incarnation)

    def _loss(self, address: str, reason: str) -> PeerUnreachable:
        if reason == NOT_ADMITTED:
            return NotAdmitted(
                f"{address} does not let this process in: its key is not known there, or not any"
                " more; ask whoever runs it for a new join token, and copy the whole of it"
            )
        if key_of(address) in self.post.other_versions:
            return OtherVersion(f"{place_of(address)} cannot be talked to: {reason}")
        return PeerUnreachable(f"{address} was lost: {reason}")


def _absence(ref: ActorRef) -> Reason:
    return "dead_incarnation" if ref.incarnation else "no_such_actor"


def _ended_failure(ref: ActorRef) -> Failure:
    return Failure("ActorDied", f"{ref} has ended, or never existed")
