"""Blocking work on a connection to a store, in a thread, with a deadline.

Sockets that block, in threads, move bytes at a fraction of what an event loop takes for it, and the
loop of the process turns meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.types import StoreEndpoint

T = TypeVar("T")


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

    Raises `TransferFailed` for whatever goes wrong on the way, and when the time is up.
    """
    where = f"{what} at {store.host}:{store.port}"
    try:
        async with asyncio.timeout(limit_s):
            with contextlib.closing(await _connect(store, timings.connect_limit_s)) as connected:
                connected.settimeout(timings.idle_limit_s)
                connection = http.client.HTTPConnection(store.host, store.port)
                connection.sock = connected
                with contextlib.closing(connection):
                    return await _in_thread(lambda: talk(connection), connected)
    except TimeoutError as error:
        raise TransferFailed(f"{where} took longer than {limit_s:g} s") from error
    except (OSError, http.client.HTTPException, TransferFailed) as error:
        raise TransferFailed(f"{where} failed: {_in_words(error)}") from error


async def _in_thread(work: Callable[[], T], connected: socket.socket) -> T:
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    # A thread of its own: in a pool, transfers that are stuck would keep others waiting.
    thread = threading.Thread(target=run, name="transfer")
    thread.start()
    try:
        return await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)  # whatever the thread waits for ends
        await asyncio.wait((asyncio.wrap_future(done),))
        raise
    finally:
        thread.join()  # it has nothing left to do


async def _connect(store: StoreEndpoint, limit_s: float) -> socket.socket:
    try:
        async with asyncio.timeout(limit_s):
            return await _connected(store)
    except TimeoutError as error:
        raise TransferFailed(f"no connection within {limit_s:g} s") from error


async def _connected(store: StoreEndpoint) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(store.host, store.port, type=socket.SOCK_STREAM)
    problem: OSError | None = None
    for family, kind, protocol, _, address in found:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            await loop.sock_connect(connecting, address)
        except OSError as error:
            connecting.close()
            problem = error
        except asyncio.CancelledError:
            connecting.close()
            raise
        else:
            return connecting
    raise problem or OSError(f"{store.host} has no address")


def _in_words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection closed in the middle of a bundle"
    return str(error) or type(error).__name__
