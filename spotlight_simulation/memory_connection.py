"""A connection of a `MemoryNetwork`: two processes, the frames that are under way between them, and
what the network's faults do to these.

It behaves as a connection over TCP does: dialled, up, stalled by a short partition, ended on both
sides by a long one.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spotlight.errors import MailboxFull
from spotlight.transport.control.base import NOT_ADMITTED

if TYPE_CHECKING:
    from spotlight_simulation.memory_network import MemoryNetwork, MemoryTransport


class _Pipe:
    """Frames in one direction of a connection, in order of sending."""

    def __init__(self) -> None:
        self.frames: deque[tuple[float, bytes]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class MemoryConnection:
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
            self._connecting = self._later(self.network.delay(), self._connect)

    def _target(self) -> MemoryTransport | None:
        return self.network.started.get(self.address)

    def _is_cut(self) -> bool:
        a, b = self._pipes
        return self.network.is_cut(a, b) or self.network.is_cut(b, a)

    def _is_missed(self) -> bool:
        """Whether anything notices that frames do not get through."""
        a, b = self._pipes
        parted = self.network.is_parted(a, b) or self.network.is_parted(b, a)
        return parted or (self.dialer.heartbeats and self._is_cut())

    def _connect(self) -> None:
        self._connecting = None
        target = self._target()
        if self.closed or target is None or self._is_cut():
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not target.knows(self.dialer.address) or not self.dialer.knows(self.address):
            self._close(NOT_ADMITTED)
            return
        self.acceptor = target
        for one, other in ((target, self.dialer), (self.dialer, target)):
            reason = one.cut_offs.reason(other.address, other.incarnation)
            if reason is not None:
                if one is target and target.listener is not None:
                    target.listener.input_rejected(other.address, "cut_off", reason)
                self._close_unmet(reason if one is self.dialer else f"refused: {reason}")
                return
        target.connected(self, self.dialer)
        self.dialer.connected(self, target)
        self._arm(self.dialer.address)

    def peer_of(self, transport: MemoryTransport) -> MemoryTransport | None:
        """The other end; None while it is not reached."""
        return self.acceptor if transport is self.dialer else self.dialer

    def refuse(self, by: MemoryTransport, reason: str) -> None:
        """One end hears nothing more; the other learns it a little later, if it is there."""
        peer = self.peer_of(by)
        if self.closed or self._refuser is by:
            return
        if self._ending or peer is None:
            self._close(reason)
            return
        self._ending = True
        self._refuser = by
        self._end(by, peer.address, peer.incarnation, reason)
        if self._deadline is None:
            self._deadline = self._later(self.network.delay(), self._close, f"refused: {reason}")

    def superseded_by(self, newer: MemoryConnection, owner: MemoryTransport) -> None:
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
        if self.acceptor is not None and self._is_missed() and self._deadline is None:
            self._deadline = self._later(
                self.network.times.heartbeat_timeout_s, self._close, "unreachable"
            )

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
                self.network.times.heartbeat_timeout_s if self._is_cut() else self.network.delay()
            )
            self._deadline = self._later(delay, self._close, reason)

    def _forget(self) -> None:
        self.closed = True
        self.network.connections.pop(self, None)
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
        end.lost(self, peer, incarnation, reason)
        for _, frame in self._pipes[end.address].frames:
            if end.listener is not None:
                end.listener.frame_undelivered(peer, frame)
        self._pipes[end.address].frames.clear()

    # --- frames -----------------------------------------------------------------------

    def has_queued(self, sender: MemoryTransport) -> bool:
        """Whether frames of one end are still under way."""
        return bool(self._pipes[sender.address].frames)

    def send(self, sender: MemoryTransport, frame: bytes) -> None:
        """Put a frame under way, through the faults of the network."""
        network, pipe = self.network, self._pipes[sender.address]
        if len(pipe.frames) >= network.outbox_limit:
            raise MailboxFull(f"{len(pipe.frames)} frames are already queued for this peer")
        faults, rng = network.faults, network.rng
        if faults.are_there and faults.spares(sender.address, self._other(sender.address), frame):
            faults = faults.harmless()
        network.frames_sent += 1
        if faults.loss and rng.random() < faults.loss:
            network.frames_lost += 1
            return
        network.frames_stopped += self._is_stopped(sender.address)
        copies = 2 if faults.duplication and rng.random() < faults.duplication else 1
        network.frames_duplicated += copies - 1
        for _ in range(copies):
            due = self._loop.time() + network.delay()
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
            sender.flushed()
