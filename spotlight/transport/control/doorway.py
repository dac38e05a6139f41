"""The connections at a bound port that belong to no peer: those that have not said whose they are,
and those that are being shown out.

libzmq has no call that ends one connection of a ROUTER; shutting down the TCP connection beneath
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from spotlight.transport.control import tcp

SHOW_OUT_S = 0.2
"""Time for a refusal to reach the peer before its connection ends."""


class Doorway:
    """Connections by the number of their descriptor, each with the time that it has left."""

    def __init__(
        self,
        port: int,
        *,
        limit: int,
        patience_s: float,
        hear: Callable[[], None],
        turned_away: Callable[[Literal["no_greeting", "too_many_waiting"], str], None],
    ) -> None:
        """At most `limit` connections wait, for at most `patience_s`. `hear` reads what has arrived
        already, so that nobody is turned away whose greeting is here; `turned_away` is told of each
        that is."""
        self._port = port
        self._limit = limit
        self._patience_s = patience_s
        self._hear = hear
        self._turned_away = turned_away
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        """In the order in which they came."""
        self._leaving: dict[int, asyncio.TimerHandle] = {}
        self._making_room: asyncio.Handle | None = None

    def __len__(self) -> int:
        """How many connections wait or leave."""
        return len(self._waiting) + len(self._leaving)

    def is_waiting(self, descriptor: int) -> bool:
        """Whether a connection may still say whose it is."""
        return descriptor in self._waiting

    def arrived(self, descriptor: int) -> None:
        """A connection was accepted by libzmq."""
        self.gone(descriptor)
        self._waiting[descriptor] = self._loop.call_later(
            self._patience_s, self._lose_patience, descriptor
        )
        if len(self._waiting) > self._limit and self._making_room is None:
            self._making_room = self._loop.call_soon(self._make_room)

    def gone(self, descriptor: int) -> bool:
        """A connection ended or was let in; True if it was waiting."""
        leaving = self._leaving.pop(descriptor, None)
        waiting = self._waiting.pop(descriptor, None)
        for timer in (leaving, waiting):
            if timer is not None:
                timer.cancel()
        return waiting is not None

    def show_out(self, descriptor: int) -> None:
        """End a connection, a moment later so that the reason is sent first."""
        self.gone(descriptor)
        self._leaving[descriptor] = self._loop.call_later(SHOW_OUT_S, self._see_off, descriptor)

    def close(self) -> None:
        """Forget all; the socket that holds the connections is closing."""
        for descriptor in (*self._waiting, *self._leaving):
            self.gone(descriptor)
        if self._making_room is not None:
            self._making_room.cancel()

    def _see_off(self, descriptor: int) -> None:
        self._hear()
        if descriptor in self._leaving:
            self._end(descriptor)

    def _lose_patience(self, descriptor: int) -> None:
        self._hear()
        if descriptor in self._waiting:
            self._end(descriptor)
            self._turned_away("no_greeting", f"no greeting within {self._patience_s:g} s")

    def _make_room(self) -> None:
        self._making_room = None
        self._hear()
        # The oldest go: a process of ours greets at once, so what has waited longest is none.
        while len(self._waiting) > self._limit:
            self._end(next(iter(self._waiting)))
            self._turned_away("too_many_waiting", f"over {self._limit} connections did not greet")

    def _end(self, descriptor: int) -> None:
        self.gone(descriptor)
        tcp.shut_down(descriptor, self._port)
