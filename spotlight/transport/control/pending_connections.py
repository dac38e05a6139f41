"""The connections at a bound port: who may stay, for how long, and who goes if there are too many.

A connection is a stranger's until it has said whose it is and then something that was taken: a
process of ours does both at once, since it connects because it has something to say. Strangers are
few and have little time. Peers may be silent for as long as they like while there is room; when
there is none, the one goes that has been silent for the longest time. libzmq's own heartbeats do
not count: it sends them for whoever is stuck, too.

libzmq has no call that ends one connection of a ROUTER; shutting down the TCP connection beneath
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from spotlight.timings import ConnectionTimings
from spotlight.transport.control.tcp import Connections

TurnedAway = Literal["no_greeting", "silent", "too_many_waiting", "no_room"]


class PendingConnections:
    """Connections by the number of their descriptor."""

    def __init__(
        self,
        connections: Connections,
        *,
        limit: int,
        strangers: int,
        times: ConnectionTimings,
        drain: Callable[[], None],
        turned_away: Callable[[int, TurnedAway, str], None],
    ) -> None:
        """At most `limit` connections, and at most `strangers` of strangers, who greet within
        `connect_timeout_s` and say something within `silence_s`. `drain` reads what has arrived
        already, so that nobody is turned away whose word is here. `turned_away` is told of each
        that is; all but the `silent` are gone by then, and these are to be told why and shown
        out."""
        self._connections = connections
        self._limit = limit
        self._most_strangers = min(strangers, limit)
        self._times = times
        self._drain = drain
        self._turned_away = turned_away
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[int, asyncio.TimerHandle] = {}
        """In the order in which they came."""
        self._greeted: set[int] = set()
        """Strangers that said whose they are."""
        self._peers: dict[int, float] = {}
        """When they were heard; the one that has been silent for the longest time comes first."""
        self._leaving: dict[int, asyncio.TimerHandle] = {}
        self._making_room: asyncio.Handle | None = None

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._strangers) + len(self._peers) + len(self._leaving)

    @property
    def strangers(self) -> int:
        """How many of them are strangers'."""
        return len(self._strangers)

    def may_greet(self, descriptor: int) -> bool:
        """Whether a connection may still say whose it is."""
        return descriptor in self._strangers and descriptor not in self._greeted

    def arrived(self, descriptor: int) -> None:
        """A connection was accepted by libzmq."""
        self.gone(descriptor)
        self._wait(descriptor, self._times.connect_timeout_s)
        if self._is_crowded and self._making_room is None:
            self._making_room = self._loop.call_soon(self._make_room)

    def greeted(self, descriptor: int) -> None:
        """A stranger said whose it is."""
        self._greeted.add(descriptor)
        self._strangers[descriptor].cancel()
        self._wait(descriptor, self._times.silence_s)

    def heard(self, descriptor: int) -> None:
        """A connection brought something that was taken."""
        if self._peers.pop(descriptor, None) is None:
            self.gone(descriptor)
        self._peers[descriptor] = self._loop.time()

    def gone(self, descriptor: int) -> bool:
        """A connection ended; True if it had not said whose it was."""
        nameless = self.may_greet(descriptor)
        for timers in (self._strangers, self._leaving):
            timer = timers.pop(descriptor, None)
            if timer is not None:
                timer.cancel()
        self._greeted.discard(descriptor)
        self._peers.pop(descriptor, None)
        return nameless

    def show_out(self, descriptor: int) -> None:
        """End a connection, a moment later so that the reason is sent first."""
        self.gone(descriptor)
        self._leaving[descriptor] = self._loop.call_later(
            self._times.farewell_s, self._see_off, descriptor
        )

    def close(self) -> None:
        """Forget all; the socket that holds the connections is closing."""
        for descriptor in (*self._strangers, *self._leaving):
            self.gone(descriptor)
        if self._making_room is not None:
            self._making_room.cancel()

    def _wait(self, descriptor: int, patience_s: float) -> None:
        self._strangers[descriptor] = self._loop.call_later(
            patience_s, self._lose_patience, descriptor
        )

    def _see_off(self, descriptor: int) -> None:
        self._drain()
        if descriptor in self._leaving:
            self._end(descriptor)

    def _lose_patience(self, descriptor: int) -> None:
        self._drain()
        if descriptor not in self._strangers:
            return
        if descriptor in self._greeted:
            text = f"nothing but a greeting within {self._times.silence_s:g} s"
            self._turned_away(descriptor, "silent", text)
        else:
            text = f"no greeting within {self._times.connect_timeout_s:g} s"
            self._turn_away(descriptor, "no_greeting", text)

    @property
    def _is_crowded(self) -> bool:
        return len(self._strangers) > self._most_strangers or len(self) > self._limit

    def _make_room(self) -> None:
        self._making_room = None
        self._drain()
        while len(self) > self._limit and self._leaving:
            self._end(next(iter(self._leaving)))
        while len(self._strangers) > self._most_strangers:
            # The oldest go: a process of ours speaks at once, so what has waited longest is none.
            text = f"over {self._most_strangers} connections said nothing"
            self._turn_away(next(iter(self._strangers)), "too_many_waiting", text)
        while len(self) > self._limit:
            text = f"over {self._limit} connections"
            self._turn_away(self._least_needed(), "no_room", text)

    def _least_needed(self) -> int:
        silent = next(iter(self._peers), None)
        quiet = silent is not None and self._loop.time() - self._peers[silent] > self._times.quiet_s
        stranger = None if quiet else next(iter(self._strangers), None)
        found = silent if stranger is None else stranger
        assert found is not None, "there are connections, and they are somebody's"
        return found

    def _turn_away(self, descriptor: int, reason: TurnedAway, text: str) -> None:
        self._end(descriptor)
        self._turned_away(descriptor, reason, text)

    def _end(self, descriptor: int) -> None:
        self.gone(descriptor)
        self._connections.shut_down(descriptor)
