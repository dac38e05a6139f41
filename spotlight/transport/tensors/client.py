"""Fetching bundles from stores, and leaving them there.

Every transfer has a deadline, a checksum and a token. On one machine the file itself is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import secrets
import select
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from typing import Any

from isal.isal_zlib import crc32
from msgspec import structs

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.timings import TransferTimings
from spotlight.transport.control.bad_input import clipped
from spotlight.transport.tensors import deltas, ucx
from spotlight.transport.tensors.connections import exchange
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.keys import checked
from spotlight.transport.tensors.offers import (
    BASE,
    CHECKSUM,
    UCX,
    WRITTEN,
    is_intact,
    machine_identity,
    nbytes_of,
    own_file,
)
from spotlight.types import BundleOffer, StoreEndpoint

_CHUNK = 1024 * 1024
_WORTH_A_FILE = 4 * 1024 * 1024
_SLOWEST_BYTES_PER_S = 1e7
_LONGEST_PROBLEM = 1000
_LONGEST_TOKEN = 200


async def fetch(offer: BundleOffer, timings: TransferTimings = TransferTimings()) -> bytes:
    """The bytes of an offered bundle.

    Raises `TransferFailed` if they cannot be had intact in time.
    """
    # In a thread: reading and checking many gigabytes must not keep the loop from turning.
    data = await asyncio.to_thread(_read_own_machine, offer)
    if data is not None:
        return data

    def receive(connection: HTTPConnection) -> bytes:
        with _ask(connection, offer, 0) as response:
            # Before reading: a bundle of another size is not the one that was offered.
            data = response.read() if response.length == offer.nbytes else b""
        if not is_intact(data, offer):
            raise _damaged(offer)
        return data

    limit_s = limit_s_of(offer.nbytes, timings)
    return await exchange(offer.store, f"get {offer.key}", receive, timings, limit_s)


async def upload(
    store: StoreEndpoint, key: str, data: bytes, timings: TransferTimings = TransferTimings()
) -> BundleOffer:
    """Hand a bundle to a store that outlives us. Who gets the offer can read there, no more. On the
    store's own machine what is large is written into its folder, and not sent.

    Raises `TransferFailed` if the store does not take it in time.
    """
    folder = Folder(Path(store.root), prefix=f"{secrets.token_hex(8)}-")
    try:
        if await in_thread(lambda: _write(folder, store, data)):
            with contextlib.suppress(TransferFailed):  # perhaps its folder is another one
                return await put(store, key, data, timings, written=f"{folder.prefix}0")
    finally:
        folder.abandon(f"{folder.prefix}0")
    return await put(store, key, data, timings)


async def put(
    store: StoreEndpoint,
    key: str,
    data: bytes | mmap.mmap,
    timings: TransferTimings,
    *,
    written: str = "",
) -> BundleOffer:
    """Send a bundle to a store; or only its checksum, if it is `written` under that name among what
    is not finished in the store's folder.

    Raises `TransferFailed` if the store does not take it in time.
    """
    checked(key)

    def send(connection: HTTPConnection) -> BundleOffer:
        checksum = crc32(data)
        connection.putrequest("PUT", f"/{key}", skip_accept_encoding=True)
        connection.putheader("Authorization", f"Bearer {_sendable(store.token)}")
        connection.putheader("Content-Length", "0" if written else str(len(data)))
        connection.putheader(CHECKSUM, f"{checksum:08x}")
        if written:
            connection.putheader(WRITTEN, written)
        connection.endheaders()
        if not written:
            _send_body(connection, memoryview(data))
        with _answered(connection) as response:
            token = response.read(_LONGEST_TOKEN).decode("latin-1")
        return BundleOffer(key, len(data), checksum, structs.replace(store, token=token))

    return await exchange(store, f"put {key}", send, timings, limit_s_of(len(data), timings))


async def download(
    offer: BundleOffer,
    incoming: Incoming,
    timings: TransferTimings,
    limit_s: float,
    base: BundleOffer | None = None,
) -> None:
    """Write what is missing of an offered bundle as it arrives, within `limit_s`; of one of which
    there is a verified copy of a similar one, the `base`, perhaps only what differs.

    Raises `TransferFailed` if it cannot be had intact in time; what has come stays, and the next
    `download` goes on behind it.
    """

    def receive(connection: HTTPConnection) -> None:
        path = own_file(base) if base is not None and deltas.are_possible() else None
        if base is None or path is None or base.nbytes != offer.nbytes or not offer.nbytes:
            with _ask(connection, offer, incoming.nbytes) as response:
                return take(response)
        old = deltas.mapped_path(path)
        with _ask(connection, offer, incoming.nbytes, {BASE: base.key}) as response:
            if BASE in response.headers:
                return take_delta(old, response)
            return take(response)

    def take_delta(old: memoryview, response: HTTPResponse) -> None:
        def read(count: int) -> bytes:
            data = response.read(count)
            if len(data) < count:
                raise TransferFailed("the connection closed in the middle of a bundle")
            return data

        while incoming.nbytes < offer.nbytes:
            chunk = old[incoming.nbytes : incoming.nbytes + deltas.CHUNK]
            incoming.write([deltas.decoded(chunk, read)])

    def take(response: HTTPResponse) -> None:
        if response.length != offer.nbytes - incoming.nbytes:
            raise _damaged(offer)
        buffer = memoryview(bytearray(min(_CHUNK, response.length)))
        while count := response.readinto(buffer):
            incoming.write([buffer[:count]])
        if incoming.nbytes < offer.nbytes:
            raise TransferFailed("the connection closed in the middle of a bundle")

    def receive_by_ucx(connection: HTTPConnection) -> None:
        if not ucx.is_installed():
            return receive(connection)
        asked = connection.sock  # the answer takes it over
        left = offer.nbytes - incoming.nbytes
        with (
            ucx.receiver() as receiver,
            _ask(connection, offer, incoming.nbytes, {UCX: str(receiver.target)}) as response,
        ):
            if UCX not in response.headers:  # the store sends by UCX no longer
                return take(response)
            if response.headers[UCX] != str(left):
                raise _damaged(offer)
            for part in receiver.chunks(left, asked, timings.idle_limit_s):
                incoming.write([part])

    # What the offer says is to be encrypted is: UCX does not.
    way = receive_by_ucx if offer.store.ucx and not offer.store.fingerprint else receive
    if incoming.nbytes < offer.nbytes or not offer.nbytes:
        await exchange(offer.store, f"get {offer.key}", way, timings, limit_s)
    if incoming.checksum != offer.checksum:
        raise _damaged(offer)


async def stream(
    offer: BundleOffer,
    first: int,
    write: Callable[[memoryview], None],
    timings: TransferTimings = TransferTimings(),
) -> None:
    """Hand `write` the parts of an offered bundle from its byte `first` on, in a thread and as they
    come; whoever writes them checks them.

    Raises `TransferFailed` if not all come in time, and what `write` raises.
    """

    def receive(connection: HTTPConnection) -> None:
        left = offer.nbytes - first
        with _ask(connection, offer, first) as response:
            if response.length != left:
                raise _damaged(offer)
            buffer = memoryview(bytearray(min(_CHUNK, left)))
            while count := response.readinto(buffer):
                write(buffer[:count])
                left -= count
        if left:
            raise TransferFailed("the connection closed in the middle of a bundle")

    if first < offer.nbytes:
        limit_s = limit_s_of(offer.nbytes, timings)
        await exchange(offer.store, f"get {offer.key}", receive, timings, limit_s)


def limit_s_of(nbytes: int, timings: TransferTimings) -> float:
    """How long a transfer of so many bytes may take."""
    return timings.transfer_limit_s + nbytes / _SLOWEST_BYTES_PER_S


def _ask(
    connection: HTTPConnection,
    offer: BundleOffer,
    first: int,
    how: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The answer to a request for a bundle from its byte `first` on, with its body still to be
    read; with headers that say how it may come. Raises `TransferFailed` if it is a refusal."""
    headers = {"Authorization": f"Bearer {_sendable(offer.store.token)}", **how}
    if first:
        headers["Range"] = f"bytes={first}-"
    connection.request("GET", f"/{checked(offer.key)}", headers=headers)
    return _answered(connection, 206 if first else 200)


def _write(folder: Folder, store: StoreEndpoint, data: bytes) -> bool:
    """Whether the bundle is in a file in the store's folder now, the first of `folder`; not if that
    is not worth it, or cannot be."""
    if len(data) < _WORTH_A_FILE or store.machine != machine_identity():
        return False
    if not folder.is_store:
        return False
    try:
        _, file = folder.begin()
        with file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
    except OSError:
        return False
    return True


def _send_body(connection: HTTPConnection, data: memoryview) -> None:
    """Until all is sent, or the store has answered already: it takes no more."""
    events = select.poll()  # `select.select` takes no descriptor above 1,023
    events.register(connection.sock, select.POLLIN)
    for start in range(0, len(data), _CHUNK):
        if events.poll(0):
            return
        try:
            connection.send(data[start : start + _CHUNK])
        except ConnectionError:
            return  # the answer says why, if there is one


def _answered(connection: HTTPConnection, status: int = 200) -> HTTPResponse:
    response = connection.getresponse()
    if response.status == status:
        return response
    with response:
        problem = response.read(_LONGEST_PROBLEM).decode("utf-8", "replace")
    problem = problem or f"{response.status} {response.reason}"
    raise TransferRefused(response.status, f"refused: {clipped(problem)}")


def _sendable(token: str) -> str:
    """The token, which may be anything that a peer says; raises `TransferFailed` for what cannot be
    one, and could not be sent."""
    if not (token.isascii() and token.isprintable()):
        raise TransferRefused(HTTPStatus.UNAUTHORIZED, "refused: wrong token")
    return token


def _damaged(offer: BundleOffer) -> TransferFailed:
    return TransferFailed(
        f"bundle {offer.key} arrived damaged from {offer.store.host}; fetch it again"
    )


def _read_own_machine(offer: BundleOffer) -> bytes | None:
    """The bundle's file, if it is here and intact."""
    folder = Folder(Path(offer.store.root))
    if offer.store.machine != machine_identity() or not folder.is_store:
        return None
    try:
        with folder.open(offer.key) as file:
            if nbytes_of(file) != offer.nbytes:
                return None
            data = file.read()
    except OSError:
        return None
    return data if is_intact(data, offer) else None
