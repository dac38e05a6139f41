"""A store of byte bundles: files under one folder, served over TCP, read directly by processes of
the same machine.

Whoever holds a bundle offers it; the receiver pulls and picks the cheapest way (the file itself on
the same machine, TCP otherwise). Whoever must hand something to a holder that outlives it uploads.
Every transfer has a deadline, a checksum and the store's token; a key can never leave the folder.
Nothing is parsed here, so nothing received can run.

Files are never changed, only replaced or deleted as a whole: whoever has one open or mapped keeps
the bytes that it had.

On a connection: a header from the client, an answer from the store; then, if it was positive, the
bytes in the direction asked for, and after an upload a second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.offers import (
    BundleOffer,
    StoreEndpoint,
    is_intact,
    is_intact_file,
    machine_identity,
    path_under,
)
from spotlight.transport.tensors.wire import (
    CHUNK,
    IDLE_LIMIT_S,
    Answer,
    Header,
    exchange,
    read_answer,
    read_body,
    read_parts,
    read_record,
    write_body,
    write_record,
)


class ArtifactStore(Protocol):
    """Where the coordinator keeps what workers upload; a `BundleStore`, or one of a simulation."""

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where it is reached; only after `start`."""
        ...

    async def start(self) -> StoreEndpoint:
        """Begin to serve."""
        ...

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        ...

    async def aclose(self) -> None:
        """Stop serving; the bundles stay."""
        ...


class BundleStore:
    """Bundles by key in a folder of this machine, served to others.

    The folder is private to its owner (mode 0700). `aclose` ends the server; `remove` also deletes
    the folder. A `durable` store has what it acknowledges on disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        token: str,
        host: str = "127.0.0.1",
        max_nbytes: int = 64 * 2**30,
        durable: bool = False,
    ) -> None:
        self._root = root
        self._token = token
        self._host = host
        self._max_nbytes = max_nbytes
        self._durable = durable
        self._puts = itertools.count()
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._endpoint: StoreEndpoint | None = None

    async def start(self) -> StoreEndpoint:
        """Create the folder and listen on a free port."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o700)
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self._endpoint = StoreEndpoint(
            self._host, port, self._token, machine_identity(), str(self._root.resolve())
        )
        return self._endpoint

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where this store is reached; only after `start`."""
        if self._endpoint is None:
            raise RuntimeError("the store is not started")
        return self._endpoint

    def put(self, key: str, data: bytes) -> BundleOffer:
        """Keep a bundle; an older one of the same key is replaced at once, never half.

        Raises `TransferFailed` when the file system refuses.
        """
        with self._replacing(key, len(data)) as temporary, temporary.open("wb") as file:
            file.write(data)
        return BundleOffer(key, len(data), zlib.crc32(data), self.endpoint)

    async def copy(self, offer: BundleOffer, key: str, *, timeout_s: float = 60.0) -> BundleOffer:
        """Keep the bundle of another store, verified, under a key of ours. On one machine the file
        becomes ours too, and its bytes are not copied.

        Raises `TransferFailed` if it cannot be had intact in time, or not be kept.
        """
        with self._replacing(key, offer.nbytes) as temporary:
            linked = _link(offer, self.endpoint.machine, temporary)
            if not (linked and await asyncio.to_thread(is_intact_file, temporary, offer)):
                temporary.unlink(missing_ok=True)
                await _download(offer, temporary, timeout_s)
        return BundleOffer(key, offer.nbytes, offer.checksum, self.endpoint)

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        path = self._path(prefix)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Stop serving; the files stay."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        connections = dict(self._connections)
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _opened(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except OSError as error:
            raise TransferFailed("no such bundle") from error

    def _path(self, key: str) -> Path:
        return path_under(self._root, key)

    @contextlib.contextmanager
    def _replacing(self, key: str, nbytes: int) -> Iterator[Path]:
        """A file to write, which then takes the bundle's place, unless something goes wrong."""
        path = self._path(key)
        # No key has such a name, and two that keep the same key at once do not share it.
        temporary = path.with_name(f".{path.name}.{next(self._puts)}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if self._durable:
                _sync(temporary)
            os.replace(temporary, path)
            if self._durable:
                _sync(path.parent)  # a rename is on disk when its folder is
        except OSError as error:
            raise TransferFailed(
                f"bundle {key} of {nbytes} bytes cannot be kept in {self._root}: "
                f"{error.strerror}; free some space there"
            ) from error
        finally:
            # Also when the bundle was this very file already: renaming does nothing then.
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it closed while this connection was on its way
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
            writer.close()
            async with asyncio.timeout(IDLE_LIMIT_S):
                await writer.wait_closed()
        except (OSError, EOFError, msgspec.MsgspecError):
            pass  # the other side is gone, stuck, or talks nonsense: it sees a closed connection
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header = msgspec.msgpack.decode(await read_record(reader), type=Header)
            if not hmac.compare_digest(header.token.encode(), self._token.encode()):
                raise TransferFailed("wrong token")
            if header.op == "put":
                await self._receive(header, reader, writer)
            else:
                await self._send(header, writer)
        except TransferFailed as error:
            await write_record(writer, Answer(False, problem=str(error)))

    async def _receive(
        self, header: Header, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._path(header.key)
        if header.nbytes > self._max_nbytes:
            raise TransferFailed(f"{header.nbytes} bytes are more than {self._max_nbytes}")
        await write_record(writer, Answer(True))
        data = await read_body(reader, header.nbytes)
        if zlib.crc32(data) != header.checksum:
            raise TransferFailed("checksum differs")
        await asyncio.to_thread(self.put, header.key, data)
        await write_record(writer, Answer(True))

    async def _send(self, header: Header, writer: asyncio.StreamWriter) -> None:
        with self._opened(header.key) as file:
            nbytes = os.fstat(file.fileno()).st_size
            await write_record(writer, Answer(True, nbytes=nbytes))
            while data := file.read(CHUNK):
                await write_body(writer, data)


async def fetch(offer: BundleOffer, *, timeout_s: float = 60.0) -> bytes:
    """The bytes of an offered bundle.

    Raises `TransferFailed` if they cannot be had intact in time.
    """
    # In a thread: reading and checking many gigabytes must not keep the loop from turning.
    data = await asyncio.to_thread(_read_own_machine, offer)
    if data is not None:
        return data

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answer = await read_answer(reader)
        # Before reading: a bundle of another size is not the one that was offered.
        return await read_body(reader, answer.nbytes) if answer.nbytes == offer.nbytes else b""

    header = Header("get", offer.key, offer.store.token)
    data = await exchange(offer.store, header, receive, timeout_s)
    if not await asyncio.to_thread(is_intact, data, offer):
        raise _damaged(offer)
    return data


async def upload(
    store: StoreEndpoint, key: str, data: bytes, *, timeout_s: float = 60.0
) -> BundleOffer:
    """Hand a bundle to a store that outlives us.

    Raises `TransferFailed` if the store does not take it in time.
    """

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_answer(reader)
        await write_body(writer, data)
        await read_answer(reader)

    checksum = await asyncio.to_thread(zlib.crc32, data)
    header = Header("put", key, store.token, len(data), checksum)
    await exchange(store, header, send, timeout_s)
    return BundleOffer(key, len(data), checksum, store)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(offer: BundleOffer, machine: str, to: Path) -> bool:
    """Have the offered file under another name as well; False if it is out of reach."""
    if offer.store.machine != machine:
        return False
    try:
        os.link(path_under(Path(offer.store.root), offer.key), to)
    except OSError:
        return False
    return True


async def _download(offer: BundleOffer, to: Path, timeout_s: float) -> None:
    """Write a bundle as it arrives."""

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = await read_answer(reader)
        if answer.nbytes != offer.nbytes:
            return False
        checksum = 0
        with to.open("wb") as file:
            async for part in read_parts(reader, offer.nbytes):
                checksum = zlib.crc32(part, checksum)
                file.write(part)
        return checksum == offer.checksum

    header = Header("get", offer.key, offer.store.token)
    if not await exchange(offer.store, header, receive, timeout_s):
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
        data = path_under(Path(offer.store.root), offer.key).read_bytes()
    except OSError:
        return None
    return data if is_intact(data, offer) else None
