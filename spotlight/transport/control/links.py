"""The two kinds of connection that a `ZeroMQTransport` holds: those it made and those it accepted.

Both queue frames and send them in batches, once per turn of the loop. A link that libzmq refuses
for the moment (its high-water mark is reached) keeps its frames and retries at the next wake-up of
the socket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from spotlight.transport.control import wire
from spotlight.transport.control.bad_input import BadInput, clipped
from spotlight.transport.control.base import NOT_ADMITTED
from spotlight.transport.control.codec import PROTOCOL_VERSION
from spotlight.transport.control.keys import key_of, place_of
from spotlight.transport.control.reader import SocketReader, receive_message

if TYPE_CHECKING:
    from spotlight.transport.control.zeromq import ZeroMQTransport

_WRONG_KEY = "who is there has another key, or ended the connection before it proved its own"


class Link:
    """A connection to one peer. `address` and `incarnation` are the peer's, as far as they are
    known."""

    def __init__(self, owner: ZeroMQTransport, address: str, incarnation: int) -> None:
        self.owner = owner
        self.address = address
        self.incarnation = incarnation
        self.up = False
        self.closed = False
        self.outbox = wire.Outbox(owner.settings.outbox_frames, owner.settings.outbox_bytes)
        self._loop = asyncio.get_running_loop()
        self._flush: asyncio.Handle | None = None

    def queue(self, frame: bytes) -> bool:
        """Queue a frame for this turn of the loop; False when the outbox is full."""
        if not self.outbox.offer(frame):
            return False
        if self._flush is None and self.up:
            self._flush = self._loop.call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Send what is queued, as far as libzmq takes it."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        try:
            while self.up and not self.closed and len(self.outbox):
                batch = self.outbox.first_batch()
                self._write(wire.encode(batch))
                self.outbox.drop_batch(batch)
            self.owner.link_flushed()
        except zmq.Again:
            self._flush = self._loop.call_later(self.owner.settings.times.retry_s, self.flush)
            self.owner.link_blocked(self)
        except zmq.ZMQError as error:
            self.owner.link_lost(self, f"send failed: {error}")

    def refuse(self, reason: str) -> None:
        """Tell the peer why it is not heard any more, if libzmq takes it, and close."""
        if self.closed:
            return
        try:
            self._write(wire.encode(wire.Refusal(reason, self.owner.dialect)))
        except zmq.ZMQError:
            self.close()
        else:
            self.close(round(self.owner.settings.times.farewell_s * 1000))

    def close(self, linger_ms: int = 0) -> None:
        """Release what the link holds. Queued frames stay in the outbox."""
        self.closed = True
        self.up = False
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    def _write(self, payload: bytes) -> None:
        raise NotImplementedError


class AcceptedLink(Link):
    """A peer that connected to our ROUTER; frames to it go back over its own connection."""

    def __init__(
        self,
        owner: ZeroMQTransport,
        router: zmq.Socket[bytes],
        reader: SocketReader,
        hello: wire.Hello,
        identity: bytes,
        descriptor: int,
    ) -> None:
        super().__init__(owner, hello.address, hello.incarnation)
        self.identity = identity
        self.descriptor = descriptor
        """Number of the TCP socket, by which libzmq's monitor names the connection."""
        self._router = router
        self._reader = reader
        self.up = True

    def _write(self, payload: bytes) -> None:
        self._router.send(self.identity, zmq.SNDMORE | zmq.NOBLOCK)
        self._router.send(payload, zmq.NOBLOCK)
        self._reader.poke()


class DialedLink(Link):
    """A DEALER of ours, connected to the ROUTER of a peer."""

    def __init__(
        self, owner: ZeroMQTransport, context: zmq.Context[zmq.Socket[bytes]], dialed: str
    ) -> None:
        """Raises `zmq.ZMQError` or `ValueError` when the address makes no sense."""
        if not dialed.startswith("tcp://"):
            # A message may name any address, a socket of this machine's files (`ipc://`) too.
            raise zmq.ZMQError(zmq.EPROTONOSUPPORT)
        super().__init__(owner, dialed, 0)
        self.dialed = dialed
        """The address that was asked for; the peer may have another, with the same key."""
        self._proved = False
        """Whether both ends have proved their keys."""
        self._socket = context.socket(zmq.DEALER)
        owner.settings.apply(self._socket, ipv6="[" in dialed)
        owner.settings.apply_heartbeats(self._socket)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
        )
        try:
            owner.door.secure_dialing(self._socket, key_of(dialed))
            self._socket.connect(place_of(dialed))
        except (zmq.ZMQError, ValueError):
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            raise
        self._reader = SocketReader(self._socket, self._receive, self._retry)
        self._monitor_reader = SocketReader(self._monitor, self._receive_event)
        self._timeout = self._loop.call_later(
            owner.settings.times.connect_timeout_s, self._give_up, "no connection in time"
        )

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets; what libzmq holds is sent within `linger_ms`."""
        if self.closed:
            return
        super().close()
        self._timeout.cancel()
        self._reader.close()
        self._monitor_reader.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _write(self, payload: bytes) -> None:
        self._socket.send(payload, zmq.NOBLOCK)
        self._reader.poke()

    def _retry(self) -> None:
        if self._flush is not None:
            self.flush()

    def _give_up(self, reason: str) -> None:
        self.owner.link_lost(self, reason)

    def _receive_event(self) -> int:
        event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
        kind, owner = event["event"], self.owner
        if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            owner.link_lost(self, NOT_ADMITTED)
        elif kind == zmq.EVENT_DISCONNECTED:
            self._reader.drain()
            if not self.closed:
                owner.link_lost(self, "disconnected" if self._proved else _WRONG_KEY)
        elif not self.up:
            self._proved = True
            who = (owner.address, owner.incarnation, owner.settings.heartbeats)
            hello = wire.Hello(PROTOCOL_VERSION, *who, owner.dialect)
            self._write(wire.encode(hello))
        return 1

    def _receive(self) -> int:
        payload, whole = receive_message(self._socket)
        try:
            received = wire.decode(payload.buffer, whole=whole)
            if isinstance(received, list) and self.up:
                self.owner.frames_received(self, received)
                return len(received) or 1
            if isinstance(received, wire.Refusal):
                self._refused(received)
            elif isinstance(received, wire.Welcome) and not self.up:
                self._welcomed(received)
            else:
                raise BadInput("malformed", f"{type(received).__name__} is out of place")
        except BadInput as error:
            self.owner.input_rejected(self, error)
        return 1

    def _welcomed(self, welcome: wire.Welcome) -> None:
        if key_of(welcome.address) != key_of(self.dialed):
            text = f"{self.dialed} says that it is {welcome.address}, whose key is another"
            raise BadInput("not_allowed", text)
        theirs, ours = welcome.dialect, self.owner.dialect
        if theirs != ours:
            self.owner.report_other_version(self.dialed, theirs)
            self.refuse(theirs.refusal(ours))
            self.owner.link_lost(self, ours.refusal(theirs))
            return
        self._timeout.cancel()
        self.address, self.incarnation = welcome.address, welcome.incarnation
        self.up = True
        self.owner.link_up(self)
        self.flush()

    def _refused(self, refusal: wire.Refusal) -> None:
        theirs, ours = refusal.dialect, self.owner.dialect
        if self.up or theirs == ours:
            reason = f"refused: {clipped(refusal.reason)}"
        else:
            self.owner.report_other_version(self.dialed, theirs)
            reason = ours.refusal(theirs)
        self.owner.link_lost(self, reason)
