"""The control transport between real processes: ZeroMQ over TCP.

Each process binds one ROUTER and makes one DEALER for each peer that it sends to first; all actors
of a process share them. A peer that connected to us is answered over its own connection, so a node
behind NAT needs no way in.

Why the options are what they are (`ZeroMQSettings.apply`): without ROUTER_MANDATORY a send to an
unknown peer succeeds and the message is gone; without heartbeats a frozen peer is never noticed;
without HANDOVER a process that reconnects is not heard. libzmq answers heartbeats from its own
thread, so they show a dead host, not a stuck actor loop: leases do that.

A process is lost when its last connection ends: the monitor of the socket says so for a closed or
timed-out connection. The monitor names a connection by its descriptor, so an accepted link
remembers the descriptor that its greeting came by.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from spotlight.errors import AddressInUse, FrameRejected, MailboxFull, PeerUnreachable, UserError
from spotlight.transport.control import wire
from spotlight.transport.control.base import TransportListener
from spotlight.transport.control.codec import FRAME_LIMIT, PROTOCOL_VERSION
from spotlight.transport.control.links import AcceptedLink, DialedLink, Link
from spotlight.transport.control.reader import SocketReader

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ZeroMQSettings:
    """Times and bounds of a transport."""

    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 1.5
    connect_timeout_s: float = 3.0
    """A peer that was not reached for so long is given up."""
    redial_after_s: float = 0.5
    """A peer that was given up is not dialled again for so long."""
    high_water_mark: int = 128
    """ZeroMQ messages (batches) that libzmq queues for one peer."""
    outbox_frames: int = 4096
    """Frames that wait in front of libzmq for one peer."""
    outbox_bytes: int = 64 * 1024 * 1024
    linger_s: float = 0.5
    """How long a closing transport tries to send what is queued."""

    def apply(self, socket: zmq.Socket[bytes], *, ipv6: bool) -> None:
        """Set the options that all sockets share."""
        milliseconds = {
            zmq.HEARTBEAT_IVL: self.heartbeat_interval_s,
            zmq.HEARTBEAT_TIMEOUT: self.heartbeat_timeout_s,
            zmq.HEARTBEAT_TTL: self.heartbeat_timeout_s + self.heartbeat_interval_s,
            zmq.HANDSHAKE_IVL: self.connect_timeout_s,
            zmq.RECONNECT_IVL: 0.1,
            zmq.RECONNECT_IVL_MAX: 1.0,
        }
        for option, seconds in milliseconds.items():
            socket.setsockopt(option, round(seconds * 1000))
        socket.setsockopt(zmq.SNDHWM, self.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, self.high_water_mark)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_LIMIT)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))


_HANDOVER_S = 0.05
"""Time for libzmq's thread to take the last messages before a ROUTER closes."""


class ZeroMQTransport:
    """One process's end of the control network over TCP."""

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        advertise: str | None = None,
        incarnation: int | None = None,
        settings: ZeroMQSettings | None = None,
    ) -> None:
        """Port 0 of `bind` chooses a free one. `advertise` is the address that others know this
        process by: the bound one unless given; required when binding to all interfaces. Behind NAT
        it need not be reachable, only unique."""
        self.address = advertise or bind
        self.incarnation = incarnation or time.time_ns() // 1_000_000
        self.settings = settings or ZeroMQSettings()
        self.frames_rejected = 0
        self._bind = bind
        self._advertise = advertise
        self._listener: TransportListener | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._links: dict[str, Link] = {}
        """The link that frames to an address take."""
        self._all_links: dict[Link, None] = {}
        self._accepted: dict[bytes, AcceptedLink] = {}
        self._blocked: dict[Link, None] = {}
        """Accepted links whose peers read too slowly."""
        self._peers: dict[str, int] = {}
        """Incarnations of the processes that are up."""
        self._refused_until: dict[str, tuple[float, str]] = {}
        self._drained: asyncio.Future[None] | None = None
        self._greeting = False
        self._ungreeted: set[int] = set()
        """Descriptors of connections that have not said who they are."""

    # --- ControlTransport -------------------------------------------------------------

    async def start(self, listener: TransportListener) -> None:
        """Bind. Raises `AddressInUse`, or `UserError` when the address cannot be bound at all."""
        if self._advertise is None and any(
            host in self._bind for host in ("//0.0.0.0", "//*", "//[::]")
        ):
            raise UserError(
                f"{self._bind} binds to all interfaces; say with `advertise` "
                "which address others should use"
            )
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self.settings.apply(self._router, ipv6="[" in self._bind)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        try:
            self._router.bind(self._bind)
        except zmq.ZMQError as error:
            self._router.disable_monitor()
            self._context.destroy(0)
            self._context = None
            if error.errno == zmq.EADDRINUSE:
                raise AddressInUse(
                    f"{self._bind} is in use by another process; choose another port, or 0 for any"
                ) from error
            raise UserError(f"cannot bind {self._bind}: {error.strerror}") from error
        self.address = self._advertise or self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._listener = listener
        self._monitor_reader = SocketReader(self._monitor, self._receive_event)
        self._reader = SocketReader(self._router, self._receive, self._retry)

    def send(self, address: str, frame: bytes) -> None:
        """Queue a frame. Raises `PeerUnreachable`, `MailboxFull` or `FrameRejected`."""
        link = self._links.get(address)
        if link is None:
            link = self._dial(address)
        if len(frame) > FRAME_LIMIT:
            raise FrameRejected(f"a frame of {len(frame)} bytes is over the limit of {FRAME_LIMIT}")
        if not link.queue(frame):
            raise MailboxFull(f"{len(link.outbox)} frames are already queued for {address}")

    async def aclose(self) -> None:
        """Send what is queued within `linger_s`, then disconnect."""
        if self._context is None:
            return
        self._drained = self._loop.create_future()
        self.link_flushed()
        await asyncio.wait((self._drained,), timeout=self.settings.linger_s)
        if self._accepted:
            # A ROUTER that closes drops what libzmq's own thread has not taken yet, whatever its
            # LINGER says, and nothing tells when it has.
            await asyncio.sleep(_HANDOVER_S)
        self._close(linger_ms=round(self.settings.linger_s * 1000))

    def abort(self) -> None:
        """Disconnect at once."""
        self._close(linger_ms=0)

    def _close(self, linger_ms: int) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        self._listener = None
        for link in list(self._all_links):
            link.close(linger_ms if link.up else 0)
        self._all_links.clear()
        self._links.clear()
        self._accepted.clear()
        self._reader.close()
        self._monitor_reader.close()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(linger_ms)
        context.destroy(linger_ms)  # waits for slow peers, but no longer than that

    # --- LinkOwner --------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """A link's peer is known: make it the way there, unless another link is already."""
        known = self._peers.get(link.address)
        if known is not None and known != link.incarnation:
            self._lose(link.address, "replaced by a new process", spare=link)
        for address in _names(link):
            self._refused_until.pop(address, None)
            current = self._links.get(address)
            if current is None or not current.up:
                # Two processes may dial each other at once. Both connections stay: if each side
                # dropped its own for the other's, none might be left.
                self._links[address] = link
                for frame in current.outbox.drain() if current is not None else ():
                    link.queue(frame)
            if self._peers.get(address) != link.incarnation:
                self._peers[address] = link.incarnation
                if self._listener is not None:
                    self._listener.peer_up(address, link.incarnation)

    def link_lost(self, link: Link, reason: str) -> None:
        """A link ended: the peer is lost unless another link to the same process stands."""
        if link not in self._all_links:
            return
        was_up = link.up
        self._drop(link)
        unsent = link.outbox.drain()
        for address in _names(link):
            other = self._another_link(address, link.incarnation)
            if other is not None:
                self._links[address] = other
                unsent = [frame for frame in unsent if not other.queue(frame)]
            else:
                self._report_loss(address, reason, was_up)
        for frame in unsent:
            if self._listener is not None:
                self._listener.frame_undelivered(link.address, frame)

    def _report_loss(self, address: str, reason: str, was_up: bool) -> None:
        incarnation = self._peers.pop(address, 0)
        if not was_up:
            until = self._loop.time() + self.settings.redial_after_s
            self._refused_until[address] = (until, reason)
        log.info("peer_lost", peer=address, incarnation=incarnation, reason=reason)
        if self._listener is not None:
            self._listener.peer_lost(address, incarnation, reason)

    def link_flushed(self) -> None:
        """A link sent what it had: let a closing transport go on once all have."""
        drained = self._drained
        if drained is None or drained.done():
            return
        if not any(link.up and len(link.outbox) for link in self._all_links):
            drained.set_result(None)

    def link_blocked(self, link: Link) -> None:
        """libzmq takes no more for a link: it is tried again when the socket wakes up."""
        if isinstance(link, AcceptedLink):
            self._blocked[link] = None

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """Hand on the frames of one batch."""
        for frame in frames:
            if self._listener is None:
                return
            self._listener.frame_received(link.address, frame)

    def _lose(self, address: str, reason: str, *, spare: Link) -> None:
        for link in list(self._all_links):
            if link is not spare and link.up and address in _names(link):
                self.link_lost(link, reason)

    def _another_link(self, address: str, incarnation: int) -> Link | None:
        """A link to the same process; a link that never stood (incarnation 0) may mean any."""
        for link in self._all_links:
            if link.up and address in _names(link) and incarnation in (0, link.incarnation):
                return link
        return None

    def _drop(self, link: Link) -> None:
        link.close()
        self._all_links.pop(link, None)
        self._blocked.pop(link, None)
        for address in _names(link):
            if self._links.get(address) is link:
                del self._links[address]
        if isinstance(link, AcceptedLink) and self._accepted.get(link.identity) is link:
            del self._accepted[link.identity]

    # --- dialling ---------------------------------------------------------------------

    def _dial(self, address: str) -> Link:
        if self._context is None or address == self.address:
            raise PeerUnreachable(f"there is no way from {self.address} to {address}")
        until, reason = self._refused_until.get(address, (0.0, ""))
        if self._loop.time() < until:
            raise PeerUnreachable(f"{address} cannot be reached: {reason}")
        try:
            link = DialedLink(self, self._context, address)
        except zmq.ZMQError as error:
            raise PeerUnreachable(f"{address} cannot be dialled: {error.strerror}") from error
        self._all_links[link] = None
        self._links[address] = link
        return link

    # --- the ROUTER -------------------------------------------------------------------

    def _retry(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for link in blocked:
            link.flush()

    def _receive(self) -> int:
        identity = self._router.recv(zmq.NOBLOCK)
        payload = self._router.recv(zmq.NOBLOCK, copy=False)
        if payload.more:
            return self._reject_rest()
        try:
            received = wire.decode(payload.buffer)
        except FrameRejected:
            self.frames_rejected += 1
            return 1
        link = self._accepted.get(identity)
        if isinstance(received, list) and link is not None:
            self.frames_received(link, received)
            return len(received) or 1
        if isinstance(received, wire.Hello):
            self._greet(identity, received, payload.get(zmq.SRCFD))
        else:
            self.frames_rejected += 1
        return 1

    def _reject_rest(self) -> int:
        while self._router.getsockopt(zmq.RCVMORE):
            self._router.recv(zmq.NOBLOCK)
        self.frames_rejected += 1
        return 1

    def _greet(self, identity: bytes, hello: wire.Hello, descriptor: int) -> None:
        # A former connection may have had the same descriptor: hear of its end before the number is
        # used again.
        self._greeting = True
        self._monitor_reader.drain()
        self._greeting = False
        self._ungreeted.discard(descriptor)
        reason = wire.refusal_of(hello, identity)
        if reason is not None:
            self.frames_rejected += 1
            log.warning("peer_refused", peer=hello.address, reason=reason)
            self._answer(identity, wire.Refusal(reason))
            return
        former = self._accepted.get(identity)
        if former is not None:
            self.link_lost(former, "reconnected")
        if not self._answer(
            identity, wire.Welcome(PROTOCOL_VERSION, self.address, self.incarnation)
        ):
            return
        link = AcceptedLink(self, self._router, self._reader, hello, identity, descriptor)
        self._accepted[identity] = link
        self._all_links[link] = None
        self.link_up(link)

    def _answer(self, identity: bytes, answer: wire.Welcome | wire.Refusal) -> bool:
        try:
            self._router.send_multipart([identity, wire.encode(answer)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._reader.poke()
        return True

    def _receive_event(self) -> int:
        event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
        descriptor = event["value"]
        if event["event"] == zmq.EVENT_ACCEPTED:
            self._ungreeted.add(descriptor)
        elif descriptor in self._ungreeted:
            self._ungreeted.discard(descriptor)
            self.frames_rejected += 1
        else:
            ended = [li for li in self._accepted.values() if li.descriptor == descriptor]
            if ended and not self._greeting:
                self._reader.drain()  # what it said before it went comes first
            for link in ended:
                self.link_lost(link, "disconnected")
        return 1


def _names(link: Link) -> tuple[str, ...]:
    """The addresses by which a link's peer is known: its own, and the one that was dialled."""
    if isinstance(link, DialedLink) and link.dialed != link.address:
        return (link.address, link.dialed)
    return (link.address,)
