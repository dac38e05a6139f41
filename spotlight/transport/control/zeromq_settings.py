"""Times and bounds of a `ZeroMQTransport`, and the socket options that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import zmq

from spotlight.timings import ConnectionTimings
from spotlight.transport import descriptors
from spotlight.transport.control import wire

_BACKLOG = 1024
"""Connections that the system holds until libzmq accepts them."""


_DIALED_SOCKETS = 3
"""libzmq's for each connection that we make: its own, and two that tell of its end."""
_OWN_SOCKETS = 8


@dataclass(frozen=True)
class ZeroMQSettings:
    """Times and bounds of a transport. Those of connections follow from the descriptors that the
    process may have: all of them together leave some for files and stores."""

    times: ConnectionTimings = ConnectionTimings()
    heartbeats: bool = True
    """Whether this process pings whom it connects to. One without is not watched and watches
    nobody: that it is frozen is not noticed by its connections, only that it has ended or that its
    machine is gone. What all heartbeats cost grows faster than their number."""
    connections: int = field(default_factory=lambda: min(16_384, descriptors.limit() // 2))
    """Most connections of others, those of 1,000 nodes of eight workers among them; beyond it one
    goes that has proved no key yet, or else was silent for the longest time."""
    dialed: int = field(default_factory=lambda: min(1024, descriptors.limit() // 32))
    """Most connections that are made from here. Each takes four descriptors."""
    dials_at_once: int = 64
    """Most of these that may be under way at the same time."""
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
        _set_times(
            socket,
            {
                zmq.TCP_MAXRT: self.times.heartbeat_timeout_s,
                zmq.HANDSHAKE_IVL: self.times.handshake_timeout_s,
                zmq.RECONNECT_IVL: self.times.reconnect_s,
                zmq.RECONNECT_IVL_MAX: self.times.longest_reconnect_s,
            },
        )
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, math.ceil(self.times.keepalive_s))
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, math.ceil(self.times.heartbeat_timeout_s))
        socket.setsockopt(zmq.SNDHWM, self.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, self.high_water_mark)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_LIMIT)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))

    def apply_heartbeats(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket that is going to connect ping its peer."""
        if self.heartbeats:
            _set_times(
                socket,
                {
                    zmq.HEARTBEAT_IVL: self.times.heartbeat_interval_s,
                    zmq.HEARTBEAT_TIMEOUT: self.times.heartbeat_timeout_s,
                },
            )


def _set_times(socket: zmq.Socket[bytes], seconds: dict[int, float]) -> None:
    for option, value in seconds.items():
        socket.setsockopt(option, round(value * 1000))
