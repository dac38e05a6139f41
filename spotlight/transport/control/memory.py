"""A control network inside one event loop, for tests and simulation.

`MemoryNetwork` joins any number of `MemoryTransport`s and can delay, lose, duplicate and reorder
frames, cut the network in both directions or in one, and crash a process. It behaves as connections
over TCP do: a short partition stalls frames and delivers them after it heals, a partition longer
than `heartbeat_timeout_s` ends the connection on both sides.

Invariants: every chance is drawn from the generator that was handed in and all waiting goes through
the loop's clock, so one seed on a virtual-time loop gives one history; without reordering, frames
of a pair stay in order whatever their delays.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from spotlight.errors import AddressInUse, FrameRejected, MailboxFull, PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control.bad_input import CutOffs, clipped
from spotlight.transport.control.base import TransportListener
from spotlight.transport.control.codec import FRAME_LIMIT
from spotlight.transport.control.dials import Dials


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


_NO_FAULTS = Faults()


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
        """That of frames under way: they belong to no process."""
        self._started: dict[str, MemoryTransport] = {}
        self._connections: dict[_Connection, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._paused: set[str] = set()
        self._incarnations = 0

    def transport(self, name: str) -> MemoryTransport:
        """A transport that is not started yet; one name may be used again after the former
        transport closed."""
        self._incarnations += 1
        return MemoryTransport(self, f"memory://{name}", self._incarnations)

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
        for connection in list(self._connections):
            connection.cut()

    def isolate(self, address: str) -> None:
        """Cut one process off from all others that are started, as freezing it would."""
        self.partition([address], [other for other in self._started if other != address])

    def heal(self, cuts: Iterable[tuple[str, str]] | None = None) -> None:
        """End all partitions, or only these (from, to): stalled frames go on, lost connections stay
        lost."""
        if cuts is None:
            self._cuts.clear()
        else:
            self._cuts.difference_update(cuts)
        for connection in list(self._connections):
            connection.heal()

    def pause(self, address: str) -> None:
        """The process there is stopped: others hear nothing of it, and it nothing of them."""
        self._paused.add(address)
        for connection in list(self._connections):
            connection.cut()

    def resume(self, address: str) -> None:
        """The process there goes on."""
        self._paused.discard(address)
        self.heal(())

    def is_cut(self, a: str, b: str) -> bool:
        """Whether nothing gets through from `a` to `b`."""
        return (a, b) in self._cuts or (a in self._paused) != (b in self._paused)

    # --- called by transports ---------------------------------------------------------

    def _register(self, transport: MemoryTransport) -> None:
        if transport.address in self._started:
            raise AddressInUse(f"{transport.address} is in use; close the other transport first")
        self._started[transport.address] = transport
        for connection in list(self._connections):
            connection.heal()

    def _unregister(self, transport: MemoryTransport) -> None:
        if self._started.get(transport.address) is transport:
            del self._started[transport.address]

    def _dial(self, source: MemoryTransport, address: str) -> _Connection:
        connection = _Connection(self, source, address)
        self._connections[connection] = None
        return connection

    def _delay(self) -> float:
        return self.rng.uniform(*self.faults.delay_s)


class MemoryTransport:
    """One process's end of a `MemoryNetwork`. Made by `MemoryNetwork.transport`."""

    def __init__(self, network: MemoryNetwork, address: str, incarnation: int) -> None:
        self.network = network
        self.address = address
        self.incarnation = incarnation
        self.listener: TransportListener | None = None
        self.cut_offs = CutOffs()
        self._drained: asyncio.Future[None] | None = None
        self._connections: dict[str, _Connection] = {}
        self._dials = Dials(
            pause_s=network.times.redial_after_s,
            longest_pause_s=network.times.longest_redial_s,
            at_once=network.dials_at_once,
        )

    async def start(self, listener: TransportListener) -> None:
        """Begin to receive. Raises `AddressInUse`."""
        self.network._register(self)
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
            if reason:
                raise PeerUnreachable(f"{address} cannot be reached: {reason}")
            connection = self._connections[address] = self.network._dial(self, address)
            self._dials.began(address)
        connection.send(self, frame)

    def cut_off(self, address: str, reason: str) -> None:
        """Hear nothing more from a process, and tell it why."""
        connection = self._connections.get(address)
        peer = connection.peer_of(self) if connection is not None else None
        if connection is not None and peer is not None:
            self.cut_offs.add(address, peer.incarnation, reason)
            connection.refuse(self, f"cut off: {clipped(reason)}")

    async def aclose(self) -> None:
        """Deliver what is queued within one second, then disconnect."""
        self._drained = asyncio.get_running_loop().create_future()
        self._flushed()
        await asyncio.wait((self._drained,), timeout=1.0)
        self._leave("closed")

    def abort(self) -> None:
        """Disconnect at once, as if the process were killed."""
        self._leave("disconnected")

    def _flushed(self) -> None:
        drained = self._drained
        if drained is None or drained.done():
            return
        if not any(c.has_queued(self) for c in self._connections.values()):
            drained.set_result(None)

    def _leave(self, reason: str) -> None:
        if self.listener is None:
            return
        self.listener = None
        self.network._unregister(self)
        for connection in list(self._connections.values()):
            connection.end_left(self, reason)
        self._connections.clear()

    # --- called by connections --------------------------------------------------------

    def _connected(self, connection: _Connection, peer: MemoryTransport) -> None:
        former = self._connections.get(peer.address)
        if former is not None and former is not connection:
            former.superseded_by(connection, self)
        self._connections[peer.address] = connection
        if connection.dialer is self or (former is not None and former.dialer is self):
            self._dials.reached(peer.address)
        if self.listener is not None:
            self.listener.peer_up(peer.address, peer.incarnation)

    def _lost(self, connection: _Connection, address: str, incarnation: int, reason: str) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        if incarnation == 0:
            self._dials.failed(address, reason, asyncio.get_running_loop().time())
        if self.listener is not None:
            self.listener.peer_lost(address, incarnation, reason)


class _Pipe:
    """Frames in one direction of a connection, in order of sending."""

    def __init__(self) -> None:
        self.frames: deque[tuple[float, bytes]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Connection:
    """Two processes and a pipe each way: dialling, then up, then closed."""

    def __init__(self, network: MemoryNetwork, dialer: MemoryTransport, address: str) -> None:
        self.network = network
        self.dialer = dialer
        self.address = address
        self.acceptor: MemoryTransport | None = None
        self.closed = False
        self._ending = False
        """One end is gone and the other does not know yet."""
        self._refuser: MemoryTransport | None = None
        """The end that hears nothing more, and has said so to its listener."""
        self._loop = asyncio.get_running_loop()
        self._pipes = {dialer.address: _Pipe(), address: _Pipe()}
        self._connecting: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = self._later(
            network.times.connect_timeout_s, self._close, "unreachable"
        )
        self._try_connect()

    # --- life cycle -------------------------------------------------------------------

    def _try_connect(self) -> None:
        if self._connecting is None and not self._is_cut() and self._target() is not None:
            self._connecting = self._later(self.network._delay(), self._connect)

    def _target(self) -> MemoryTransport | None:
        return self.network._started.get(self.address)

    def _is_cut(self) -> bool:
        a, b = self._pipes
        return self.network.is_cut(a, b) or self.network.is_cut(b, a)

    def _connect(self) -> None:
        self._connecting = None
        target = self._target()
        if self.closed or target is None or self._is_cut():
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.acceptor = target
        for one, other in ((target, self.dialer), (self.dialer, target)):
            reason = one.cut_offs.reason(other.address, other.incarnation)
            if reason is not None:
                if one is target and target.listener is not None:
                    target.listener.input_rejected(other.address, "cut_off", reason)
                self._close_unmet(reason if one is self.dialer else f"refused: {reason}")
                return
        target._connected(self, self.dialer)
        self.dialer._connected(self, target)
        self._arm(self.dialer.address)

    def peer_of(self, transport: MemoryTransport) -> MemoryTransport | None:
        """The other end; None while it is not reached."""
        return self.acceptor if transport is self.dialer else self.dialer

    def refuse(self, by: MemoryTransport, reason: str) -> None:
        """One end hears nothing more; the other learns it a little later."""
        peer = self.peer_of(by)
        if self.closed or self._ending or peer is None:
            return
        self._ending = True
        self._refuser = by
        self._end(by, peer.address, peer.incarnation, reason)
        if self._deadline is None:
            self._deadline = self._later(self.network._delay(), self._close, f"refused: {reason}")

    def superseded_by(self, newer: _Connection, owner: MemoryTransport) -> None:
        """The peer of `owner` came with a newer connection: it crossed this dialling one, or is a
        new process."""
        if self.acceptor is None and self.dialer is owner:
            frames = self._pipes[owner.address].frames
            newer._pipes[owner.address].frames.extend(frames)
            frames.clear()
            self._forget()
            newer._arm(owner.address)
        else:
            self._close("replaced by a new process")

    def cut(self) -> None:
        """A partition began somewhere; start the time-out if it is across this connection."""
        if self.acceptor is not None and self._is_cut() and self._deadline is None:
            limit_s = self.network.times.heartbeat_timeout_s
            self._deadline = self._later(limit_s, self._close, "unreachable")

    def heal(self) -> None:
        """Partitions ended, or a process started."""
        if self.acceptor is None:
            self._try_connect()
        elif not self._ending and not self._is_cut():
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            for address in self._pipes:
                self._arm(address)

    def end_left(self, transport: MemoryTransport, reason: str) -> None:
        """One end is gone; the other learns it a little later, or by its time-out."""
        if self.acceptor is None:
            self._forget()
            return
        self._pipes[transport.address].frames.clear()
        self._pipes[transport.address].stop()
        self._ending = True
        if self._deadline is None:
            delay = (
                self.network.times.heartbeat_timeout_s if self._is_cut() else self.network._delay()
            )
            self._deadline = self._later(delay, self._close, reason)

    def _forget(self) -> None:
        self.closed = True
        self.network._connections.pop(self, None)
        for pipe in self._pipes.values():
            pipe.stop()
        for timer in (self._deadline, self._connecting):
            if timer is not None:
                timer.cancel()

    def _close_unmet(self, reason: str) -> None:
        """End a connection of which only the dialer knows."""
        self.acceptor = None
        self._close(reason)

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self._forget()
        acceptor = self.acceptor
        if self._refuser is not self.dialer:
            incarnation = acceptor.incarnation if acceptor else 0
            self._end(self.dialer, self.address, incarnation, reason)
        if acceptor is not None and self._refuser is not acceptor:
            self._end(acceptor, self.dialer.address, self.dialer.incarnation, reason)

    def _end(self, end: MemoryTransport, peer: str, incarnation: int, reason: str) -> None:
        end._lost(self, peer, incarnation, reason)
        for _, frame in self._pipes[end.address].frames:
            if end.listener is not None:
                end.listener.frame_undelivered(peer, frame)
        self._pipes[end.address].frames.clear()

    # --- frames -----------------------------------------------------------------------

    def has_queued(self, sender: MemoryTransport) -> bool:
        return bool(self._pipes[sender.address].frames)

    def send(self, sender: MemoryTransport, frame: bytes) -> None:
        """Put a frame under way, through the faults of the network."""
        network, pipe = self.network, self._pipes[sender.address]
        if len(pipe.frames) >= network.outbox_limit:
            raise MailboxFull(f"{len(pipe.frames)} frames are already queued for this peer")
        faults, rng = network.faults, network.rng
        if faults.are_there and faults.spares(sender.address, self._other(sender.address), frame):
            faults = _NO_FAULTS
        network.frames_sent += 1
        if faults.loss and rng.random() < faults.loss:
            network.frames_lost += 1
            return
        network.frames_stopped += self._is_stopped(sender.address)
        copies = 2 if faults.duplication and rng.random() < faults.duplication else 1
        network.frames_duplicated += copies - 1
        for _ in range(copies):
            due = self._loop.time() + network._delay()
            if faults.reordering and rng.random() < faults.reordering:
                due += rng.uniform(0, faults.overtaken_by_s)
                network.frames_overtaken += 1
                late = due - self._loop.time()
                self._later(late, self._arrive_late, sender.address, frame)
                continue
            pipe.frames.append((due, frame))
        if pipe.timer is None:
            self._arm(sender.address)

    def _arrive_late(self, source: str, frame: bytes) -> None:
        if not self.closed:
            self._pipes[source].frames.appendleft((self._loop.time(), frame))
            self._arm(source)

    def _arm(self, source: str) -> None:
        """Set the timer of one direction to its first frame, unless it cannot be delivered now."""
        pipe = self._pipes[source]
        pipe.stop()
        waits = pipe.frames and not self.closed and self.acceptor is not None
        if waits and not self._is_stopped(source):
            due = pipe.frames[0][0]
            pipe.timer = self._loop.call_at(
                due, self._deliver, source, context=self.network.context
            )

    def _is_stopped(self, source: str) -> bool:
        return self.network.is_cut(source, self._other(source))

    def _other(self, address: str) -> str:
        a, b = self._pipes
        return b if address == a else a

    def _later(self, seconds: float, callback: Callable[..., None], *args: Any) -> TimerHandle:
        return self._loop.call_later(seconds, callback, *args, context=self.network.context)

    def _deliver(self, source: str) -> None:
        """Deliver what is due in one direction."""
        frames = self._pipes[source].frames
        receiver = self.acceptor if source == self.dialer.address else self.dialer
        due = frames[0][0]
        while frames and frames[0][0] <= due:
            _, frame = frames.popleft()
            if (
                receiver is not None
                and receiver is not self._refuser
                and receiver.listener is not None
            ):
                receiver.listener.frame_received(source, frame)
        self._arm(source)
        sender = self.dialer if source == self.dialer.address else self.acceptor
        if sender is not None:
            sender._flushed()
