"""The files of a checkpoint of the hub from node to node: their list, which is a bundle, and each
file below the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import msgspec

from spotlight.diffusion.hub_cache import ArrivingFile, CheckpointFolder
from spotlight.errors import CheckpointError, TransferFailed
from spotlight.jobs.hub_names import HubFile
from spotlight.timings import Timings
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.client import stream
from spotlight.types import BundleOffer

_KEY = "checkpoint"
_LISTING = f"{_KEY}/files.json"
_LARGEST_LISTING = 1024 * 1024
_TRIES = 3


def offer_files(store: BundleStore, files: dict[HubFile, Path]) -> BundleOffer:
    """Let others have these files, and no others of this machine; returns where their list is.
    Raises `TransferFailed`."""
    offer = store.put(_LISTING, msgspec.json.encode(list(files)))
    offer = msgspec.structs.replace(offer, store=store.readable(_KEY))  # the files, too
    store.lend({f"{_KEY}/{file.path}": path for file, path in files.items()})
    return offer


def withdraw_files(store: BundleStore) -> None:
    """Let nobody have any of them any more."""
    store.lend({})
    store.delete(_KEY)


async def fetch_files(
    listing: BundleOffer, known: Collection[HubFile], folder: CheckpointFolder, timings: Timings
) -> None:
    """Take what is missing in a folder from the node of that list, one file after the other. What
    came whole stays, whatever happens then. `known` are the files with the checksums that the hub
    says: the other node may not say others.

    Raises `TransferFailed`, and `CheckpointError` for what does not belong there.
    """
    if listing.nbytes > _LARGEST_LISTING:
        raise TransferFailed(f"the list of files has {listing.nbytes} bytes")
    try:
        data = await fetch(listing, timings.transfers)
        files = msgspec.json.decode(data, type=list[HubFile])
    except msgspec.MsgspecError as error:
        raise TransferFailed(f"the list of files is malformed: {error}") from error
    strange = next((file.path for file in files if file not in known), None)
    if strange is not None:
        raise CheckpointError(f"{strange} is not the hub's, or has another checksum there")
    for file in await asyncio.to_thread(folder.missing, files):
        offer = BundleOffer(f"{_KEY}/{file.path}", file.nbytes, 0, listing.store)
        with closing(folder.arriving(file)) as arriving:
            await _fetch_file(offer, arriving, timings)
            await asyncio.to_thread(arriving.keep)


async def _fetch_file(offer: BundleOffer, arriving: ArrivingFile, timings: Timings) -> None:
    for left in reversed(range(_TRIES)):
        try:
            return await stream(offer, arriving.nbytes, arriving.write, timings.transfers)
        except TransferFailed:
            if not left:
                raise
        await asyncio.sleep(timings.checkpoints.retry_pause_s)
