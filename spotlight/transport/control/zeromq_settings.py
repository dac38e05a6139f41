"""Times and bounds of a `ZeroMQTransport`, and the socket options that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq

from spotlight.timings import ConnectionTimings
from spotlight.transport import descriptors
from spotlight.transport.control import wire

_BACKLOG = 1024
"""Connections that the system holds until libzmq accepts them: strangers must not fill this before
a peer comes."""


_DIALED_SOCKETS = 3
"""libzmq's for each connection that we make: its own, and two that tell of its end."""
_OWN_SOCKETS = 8


@dataclass(frozen=True)
class ZeroMQSettings:
    """Times and bounds of a transport. Those of connections follow from the descriptors that the
    process may have: all of them together leave some for files and stores."""

    times: ConnectionTimings = ConnectionTimings()
    connections: int = field(default_factory=lambda: min(8192, descriptors.limit() // 2))
    """So many connections of others may there be; beyond it the one goes that was silent for the
    longest time."""
    strangers: int = 256
    """Of these, so many may have said nothing that was taken; beyond it the oldest goes."""
    dialed: int = field(default_factory=lambda: min(1024, descriptors.limit() // 32))
    """So many connections are made from here. Each takes four descriptors."""
    dials_at_once: int = 64
    """So many of these may be under way."""
    high_water_mark: int = 128
    """ZeroMQ messages (batches) that libzmq queues for one peer."""
    outbox_frames: int = 4096
    """Frames that wait in front of libzmq for one peer."""
    outbox_bytes: int = 64 * 1024 * 1024

    @property
    def sockets(self) -> int:
        """How many of libzmq's there may be."""
        return self.dialed * _DIALED_SOCKETS + _OWN_SOCKETS

    def apply(self, socket: zmq.Socket[bytes], *, ipv6: bool) -> None:
        """Set the options that all sockets share."""
        milliseconds = {
            zmq.HEARTBEAT_IVL: self.times.heartbeat_interval_s,
            zmq.HEARTBEAT_TIMEOUT: self.times.heartbeat_timeout_s,
            zmq.HEARTBEAT_TTL: self.times.heartbeat_timeout_s + self.times.heartbeat_interval_s,
            zmq.HANDSHAKE_IVL: self.times.handshake_timeout_s,
            zmq.RECONNECT_IVL: self.times.reconnect_s,
            zmq.RECONNECT_IVL_MAX: self.times.longest_reconnect_s,
        }
        for option, seconds in milliseconds.items():
            socket.setsockopt(option, round(seconds * 1000))
        socket.setsockopt(zmq.SNDHWM, self.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, self.high_water_mark)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_LIMIT)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))
