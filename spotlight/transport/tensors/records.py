"""What goes over a connection to a store: length-prefixed records of MessagePack, and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Literal, TypeVar

import msgspec

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.control.bad_input import clipped
from spotlight.types import StoreEndpoint

T = TypeVar("T")

_LENGTH = struct.Struct("!I")
_HEADER_LIMIT = 64 * 1024
_READ_AHEAD = 1024 * 1024
CHUNK = 1024 * 1024
"""So much is handed to a connection, or to the disk, at a time."""
_SLOWEST_BYTES_PER_S = 1e6

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True):
    """What a client wants; size and checksum are those of an upload."""

    op: Literal["get", "put"]
    key: str
    token: Annotated[str, msgspec.Meta(max_length=200)]
    nbytes: _Count = 0
    checksum: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What the store says to it; the size is that of the bundle it sends, the token the one with
    which an upload can be read.
    """

    ok: bool
    nbytes: _Count = 0
    problem: str = ""
    token: str = ""


async def exchange(
    store: StoreEndpoint,
    header: Header,
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[T]],
    timings: TransferTimings,
    limit_s: float,
) -> T:
    """Connect to a store, say what is wanted, and `talk` until all has arrived, within `limit_s`.

    Raises `TransferFailed` for whatever goes wrong on the way, and when the time is up.
    """
    where = f"{header.op} {header.key} at {store.host}:{store.port}"
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await _connect(store, timings.connect_limit_s)
            try:
                await write_record(writer, header, timings.idle_limit_s)
                return await talk(reader, writer)
            finally:
                # All that matters has arrived, or never will.
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError as error:
        raise TransferFailed(f"{where} took longer than {limit_s:g} s") from error
    except (OSError, EOFError, msgspec.MsgspecError, TransferFailed) as error:
        raise TransferFailed(f"{where} failed: {error}") from error


async def _connect(
    store: StoreEndpoint, limit_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.open_connection(store.host, store.port, limit=_READ_AHEAD)
    except TimeoutError as error:
        raise TransferFailed(f"no connection within {limit_s:g} s") from error


async def write_record(writer: asyncio.StreamWriter, record: msgspec.Struct, idle_s: float) -> None:
    """Send a header or an answer."""
    data = msgspec.msgpack.encode(record)
    await write_body(writer, _LENGTH.pack(len(data)) + data, idle_s)


async def read_record(reader: asyncio.StreamReader, limit_s: float) -> bytes:
    """The next record, still encoded; raises `TransferFailed` for one that is too long."""
    async with asyncio.timeout(limit_s):
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _HEADER_LIMIT:
            raise TransferFailed(f"a header of {length} bytes is too long")
        return await reader.readexactly(length)


async def read_answer(reader: asyncio.StreamReader, idle_s: float) -> Answer:
    """The store's answer; raises `TransferFailed` if it is a refusal."""
    answer = msgspec.msgpack.decode(await read_record(reader, idle_s), type=Answer)
    if not answer.ok:
        raise TransferFailed(f"refused: {clipped(answer.problem)}")
    return answer


async def write_body(writer: asyncio.StreamWriter, data: bytes, idle_s: float) -> None:
    """Send bytes; raises `TimeoutError` when the other side does not read for `idle_s`."""
    view = memoryview(data)
    for start in range(0, len(view), CHUNK):
        writer.write(view[start : start + CHUNK])
        async with asyncio.timeout(idle_s):
            await writer.drain()


async def read_body(reader: asyncio.StreamReader, nbytes: int, idle_s: float) -> bytes:
    """So many bytes; raises what `read_parts` raises."""
    return b"".join([part async for part in read_parts(reader, nbytes, idle_s)])


async def read_batches(
    reader: asyncio.StreamReader, nbytes: int, idle_s: float
) -> AsyncIterator[list[bytes]]:
    """So many bytes, a chunk or somewhat more at a time, and one empty batch if there are none;
    raises what `read_parts` raises.
    """
    batch: list[bytes] = []
    async for part in read_parts(reader, nbytes, idle_s):
        batch.append(part)
        if sum(map(len, batch)) >= CHUNK:
            yield batch
            batch = []
    if batch or not nbytes:
        yield batch


def upload_limit_s(nbytes: int, idle_s: float) -> float:
    """Seconds after which an upload is given up, however it goes on."""
    return 10 * idle_s + nbytes / _SLOWEST_BYTES_PER_S


async def read_parts(
    reader: asyncio.StreamReader, nbytes: int, idle_s: float
) -> AsyncIterator[bytes]:
    """So many bytes, as they arrive; raises `EOFError` when fewer come, and `TimeoutError` when
    none come for `idle_s`."""
    while nbytes > 0:
        async with asyncio.timeout(idle_s):
            part = await reader.read(min(nbytes, CHUNK))
        if not part:
            raise EOFError("the connection closed in the middle of a bundle")
        yield part
        nbytes -= len(part)
