"""A store of byte bundles: files under one folder, served over TCP, read directly by processes of
the same machine.

Whoever holds a bundle offers it; the receiver pulls and picks the cheapest way (the file itself on
the same machine, TCP otherwise). Whoever must hand something to a holder that outlives it uploads.
Every transfer has a deadline, a checksum and a token; a key can never leave the folder. Nothing is
parsed here, so nothing received can run.

Files are never changed, only replaced or deleted as a whole: whoever has one open or mapped keeps
the bytes that it had. What is uploaded goes to disk as it comes, and takes its place when it is
whole.

On a connection: a header from the client, an answer from the store; then, if it was positive, the
bytes in the direction asked for, and after an upload a second answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import zlib
from pathlib import Path
from typing import Protocol

from msgspec import structs

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors.client import download
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.keys import checked
from spotlight.transport.tensors.offers import machine_identity, nbytes_of
from spotlight.transport.tensors.quota import Quota
from spotlight.transport.tensors.records import (
    CHUNK,
    Answer,
    Header,
    read_batches,
    upload_limit_s,
    write_body,
    write_record,
)
from spotlight.transport.tensors.serving import StoreServer
from spotlight.types import BundleOffer, StoreEndpoint

_READERS = ""
"""Who fetches bundles is not told apart."""
_OF_FREE_SPACE = 0.9
"""The rest is for whoever else writes to the disk."""


class ArtifactStore(Protocol):
    """Where the coordinator keeps what workers upload; a `BundleStore`, or one of a simulation."""

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where its bundles are read; only after `start`."""
        ...

    async def start(self) -> StoreEndpoint:
        """Begin to serve."""
        ...

    def writable_by(self, owner: str) -> StoreEndpoint:
        """Where somebody may leave bundles, with a token of his own; the same until `revoke`."""
        ...

    def revoke(self, owner: str) -> None:
        """Take nothing more that comes with the token of this one."""
        ...

    async def offer(self, key: str) -> BundleOffer:
        """A bundle that somebody has left here, to be fetched. Raises `TransferFailed`."""
        ...

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        ...

    async def aclose(self) -> None:
        """Stop serving; the bundles stay."""
        ...


class BundleStore:
    """Bundles by key in a folder of this machine, served to others.

    The folder is private to its owner (mode 0700). `aclose` ends the server; the folder stays. A
    `durable` store has what it acknowledges on disk.

    Args:
        token: a secret that never leaves this process; what readers and those who leave something
            must show is derived from it.
        host: address to bind.
        advertise: where others reach it; `host` unless given.
        max_nbytes: of one upload.
        quota_nbytes: of all that others may leave here; by default as much as the disk has room
            for.
        timings: how long it waits for others.
    """

    def __init__(
        self,
        root: Path,
        *,
        token: str,
        host: str = "127.0.0.1",
        advertise: str = "",
        max_nbytes: int = 64 * 2**30,
        quota_nbytes: int | None = None,
        durable: bool = False,
        timings: TransferTimings = TransferTimings(),
    ) -> None:
        self._timings = timings
        self._folder = Folder(root)
        self._secret = token.encode()
        self._host = host
        self._advertise = advertise or host
        self._max_nbytes = max_nbytes
        self._quota = Quota(quota_nbytes, self._free)
        self._durable = durable
        self._issued = itertools.count(1)
        self._tokens: dict[str, str] = {}
        """Of those who may leave bundles, by their names."""
        self._owners: dict[bytes, str] = {}
        """The same the other way round, by digests: how long it takes to look one up tells nothing
        about the others."""
        self._server = StoreServer(self._owner_of, self._answer, timings)
        self._endpoint: StoreEndpoint | None = None

    async def start(self) -> StoreEndpoint:
        """Create the folder, without what a killed process left unfinished, and listen on a free
        port."""
        await in_thread(self._folder.create)
        self._folder = Folder(self._folder.root.resolve())
        self._quota.found(await in_thread(self._folder.sizes))
        self._endpoint = StoreEndpoint(
            self._advertise,
            await self._server.start(self._host),
            self._derive("read"),
            machine_identity(),
            str(self._folder.root),
        )
        return self._endpoint

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where this store's bundles are read; only after `start`."""
        if self._endpoint is None:
            raise RuntimeError("the store is not started")
        return self._endpoint

    def writable_by(self, owner: str) -> StoreEndpoint:
        """Where somebody may leave bundles, with a token of his own; the same until `revoke`."""
        if owner not in self._tokens:
            token = self._tokens[owner] = self._derive(f"write {next(self._issued)} {owner}")
            self._owners[_digest(token)] = owner
        return structs.replace(self.endpoint, token=self._tokens[owner])

    def revoke(self, owner: str) -> None:
        """Take nothing more that comes with the token of this one; what is there stays."""
        token = self._tokens.pop(owner, None)
        if token is not None:
            del self._owners[_digest(token)]

    def put(self, key: str, data: bytes) -> BundleOffer:
        """Keep a bundle of this process's own; an older one of the same key is replaced at once,
        never half.

        Raises `TransferFailed` when the file system refuses.
        """
        with Incoming(self._folder, checked(key), durable=self._durable) as incoming:
            incoming.write([data])
            incoming.keep()
        self._quota.forget(key)
        return BundleOffer(key, len(data), zlib.crc32(data), self.endpoint)

    async def offer(self, key: str) -> BundleOffer:
        """A bundle that somebody has left here, to be fetched. Raises `TransferFailed` if there is
        none.
        """
        try:
            data = await in_thread(lambda: self._read(key))
        except OSError as error:
            raise TransferFailed(f"no bundle {key}: {error.strerror}") from error
        return BundleOffer(key, len(data), zlib.crc32(data), self.endpoint)

    def _read(self, key: str) -> bytes:
        with self._folder.open(key) as file:
            return file.read()

    async def copy(
        self, offer: BundleOffer, key: str, *, limit_s: float | None = None
    ) -> BundleOffer:
        """Keep the bundle of another store, verified, under a key of ours. On one machine the file
        becomes ours too, and its bytes are not copied. It may take as long as any transfer, unless
        `limit_s` says how long.

        Raises `TransferFailed` if it cannot be had intact in time, or not be kept. When it is
        cancelled no bundle of that key is left.
        """
        with Incoming(self._folder, checked(key), durable=self._durable) as incoming:
            beside = offer.store.machine == self.endpoint.machine
            if not (beside and await in_thread(lambda: incoming.link(offer))):
                with self._quota.under_way("", offer.nbytes, alone=True):
                    within_s = limit_s or self._timings.transfer_limit_s
                    await download(offer, incoming, self._timings, within_s)
            try:
                await in_thread(incoming.keep)
            except asyncio.CancelledError:
                self._folder.delete(key)  # it came too late to stop it, and nobody will use it
                raise
        self._quota.forget(key)
        return BundleOffer(key, offer.nbytes, offer.checksum, self.endpoint)

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        self._folder.delete(prefix)
        self._quota.drop(prefix)

    async def aclose(self) -> None:
        """Stop serving; the files stay."""
        await self._server.aclose()

    def _free(self) -> int:
        try:
            return round(_OF_FREE_SPACE * self._folder.free())
        except OSError as error:
            raise TransferFailed(f"{self._folder.root}: {error.strerror}") from error

    def _derive(self, what: str) -> str:
        return hmac.new(self._secret, what.encode(), hashlib.sha256).hexdigest()

    def _owner_of(self, header: Header) -> str:
        if header.op == "get":
            if not hmac.compare_digest(header.token.encode(), self.endpoint.token.encode()):
                raise TransferFailed("wrong token")
            return _READERS
        owner = self._owners.get(_digest(header.token))
        if owner is None:
            raise TransferFailed("wrong token")
        return owner

    async def _answer(
        self,
        owner: str,
        header: Header,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if header.op == "get":
            await self._send(header.key, writer)
        else:
            await self._receive(owner, header, reader, writer)

    async def _receive(
        self,
        owner: str,
        header: Header,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        key, nbytes = checked(header.key), header.nbytes
        if nbytes > self._max_nbytes:
            raise TransferFailed(f"{nbytes} bytes are more than {self._max_nbytes}")
        with self._quota.under_way(owner, nbytes, alone=len(self._tokens) == 1):
            idle_s = self._timings.idle_limit_s
            await write_record(writer, Answer(True), idle_s)
            async with asyncio.timeout(upload_limit_s(nbytes, idle_s)):
                batches = read_batches(reader, nbytes, idle_s)
                try:
                    with Incoming(self._folder, key, durable=self._durable) as incoming:
                        async for batch in batches:
                            self._owner_of(header)  # it may have been revoked meanwhile
                            await in_thread(lambda batch=batch: _take(incoming, batch, header))  # type: ignore[misc]
                except TransferFailed:
                    async for _ in batches:
                        pass  # who still sends does not listen
                    raise
        self._quota.keep(owner, key, nbytes)
        await write_record(writer, Answer(True, token=self.endpoint.token), idle_s)

    async def _send(self, key: str, writer: asyncio.StreamWriter) -> None:
        try:
            file = self._folder.open(key)
        except OSError as error:
            raise TransferFailed("no such bundle") from error
        with file:
            idle_s = self._timings.idle_limit_s
            await write_record(writer, Answer(True, nbytes=nbytes_of(file)), idle_s)
            while data := await in_thread(lambda: file.read(CHUNK)):
                await write_body(writer, data, idle_s)


def _take(incoming: Incoming, batch: list[bytes], header: Header) -> None:
    incoming.write(batch)
    if incoming.nbytes == header.nbytes:
        if incoming.checksum != header.checksum:
            raise TransferFailed("checksum differs")
        incoming.keep()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
