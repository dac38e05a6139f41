"""A control network inside one event loop, for tests and simulation.

`MemoryNetwork` joins any number of `MemoryTransport`s and can delay, lose, duplicate and reorder
frames, cut the network in both directions or in one, and stop or crash a process. It behaves as
connections over TCP do: a short partition stalls frames and delivers them after it heals, a
partition longer than `heartbeat_timeout_s` ends the connection on both sides, and so does a process
that is stopped for so long, unless the one that made the connection has no heartbeats. The key of a
process is its name, and nobody else can have it.

Invariants: every chance is drawn from the generator that was handed in and all waiting goes through
the loop's clock, so one seed on a virtual-time loop gives one history; without reordering, frames
of a pair stay in order whatever their delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass

from spotlight.errors import AddressInUse, FrameRejected, PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control.bad_input import CutOffs, clipped
from spotlight.transport.control.base import TransportListener
from spotlight.transport.control.codec import FRAME_LIMIT
from spotlight.transport.control.dialect import ANY_DIALECT
from spotlight.transport.control.dials import Dials
from spotlight.transport.control.guests import Guests
from spotlight.transport.control.keys import key_of
from spotlight_simulation.memory_connection import MemoryConnection


@dataclass
class Faults:
    """What happens to frames on their way. May be changed while the network runs."""

    delay_s: tuple[float, float] = (0.0002, 0.0008)
    """Least and greatest time under way, drawn uniformly."""
    loss: float = 0.0
    """Probability that a frame vanishes."""
    duplication: float = 0.0
    """Probability that a frame arrives twice."""
    reordering: float = 0.0
    """Probability that later frames overtake a frame."""
    overtaken_by_s: float = 0.01
    """Greatest additional time under way of a frame that is overtaken."""
    spares: Callable[[str, str, bytes], bool] = lambda source, destination, frame: False
    """Whether a frame between two addresses is never lost, duplicated or overtaken."""

    @property
    def are_there(self) -> bool:
        """Whether frames can be lost, duplicated or overtaken now."""
        return bool(self.loss or self.duplication or self.reordering)

    def harmless(self) -> Faults:
        """The same time under way, and nothing is lost, duplicated or overtaken."""
        return Faults(self.delay_s)


class MemoryNetwork:
    """Joins memory transports. Addresses are `memory://NAME`."""

    def __init__(
        self,
        rng: random.Random,
        faults: Faults | None = None,
        *,
        times: ConnectionTimings = ConnectionTimings(),
        dials_at_once: int = 64,
        outbox_limit: int = 4096,
    ) -> None:
        self.faults = faults or Faults()
        self.rng = rng
        self.times = times
        self.dials_at_once = dials_at_once
        self.outbox_limit = outbox_limit
        self.frames_sent = 0
        self.frames_lost = 0
        self.frames_duplicated = 0
        self.frames_overtaken = 0
        self.frames_stopped = 0
        """Sent into a partition."""
        self.context = copy_context()
        """The context of frames under way: they belong to no process."""
        self.started: dict[str, MemoryTransport] = {}
        self.connections: dict[MemoryConnection, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._paused: set[str] = set()
        self._incarnations = 0

    def transport(
        self, name: str, *, heartbeats: bool = True, guests: Guests | None = None
    ) -> MemoryTransport:
        """A transport that is not started yet; one name may be used again after the former
        transport closed. See `ZeroMQSettings.heartbeats`. Without `guests` nobody is one yet."""
        self._incarnations += 1
        known = guests if guests is not None else Guests()
        return MemoryTransport(self, f"memory://{name}", self._incarnations, heartbeats, known)

    def partition(
        self, left: Iterable[str], right: Iterable[str], *, one_way: bool = False
    ) -> None:
        """Stop all frames from addresses in `left` to those in `right`, and the other way unless
        `one_way`."""
        rights = list(right)
        for a in left:
            for b in rights:
                self._cuts.add((a, b))
                if not one_way:
                    self._cuts.add((b, a))
        for connection in list(self.connections):
            connection.cut()

    def isolate(self, address: str) -> None:
        """Cut one process off from all others that are started, as freezing it would."""
        self.partition([address], [other for other in self.started if other != address])

    def heal(self, cuts: Iterable[tuple[str, str]] | None = None) -> None:
        """End all partitions, or only these (from, to): stalled frames go on, lost connections stay
        lost."""
        if cuts is None:
            self._cuts.clear()
        else:
            self._cuts.difference_update(cuts)
        for connection in list(self.connections):
            connection.heal()

    def pause(self, address: str) -> None:
        """The process there is stopped: others hear nothing of it, and it nothing of them."""
        self._paused.add(address)
        for connection in list(self.connections):
            connection.cut()

    def resume(self, address: str) -> None:
        """The process there goes on."""
        self._paused.discard(address)
        self.heal(())

    def is_cut(self, a: str, b: str) -> bool:
        """Whether nothing gets through from `a` to `b`."""
        return self.is_parted(a, b) or (a in self._paused) != (b in self._paused)

    def is_parted(self, a: str, b: str) -> bool:
        """Whether no packet gets through from the machine of `a` to that of `b`."""
        return (a, b) in self._cuts

    # --- called by transports and connections -----------------------------------------

    def register(self, transport: MemoryTransport) -> None:
        """A process started. Raises `AddressInUse`."""
        if transport.address in self.started:
            raise AddressInUse(f"{transport.address} is in use; close the other transport first")
        self.started[transport.address] = transport
        for connection in list(self.connections):
            connection.heal()

    def unregister(self, transport: MemoryTransport) -> None:
        """A process is gone."""
        if self.started.get(transport.address) is transport:
            del self.started[transport.address]

    def dial(self, source: MemoryTransport, address: str) -> MemoryConnection:
        """A new connection from a process to an address, which need not be there."""
        connection = MemoryConnection(self, source, address)
        self.connections[connection] = None
        return connection

    def delay(self) -> float:
        """A time under way for one frame, in seconds."""
        return self.rng.uniform(*self.faults.delay_s)


class MemoryTransport:
    """One process's end of a `MemoryNetwork`. Made by `MemoryNetwork.transport`."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: str,
        incarnation: int,
        heartbeats: bool,
        guests: Guests,
    ) -> None:
        self.network = network
        self.address = address
        self.incarnation = incarnation
        self.heartbeats = heartbeats
        self.guests = guests
        self.dialect = ANY_DIALECT
        self.listener: TransportListener | None = None
        self.cut_offs = CutOffs()
        self._drained: asyncio.Future[None] | None = None
        self._connections: dict[str, MemoryConnection] = {}
        self._dials = Dials(
            pause_s=network.times.redial_after_s,
            longest_pause_s=network.times.longest_redial_s,
            at_once=network.dials_at_once,
        )

    async def start(self, listener: TransportListener) -> None:
        """Begin to receive. Raises `AddressInUse`."""
        self.network.register(self)
        self.listener = listener

    def send(self, address: str, frame: bytes) -> None:
        """Queue a frame. Raises `PeerUnreachable`, `MailboxFull` or `FrameRejected`."""
        if self.listener is None:
            raise PeerUnreachable(f"{self.address} is closed")
        if len(frame) > FRAME_LIMIT:
            raise FrameRejected(f"a frame of {len(frame)} bytes is over the limit of {FRAME_LIMIT}")
        connection = self._connections.get(address)
        if connection is None:
            if address == self.address:
                raise PeerUnreachable(f"there is no way from {self.address} to {address}")
            reason = self._dials.refusal(address, asyncio.get_running_loop().time())
            if not self.knows(address):
                reason = "its key is not known here"
            if reason:
                raise PeerUnreachable(f"{address} cannot be reached: {reason}")
            connection = self._connections[address] = self.network.dial(self, address)
            self._dials.began(address)
        connection.send(self, frame)

    def cut_off(self, address: str, reason: str) -> None:
        """Hear nothing more from a process, and tell it why."""
        connection = self._connections.get(address)
        peer = connection.peer_of(self) if connection is not None else None
        if connection is not None and peer is not None:
            self.cut_offs.add(address, peer.incarnation, reason)
            connection.refuse(self, f"cut off: {clipped(reason)}")

    def dismiss(self, key: str, reason: str) -> None:
        """Take no connections of a key any more, and end those that it has."""
        self.guests.forget(key)
        for address, connection in list(self._connections.items()):
            if key_of(address) == key:
                connection.refuse(self, reason)

    async def aclose(self) -> None:
        """Deliver what is queued within one second, then disconnect."""
        self._drained = asyncio.get_running_loop().create_future()
        self.flushed()
        await asyncio.wait((self._drained,), timeout=1.0)
        self._leave("closed")

    def abort(self) -> None:
        """Disconnect at once, as if the process were killed."""
        self._leave("disconnected")

    def _leave(self, reason: str) -> None:
        if self.listener is None:
            return
        self.listener = None
        self.network.unregister(self)
        for connection in list(self._connections.values()):
            connection.end_left(self, reason)
        self._connections.clear()

    # --- called by connections --------------------------------------------------------

    def knows(self, address: str) -> bool:
        """Whether whoever is there is a guest."""
        return self.guests.role(key_of(address)) is not None

    def flushed(self) -> None:
        """Frames were delivered: let a closing transport go on once all have been."""
        drained = self._drained
        if drained is None or drained.done():
            return
        if not any(c.has_queued(self) for c in self._connections.values()):
            drained.set_result(None)

    def connected(self, connection: MemoryConnection, peer: MemoryTransport) -> None:
        """A connection to a peer stands."""
        former = self._connections.get(peer.address)
        if former is not None and former is not connection:
            former.superseded_by(connection, self)
        self._connections[peer.address] = connection
        if connection.dialer is self or (former is not None and former.dialer is self):
            self._dials.reached(peer.address)
        if self.listener is not None:
            self.listener.peer_up(peer.address, peer.incarnation)

    def lost(
        self, connection: MemoryConnection, address: str, incarnation: int, reason: str
    ) -> None:
        """A connection is over; incarnation 0 if its peer was never reached."""
        if self._connections.get(address) is connection:
            del self._connections[address]
        if incarnation == 0:
            self._dials.failed(address, reason, asyncio.get_running_loop().time())
        if self.listener is not None:
            self.listener.peer_lost(address, incarnation, reason)
