"""What must be asked of the TCP connections beneath libzmq, which has no call for it.

A descriptor is libzmq's to close and its number is used again, so all goes through a duplicate; and
the monitor must be read before a number is trusted. Should one change hands in that very moment,
another connection to the same port is meant, and at worst its peer connects again.
"""

from __future__ import annotations

import socket
import struct

_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128
"""Where Linux (4.1 and later) has `tcpi_bytes_received` in its `tcp_info`."""


def shut_down(descriptor: int, port: int) -> None:
    """End a connection to `port`, unless it has ended; libzmq finds it closed."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            if connection.getsockname()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def bytes_received(descriptor: int) -> int | None:
    """How much a connection ever received; None if it has ended or the system does not say."""
    size = _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except (OSError, AttributeError):
        return None
    if len(information) < size:
        return None
    received: int = _BYTES_RECEIVED.unpack_from(information, _BYTES_RECEIVED_AT)[0]
    return received
