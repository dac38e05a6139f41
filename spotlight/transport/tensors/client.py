"""Fetching bundles from stores, and leaving them there.

Every transfer has a deadline, a checksum and a token. On one machine the file itself is read.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

from msgspec import structs

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.offers import is_intact, machine_identity, nbytes_of
from spotlight.transport.tensors.records import (
    Header,
    exchange,
    read_answer,
    read_batches,
    read_body,
    write_body,
)
from spotlight.types import BundleOffer, StoreEndpoint


async def fetch(offer: BundleOffer, timings: TransferTimings = TransferTimings()) -> bytes:
    """The bytes of an offered bundle.

    Raises `TransferFailed` if they cannot be had intact in time.
    """
    # In a thread: reading and checking many gigabytes must not keep the loop from turning.
    data = await asyncio.to_thread(_read_own_machine, offer)
    if data is not None:
        return data

    idle_s = timings.idle_limit_s

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answer = await read_answer(reader, idle_s)
        # Before reading: a bundle of another size is not the one that was offered.
        if answer.nbytes != offer.nbytes:
            return b""
        return await read_body(reader, answer.nbytes, idle_s)

    header = Header("get", offer.key, offer.store.token)
    data = await exchange(offer.store, header, receive, timings, timings.transfer_limit_s)
    if not await asyncio.to_thread(is_intact, data, offer):
        raise _damaged(offer)
    return data


async def upload(
    store: StoreEndpoint, key: str, data: bytes, timings: TransferTimings = TransferTimings()
) -> BundleOffer:
    """Hand a bundle to a store that outlives us. Who gets the offer can read there, no more.

    Raises `TransferFailed` if the store does not take it in time.
    """

    idle_s = timings.idle_limit_s

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        await read_answer(reader, idle_s)
        await write_body(writer, data, idle_s)
        return (await read_answer(reader, idle_s)).token

    checksum = await asyncio.to_thread(zlib.crc32, data)
    header = Header("put", key, store.token, len(data), checksum)
    token = await exchange(store, header, send, timings, timings.transfer_limit_s)
    return BundleOffer(key, len(data), checksum, structs.replace(store, token=token))


async def download(
    offer: BundleOffer, incoming: Incoming, timings: TransferTimings, limit_s: float
) -> None:
    """Write an offered bundle as it arrives, within `limit_s`.

    Raises `TransferFailed` if it cannot be had intact in time.
    """

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await read_answer(reader, timings.idle_limit_s)
        if answer.nbytes == offer.nbytes:
            async for batch in read_batches(reader, offer.nbytes, timings.idle_limit_s):
                await in_thread(lambda batch=batch: incoming.write(batch))  # type: ignore[misc]

    header = Header("get", offer.key, offer.store.token)
    await exchange(offer.store, header, receive, timings, limit_s)
    if (incoming.nbytes, incoming.checksum) != (offer.nbytes, offer.checksum):
        raise _damaged(offer)


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
