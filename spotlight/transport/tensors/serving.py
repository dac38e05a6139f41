"""Bundles over HTTP, on the serving side: a body that is sent from a file, and one that is read.

GET /KEY    Authorization: Bearer TOKEN    [Range: bytes=FIRST-]
PUT /KEY    Authorization: Bearer TOKEN    Content-Length: BYTES    X-Checksum: CRC-32
            [X-Written: NAME, of a file on the same machine in place of a body]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import BinaryIO

from aiohttp import ClientError, web

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.offers import CHECKSUM, WRITTEN, nbytes_of

READ_AHEAD = 1024 * 1024
_WRITTEN = re.compile("[0-9a-f]{16}-[0-9]+")
_CHUNK = 8 * 1024 * 1024
"""The other side must take so much within the idle limit."""
_SLOWEST_BYTES_PER_S = 1e6


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


def refusal(problem: str) -> web.Response:
    """An answer that says why not."""
    return web.Response(status=409, text=problem)


async def send_file(request: web.BaseRequest, file: BinaryIO, idle_s: float) -> web.StreamResponse:
    """Answer with a file's bytes, or with those from where the client asks for them.

    Raises `ConnectionBroken` when the other side leaves, or takes nothing for `idle_s`, and
    `TransferFailed` for a range that the file does not have.
    """
    loop, nbytes = asyncio.get_running_loop(), nbytes_of(file)
    try:
        first = request.http_range.start or 0
    except ValueError as error:
        raise TransferFailed(f"range: {error}") from error
    if not 0 <= first <= nbytes:
        raise TransferFailed(f"range: the bundle has {nbytes} bytes, and no byte {first}")
    response = web.StreamResponse(status=206 if first else 200)
    response.content_length = nbytes - first
    response.force_close()
    if first:
        response.headers["Content-Range"] = f"bytes {first}-{nbytes - 1}/{nbytes}"
    writer = await response.prepare(request)
    assert writer is not None
    writer.send_headers()
    try:
        while first < nbytes:
            transport = request.transport
            if transport is None:
                raise ConnectionBroken
            async with asyncio.timeout(idle_s):
                sent = await loop.sendfile(transport, file, first, min(_CHUNK, nbytes - first))
            if not sent:
                raise ConnectionBroken  # somebody has cut the file
            first += sent
    except (OSError, RuntimeError) as error:  # a closed transport is a RuntimeError
        raise ConnectionBroken from error
    return response


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
