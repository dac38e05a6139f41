"""All actors of one process and their connection to those of others.

Semantics (docs/actors.md has the full list, tested line by line):
- `tell` is at most once, in order for each pair of processes, and raises when the message cannot be
  queued;
- `ask` always has a deadline, which travels: a receiver drops work that nobody waits for any more;
- a message to an ended incarnation is a counted dead letter, and an ask to it fails at once;
- local delivery skips the codec, never the mailbox.

Everything here runs in one event loop, so there is no lock. Time is the loop's clock, chance is the
generator handed in.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import structlog

from spotlight.actors.actor import Actor
from spotlight.actors.cell import Cell, Supervisor
from spotlight.actors.dead_letters import DeadLetter, DeadLetters, Reason
from spotlight.actors.mailbox import Delivery
from spotlight.actors.protocol import Down, Ended, EndReason, Failure, PushedBack, Unwatch, Watch
from spotlight.actors.replies import RUNNING, ReplyCache
from spotlight.actors.supervision import NEVER, RestartPolicy
from spotlight.errors import (
    ActorDied,
    ActorError,
    AskTimeout,
    FrameRejected,
    MailboxFull,
    PeerUnreachable,
    RemoteError,
)
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    ActorRef,
    ControlTransport,
    Envelope,
    Kind,
    Message,
    actor_incarnation,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
)

log = structlog.get_logger(__name__)

PUSH_BACK_S = 0.05
"""After a push-back, tells to that actor are refused locally for so long."""
_REMEMBERED_ENDINGS = 4096


class MailboxStatistics(msgspec.Struct, frozen=True):
    """How full one actor's mailbox is."""

    waiting: int
    greatest: int
    capacity: int


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one actor system since its start, and what is there now."""

    frames_sent: int
    frames_received: int
    frames_rejected: int
    """Malformed frames, those that the transport refused included."""
    duplicates: int
    """Asks that arrived again and were not run again."""
    pending_asks: int
    dead_letters: dict[str, int]
    mailboxes: dict[str, MailboxStatistics]
    """By actor name."""


class _Pending(msgspec.Struct):
    """An ask that waits for its answer."""

    future: asyncio.Future[Message]
    ref: ActorRef


class ActorSystem:
    """Spawns actors and carries messages between them, in this process and to others."""

    def __init__(
        self,
        transport: ControlTransport,
        *,
        rng: random.Random,
        force_codec: bool = False,
        stop_grace_s: float = 5.0,
        start_timeout_s: float = 60.0,
        watch_renewal_s: float = 5.0,
    ) -> None:
        """`force_codec` encodes and decodes local messages too, for tests. An actor that is stopped
        gets `stop_grace_s` for the message it handles, and again for its `stopping` hook."""
        self.rng = rng
        self.stop_grace_s = stop_grace_s
        self.start_timeout_s = start_timeout_s
        self.watch_renewal_s = watch_renewal_s
        self.dead_letters = DeadLetters()
        self.failure: BaseException | None = None
        """The crash that stopped the whole system, if one did."""
        self._transport = transport
        self._force_codec = force_codec
        self._cells: dict[str, Cell] = {}
        self._roots: dict[str, Supervisor] = {}
        self._supervisors: dict[Supervisor, None] = {}
        self._pending: dict[int, _Pending] = {}
        self._endings: OrderedDict[int, EndReason] = OrderedDict()
        self._replies = ReplyCache()
        self._last_sequences: dict[tuple[str, int], int] = {}
        self._pushed_back_until: dict[ActorRef, float] = {}
        self._sequence = itertools.count(1)
        self._correlation = itertools.count(1)
        self._actors_opened = itertools.count(1)
        self._frames_sent = self._frames_received = self._frames_rejected = self._duplicates = 0
        self._renewal: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._aborted = False

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the transport. Raises `AddressInUse`."""
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        await self._transport.start(self)
        self.address = self._transport.address
        self.ref = ActorRef(self.address, "", actor_incarnation(self._transport.incarnation, 0))

    async def aclose(self) -> None:
        """Stop all actors, children first, and close the transport. Idempotent; leaves no task."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close actor system")
        await asyncio.shield(self._closing)

    async def wait_closed(self) -> None:
        """Return when the system has closed. Raises `ActorDied` if a crash closed it."""
        await asyncio.shield(self._closed)
        if self.failure is not None:
            raise ActorDied(f"the actor system of {self.address} stopped: {self.failure!r}")

    async def abort(self) -> None:
        """End at once, as if the process were killed: no hook runs and nothing is sent."""
        self._aborted = True
        self._transport.abort()
        tasks = [supervisor.task for supervisor in self._supervisors]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.stop_grace_s)
        await self.aclose()

    async def _close(self) -> None:
        await asyncio.gather(*(root.stop() for root in reversed(self._roots.values())))
        if self._renewal is not None:
            self._renewal.cancel()
        for pending in list(self._pending.values()):
            self._fail_pending(pending, ActorDied(f"the actor system of {self.address} closed"))
        await self._transport.aclose()
        if not self._closed.done():
            self._closed.set_result(None)

    def fail(self, name: str, error: BaseException) -> None:
        """An actor without a parent gave up: stop everything. Called by supervisors."""
        if self.failure is None:
            self.failure = error
        log.critical("actor_system_fails", actor=name, error=repr(error))
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close actor system")

    # --- actors -----------------------------------------------------------------------

    async def spawn(
        self,
        factory: Callable[[], Actor],
        name: str,
        *,
        mailbox: int = 1024,
        restarts: RestartPolicy = NEVER,
    ) -> ActorRef:
        """Start an actor and return when its `started` hook is done.

        `mailbox` bounds each lane. A restart makes a new incarnation, which the returned reference
        does not reach but a `well_known` one does. Raises what the first start raised, and
        `ValueError` when the name is taken or holds a slash.
        """
        return await self._spawn(None, factory, name, mailbox, restarts)

    async def spawn_child(
        self,
        parent: Cell,
        factory: Callable[[], Actor],
        name: str,
        *,
        mailbox: int,
        restarts: RestartPolicy,
    ) -> ActorRef:
        """`spawn` under a parent; called by `Actor.spawn`."""
        return await self._spawn(parent, factory, name, mailbox, restarts)

    async def _spawn(
        self,
        parent: Cell | None,
        factory: Callable[[], Actor],
        name: str,
        mailbox: int,
        restarts: RestartPolicy,
    ) -> ActorRef:
        siblings = self._roots if parent is None else parent.children
        full_name = name if parent is None else f"{parent.ref.name}/{name}"
        if not name or "/" in name:
            raise ValueError(f"{name!r} is not a name of an actor: it is empty or holds a slash")
        if full_name in siblings:
            raise ValueError(f"there is an actor {full_name} already; choose another name")
        if self._closing is not None or (parent is not None and not parent.accepts):
            raise ActorDied(f"{full_name} cannot start: what it belongs to is stopping")
        supervisor = Supervisor(self, parent, factory, full_name, mailbox, restarts)
        siblings[full_name] = supervisor
        self._supervisors[supervisor] = None
        try:
            return await supervisor.first_start
        except asyncio.CancelledError:
            supervisor.request_stop()
            raise

    async def stop(self, ref: ActorRef) -> None:
        """Stop an actor of this process and return when everything of it is over. An ended one is
        stopped already."""
        supervisor = self._local_supervisor(ref)
        if supervisor is not None:
            await supervisor.stop()

    async def wait_stopped(self, ref: ActorRef) -> EndReason:
        """Wait until an actor of this process ends, and return why."""
        cell = self._find_open(ref)
        if cell is None:
            return self._endings.get(ref.incarnation, "stopped")
        return await asyncio.shield(cell.ended)

    def well_known(self, address: str, name: str) -> ActorRef:
        """A reference to whichever incarnation of that name is there when a message arrives."""
        return ActorRef(address, name, 0)

    def _local_supervisor(self, ref: ActorRef) -> Supervisor | None:
        if ref.address != self.address:
            raise ValueError(f"{ref} lives in another process; only that one can stop it")
        cell = self._find_open(ref)
        for supervisor in self._supervisors:
            if supervisor.name == ref.name and (cell is not None or ref.incarnation == 0):
                return supervisor
        return None

    # --- called by cells and supervisors ----------------------------------------------

    def open_cell(self, name: str, capacity: int) -> Cell:
        """Make the next incarnation of a name; messages reach it from now on."""
        incarnation = actor_incarnation(self._transport.incarnation, next(self._actors_opened))
        cell = Cell(self, ActorRef(self.address, name, incarnation), capacity)
        self._cells[name] = cell
        return cell

    def close_cell(self, cell: Cell, reason: EndReason) -> None:
        """An incarnation is over: answer what was queued and tell those who watch."""
        if self._cells.get(cell.ref.name) is cell:
            del self._cells[cell.ref.name]
        self._endings[cell.ref.incarnation] = reason
        if len(self._endings) > _REMEMBERED_ENDINGS:
            self._endings.popitem(last=False)
        if not self._aborted:
            for delivery in cell.mailbox.drain():
                if delivery.kind is Kind.ASK:
                    self.answer(delivery, cell.ref, _ended_failure(cell.ref))
                elif not isinstance(delivery.message, Down):
                    self.dead_letter("actor_ended", cell.ref, delivery.source, delivery.message)
            for watcher, watched_as in cell.watchers:
                self._report_end(watcher, watched_as, reason)
            for ref in list(cell.watching):
                self.unwatch(cell, ref)
        if not cell.ended.done():
            cell.ended.set_result(reason)

    def forget(self, supervisor: Supervisor) -> None:
        """A supervisor is over."""
        self._supervisors.pop(supervisor, None)
        if self._roots.get(supervisor.name) is supervisor:
            del self._roots[supervisor.name]

    def answer(self, delivery: Delivery, responder: ActorRef, reply: Message) -> None:
        """Send the reply or failure of an ask back to where it came from."""
        source = delivery.source
        if source.address == self.address:
            self._resolve(delivery.correlation, source, responder, self._through_codec(reply))
            return
        kind = Kind.FAILURE if isinstance(reply, Failure) else Kind.REPLY
        try:
            frame = self._frame(responder, source, kind, delivery.correlation, None, reply)
        except (FrameRejected, TypeError) as error:
            failure = Failure(
                "RemoteError", f"the reply cannot be sent: {error}", type(error).__name__
            )
            frame = self._frame(
                responder, source, Kind.FAILURE, delivery.correlation, None, failure
            )
        self._replies.finish((source.address, source.process, delivery.correlation), frame)
        self._send_answer(source, responder, frame, type(reply).__name__)

    def dead_letter(
        self, reason: Reason, destination: ActorRef, source: ActorRef, message: Message | None
    ) -> None:
        """Count a message that no actor handled."""
        name = type(message).__name__ if message is not None else ""
        self._count_dead(reason, destination, source, name)

    def _count_dead(self, reason: Reason, to: ActorRef, source: ActorRef, name: str) -> None:
        self.dead_letters.add(DeadLetter(reason, to, source, name), self._loop.time())

    # --- tell and ask -----------------------------------------------------------------

    def tell(self, ref: ActorRef, message: Message, *, sender: ActorRef | None = None) -> None:
        """Send and forget, at most once.

        Raises `MailboxFull` when the receiver pushes back and `PeerUnreachable` when there is no
        way to its process. A message to an actor that ended is a dead letter here, or in the
        process where it lived.
        """
        source = sender or self.ref
        if ref.address == self.address:
            cell = self._find(ref)
            if cell is None:
                self.dead_letter(_absence(ref), ref, source, message)
                return
            delivery = Delivery(self._through_codec(message), source, Kind.TELL, 0, None)
            if not cell.mailbox.offer(delivery):
                raise MailboxFull(f"the mailbox of {ref} is full; retry later")
            return
        if self._pushed_back_until:
            self._check_push_back(ref)
        self._send(ref, self._frame(source, ref, Kind.TELL, 0, None, message))

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
        `ActorDied`, `MailboxFull` and `PeerUnreachable`.
        """
        source = sender or self.ref
        correlation = next(self._correlation)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._pending[correlation] = _Pending(future, ref)
        timer = self._loop.call_later(timeout_s, self._time_out, correlation, timeout_s)
        try:
            if ref.address == self.address:
                self._ask_local(ref, message, source, correlation, timeout_s)
            else:
                frame = self._frame(source, ref, Kind.ASK, correlation, timeout_s, message)
                self._send(ref, frame)
            return await future
        finally:
            timer.cancel()
            self._pending.pop(correlation, None)

    def _ask_local(
        self, ref: ActorRef, message: Message, source: ActorRef, correlation: int, timeout_s: float
    ) -> None:
        cell = self._find(ref)
        if cell is None:
            raise ActorDied(f"{ref} is not there: {_absence(ref)}")
        deadline = self._loop.time() + timeout_s
        delivery = Delivery(self._through_codec(message), source, Kind.ASK, correlation, deadline)
        if not cell.mailbox.offer(delivery):
            raise MailboxFull(f"the mailbox of {ref} is full; retry later")

    def _time_out(self, correlation: int, timeout_s: float) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is not None:
            self._fail_pending(
                pending, AskTimeout(f"{pending.ref} did not answer within {timeout_s:g} s")
            )

    def _fail_pending(self, pending: _Pending, error: ActorError) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)

    def _resolve(
        self, correlation: int, asker: ActorRef, responder: ActorRef, reply: Message
    ) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is None or pending.future.done():
            self.dead_letter("late_reply", asker, responder, reply)
        elif isinstance(reply, Failure):
            pending.future.set_exception(_error_of(reply))
        else:
            pending.future.set_result(reply)

    def _through_codec(self, message: Message) -> Message:
        return decode_message(encode_message(message)) if self._force_codec else message

    def _find(self, ref: ActorRef) -> Cell | None:
        """The cell that a message to `ref` reaches now."""
        cell = self._find_open(ref)
        return cell if cell is not None and cell.accepts else None

    def _find_open(self, ref: ActorRef) -> Cell | None:
        cell = self._cells.get(ref.name)
        if cell is not None and ref.incarnation in (0, cell.ref.incarnation):
            return cell
        return None

    # --- frames out -------------------------------------------------------------------

    def _frame(
        self,
        source: ActorRef,
        destination: ActorRef,
        kind: Kind,
        correlation: int,
        seconds_left: float | None,
        message: Message,
    ) -> bytes:
        return encode_envelope(
            Envelope(
                PROTOCOL_VERSION,
                source,
                destination,
                kind,
                next(self._sequence),
                correlation,
                seconds_left,
                message.lane,
                msgspec.Raw(encode_message(message)),
            )
        )

    def _send(self, ref: ActorRef, frame: bytes) -> None:
        self._transport.send(ref.address, frame)
        self._frames_sent += 1

    def _send_answer(self, asker: ActorRef, responder: ActorRef, frame: bytes, name: str) -> None:
        try:
            self._send(asker, frame)
        except PeerUnreachable:
            self._count_dead("unreachable", asker, responder, name)
        except MailboxFull:
            self._count_dead("mailbox_full", asker, responder, name)

    def _send_system(self, address: str, message: Message) -> None:
        """Tell another runtime something. Raises what `send` raises."""
        to = ActorRef(address, "", 0)
        self._send(to, self._frame(self.ref, to, Kind.SYSTEM, 0, None, message))

    def _check_push_back(self, ref: ActorRef) -> None:
        until = self._pushed_back_until.get(ref)
        if until is None:
            return
        if self._loop.time() < until:
            raise MailboxFull(f"the mailbox of {ref} is full; retry later")
        del self._pushed_back_until[ref]

    # --- TransportListener ------------------------------------------------------------

    def frame_received(self, address: str, frame: bytes) -> None:
        """Route one frame. Whatever it holds, this does not raise."""
        self._frames_received += 1
        try:
            envelope = decode_envelope(frame)
            if envelope.kind in (Kind.TELL, Kind.ASK):
                self._receive_message(envelope)
            elif envelope.kind is Kind.SYSTEM:
                self._receive_system(envelope)
            else:
                reply = decode_message(envelope.body)
                self._resolve(envelope.correlation, envelope.destination, envelope.source, reply)
        except FrameRejected as error:
            self._frames_rejected += 1
            log.warning("frame_rejected", peer=address, error=str(error))

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """A queued frame never left. Asks fail by the loss of the peer; the others are dead
        letters."""
        envelope = decode_envelope(frame)
        if envelope.kind in (Kind.TELL, Kind.REPLY, Kind.FAILURE):
            self._count_dead("unreachable", envelope.destination, envelope.source, "")

    def peer_up(self, address: str, incarnation: int) -> None:
        """Nothing to do: references say which process they mean."""

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """Fail the asks to a process, and report its actors to those who watch them."""
        for pending in list(self._pending.values()):
            if _is_of(pending.ref, address, incarnation):
                self._fail_pending(pending, PeerUnreachable(f"{address} was lost: {reason}"))
        for cell in list(self._cells.values()):
            for ref in [r for r in cell.watching if _is_of(r, address, incarnation)]:
                self._deliver_down(cell, ref, "unreachable")
            for key in [k for k in cell.watchers if _is_of(k[0], address, incarnation)]:
                del cell.watchers[key]
            cell.pushed_back_at.pop(address, None)
        self._last_sequences.pop((address, incarnation), None)

    def _receive_message(self, envelope: Envelope) -> None:
        source, destination = envelope.source, envelope.destination
        stream = (source.address, source.process)
        is_ask = envelope.kind is Kind.ASK
        key = (*stream, envelope.correlation)
        if is_ask:
            answered = self._replies.lookup(key)
            if answered is not None:
                self._duplicates += 1
                if answered is not RUNNING:
                    self._send_answer(source, destination, answered, "")
                return
        if envelope.sequence <= self._last_sequences.get(stream, 0):
            self._count_dead("out_of_order", destination, source, "")
            return
        self._last_sequences[stream] = envelope.sequence
        deadline = None
        if envelope.seconds_left is not None:
            deadline = self._loop.time() + envelope.seconds_left
        try:
            message = decode_message(envelope.body)
        except FrameRejected as error:
            if is_ask:
                failure = Failure("RemoteError", str(error), "FrameRejected")
                self._answer_frame(envelope, failure)
            raise
        delivery = Delivery(message, source, envelope.kind, envelope.correlation, deadline)
        if is_ask:
            self._replies.begin(key)
        self._deliver(delivery, destination)

    def _answer_frame(self, envelope: Envelope, failure: Failure) -> None:
        frame = self._frame(
            envelope.destination, envelope.source, Kind.FAILURE, envelope.correlation, None, failure
        )
        self._send_answer(envelope.source, envelope.destination, frame, "Failure")

    def _deliver(self, delivery: Delivery, destination: ActorRef) -> None:
        """Put a message from another process into a mailbox, or say why not."""
        is_ask = delivery.kind is Kind.ASK
        cell = self._find(destination)
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
                self._push_back(cell, destination, delivery.source.address)

    def _push_back(self, cell: Cell, addressed_as: ActorRef, address: str) -> None:
        now = self._loop.time()
        if now - cell.pushed_back_at.get(address, -PUSH_BACK_S) >= PUSH_BACK_S / 2:
            cell.pushed_back_at[address] = now
            self._send_quietly(address, PushedBack(addressed_as))

    def _send_quietly(self, address: str, message: Message) -> None:
        """For what may be lost: the other side asks again, or no longer exists."""
        try:
            self._send_system(address, message)
        except (PeerUnreachable, MailboxFull) as error:
            log.debug("system_message_not_sent", peer=address, error=str(error))

    # --- watching ---------------------------------------------------------------------

    def watch(self, cell: Cell, ref: ActorRef) -> None:
        """Have exactly one `Down` for `ref` delivered to an actor; called by `Actor.watch`."""
        if ref in cell.watching:
            return
        cell.watching[ref] = None
        if ref.address == self.address:
            target = self._find_open(ref)
            if target is None:
                self._deliver_down(cell, ref, self._endings.get(ref.incarnation, "stopped"))
            else:
                target.watchers[(cell.ref, ref)] = None
            return
        self._send_watch(cell, ref.address, (ref,))
        if self._renewal is None:
            self._renewal = self._loop.call_later(self.watch_renewal_s, self._renew_watches)

    def unwatch(self, cell: Cell, ref: ActorRef) -> None:
        """Undo a watch; called by `Actor.unwatch`."""
        if cell.watching.pop(ref, self) is self:
            return
        if ref.address == self.address:
            target = self._find_open(ref)
            if target is not None:
                target.watchers.pop((cell.ref, ref), None)
        else:
            self._send_quietly(ref.address, Unwatch(cell.ref, (ref,)))

    def _send_watch(self, cell: Cell, address: str, refs: tuple[ActorRef, ...]) -> None:
        try:
            self._send_system(address, Watch(cell.ref, refs))
        except PeerUnreachable:
            for ref in refs:
                self._deliver_down(cell, ref, "unreachable")
        except MailboxFull:
            log.debug("watch_is_renewed_later", peer=address)

    def _renew_watches(self) -> None:
        """Repeat all remote watches: if a `Watch` or an `Ended` was lost, this brings the answer
        after all."""
        self._renewal = None
        for cell in list(self._cells.values()):
            by_address: dict[str, list[ActorRef]] = {}
            for ref in cell.watching:
                if ref.address != self.address:
                    by_address.setdefault(ref.address, []).append(ref)
            for address, refs in by_address.items():
                self._send_watch(cell, address, tuple(refs))
        if any(r.address != self.address for cell in self._cells.values() for r in cell.watching):
            self._renewal = self._loop.call_later(self.watch_renewal_s, self._renew_watches)

    def _receive_system(self, envelope: Envelope) -> None:
        message = decode_message(envelope.body)
        match message:
            case Watch(watcher=watcher, refs=refs):
                for ref in refs:
                    self._accept_watch(watcher, ref)
            case Unwatch(watcher=watcher, refs=refs):
                for ref in refs:
                    target = self._find_open(ref)
                    if target is not None:
                        target.watchers.pop((watcher, ref), None)
            case Ended(watcher=watcher, ref=ref, reason=reason):
                self._report_end(watcher, ref, reason)
            case PushedBack(ref=ref):
                self._pushed_back_until[ref] = self._loop.time() + PUSH_BACK_S
            case _:
                raise FrameRejected(f"{type(message).__name__} is not a message between runtimes")

    def _accept_watch(self, watcher: ActorRef, ref: ActorRef) -> None:
        target = self._find_open(ref)
        if target is not None:
            target.watchers[(watcher, ref)] = None
            return
        reason: EndReason = "unreachable"
        if ref.process in (0, self._transport.incarnation):
            reason = self._endings.get(ref.incarnation, "stopped")
        self._report_end(watcher, ref, reason)

    def _report_end(self, watcher: ActorRef, watched_as: ActorRef, reason: EndReason) -> None:
        """Tell a watcher, wherever it is, that what it watched is gone."""
        if watcher.address != self.address:
            self._send_quietly(watcher.address, Ended(watcher, watched_as, reason))
            return
        cell = self._find(watcher)
        if cell is not None:
            self._deliver_down(cell, watched_as, reason)

    def _deliver_down(self, cell: Cell, ref: ActorRef, reason: EndReason) -> None:
        """The only place where a `Down` is made: the watch ends with it, so there is exactly
        one."""
        if cell.watching.pop(ref, self) is not self and cell.accepts:
            cell.mailbox.force(Delivery(Down(ref, reason), ref, Kind.TELL, 0, None))

    # --- what an operator sees --------------------------------------------------------

    def statistics(self) -> Statistics:
        """Counters and the state of all mailboxes."""
        return Statistics(
            frames_sent=self._frames_sent,
            frames_received=self._frames_received,
            frames_rejected=self._frames_rejected + self._transport.frames_rejected,
            duplicates=self._duplicates,
            pending_asks=len(self._pending),
            dead_letters={str(reason): n for reason, n in self.dead_letters.counts.items()},
            mailboxes={
                name: MailboxStatistics(
                    len(cell.mailbox), cell.mailbox.greatest, cell.mailbox.capacity
                )
                for name, cell in self._cells.items()
            },
        )


def _absence(ref: ActorRef) -> Reason:
    return "dead_incarnation" if ref.incarnation else "no_such_actor"


def _ended_failure(ref: ActorRef) -> Failure:
    return Failure("ActorDied", f"{ref} ended, or never was")


def _is_of(ref: ActorRef, address: str, process: int) -> bool:
    """Whether a reference may mean an actor of the process that was lost; either side may not know
    the incarnation."""
    return ref.address == address and (not process or not ref.process or ref.process == process)


def _error_of(failure: Failure) -> ActorError:
    if failure.error == "ActorDied":
        return ActorDied(failure.message)
    if failure.error == "MailboxFull":
        return MailboxFull(failure.message)
    return RemoteError(failure.type_name, failure.message, failure.remote_traceback)
