"""Reads a ZeroMQ socket from an event loop, without `zmq.asyncio` and its future per message.

The descriptor of a ZeroMQ socket is edge-triggered: it says that something happened, once. So a
wake-up drains the socket until it is empty; a drain is capped and continues in the next turn of the
loop, for one busy socket must not starve the others; and whoever sends on the socket pokes the
reader afterwards, because sending can swallow the edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

DRAIN_LIMIT = 256
"""Units of work in one turn of the loop."""


def open_monitor(
    context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], events: int
) -> zmq.Socket[bytes]:
    """Like `get_monitor_socket`, with room for the events of any number of connections."""
    name = f"inproc://monitor-{id(socket)}"
    socket.monitor(name, events)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(name)
    return monitor


def receive_message(socket: zmq.Socket[bytes]) -> tuple[zmq.Frame, bool]:
    """The first part of the next message, and whether it is the only one; ours have one. Raises
    `zmq.Again` if there is none."""
    first = socket.recv(zmq.NOBLOCK, copy=False)
    if not first.more:
        return first, True
    while socket.getsockopt(zmq.RCVMORE):
        socket.recv(zmq.NOBLOCK)
    return first, False


class SocketReader:
    """Calls `receive` until the socket is empty, whenever there may be something to read."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[], int],
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`receive` reads one message, handles it, returns its units of work, and raises
        `zmq.Again` if there is none. `wake` is called at every wake-up; writers that were refused
        retry then."""
        self._socket = socket
        self._receive = receive
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._scheduled: asyncio.Handle | None = None
        self._closed = False
        self._loop.add_reader(self._descriptor, self._ready)
        self._schedule()

    def poke(self) -> None:
        """Look again soon if there is something to read. Call after each send on the socket."""
        if self._scheduled is None and not self._closed:
            events = self._socket.getsockopt(zmq.EVENTS)
            if isinstance(events, int) and events & zmq.POLLIN:
                self._schedule()

    def drain(self) -> None:
        """Read now, until the socket is empty or a good deal of work is done."""
        work = 0
        try:
            while not self._closed and work < 16 * DRAIN_LIMIT:
                work += self._receive()
        except zmq.Again:
            return
        self.poke()

    def close(self) -> None:
        """Stop reading. Call before the socket is closed."""
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None

    def _schedule(self) -> None:
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self._wake is not None and not self._closed:
            self._wake()
        work = 0
        try:
            while not self._closed and work < DRAIN_LIMIT:
                work += self._receive()
        except zmq.Again:
            return
        if not self._closed:
            self._schedule()
