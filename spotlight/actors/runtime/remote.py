"""Messages to and from other processes: the half of an actor system that knows frames.

Going out: `RemoteDelivery` makes frames and hands them to the transport. Coming in: it checks what
arrives, keeps tells of a process in order and at most once, answers duplicates of asks from a
cache, and gives the rest to the system to deliver.

Invariants: whatever a peer sends, nothing here raises into the transport; a peer that sends what
cannot be decoded is cut off, since no process of ours does; no actor hears of what the role of a
peer's key may not say; and a peer speaks only for itself: a frame that claims to come from
elsewhere, or reports on the actors of another process, is refused and counted. That alone cuts
nobody off: an answer to the process that was at this address before looks the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from spotlight.actors.runtime.actor_context import ActorContext
from spotlight.actors.runtime.envelopes import (
    Done,
    Down,
    Ended,
    Failure,
    PushedBack,
    Unwatch,
    Watch,
)
from spotlight.actors.runtime.log_limiter import LimitedLog, LogLimiter
from spotlight.actors.runtime.mailbox import Delivery
from spotlight.actors.runtime.reply_cache import RUNNING, ReplyCache
from spotlight.errors import FrameRejected, MailboxFull, PeerUnreachable
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    ActorRef,
    BadInput,
    ControlTransport,
    Dialect,
    Envelope,
    Kind,
    Message,
    Rejection,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
    key_of,
)

if TYPE_CHECKING:
    from spotlight.actors.runtime.system import ActorSystem

log = structlog.get_logger(__name__)

Rights = Mapping[type[Message], Collection[str]]
"""Which roles may say a message to another process."""

_ENDS = ("disconnected", "closed")
"""How transports call the end of a process that ended in order, or was killed."""
_OTHER_VERSIONS_KEPT = 4096
_VERSIONS_LOG_S = 600.0
"""Seconds between two lines of one key: who is of another version tries again and again, until it
is updated."""


class _Peer(NamedTuple):
    """A process that is connected."""

    incarnation: int
    role: str
    """The role that its key had when it connected."""


class RemoteDelivery:
    """Carries an actor system's messages over its transport."""

    def __init__(self, system: ActorSystem, transport: ControlTransport) -> None:
        self.transport = transport
        self.frames_sent = 0
        self.frames_received = 0
        self.frames_rejected: Counter[Rejection] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        """How often somebody with a role was refused a type of message: part of those that are
        rejected as `not_allowed`."""
        self.other_versions: OrderedDict[str, Dialect] = OrderedDict()
        """The guests, by key, that were refused since they speak another dialect, and have not been
        here since: the latest ones."""
        self.duplicates = 0
        self._system = system
        self._rights = system.rights
        _check(system.rights)
        self._replies = ReplyCache()
        self._sequence = itertools.count(1)
        self._last_sequences: dict[str, int] = {}
        """The highest number of a frame of each connected process; what arrives later with a lower
        one was overtaken."""
        self._peers: dict[str, _Peer] = {}
        """The connected processes, by address."""
        self._pushed_back_until: dict[ActorRef, float] = {}
        self._rejections_log = LimitedLog(log)
        self._versions_log = LimitedLog(log, _VERSIONS_LOG_S)
        self._losses_log = LimitedLog(log)
        self._unreached_log = LogLimiter(system.timings.unreached_log_s)

    # --- going out --------------------------------------------------------------------

    def tell(self, source: ActorRef, ref: ActorRef, message: Message) -> None:
        """Send a tell. Raises `MailboxFull`, `PeerUnreachable` or `FrameRejected`."""
        if self._pushed_back_until:
            self._check_push_back(ref)
        self._send(ref, self._frame(source, ref, Kind.TELL, 0, None, message))

    def ask(
        self,
        source: ActorRef,
        ref: ActorRef,
        message: Message,
        correlation: int,
        timeout_s: float,
    ) -> None:
        """Send an ask. Raises what `tell` raises."""
        self._send(ref, self._frame(source, ref, Kind.ASK, correlation, timeout_s, message))

    def answer(self, delivery: Delivery, responder: ActorRef, reply: Message) -> None:
        """Send the answer of an ask, and keep it for duplicates. Raises `FrameRejected`."""
        source, correlation = delivery.source, delivery.correlation
        kind = Kind.FAILURE if isinstance(reply, Failure) else Kind.REPLY
        frame = self._frame(responder, source, kind, correlation, None, reply)
        self._replies.finish((source.address, source.process, correlation), frame)
        self._send_answer(source, responder, frame, type(reply).__name__)

    def tell_runtime(self, address: str, message: Message) -> None:
        """Send something to another process's runtime. Raises what `tell` raises."""
        to = ActorRef(address, "", 0)
        self._send(to, self._frame(self._system.ref, to, Kind.SYSTEM, 0, None, message))

    def tell_runtime_quietly(self, address: str, message: Message) -> None:
        """The same for what may be lost: the other side asks again, or no longer exists."""
        try:
            self.tell_runtime(address, message)
        except (PeerUnreachable, MailboxFull) as error:
            log.debug("message_to_runtime_not_sent", peer=address, error=str(error))

    def _frame(
        self,
        source: ActorRef,
        destination: ActorRef,
        kind: Kind,
        correlation: int,
        seconds_left: float | None,
        message: Message,
    ) -> bytes:
        if not self._rights.get(type(message)):
            raise FrameRejected(
                f"nobody may say {type(message).__name__} to another process; give it a row in the"
                " table of who may say what"
            )
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
        self.transport.send(ref.address, frame)
        self.frames_sent += 1

    def _send_answer(self, asker: ActorRef, responder: ActorRef, frame: bytes, name: str) -> None:
        try:
            self._send(asker, frame)
        except PeerUnreachable:
            self._system.count_dead_letter("unreachable", asker, responder, name)
        except MailboxFull:
            self._system.count_dead_letter("mailbox_full", asker, responder, name)

    # --- push-back --------------------------------------------------------------------

    def push_back(self, cell: ActorContext, addressed_as: ActorRef, address: str) -> None:
        """A tell from another process found a full mailbox: ask that process to slow down."""
        now, push_back_s = _now(), self._system.timings.push_back_s
        if now - cell.pushed_back_at.get(address, -push_back_s) >= push_back_s / 2:
            cell.pushed_back_at[address] = now
            self.tell_runtime_quietly(address, PushedBack(addressed_as))

    def _hold_back(self, ref: ActorRef) -> None:
        now = _now()
        holds = self._pushed_back_until.items()
        self._pushed_back_until = {other: until for other, until in holds if until > now}
        self._pushed_back_until[ref] = now + self._system.timings.push_back_s

    def _check_push_back(self, ref: ActorRef) -> None:
        until = self._pushed_back_until.get(ref)
        if until is None:
            return
        if _now() < until:
            raise MailboxFull(f"the mailbox of {ref} is full; retry later")
        del self._pushed_back_until[ref]

    # --- coming in: TransportListener -------------------------------------------------

    def frame_received(self, address: str, frame: bytes) -> None:
        """Check one frame and pass it on."""
        self.frames_received += 1
        try:
            envelope = decode_envelope(frame)
            if envelope.source.address != address:
                text = f"a frame from {address} says it is from {envelope.source}"
                raise BadInput("not_allowed", text)
            if envelope.kind is Kind.TELL:
                self._receive_tell(address, envelope)
            elif envelope.kind is Kind.ASK:
                self._receive_ask(address, envelope)
            elif envelope.kind is Kind.SYSTEM:
                self._receive_system(address, self._message_of(address, envelope))
            else:
                self._receive_answer(address, envelope)
        except BadInput as error:
            self.input_rejected(address, error.reason, str(error))
            if error.reason != "not_allowed":
                self.transport.cut_off(address, str(error))

    def input_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Count what was not taken, and say so, but not more often than is useful."""
        self.frames_rejected[reason] += 1
        self._rejections_log.warning(  # not by peer: names are theirs
            "input_rejected", about=reason, peer=address, reason=reason, detail=detail
        )

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """A queued frame never left. Asks fail by the loss of the peer; the rest is dead
        letters."""
        envelope = decode_envelope(frame)
        if envelope.kind in (Kind.TELL, Kind.REPLY, Kind.FAILURE):
            to, source = envelope.destination, envelope.source
            self._system.count_dead_letter("unreachable", to, source, "")

    def peer_up(self, address: str, incarnation: int) -> None:
        """Remember which process is where, and as what."""
        key = key_of(address)
        self._peers[address] = _Peer(incarnation, self.transport.guests.role(key) or "")
        self.other_versions.pop(key, None)

    def other_version(self, address: str, dialect: Dialect) -> None:
        """Remember whom nobody here understands, and say so now and then."""
        key = key_of(address)
        reason = self.transport.dialect.refusal(dialect)
        self._versions_log.warning("other_version", about=key, peer=address, reason=reason)
        self.other_versions[key] = dialect
        self.other_versions.move_to_end(key)
        if len(self.other_versions) > _OTHER_VERSIONS_KEPT:
            self.other_versions.popitem(last=False)

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """A process is gone, or out of reach."""
        is_told = key_of(address) in self.other_versions
        if not is_told and (incarnation or self._unreached_log.admit(address, _now()) is not None):
            self._losses_log.line(
                # Every command that ends disconnects. Who watched the process tells of its loss.
                "debug" if reason in _ENDS else "info",
                "peer_lost",
                # Names of those who never said anything are theirs, and there may be any number.
                about=address if address in self._last_sequences else "",
                peer=address,
                incarnation=incarnation,
                reason=reason,
            )
        self._peers.pop(address, None)
        self._last_sequences.pop(address, None)
        self._system.lose_process(address, incarnation, reason)

    def _receive_tell(self, address: str, envelope: Envelope) -> None:
        if self._is_in_order(address, envelope):
            message = self._message_of(address, envelope)
            delivery = Delivery(message, envelope.source, Kind.TELL, 0, None)
            self._system.deliver(delivery, envelope.destination)

    def _receive_ask(self, address: str, envelope: Envelope) -> None:
        source, correlation = envelope.source, envelope.correlation
        key = (source.address, source.process, correlation)
        answered = self._replies.lookup(key)
        if answered is not None:
            self.duplicates += 1
            if answered is not RUNNING:
                self._send_answer(source, envelope.destination, answered, "")
            return
        if not self._is_in_order(address, envelope):
            return
        message = decode_message(envelope.body)
        deadline = None
        if envelope.seconds_left is not None:
            deadline = _now() + envelope.seconds_left
        self._replies.begin(key)
        delivery = Delivery(message, source, Kind.ASK, correlation, deadline)
        try:
            self.require_right(address, message)
        except BadInput as error:
            self.answer(delivery, envelope.destination, Failure("NotAllowed", str(error)))
            raise
        self._system.deliver(delivery, envelope.destination)

    def _is_in_order(self, address: str, envelope: Envelope) -> bool:
        """Whether no later frame of that process arrived before; this is what makes tells at most
        once and in order on any transport."""
        if envelope.sequence > self._last_sequences.get(address, 0):
            self._last_sequences[address] = envelope.sequence
            return True
        to, source = envelope.destination, envelope.source
        self._system.count_dead_letter("out_of_order", to, source, "")
        return False

    def _receive_answer(self, address: str, envelope: Envelope) -> None:
        reply = self._message_of(address, envelope)
        to, source = envelope.destination, envelope.source
        # The process that was at this address before numbered its asks in the same way.
        is_ours = to.process == self.transport.incarnation
        ask = self._system.asks.find(envelope.correlation) if is_ours else None
        if ask is None:
            self._system.dead_letter("late_reply", to, source, reply)
        elif self._is_at(ask.ref.address, address):
            ask.settle(reply)
        else:
            raise BadInput("not_allowed", f"{address} answers an ask to {ask.ref}")

    def _receive_system(self, address: str, message: Message) -> None:
        watches, here = self._system.watches, self._system.address
        match message:
            case Watch(watcher=watcher, refs=refs) if watcher.address == address:
                for ref in refs:
                    watches.accept(watcher, ref)
            case Unwatch(watcher=watcher, refs=refs) if watcher.address == address:
                for ref in refs:
                    watches.drop(watcher, ref)
            case Ended(watcher=watcher, ref=ref, reason=reason) if (
                watcher.address == here and self._is_at(ref.address, address)
            ):
                watches.report(watcher, ref, reason)
            case PushedBack(ref=ref) if self._is_at(ref.address, address):
                self._hold_back(ref)
            case _:
                name = type(message).__name__
                raise BadInput("not_allowed", f"{address} may not send {name} like this")

    def _is_at(self, claimed: str, address: str) -> bool:
        """Whether `claimed` is an address of the process that is connected as `address`."""
        if claimed == address:
            return True
        known = self._peers.get(claimed)
        return known is not None and known == self._peers.get(address)

    def _message_of(self, address: str, envelope: Envelope) -> Message:
        """What a process says. Raises `BadInput` also if its role may not say it."""
        message = decode_message(envelope.body)
        self.require_right(address, message)
        return message

    def require_right(self, address: str, message: Message) -> None:
        """Raises `BadInput` if the role of a connected process may not say this."""
        peer = self._peers.get(address)
        role = peer.role if peer is not None else ""
        if role not in self._rights.get(type(message), ()):
            name = type(message).__name__
            self.refusals[(role, name)] += 1
            raise BadInput(
                "not_allowed", f"{address} has the role `{role}`, which may not say {name}"
            )


def _check(rights: Rights) -> None:
    """Raises `ValueError` for rights with which the runtime cannot work, or be relied on."""
    for kind in (Done, Ended, Failure, PushedBack, Unwatch, Watch):
        if not rights.get(kind):
            raise ValueError(f"rights: nobody may say {kind.__name__}, which runtimes say")
    if rights.get(Down):
        raise ValueError("rights: an actor hears of an end, Down, from its own runtime alone")


def _now() -> float:
    return asyncio.get_running_loop().time()
