"""A store of byte bundles: files under one folder, served over TCP, read directly by processes of
the same machine.

Whoever holds a bundle offers it; the receiver pulls and picks the cheapest way (the file itself on
the same machine, TCP otherwise). Whoever must hand something to a holder that outlives it uploads.
Every transfer has a deadline, a checksum and the store's token; a key can never leave the folder.
Nothing is parsed here, so nothing received can run.

On a connection: a header from the client, an answer from the store; then, if it was positive, the
bytes in the direction asked for, and after an upload a second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import re
import shutil
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec

from spotlight.errors import TransferFailed

T = TypeVar("T")

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_LENGTH = struct.Struct("!I")
_HEADER_LIMIT = 64 * 1024
_CHUNK = 4 * 1024 * 1024
_IDLE_LIMIT_S = 60.0

_Count = Annotated[int, msgspec.Meta(ge=0)]


class StoreEndpoint(msgspec.Struct, frozen=True):
    """Where a store is reached."""

    host: str
    port: int
    token: str
    machine: str
    """Identity of the machine: receivers with the same one read the files themselves."""
    root: str


class BundleOffer(msgspec.Struct, frozen=True):
    """A bundle that can be pulled."""

    key: str
    nbytes: int
    checksum: int
    """CRC-32 of the bytes."""
    store: StoreEndpoint


class _Header(msgspec.Struct, frozen=True):
    op: Literal["get", "put"]
    key: str
    token: str
    nbytes: _Count = 0
    checksum: int = 0


class _Answer(msgspec.Struct, frozen=True):
    ok: bool
    nbytes: _Count = 0
    problem: str = ""


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


def machine_identity() -> str:
    """The same on all processes that share this machine's files, different elsewhere."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


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
        path = self._path(key)
        # No key has such a name, and two that put the same key at once do not share it.
        temporary = path.with_name(f".{path.name}.{next(self._puts)}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                if self._durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if self._durable:
                _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise TransferFailed(
                f"bundle {key} of {len(data)} bytes cannot be kept in {self._root}: "
                f"{error.strerror}; free some space there"
            ) from error
        return BundleOffer(key, len(data), zlib.crc32(data), self.endpoint)

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

    def _path(self, key: str) -> Path:
        return _path_under(self._root, key)

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
            async with asyncio.timeout(_IDLE_LIMIT_S):
                await writer.wait_closed()
        except (OSError, EOFError, msgspec.MsgspecError):
            pass  # the other side is gone, stuck, or talks nonsense: it sees a closed connection
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header = msgspec.msgpack.decode(await _read_record(reader), type=_Header)
            if not hmac.compare_digest(header.token.encode(), self._token.encode()):
                raise TransferFailed("wrong token")
            if header.op == "put":
                await self._receive(header, reader, writer)
            else:
                await self._send(header, writer)
        except TransferFailed as error:
            await _write_record(writer, _Answer(False, problem=str(error)))

    async def _receive(
        self, header: _Header, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._path(header.key)
        if header.nbytes > self._max_nbytes:
            raise TransferFailed(f"{header.nbytes} bytes are more than {self._max_nbytes}")
        await _write_record(writer, _Answer(True))
        data = await _read_body(reader, header.nbytes)
        if zlib.crc32(data) != header.checksum:
            raise TransferFailed("checksum differs")
        await asyncio.to_thread(self.put, header.key, data)
        await _write_record(writer, _Answer(True))

    async def _send(self, header: _Header, writer: asyncio.StreamWriter) -> None:
        try:
            data = self._path(header.key).read_bytes()
        except OSError as error:
            raise TransferFailed("no such bundle") from error
        await _write_record(writer, _Answer(True, nbytes=len(data)))
        await _write_body(writer, data)


async def fetch(offer: BundleOffer, *, timeout_s: float = 60.0) -> bytes:
    """The bytes of an offered bundle.

    Raises `TransferFailed` if they cannot be had intact in time.
    """
    # In a thread: reading and checking many gigabytes must not keep the loop from turning.
    data = await asyncio.to_thread(_read_own_machine, offer)
    if data is not None:
        return data

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answer = await _read_answer(reader)
        # Before reading: a bundle of another size is not the one that was offered.
        return await _read_body(reader, answer.nbytes) if answer.nbytes == offer.nbytes else b""

    header = _Header("get", offer.key, offer.store.token)
    data = await _exchange(offer.store, header, receive, timeout_s)
    if not await asyncio.to_thread(_is_intact, data, offer):
        raise TransferFailed(
            f"bundle {offer.key} arrived damaged from {offer.store.host}; fetch it again"
        )
    return data


async def upload(
    store: StoreEndpoint, key: str, data: bytes, *, timeout_s: float = 60.0
) -> BundleOffer:
    """Hand a bundle to a store that outlives us.

    Raises `TransferFailed` if the store does not take it in time.
    """

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_answer(reader)
        await _write_body(writer, data)
        await _read_answer(reader)

    checksum = await asyncio.to_thread(zlib.crc32, data)
    header = _Header("put", key, store.token, len(data), checksum)
    await _exchange(store, header, send, timeout_s)
    return BundleOffer(key, len(data), checksum, store)


def _sync_folder(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_intact(data: bytes, offer: BundleOffer) -> bool:
    return len(data) == offer.nbytes and zlib.crc32(data) == offer.checksum


def _read_own_machine(offer: BundleOffer) -> bytes | None:
    """The bundle's file, if it is here and intact."""
    if offer.store.machine != machine_identity():
        return None
    try:
        data = _path_under(Path(offer.store.root), offer.key).read_bytes()
    except OSError:
        return None
    return data if _is_intact(data, offer) else None


async def _exchange(
    store: StoreEndpoint,
    header: _Header,
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[T]],
    timeout_s: float,
) -> T:
    where = f"{header.op} {header.key} at {store.host}:{store.port}"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(store.host, store.port)
            try:
                await _write_record(writer, header)
                return await talk(reader, writer)
            finally:
                # All that matters has arrived, or never will.
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError as error:
        raise TransferFailed(f"{where} took longer than {timeout_s:g} s") from error
    except (OSError, EOFError, msgspec.MsgspecError, TransferFailed) as error:
        raise TransferFailed(f"{where} failed: {error}") from error


def _path_under(root: Path, key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise TransferFailed(f"{key!r} is not a bundle key")
    return root / key


async def _write_record(writer: asyncio.StreamWriter, record: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(record)
    await _write_body(writer, _LENGTH.pack(len(data)) + data)


async def _read_record(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(_IDLE_LIMIT_S):
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _HEADER_LIMIT:
            raise TransferFailed(f"a header of {length} bytes is too long")
        return await reader.readexactly(length)


async def _read_answer(reader: asyncio.StreamReader) -> _Answer:
    answer = msgspec.msgpack.decode(await _read_record(reader), type=_Answer)
    if not answer.ok:
        raise TransferFailed(f"refused: {answer.problem}")
    return answer


async def _write_body(writer: asyncio.StreamWriter, data: bytes) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK):
        writer.write(view[start : start + _CHUNK])
        async with asyncio.timeout(_IDLE_LIMIT_S):
            await writer.drain()


async def _read_body(reader: asyncio.StreamReader, nbytes: int) -> bytes:
    parts = []
    while nbytes > 0:
        async with asyncio.timeout(_IDLE_LIMIT_S):
            part = await reader.read(min(nbytes, _CHUNK))
        if not part:
            raise EOFError("the connection closed in the middle of a bundle")
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)
