"""Bundles that are files on both sides, too large to be held in memory as bytes.

On the store's own machine nothing is sent or copied: what is left there is written where it stays,
and what is had from there is the very file under another name.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from spotlight.errors import SpotlightError, TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors.client import download, limit_s_of, put
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.offers import machine_identity
from spotlight.types import BundleOffer, StoreEndpoint


async def deposit(
    store: StoreEndpoint,
    key: str,
    write: Callable[[Path], None],
    timings: TransferTimings = TransferTimings(),
) -> BundleOffer:
    """Hand a store the file that `write` writes, in a thread, where it is told to.

    Raises `TransferFailed` if the store does not take it in time, and what `write` raises.
    """
    async with _new_file(store) as (incoming, is_stores):
        try:
            await in_thread(lambda: write(incoming.path))
        except (OSError, SpotlightError) as error:
            if is_stores and not incoming.path.exists():  # its process ended, and its folder went
                raise TransferFailed(f"put {key}: {store.root} is gone") from error
            raise
        with _mapped(incoming.path) as data:
            if is_stores:
                with contextlib.suppress(TransferFailed):  # perhaps its folder is another one
                    return await put(store, key, data, timings, written=incoming.path.name)
            return await put(store, key, data, timings)


@contextlib.asynccontextmanager
async def fetched_file(
    offer: BundleOffer, timings: TransferTimings = TransferTimings()
) -> AsyncIterator[Path]:
    """An offered bundle as a file, verified, which is there for as long as the context lasts.

    Raises `TransferFailed` if it cannot be had intact in time.
    """
    async with _new_file(offer.store) as (incoming, is_stores):
        if is_stores and await in_thread(lambda: incoming.link(offer)):
            yield incoming.path
            return
    async with _new_file(None) as (incoming, _):
        await download(offer, incoming, timings, limit_s_of(offer.nbytes, timings))
        yield incoming.path


@contextlib.asynccontextmanager
async def _new_file(store: StoreEndpoint | None) -> AsyncIterator[tuple[Incoming, bool]]:
    """A new file, and whether it is in the store's own folder; else in one of temporary files."""
    with contextlib.ExitStack() as undo:
        is_stores = store is not None and _is_here(store)
        if store is not None and is_stores:
            folder = Folder(Path(store.root), prefix=f"{secrets.token_hex(8)}-")
        else:
            scratch = tempfile.TemporaryDirectory(prefix="spotlight-bundle-")
            folder = Folder(Path(undo.enter_context(scratch)))
        incoming = undo.enter_context(Incoming(folder, "file", durable=False))
        yield incoming, is_stores


def _is_here(store: StoreEndpoint) -> bool:
    return store.machine == machine_identity() and Folder(Path(store.root)).is_store


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield data
    finally:
        with contextlib.suppress(BufferError):  # an error on its way up still refers to a part
            data.close()
