"""Requests to stores by hand, and servers that are no stores."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import zlib
from collections.abc import AsyncIterator
from typing import Any

from tensor_kit import TOKEN

from spotlight.types import StoreEndpoint

YES = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
"""The head of an answer with a bundle."""


def derived(what: str) -> str:
    """A token of a store with the secret `TOKEN`."""
    return hmac.new(TOKEN.encode(), what.encode(), hashlib.sha256).hexdigest()


def head(method: str = "GET", key: str = "a", token: str | None = None, **fields: object) -> bytes:
    """The head of a request to a store; with `_` in place of `-` in its fields."""
    if token is None:
        token = derived("write 1 w" if method == "PUT" else f"read {key}")
    lines = [f"{method} /{key} HTTP/1.1", "Host: store", f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def put(nbytes: int, data: bytes = b"", **options: Any) -> bytes:
    """The head of an upload of so many bytes."""
    return head("PUT", Content_Length=nbytes, X_Checksum=f"{zlib.crc32(data):x}", **options)


async def say(endpoint: StoreEndpoint, data: bytes, *, end: bool = False) -> bytes:
    """Send raw bytes to a store, and all that it answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.read(), 10)
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def impostor(answer: bytes, *, after: str = "close") -> AsyncIterator[StoreEndpoint]:
    """A server that answers anything with these bytes, then closes or stays silent for ever."""
    release, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        await writer.drain()
        if after == "silence":
            await release.wait()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield StoreEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN, "else", "/none")
    finally:
        release.set()
        server.close()
        await closed.wait()
