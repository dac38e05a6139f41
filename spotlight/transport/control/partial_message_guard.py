"""Finds guests that send parts of a message without end. Nobody else gets so far: before the
handshake libzmq takes no parts.

libzmq hands on a message when its last part has come, limits the size of each part, and counts only
whole messages against the high-water mark: nothing bounds the parts of one message. So connections
are looked at in turn: how much has one received since its last whole message? The system must be
asked for every one, so only so many are looked at at a time, however many there are.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from spotlight.transport.control.tcp import Connections

if TYPE_CHECKING:
    from spotlight.transport.control.router import Router

LOOKS = 256
"""Connections whose turn it is in a period; beyond so many, each has its turn less often."""
_HEARTBEAT_BYTES = 128
"""Allowed in each period for heartbeats, which no message accounts for."""


class PartialMessageGuard:
    """Connections by the number of their descriptor, and what they had received when they were last
    known to owe nothing."""

    def __init__(
        self,
        connections: Connections,
        *,
        owner: Router,
        period_s: float,
        limit: int,
    ) -> None:
        """Looks every `period_s`. A connection may hold back `limit` bytes; the owner hears of one
        that holds back more."""
        self._owner = owner
        self._connections = connections
        self._period_s = period_s
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._settled: dict[int, tuple[int, int]] = {}
        """Bytes, and the period in which that was so; whoever is next comes first."""
        self._period = 0
        self._delivered: set[int] = set()
        """Connections with a whole message since they were looked at."""
        self._suspects: dict[int, None] = {}
        """Connections that were over their limit at the last look. A loop that had stalled may not
        have come to read what they sent; by the next look, one period later, it has."""
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, descriptor: int) -> None:
        """A connection was accepted."""
        self.gone(descriptor)
        self._settled[descriptor] = (0, self._period)
        if self._timer is None:
            self._timer = self._loop.call_later(self._period_s, self._look)

    def delivered(self, descriptor: int) -> None:
        """A whole message came."""
        if descriptor in self._settled:
            self._delivered.add(descriptor)

    def gone(self, descriptor: int) -> None:
        """A connection ended."""
        self._settled.pop(descriptor, None)
        self._suspects.pop(descriptor, None)
        self._delivered.discard(descriptor)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self._owner.drain()
        self._period += 1
        suspects, self._suspects = self._suspects, {}
        for descriptor in suspects | dict.fromkeys(islice(self._settled, LOOKS)):
            if descriptor in self._settled:  # else it ended meanwhile
                self._look_at(descriptor, again=descriptor in suspects)
        if self._settled:
            self._timer = self._loop.call_later(self._period_s, self._look)

    def _look_at(self, descriptor: int, *, again: bool) -> None:
        before, period = self._settled.pop(descriptor)
        settled = before + _HEARTBEAT_BYTES * (self._period - period)
        received = self._connections.bytes_received(descriptor)
        has_delivered = descriptor in self._delivered
        self._delivered.discard(descriptor)
        self._settled[descriptor] = (before, period)
        if received is None:
            return
        if has_delivered:
            self._settled[descriptor] = (received, self._period)
        elif received - before <= self._limit:
            self._settled[descriptor] = (min(received, settled), self._period)
        elif again:
            self._settled[descriptor] = (received, self._period)
            self._owner.end_partial(descriptor)
        else:
            self._suspects[descriptor] = None
