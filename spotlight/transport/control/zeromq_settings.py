"""Times and bounds of a `ZeroMQTransport`, and the socket options that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from spotlight.transport.control import wire

_BACKLOG = 1024
"""Connections that the system holds until libzmq accepts them: strangers must not fill this before
a peer comes."""


@dataclass(frozen=True)
class ZeroMQSettings:
    """Times and bounds of a transport."""

    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 1.5
    connect_timeout_s: float = 3.0
    """A peer that was not reached for so long is given up, and so is a connection that has not said
    whose it is."""
    handshake_timeout_s: float = 2.0
    """libzmq's own greeting must be over by then."""
    waiting_connections: int = 256
    """So many connections may be about to say whose they are; beyond it the oldest goes."""
    redial_after_s: float = 0.5
    """A peer that was given up is not dialled again for so long."""
    high_water_mark: int = 128
    """ZeroMQ messages (batches) that libzmq queues for one peer."""
    outbox_frames: int = 4096
    """Frames that wait in front of libzmq for one peer."""
    outbox_bytes: int = 64 * 1024 * 1024
    linger_s: float = 0.5
    """How long a closing transport tries to send what is queued."""

    def apply(self, socket: zmq.Socket[bytes], *, ipv6: bool) -> None:
        """Set the options that all sockets share."""
        milliseconds = {
            zmq.HEARTBEAT_IVL: self.heartbeat_interval_s,
            zmq.HEARTBEAT_TIMEOUT: self.heartbeat_timeout_s,
            zmq.HEARTBEAT_TTL: self.heartbeat_timeout_s + self.heartbeat_interval_s,
            zmq.HANDSHAKE_IVL: self.handshake_timeout_s,
            zmq.RECONNECT_IVL: 0.1,
            zmq.RECONNECT_IVL_MAX: 1.0,
        }
        for option, seconds in milliseconds.items():
            socket.setsockopt(option, round(seconds * 1000))
        socket.setsockopt(zmq.SNDHWM, self.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, self.high_water_mark)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_LIMIT)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))
