"""Which of the peers that ping us have fallen silent: their process is frozen or unreachable.

libzmq would tell only if this end pinged as well: the time that a ping carries, after which the
other end may give up, is forgotten with the next message. But the system knows when a connection
last received anything, whatever else this process does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spotlight.timings import ConnectionTimings
from spotlight.transport.control.tcp import Connections

if TYPE_CHECKING:
    from spotlight.transport.control.router import Router


class SilentPeers:
    """Connections by the number of their descriptor."""

    def __init__(
        self,
        connections: Connections,
        *,
        owner: Router,
        times: ConnectionTimings,
    ) -> None:
        """Looks every `heartbeat_interval_s`. The owner hears of a connection on which nothing has
        come for `heartbeat_timeout_s` and the time between two pings."""
        self._owner = owner
        self._connections = connections
        self._period_s = times.heartbeat_interval_s
        self._limit_s = times.heartbeat_timeout_s + times.heartbeat_interval_s
        self._pinging: dict[int, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect_pings(self, descriptor: int) -> None:
        """The peer of a connection has said that it pings."""
        self._pinging[descriptor] = None
        if self._timer is None:
            self._look_later()

    def gone(self, descriptor: int) -> None:
        """A connection ended."""
        self._pinging.pop(descriptor, None)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._owner.drain()
        for descriptor in list(self._pinging):
            silent_s = self._connections.silent_s(descriptor)
            if silent_s is not None and silent_s > self._limit_s and descriptor in self._pinging:
                del self._pinging[descriptor]
                self._owner.end_silent(descriptor)
        if self._pinging:
            self._look_later()
