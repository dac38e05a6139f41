"""The connections at a bound port: how many there may be, and who goes if there are too many.

A connection waits until its first message has come: it has to prove a key before that, and libzmq
ends it if it does not in time. Then it is a guest's, who may be silent for as long as there is
room. When there is none, whoever has waited for longest goes if more than a few wait, else the
guest who has been silent for longest. libzmq's own heartbeats do not count: it sends them for
whoever is stuck, too.

libzmq has no call that ends one connection of a ROUTER; shutting down the TCP connection beneath
does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spotlight.transport.control.tcp import Connections

if TYPE_CHECKING:
    from spotlight.transport.control.router import Router


class OpenConnections:
    """Connections by the number of their descriptor.

    Args:
        limit: of their number.
        farewell_s: so long one that is shown out stays, so that the reason is sent first.
        owner: reads what has arrived already, so that nobody is turned away whose word is here, and
            hears of each that had to go for want of room, and is gone.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        limit: int,
        farewell_s: float,
        owner: Router,
    ) -> None:
        self._connections = connections
        self._limit = limit
        self._places_to_wait = max(1, limit // 8)
        self._farewell_s = farewell_s
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, None] = {}
        """Those that wait, in the order in which they came."""
        self._guests: dict[int, None] = {}
        """The one that has been silent for the longest time comes first."""
        self._leaving: dict[int, asyncio.TimerHandle] = {}
        self._making_room: asyncio.Handle | None = None

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._waiting) + len(self._guests) + len(self._leaving)

    def is_waiting(self, descriptor: int) -> bool:
        """Whether it has brought nothing yet, and may."""
        return descriptor in self._waiting

    def is_leaving(self, descriptor: int) -> bool:
        """Whether nothing that it says counts any more."""
        return descriptor in self._leaving

    def arrived(self, descriptor: int) -> None:
        """A connection was accepted by libzmq."""
        self.gone(descriptor)
        self._waiting[descriptor] = None
        if len(self) > self._limit and self._making_room is None:
            self._making_room = self._loop.call_soon(self._make_room)

    def heard(self, descriptor: int) -> None:
        """A guest's connection brought something."""
        if descriptor in self._guests:
            del self._guests[descriptor]
        else:
            self.gone(descriptor)
        self._guests[descriptor] = None

    def gone(self, descriptor: int) -> bool:
        """A connection ended; True if it had brought nothing."""
        timer = self._leaving.pop(descriptor, None)
        if timer is not None:
            timer.cancel()
        self._guests.pop(descriptor, None)
        brought_nothing = descriptor in self._waiting
        self._waiting.pop(descriptor, None)
        return brought_nothing

    def show_out(self, descriptor: int) -> None:
        """End a connection, a moment later so that the reason is sent first."""
        self.gone(descriptor)
        self._leaving[descriptor] = self._loop.call_later(
            self._farewell_s, self._see_off, descriptor
        )

    def end(self, descriptor: int) -> None:
        """End a connection at once."""
        self.gone(descriptor)
        self._connections.shut_down(descriptor)

    def close(self) -> None:
        """Forget all; the socket that holds the connections is closing."""
        for descriptor in list(self._leaving):
            self.gone(descriptor)
        if self._making_room is not None:
            self._making_room.cancel()

    def _see_off(self, descriptor: int) -> None:
        self._owner.drain()
        if descriptor in self._leaving:
            self.end(descriptor)

    def _make_room(self) -> None:
        self._making_room = None
        self._owner.drain()
        while len(self) > self._limit:
            least_needed = self._least_needed()
            self.end(least_needed)
            self._owner.turned_away(least_needed)

    def _least_needed(self) -> int:
        crowd = self._waiting if len(self._waiting) > self._places_to_wait else self._guests
        return next(iter(self._leaving or crowd))
