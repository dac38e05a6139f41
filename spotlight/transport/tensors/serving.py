"""Bundles over HTTP, on the serving side: a body that is sent from a file, and one that is read.

GET /KEY    Authorization: Bearer TOKEN    [Range: bytes=FIRST-]    [X-UCX: TAG ADDRESS]
            [X-Base: KEY, of a bundle that the receiver has: the answer may be what differs]
PUT /KEY    Authorization: Bearer TOKEN    Content-Length: BYTES    X-Checksum: CRC-32
            [X-Written: NAME, of a file on the same machine in place of a body]
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import BinaryIO

from aiohttp import ClientError, web
from aiohttp.abc import AbstractStreamWriter

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.transport.tensors import deltas, ucx
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.offers import BASE, CHECKSUM, UCX, WRITTEN, nbytes_of

READ_AHEAD = 1024 * 1024
_WRITTEN = re.compile("[0-9a-f]{16}-[0-9]+")
_CHUNK = 8 * 1024 * 1024
"""The other side must take so much within the idle limit."""
_ENCRYPTED_CHUNK = 256 * 1024
"""Encrypting it keeps others on the port waiting."""
_FROM = re.compile("bytes=([0-9]{1,20})-")
_SLOWEST_BYTES_PER_S = 1e6
_LARGEST_DELTA = 0.5
"""The share of its bundle beyond which a delta takes more work than it saves."""
_ENCODED_AHEAD = 4
"""Chunks of a delta that are made at once, while others are sent."""


class ConnectionBroken(Exception):
    """The other side is gone, or stuck, in the middle of a body: nothing more can be said to it."""


def token_of(request: web.BaseRequest) -> str:
    """What the client shows; empty if it shows nothing."""
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def key_of(request: web.BaseRequest) -> str:
    """Which bundle is meant, as it was sent."""
    return request.raw_path.removeprefix("/")


def announced_nbytes(request: web.BaseRequest) -> int:
    """Of an upload; raises `TransferFailed` if it does not say so."""
    nbytes = request.content_length
    if nbytes is None or nbytes < 0:
        raise TransferFailed("an upload says its Content-Length")
    return nbytes


def announced_checksum(request: web.BaseRequest) -> int:
    """Of an upload; raises `TransferFailed` if it does not say so."""
    try:
        return int(request.headers[CHECKSUM], 16)
    except (KeyError, ValueError) as error:
        raise TransferFailed(f"an upload says its {CHECKSUM}, as hexadecimal digits") from error


def written_name(request: web.BaseRequest) -> str:
    """The file that the sender has written for an upload, on this machine; empty for one that it
    sends. Raises `TransferFailed` for what is not the name of such a file.
    """
    name = request.headers.get(WRITTEN, "")
    if name and not _WRITTEN.fullmatch(name):
        raise TransferFailed(f"{WRITTEN} names no file that a sender may write")
    return name


def refusal(error: TransferFailed) -> web.Response:
    """An answer that says why not."""
    status = error.status if isinstance(error, TransferRefused) else HTTPStatus.CONFLICT
    return web.Response(status=status, text=str(error))


def first_byte(request: web.BaseRequest, nbytes: int) -> int:
    """Of a bundle of so many bytes, where the client wants it from; raises `TransferRefused` for a
    range that it does not have, or that is not a whole rest of it.
    """
    wanted = request.headers.getall("Range", ())
    if not wanted:
        return 0
    found = _FROM.fullmatch(wanted[0])
    if len(wanted) > 1 or found is None:
        raise TransferRefused(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "range: must be one `bytes=FIRST-`"
        )
    first = int(found[1])
    if first and first >= nbytes:
        raise TransferRefused(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            f"range: the bundle has {nbytes} bytes, and no byte {first}",
        )
    return first


async def send_file(request: web.BaseRequest, file: BinaryIO, idle_s: float) -> web.StreamResponse:
    """Answer with a file's bytes, or with those from where the client asks for them.

    Raises `ConnectionBroken` when the other side leaves, or takes nothing for `idle_s`, and
    `TransferRefused` for a range that the file does not have.
    """
    nbytes = nbytes_of(file)
    first = first_byte(request, nbytes)
    response = web.StreamResponse(status=206 if first else 200)
    response.content_length = nbytes - first
    if first:
        response.headers["Content-Range"] = f"bytes {first}-{nbytes - 1}/{nbytes}"
    writer = await _begin(request, response)
    try:
        while first < nbytes:
            transport = request.transport
            if transport is None:
                raise ConnectionBroken
            async with asyncio.timeout(idle_s):
                sent = await _send(transport, writer, file, first, nbytes - first)
            if not sent:
                raise ConnectionBroken  # somebody has cut the file
            first += sent
    except (OSError, RuntimeError) as error:  # a closed transport is a RuntimeError
        raise ConnectionBroken from error
    return response


def alike(folder: Folder, base: str, file: BinaryIO) -> tuple[memoryview, memoryview] | None:
    """The bundle of the key `base` and the one in the file, if what differs is worth sending."""
    nbytes = nbytes_of(file)
    try:
        with folder.open(base) as other:
            if not nbytes or nbytes_of(other) != nbytes or not deltas.are_possible():
                return None
            old, new = deltas.mapped(other), deltas.mapped(file)
    except OSError:
        return None  # not here, or not any more
    return (old, new) if deltas.size_of_delta(old, new) < _LARGEST_DELTA else None


def starts_a_chunk(request: web.BaseRequest, file: BinaryIO) -> bool:
    """Whether a delta can begin where the client wants the bundle from."""
    return first_byte(request, nbytes_of(file)) % deltas.CHUNK == 0


async def send_delta(
    request: web.BaseRequest, base: memoryview, bundle: memoryview, idle_s: float
) -> web.StreamResponse:
    """Answer with what differs between the base that the client has and the bundle, from the chunk
    on that it asks for. Raises as `send_file`."""
    first = first_byte(request, len(bundle))
    response = web.StreamResponse(
        status=206 if first else 200, headers={BASE: request.headers[BASE]}
    )
    writer = await _begin(request, response)
    try:
        async for chunk in _encoded(base, bundle, first):
            for start in range(0, len(chunk), READ_AHEAD):
                async with asyncio.timeout(idle_s):
                    await writer.write(chunk[start : start + READ_AHEAD])
    except (OSError, RuntimeError) as error:
        raise ConnectionBroken from error
    return response


async def _encoded(base: memoryview, bundle: memoryview, first: int) -> AsyncIterator[bytes]:
    """The delta's chunks, some of which are made in threads while others are used."""
    starts = iter(range(first, len(bundle), deltas.CHUNK))
    ahead: deque[asyncio.Task[bytes]] = deque()
    try:
        while True:
            while len(ahead) < _ENCODED_AHEAD and (start := next(starts, None)) is not None:
                chunk = slice(start, start + deltas.CHUNK)
                work = asyncio.to_thread(deltas.encoded, base[chunk], bundle[chunk])
                ahead.append(asyncio.create_task(work))
            if not ahead:
                return
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()


async def send_by_ucx(
    request: web.BaseRequest, file: BinaryIO, idle_s: float, broke: Callable[[], None]
) -> web.StreamResponse:
    """The same by UCX, to where the client says. The answer's head says how many bytes come, and
    its body, which is empty, lasts until the client has them all and leaves. `broke` is called when
    it leaves earlier, or stands still.
    """
    nbytes = nbytes_of(file)
    first = first_byte(request, nbytes)
    target = ucx.Target.parse(request.headers[UCX])
    response = web.StreamResponse(status=206 if first else 200, headers={UCX: str(nbytes - first)})
    await _begin(request, response)
    gone, thread = threading.Event(), ThreadPoolExecutor(1, thread_name_prefix="ucx")
    work = asyncio.get_running_loop().run_in_executor(
        thread, ucx.send, target, file, first, nbytes - first, idle_s, gone
    )
    # Not after `await`: this may be cancelled a second time while it waits for the thread.
    work.add_done_callback(lambda sent: broke() if sent.exception() is not None else None)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait((work,))  # it works on the file
        raise
    except TransferFailed as error:
        raise ConnectionBroken from error
    finally:
        thread.shutdown()  # it has nothing left to do
    return response


async def _begin(request: web.BaseRequest, response: web.StreamResponse) -> AbstractStreamWriter:
    response.force_close()
    writer = await response.prepare(request)
    assert writer is not None
    writer.send_headers()
    return writer


async def _send(
    transport: asyncio.Transport,
    writer: AbstractStreamWriter,
    file: BinaryIO,
    first: int,
    nbytes: int,
) -> int:
    """How many of these bytes were sent."""
    if transport.get_extra_info("ssl_object") is None:
        loop = asyncio.get_running_loop()
        return await loop.sendfile(transport, file, first, min(_CHUNK, nbytes))
    # The system cannot encrypt for us: asyncio would read 16 KiB at a time, each in a thread.
    part = os.pread(file.fileno(), min(_ENCRYPTED_CHUNK, nbytes), first)
    await writer.write(part)
    return len(part)


async def body_of(request: web.BaseRequest, nbytes: int, idle_s: float) -> AsyncIterator[bytes]:
    """The body of an upload as it arrives; at least one part, which may be empty.

    Raises `TransferFailed` when fewer bytes come, and when none come for `idle_s`.
    """
    try:
        async with asyncio.timeout(upload_limit_s(nbytes, idle_s)):
            while True:
                async with asyncio.timeout(idle_s):
                    part = await request.content.readany()
                nbytes -= len(part)
                yield part
                if nbytes <= 0 or not part:
                    break
    except TimeoutError as error:
        raise ConnectionBroken from error
    except (OSError, ClientError, web.PayloadAccessError) as error:
        raise ConnectionBroken from error
    if nbytes:
        raise TransferFailed("the body has another length than was announced")


def upload_limit_s(nbytes: int, idle_s: float) -> float:
    """Seconds after which an upload is given up, however it goes on."""
    return 10 * idle_s + nbytes / _SLOWEST_BYTES_PER_S
