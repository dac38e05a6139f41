"""The control transport between real processes: ZeroMQ over TCP.

Each process binds one ROUTER and makes one DEALER for each peer that it sends to first; all actors
of a process share them. A peer that connected to us is answered over its own connection, so a node
behind NAT needs no way in.

All connections are encrypted, and both ends have proved their keys before either says anything
(`Doorkeeper`). A guest who says what no process of ours does is told why and not heard any more:
its connection ends, and its incarnation is refused from then on (`CutOffs`). Connections are
bounded in number (`OpenConnections`), and so is whom we connect to (`Dials`).

Why the options are what they are (`ZeroMQSettings.apply`): without ROUTER_MANDATORY a send to an
unknown peer succeeds and the message is gone; without TCP_KEEPALIVE and TCP_MAXRT a machine that is
cut off is never noticed. These two are the system's and cost next to nothing. libzmq's heartbeats
show a frozen process, too, but each one searches the timers of all connections. So only processes
that watch, or are watched, send them (`ZeroMQSettings.heartbeats`), and only on connections that
they made: whoever is pinged answers, and notices when no more pings come (`SilentPeers`). libzmq
answers from its own thread, so heartbeats never show a stuck actor loop: leases do that.

A process is lost when its last connection ends: the monitor of the socket says so for a closed or
timed-out connection.
"""

from __future__ import annotations

import asyncio
import re
import time

import zmq

from spotlight.errors import FrameRejected, MailboxFull, PeerUnreachable, UserError
from spotlight.transport.control.bad_input import BadInput, CutOffs, Rejection, clipped
from spotlight.transport.control.base import TransportListener
from spotlight.transport.control.codec import FRAME_LIMIT
from spotlight.transport.control.dialect import ANY_DIALECT, Dialect
from spotlight.transport.control.dials import Dials
from spotlight.transport.control.doorkeeper import Doorkeeper
from spotlight.transport.control.guests import Guests
from spotlight.transport.control.keys import KeyPair, key_of, place_of
from spotlight.transport.control.links import AcceptedLink, DialedLink, Link
from spotlight.transport.control.router import Router
from spotlight.transport.control.zeromq_settings import ZeroMQSettings


class ZeroMQTransport:
    """One process's end of the control network over TCP."""

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        keys: KeyPair | None = None,
        guests: Guests | None = None,
        dialect: Dialect = ANY_DIALECT,
        advertise: str | None = None,
        settings: ZeroMQSettings | None = None,
    ) -> None:
        """`keys` are fresh unless given, and `guests` nobody. Port 0 of `bind` chooses a free one.
        `advertise` is where others reach this process, without its key: the bound place unless
        given; required when binding to all interfaces; its port 0 stands for the bound one. Behind
        NAT it need not be reachable."""
        self._keys = keys or KeyPair.new()
        self.guests = guests if guests is not None else Guests()
        self.dialect = dialect
        self.address = f"{place_of(advertise or bind)}/{self._keys.public}"
        self.incarnation = time.time_ns() // 1_000_000
        self.settings = settings or ZeroMQSettings()
        self._bind = bind
        self._advertise = advertise
        self._listener: TransportListener | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._links: dict[str, Link] = {}
        """The link that frames to an address take."""
        self._all_links: dict[Link, None] = {}
        self._standing: dict[str, dict[Link, None]] = {}
        """The links that are up, by address."""
        self._peers: dict[str, int] = {}
        """Incarnations of the processes that are up."""
        self._dialed = 0
        """Links that we made."""
        self._dials = Dials(
            pause_s=self.settings.times.redial_after_s,
            longest_pause_s=self.settings.times.longest_redial_s,
            at_once=self.settings.dials_at_once,
        )
        self._drained: asyncio.Future[None] | None = None
        self._cut_offs = CutOffs()

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
        self._context.set(zmq.MAX_SOCKETS, self.settings.sockets)
        self.door = Doorkeeper(self._context, self._keys, self.guests, self)
        try:
            self.router = Router(self, self._context, self._bind, self._cut_offs)
        except UserError:
            self.door.close()
            self._context.destroy(0)
            self._context = None
            raise
        place = self.router.endpoint
        if self._advertise is not None:
            port = place.rpartition(":")[2]
            place = re.sub(r":0\Z", f":{port}", self._advertise)
        self.address = f"{place}/{self._keys.public}"
        self._listener = listener

    def send(self, address: str, frame: bytes) -> None:
        """Queue a frame. Raises `PeerUnreachable`, `MailboxFull` or `FrameRejected`."""
        link = self._links.get(address)
        if link is None:
            link = self._dial(address)
        if len(frame) > FRAME_LIMIT:
            raise FrameRejected(f"a frame of {len(frame)} bytes is over the limit of {FRAME_LIMIT}")
        if not link.queue(frame):
            raise MailboxFull(f"{len(link.outbox)} frames are already queued for {address}")

    def cut_off(self, address: str, reason: str) -> None:
        """Hear nothing more from a process, and tell it why."""
        for link in list(self._standing.get(address, ())):
            self._cut_offs.add(link.address, link.incarnation, reason)
            self.refuse(link, f"cut off: {clipped(reason)}")

    def dismiss(self, key: str, reason: str) -> None:
        """Take no connections of a key any more, and end those that it has."""
        self.guests.forget(key)
        for link in [link for link in self._all_links if key_of(link.address) == key]:
            self.refuse(link, reason)

    async def aclose(self) -> None:
        """Send what is queued within `linger_s`, then disconnect."""
        if self._context is None:
            return
        self._drained = self._loop.create_future()
        self.link_flushed()
        await asyncio.wait((self._drained,), timeout=self.settings.times.linger_s)
        if self.router.has_links():
            # A ROUTER that closes drops what libzmq's own thread has not taken yet, whatever its
            # LINGER says, and nothing tells when it has.
            await asyncio.sleep(self.settings.times.handover_s)
        self._close(linger_ms=round(self.settings.times.linger_s * 1000))

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
        self._standing.clear()
        self._links.clear()
        self.router.close(linger_ms)
        self.door.close()
        context.destroy(linger_ms)  # waits for slow peers, but no longer than that

    # --- for its links ----------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """A link's peer is known: make it the way there, unless another link is already."""
        self._all_links[link] = None
        reason = self._cut_offs.reason(link.address, link.incarnation)
        if reason is not None:
            self.refuse(link, reason)
            return
        known = self._peers.get(link.address)
        if known is not None and known != link.incarnation:
            self._lose(link.address, "replaced by a new process", spare=link)
        if isinstance(link, DialedLink):
            self._dials.reached(link.dialed)
        else:
            self._end_former(link)
        for address in _names(link):
            self._standing.setdefault(address, {})[link] = None
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
        if isinstance(link, DialedLink) and link not in self._standing.get(link.dialed, ()):
            self._dials.failed(link.dialed, reason, self._loop.time())
        self._drop(link)
        unsent = link.outbox.drain()
        for address in _names(link):
            other = self._another_link(address, link.incarnation)
            if other is not None:
                self._links[address] = other
                unsent = [frame for frame in unsent if not other.queue(frame)]
            else:
                incarnation = self._peers.pop(address, 0)
                if self._listener is not None:
                    self._listener.peer_lost(address, incarnation, reason)
        for frame in unsent:
            if self._listener is not None:
                self._listener.frame_undelivered(link.address, frame)

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
            self.router.retry_later(link)

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """Hand on the frames of one batch."""
        for frame in frames:
            if self._listener is None or link.closed:
                return
            self._listener.frame_received(link.address, frame)

    def input_rejected(self, link: Link, error: BadInput) -> None:
        """A peer sent what no process of ours does: cut it off."""
        self.report_rejected(link.address, error.reason, str(error))
        if link.up:
            self.cut_off(link.address, str(error))
        else:
            self.refuse(link, f"refused: {error}")

    # --- for its router ---------------------------------------------------------------

    def report_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Count what was not taken."""
        if self._listener is not None:
            self._listener.input_rejected(address, reason, detail)

    def refuse(self, link: Link, reason: str) -> None:
        """End a link, and tell its peer why."""
        link.refuse(reason)
        self.link_lost(link, reason)

    def report_other_version(self, address: str, dialect: Dialect) -> None:
        """Tell whom we do not understand."""
        if self._listener is not None:
            self._listener.other_version(address, dialect)

    # --- links ------------------------------------------------------------------------

    def _end_former(self, newer: Link) -> None:
        """A process that connects again has noticed an end that was not noticed here yet."""
        for link in list(self._standing.get(newer.address, ())):
            if isinstance(link, AcceptedLink) and link.incarnation == newer.incarnation:
                self.link_lost(link, "reconnected")

    def _lose(self, address: str, reason: str, *, spare: Link) -> None:
        for link in list(self._standing.get(address, ())):
            if link is not spare:
                self.link_lost(link, reason)

    def _another_link(self, address: str, incarnation: int) -> Link | None:
        """A link to the same process; a link that never stood (incarnation 0) may mean any."""
        for link in self._standing.get(address, ()):
            if incarnation in (0, link.incarnation):
                return link
        return None

    def _drop(self, link: Link) -> None:
        link.close()
        self._all_links.pop(link, None)
        for address in _names(link):
            if self._links.get(address) is link:
                del self._links[address]
            standing = self._standing.get(address, {})
            standing.pop(link, None)
            if not standing:
                self._standing.pop(address, None)
        if isinstance(link, DialedLink):
            self._dialed -= 1
        if isinstance(link, AcceptedLink):
            self.router.forget(link)

    # --- dialling ---------------------------------------------------------------------

    def _dial(self, address: str) -> Link:
        if self._context is None or address == self.address:
            raise PeerUnreachable(f"there is no way from {self.address} to {address}")
        if self.guests.role(key_of(address)) is None:
            raise PeerUnreachable(f"{address} has a key that is not known here, or none at all")
        reason = self._dials.refusal(address, self._loop.time())
        if not reason and self._dialed >= self.settings.dialed:
            reason = f"there are {self._dialed} connections from here already"
        if reason:
            raise PeerUnreachable(f"{address} cannot be reached: {reason}")
        try:
            link = DialedLink(self, self._context, address)
        except (zmq.ZMQError, ValueError) as error:
            raise PeerUnreachable(f"{address} cannot be dialled: {error}") from error
        self._dials.began(address)
        self._dialed += 1
        self._all_links[link] = None
        self._links[address] = link
        return link


def _names(link: Link) -> tuple[str, ...]:
    """The addresses by which a link's peer is known: its own, and the one that was dialled."""
    if isinstance(link, DialedLink) and link.dialed != link.address:
        return (link.address, link.dialed)
    return (link.address,)
