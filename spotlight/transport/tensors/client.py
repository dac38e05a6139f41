"""Fetching bundles from stores, and leaving them there.

Every transfer has a deadline, a checksum and a token. On one machine the file itself is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import select
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32
from msgspec import structs

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.control.bad_input import clipped
from spotlight.transport.tensors.connections import exchange
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.keys import checked
from spotlight.transport.tensors.offers import (
    CHECKSUM,
    WRITTEN,
    is_intact,
    machine_identity,
    nbytes_of,
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
        with _ask(connection, offer, first=0) as response:
            # Before reading: a bundle of another size is not the one that was offered.
            data = response.read() if response.length == offer.nbytes else b""
        if not is_intact(data, offer):
            raise _damaged(offer)
        return data

    limit_s = _limit_s(offer.nbytes, timings)
    return await exchange(offer.store, f"get {offer.key}", receive, timings, limit_s)


async def upload(
    store: StoreEndpoint, key: str, data: bytes, timings: TransferTimings = TransferTimings()
) -> BundleOffer:
    """Hand a bundle to a store that outlives us. Who gets the offer can read there, no more. On the
    store's own machine what is large is written into its folder, and not sent.

    Raises `TransferFailed` if the store does not take it in time.
    """
    checked(key)
    limit_s = _limit_s(len(data), timings)
    folder = Folder(Path(store.root), prefix=f"{secrets.token_hex(8)}-")
    try:
        if await in_thread(lambda: _write(folder, store, data)):
            with contextlib.suppress(TransferFailed):  # perhaps its folder is another one
                return await _put(store, key, data, timings, limit_s, written=f"{folder.prefix}0")
    finally:
        folder.abandon(f"{folder.prefix}0")
    return await _put(store, key, data, timings, limit_s)


async def _put(
    store: StoreEndpoint,
    key: str,
    data: bytes,
    timings: TransferTimings,
    limit_s: float,
    *,
    written: str = "",
) -> BundleOffer:
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

    return await exchange(store, f"put {key}", send, timings, limit_s)


async def download(
    offer: BundleOffer, incoming: Incoming, timings: TransferTimings, limit_s: float
) -> None:
    """Write what is missing of an offered bundle as it arrives, within `limit_s`.

    Raises `TransferFailed` if it cannot be had intact in time; what has come stays, and the next
    `download` goes on behind it.
    """

    def receive(connection: HTTPConnection) -> None:
        with _ask(connection, offer, first=incoming.nbytes) as response:
            if response.length != offer.nbytes - incoming.nbytes:
                raise _damaged(offer)
            buffer = memoryview(bytearray(min(_CHUNK, response.length)))
            while count := response.readinto(buffer):
                incoming.write([buffer[:count]])
        if incoming.nbytes < offer.nbytes:
            raise TransferFailed("the connection closed in the middle of a bundle")

    if incoming.nbytes < offer.nbytes or not offer.nbytes:
        await exchange(offer.store, f"get {offer.key}", receive, timings, limit_s)
    if incoming.checksum != offer.checksum:
        raise _damaged(offer)


def _limit_s(nbytes: int, timings: TransferTimings) -> float:
    return timings.transfer_limit_s + nbytes / _SLOWEST_BYTES_PER_S


def _ask(connection: HTTPConnection, offer: BundleOffer, *, first: int) -> Any:
    """The answer to a request for a bundle from its byte `first` on, with its body still to be
    read; raises `TransferFailed` if it is a refusal."""
    headers = {"Authorization": f"Bearer {_sendable(offer.store.token)}"}
    if first:
        headers["Range"] = f"bytes={first}-"
    connection.request("GET", f"/{checked(offer.key)}", headers=headers)
    return _answered(connection, 206 if first else 200)


def _write(folder: Folder, store: StoreEndpoint, data: bytes) -> bool:
    """Whether the bundle is in a file in the store's folder now, the first of `folder`; not if that
    is not worth it, or cannot be."""
    if len(data) < _WORTH_A_FILE or store.machine != machine_identity():
        return False
    if not folder.root.is_dir():
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
    for start in range(0, len(data), _CHUNK):
        if select.select([connection.sock], [], [], 0)[0]:
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
    raise TransferFailed(f"refused: {clipped(problem or f'{response.status} {response.reason}')}")


def _sendable(token: str) -> str:
    """The token, which may be anything that a peer says; raises `TransferFailed` for what cannot be
    one, and could not be sent."""
    if not (token.isascii() and token.isprintable()):
        raise TransferFailed("refused: wrong token")
    return token


def _damaged(offer: BundleOffer) -> TransferFailed:
    return TransferFailed(
        f"bundle {offer.key} arrived damaged from {offer.store.host}; fetch it again"
    )


def _read_own_machine(offer: BundleOffer) -> bytes | None:
    """The bundle's file, if it is here and intact."""
    if offer.store.machine != machine_identity():
        return None
    try:
        with Folder(Path(offer.store.root)).open(offer.key) as file:
            if nbytes_of(file) != offer.nbytes:
                return None
            data = file.read()
    except OSError:
        return None
    return data if is_intact(data, offer) else None
