"""What must be asked of the TCP connections beneath libzmq, which has no call for it.

A descriptor is libzmq's to close and its number is used again, so all goes through a duplicate; and
the monitor must be read before a number is trusted. Should one change hands in that very moment,
another connection to the same port is meant, and at worst its peer connects again.
"""

from __future__ import annotations

import os
import socket
import struct

_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""Where Linux has `tcpi_last_data_recv` in its `tcp_info`; milliseconds ago."""
_BYTES_RECEIVED = struct.Struct("=128xQ")
"""The same for `tcpi_bytes_received`, in Linux 4.1 and later."""


class Connections:
    """The connections to a bound port, by the number of their descriptor.

    The number of the duplicate is taken beforehand: when a process has no descriptor left,
    connections must be ended all the same.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._duplicate = os.dup(self._nothing)

    def shut_down(self, descriptor: int) -> None:
        """End a connection, unless it has ended; libzmq finds it closed."""
        connection = self._borrow(descriptor)
        if connection is None:
            return
        try:
            if connection.getsockname()[1] == self._port:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._give_back(connection)

    def bytes_received(self, descriptor: int) -> int | None:
        """How much a connection ever received; None if it has ended or the system does not say."""
        return self._information(descriptor, _BYTES_RECEIVED)

    def silent_s(self, descriptor: int) -> float | None:
        """For how long a connection has received nothing; None as above."""
        milliseconds = self._information(descriptor, _LAST_DATA_RECEIVED)
        return None if milliseconds is None else milliseconds / 1000

    def close(self) -> None:
        """Give back what it holds. Idempotent."""
        for descriptor in (self._nothing, self._duplicate):
            if descriptor >= 0:
                os.close(descriptor)
        self._nothing = self._duplicate = -1

    def _information(self, descriptor: int, field: struct.Struct) -> int | None:
        connection = self._borrow(descriptor)
        if connection is None:
            return None
        try:
            information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.size)
        except (OSError, AttributeError):
            return None
        finally:
            self._give_back(connection)
        if len(information) < field.size:
            return None
        value: int = field.unpack(information)[0]
        return value

    def _borrow(self, descriptor: int) -> socket.socket | None:
        try:
            os.dup2(descriptor, self._duplicate, inheritable=False)
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=self._duplicate)
        except OSError:
            return None

    def _give_back(self, connection: socket.socket) -> None:
        os.dup2(self._nothing, connection.detach(), inheritable=False)
