"""The bound ROUTER of a `ZeroMQTransport`: who connects to it, greets, and is answered over its own
connection.

Only guests get so far (`Doorkeeper`), and each speaks for the key that it has proved alone: the
address of a greeting must be one of that key. libzmq gives every connection a name of its own, and
keeps it from whoever else says that it has that name; so nobody is taken for another.

The monitor of the socket says which connections come and end. It names a connection by its
descriptor, so an accepted link remembers the descriptor that its greeting came by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from spotlight.errors import AddressInUse, UserError
from spotlight.transport.control import wire
from spotlight.transport.control.bad_input import BadInput, CutOffs, clipped
from spotlight.transport.control.codec import PROTOCOL_VERSION
from spotlight.transport.control.keys import key_of, place_of
from spotlight.transport.control.links import AcceptedLink
from spotlight.transport.control.open_connections import OpenConnections
from spotlight.transport.control.partial_message_guard import PartialMessageGuard
from spotlight.transport.control.reader import SocketReader, open_monitor, receive_message
from spotlight.transport.control.silent_peers import SilentPeers
from spotlight.transport.control.tcp import Connections

if TYPE_CHECKING:
    from spotlight.transport.control.zeromq import ZeroMQTransport

_MOST_OF_A_KEY = 64
"""Connections: of a user's commands, or of a process that connects again."""


class Router:
    """See the module's docstring."""

    def __init__(
        self,
        owner: ZeroMQTransport,
        context: zmq.Context[zmq.Socket[bytes]],
        bind: str,
        cut_offs: CutOffs,
    ) -> None:
        """Bind. Raises `AddressInUse`, or `UserError` when the address cannot be bound at all."""
        self._owner = owner
        self._cut_offs = cut_offs
        self._links: dict[bytes, AcceptedLink] = {}
        """The links, by the name that libzmq knows the connection by."""
        self._descriptors: dict[int, AcceptedLink] = {}
        self._of_key: dict[str, dict[AcceptedLink, None]] = {}
        """The links of each key, in the order in which they came; no entry is empty."""
        self._blocked: dict[AcceptedLink, None] = {}
        """Links whose peers read too slowly."""
        self._receiving = False
        """A message is being handled: none of later ones may be, in between."""
        self._socket = context.socket(zmq.ROUTER)
        owner.settings.apply(self._socket, ipv6="[" in bind)
        owner.door.secure_bound(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._monitor = open_monitor(
            context, self._socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        )
        try:
            self._socket.bind(place_of(bind))
        except zmq.ZMQError as error:
            self._close_sockets(0)
            if error.errno == zmq.EADDRINUSE:
                raise AddressInUse(
                    f"{bind} is in use by another process; choose another port, or 0 for any"
                ) from error
            raise UserError(
                f"cannot bind {bind}: {error.strerror}; give an address of this machine"
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where it is bound, with the port that was chosen."""
        self._connections = Connections(int(self.endpoint.rpartition(":")[2]))
        settings = owner.settings
        self.open = OpenConnections(
            self._connections,
            limit=settings.connections,
            farewell_s=settings.times.farewell_s,
            owner=self,
        )
        """All connections to it."""
        self._guard = PartialMessageGuard(
            self._connections,
            owner=self,
            period_s=settings.times.guard_period_s,
            limit=2 * wire.MESSAGE_LIMIT,
        )
        self._silent_peers = SilentPeers(self._connections, owner=self, times=settings.times)
        self.monitor_reader = SocketReader(self._monitor, self._receive_event)
        """Reads which connections come and end."""
        self._reader = SocketReader(self._socket, self._receive, self._retry)

    def has_links(self) -> bool:
        """Whether anybody is connected who said whose connection it is."""
        return bool(self._links)

    def retry_later(self, link: AcceptedLink) -> None:
        """libzmq takes no more for a link: it is tried again when the socket wakes up."""
        self._blocked[link] = None

    def forget(self, link: AcceptedLink) -> None:
        """A link is over: its connection ends a moment later, so that the reason is sent first."""
        self._blocked.pop(link, None)
        if self._links.get(link.identity) is link:
            del self._links[link.identity]
        if self._descriptors.get(link.descriptor) is link:
            del self._descriptors[link.descriptor]
            self.open.show_out(link.descriptor)
        key = key_of(link.address)
        of_key = self._of_key.get(key, {})
        of_key.pop(link, None)
        if not of_key:
            self._of_key.pop(key, None)

    def close(self, linger_ms: int) -> None:
        """Stop receiving; libzmq sends what it holds within `linger_ms`."""
        self.open.close()
        self._guard.close()
        self._silent_peers.close()
        self._connections.close()
        self._reader.close()
        self.monitor_reader.close()
        self._close_sockets(linger_ms)

    def _close_sockets(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _retry(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for link in blocked:
            link.flush()

    def _receive(self) -> int:
        identity = self._socket.recv(zmq.NOBLOCK)
        payload, whole = receive_message(self._socket)
        link = self._links.get(identity)
        self._receiving = True
        try:
            if link is not None:
                return self._receive_from(link, payload, whole)
            self._greet(identity, payload, whole)
        finally:
            self._receiving = False
        return 1

    def _receive_from(self, link: AcceptedLink, payload: zmq.Frame, whole: bool) -> int:
        self._guard.delivered(link.descriptor)
        try:
            received = wire.decode(payload.buffer, whole=whole)
            if isinstance(received, list):
                self._owner.frames_received(link, received)
                if self._descriptors.get(link.descriptor) is link:
                    self.open.heard(link.descriptor)
                return len(received) or 1
            if isinstance(received, wire.Refusal):
                self._owner.link_lost(link, f"refused: {clipped(received.reason)}")
            else:
                raise BadInput("malformed", f"{type(received).__name__} is out of place")
        except BadInput as error:
            self._owner.input_rejected(link, error)
        return 1

    def _greet(self, identity: bytes, payload: zmq.Frame, whole: bool) -> None:
        """The first message of a connection should say whose it is."""
        descriptor = int(payload.get(zmq.SRCFD))
        self._guard.delivered(descriptor)
        # A former connection may have had the same descriptor: hear of its end before the number is
        # used again.
        self.monitor_reader.drain()
        if self.open.is_leaving(descriptor):
            self._owner.report_rejected("", "cut_off", "a connection went on after it was cut off")
            return
        if not self.open.is_waiting(descriptor):
            return  # it has ended since: nobody could be answered
        address = ""
        try:
            hello = wire.decode(payload.buffer, whole=whole)
            if not isinstance(hello, wire.Hello):
                raise BadInput("no_greeting", "a connection began without a greeting")
            address = hello.address
            self._check(hello, self._owner.door.key_of_sender(payload))
        except BadInput as error:
            self._owner.report_rejected(address, error.reason, str(error))
            self._turn_away(identity, descriptor, str(error))
            return
        theirs, ours = hello.dialect, self._owner.dialect
        if theirs != ours:
            self._owner.report_other_version(address, theirs)
            self._turn_away(identity, descriptor, theirs.refusal(ours))
        else:
            self._welcome(identity, descriptor, hello)

    def _turn_away(self, identity: bytes, descriptor: int, reason: str) -> None:
        if self._answer(identity, wire.Refusal(reason, self._owner.dialect)):
            self.open.show_out(descriptor)  # else it has ended already

    def _welcome(self, identity: bytes, descriptor: int, hello: wire.Hello) -> None:
        owner = self._owner
        welcome = wire.Welcome(PROTOCOL_VERSION, owner.address, owner.incarnation, owner.dialect)
        if not self._answer(identity, welcome):
            return
        self.open.heard(descriptor)
        link = AcceptedLink(owner, self._socket, self._reader, hello, identity, descriptor)
        self._links[identity] = self._descriptors[descriptor] = link
        of_key = self._of_key.setdefault(key_of(link.address), {})
        of_key[link] = None
        if hello.heartbeats:
            self._silent_peers.expect_pings(descriptor)
        owner.link_up(link)
        if len(of_key) > _MOST_OF_A_KEY:  # nobody shall take the places of all others
            text = f"over {_MOST_OF_A_KEY} connections of one key"
            owner.report_rejected(link.address, "no_room", text)
            owner.refuse(next(iter(of_key)), text)

    def _check(self, hello: wire.Hello, key: str) -> None:
        if key_of(hello.address) != key:
            raise BadInput(
                "not_allowed",
                f"{hello.address} is not an address of the key that its sender has proved, {key}",
            )
        owner = self._owner
        if owner.guests.role(key) is None:  # it was dismissed after it had come in
            raise BadInput("not_admitted", f"the key {key} is no guest's")
        reason = self._cut_offs.reason(hello.address, hello.incarnation)
        if reason is not None:
            raise BadInput("cut_off", reason)

    def _answer(self, identity: bytes, answer: wire.Welcome | wire.Refusal) -> bool:
        try:
            self._socket.send_multipart([identity, wire.encode(answer)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._reader.poke()
        return True

    def _receive_event(self) -> int:
        event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
        descriptor = event["value"]
        if event["event"] == zmq.EVENT_ACCEPTED:
            self.open.arrived(descriptor)
            self._guard.arrived(descriptor)
            return 1
        self._guard.gone(descriptor)
        self._silent_peers.gone(descriptor)
        ended = self._descriptors.pop(descriptor, None)
        if self.open.gone(descriptor):
            self._owner.report_rejected(
                "", "no_greeting", "a connection ended before it said whose it is"
            )
        elif ended is not None:
            if not self._receiving:
                self._reader.drain()  # what it said before it went comes first
            self._owner.link_lost(ended, "disconnected")
        return 1

    def turned_away(self, descriptor: int) -> None:
        """A connection was ended, as there was no room for all."""
        link = self._descriptors.pop(descriptor, None)
        text = f"over {self._owner.settings.connections} connections"
        self._owner.report_rejected("" if link is None else link.address, "no_room", text)
        if link is not None:
            self._owner.link_lost(link, text)

    def end_partial(self, descriptor: int) -> None:
        """End a connection that sends a message without end."""
        error = BadInput("oversized", "a message of several parts, without end")
        link = self._descriptors.get(descriptor)
        if link is not None:
            self._owner.input_rejected(link, error)
        elif not self.open.is_leaving(descriptor):
            self._owner.report_rejected("", error.reason, str(error))
        self.open.end(descriptor)  # every moment would bring more

    def end_silent(self, descriptor: int) -> None:
        """End a connection whose peer has fallen silent."""
        link = self._descriptors.get(descriptor)
        if link is not None:
            self._owner.link_lost(link, "no heartbeats")

    def drain(self) -> None:
        """Read what has arrived, ends of connections first."""
        self.monitor_reader.drain()
        self._reader.drain()
