"""Blocking work on a connection to a store, in a thread, with a deadline.

Sockets that block, in threads, move bytes at a fraction of what an event loop takes for it, and the
loop of the process turns meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from spotlight.errors import TransferFailed, TransferRefused, WrongCertificate
from spotlight.permissions import is_link_local
from spotlight.timings import TransferTimings
from spotlight.transport.tensors.certificates import secured, shake_hands
from spotlight.types import StoreEndpoint

T = TypeVar("T")

_RESETS = struct.pack("ii", 1, 0)
"""Closing the socket resets the connection, and waits for nothing."""


async def exchange(
    store: StoreEndpoint,
    what: str,
    talk: Callable[[http.client.HTTPConnection], T],
    timings: TransferTimings,
    limit_s: float,
) -> T:
    """Connect to a store and `talk` in a thread until all has arrived, within `limit_s`.

    Args:
        what: for messages.

    Raises `TransferFailed` for whatever goes wrong on the way, and when the time is up;
    `TransferRefused` when the store refuses, `WrongCertificate` when it is not the store.
    """
    where = f"{what} at {store.host}:{store.port}"
    line = _Line(store, timings)
    # A thread of its own: in a pool, transfers that are stuck would keep others waiting.
    thread = ThreadPoolExecutor(1, thread_name_prefix="transfer")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit_s):
            work = loop.run_in_executor(thread, line.use, talk)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                line.cut()
                await asyncio.wait((work,))
                work.exception()  # nobody asks for it any more
                raise
    except TimeoutError as error:
        raise TransferFailed(f"{where} took longer than {round(limit_s, 2):g} s") from error
    except (OSError, http.client.HTTPException, TransferFailed) as error:
        raise _explained(error, where) from error
    finally:
        thread.shutdown()  # it has nothing left to do


class _Line:
    """One connection to a store: used in a thread, and cut from another."""

    def __init__(self, store: StoreEndpoint, timings: TransferTimings) -> None:
        self._store = store
        self._timings = timings
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def use(self, talk: Callable[[http.client.HTTPConnection], T]) -> T:
        """Connect to the store, and to no other if its certificate is known, and `talk`; raises
        `TransferFailed`, `OSError` or `HTTPException`."""
        idle_s = self._timings.idle_limit_s
        with contextlib.ExitStack() as stack:
            connected = stack.enter_context(self._connect())
            connected.settimeout(idle_s)
            try:
                if self._store.fingerprint:
                    connected = stack.enter_context(secured(connected))
                    self._adopt(connected)
                    shake_hands(connected, self._store.fingerprint)
                connection = http.client.HTTPConnection(self._store.host, self._store.port)
                connection.sock = connected
                stack.callback(connection.close)
                return talk(connection)
            except TimeoutError as error:
                raise TransferFailed(f"the store was silent for {idle_s:g} s") from error

    def cut(self) -> None:
        """End whatever the thread waits for."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Else a store whose bytes nobody takes any more may wait for a minute.
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                    # That of a socket with TLS would take the TLS off first.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _connect(self) -> socket.socket:
        host, limit_s = self._store.host, self._timings.connect_limit_s
        problem: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, self._store.port, type=socket.SOCK_STREAM
        ):
            with contextlib.ExitStack() as stack:
                connecting = stack.enter_context(socket.socket(family, kind, protocol))
                self._adopt(connecting)
                self._require_no_metadata_service(str(address[0]))
                try:
                    connecting.settimeout(limit_s)
                    connecting.connect(address)
                    # A request is sent behind the last word of the handshake, which nobody answers:
                    # it would wait for 40 ms until the other side says that it has come.
                    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except TimeoutError:
                    problem = OSError(f"no connection within {limit_s:g} s")
                except OSError as error:
                    problem = error
                else:
                    stack.pop_all()
                    return connecting
        raise problem

    def _require_no_metadata_service(self, address: str) -> None:
        # Whoever offers weights names their store. Clouds have services at such addresses that
        # trust this machine; none of them has a certificate of ours.
        if not self._store.fingerprint and is_link_local(address):
            raise TransferFailed(
                f"{address} is a link-local address, where clouds have services that trust this"
                " machine: nothing is fetched there without TLS; have the store advertise another"
                " address, or leave out --data-plain"
            )

    def _adopt(self, connecting: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                raise OSError("the transfer was given up")
            self._socket = connecting


def _explained(error: Exception, where: str) -> TransferFailed:
    message = f"{where} failed: {_in_words(error)}"
    if isinstance(error, TransferRefused):
        return TransferRefused(error.status, message)
    return (WrongCertificate if isinstance(error, WrongCertificate) else TransferFailed)(message)


def _in_words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection closed in the middle of a bundle"
    return str(error) or type(error).__name__
