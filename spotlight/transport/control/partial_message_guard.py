"""Finds connections that send parts of a message without end.

libzmq hands on a message when its last part has come, limits the size of each part, and counts only
whole messages against the high-water mark: nothing bounds the parts of one message. So every
connection is looked at now and then: how much has it received since its last whole message?
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotlight.transport.control.tcp import Connections

PERIOD_S = 0.25
_HEARTBEAT_BYTES = 64
"""Allowed in each period for heartbeats, which no message accounts for."""


class Hoarding:
    """Connections by the number of their descriptor, and what they had received when they were last
    known to owe nothing."""

    def __init__(
        self,
        connections: Connections,
        *,
        limit_of: Callable[[int], int],
        hear: Callable[[], None],
        found: Callable[[int], None],
    ) -> None:
        """`limit_of` says how many bytes a connection may hold back, `hear` reads what has arrived,
        `found` is told of a connection that holds back more."""
        self._connections = connections
        self._limit_of = limit_of
        self._hear = hear
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._settled: dict[int, int] = {}
        self._delivered: set[int] = set()
        """Connections with a whole message since the last look."""
        self._suspects: set[int] = set()
        """Over their limit at the last look. A loop that had stalled may not have come to read what
        they sent; by the next look it has."""
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, descriptor: int) -> None:
        """A connection was accepted."""
        self.gone(descriptor)
        self._settled[descriptor] = 0
        if self._timer is None:
            self._timer = self._loop.call_later(PERIOD_S, self._look)

    def delivered(self, descriptor: int) -> None:
        """A whole message came."""
        self._delivered.add(descriptor)

    def gone(self, descriptor: int) -> None:
        """A connection ended."""
        self._settled.pop(descriptor, None)
        self._suspects.discard(descriptor)
        self._delivered.discard(descriptor)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self._hear()
        suspects, self._suspects = self._suspects, set()
        for descriptor in list(self._settled):
            received = self._connections.bytes_received(descriptor)
            if received is None:
                continue
            if descriptor in self._delivered:
                self._settled[descriptor] = received
            elif received - self._settled[descriptor] > self._limit_of(descriptor):
                if descriptor in suspects:
                    self._settled[descriptor] = received
                    self._found(descriptor)
                else:
                    self._suspects.add(descriptor)
            else:
                self._settled[descriptor] = min(
                    received, self._settled[descriptor] + _HEARTBEAT_BYTES
                )
        self._delivered.clear()
        if self._settled:
            self._timer = self._loop.call_later(PERIOD_S, self._look)
