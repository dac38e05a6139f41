"""Answers without an end: whoever asks is told so in time, and keeps nothing of them."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, fetch, upload
from spotlight.transport.tensors.client import stream
from spotlight.transport.tensors.files import deposit, fetched_file
from spotlight.types import BundleOffer, StoreEndpoint

TIMINGS = TransferTimings(transfer_limit_s=1.0, idle_limit_s=1.0)
PIECE = b"x" * 64 * 1024
MOST_SENT = 64 * 1024 * 1024
"""More than the buffers of two sockets, and less than who keeps all of it takes in a second."""


@contextmanager
def endless(head: bytes, piece: bytes) -> Iterator[tuple[int, list[int]]]:
    """A server that begins with one answer and never ends; its port, and what it could send."""
    sent: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                sent.append(0)
                try:
                    connection.recv(4096)
                    connection.sendall(head)
                    for _ in itertools.count():
                        sent[-1] += connection.send(piece)
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], sent
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


ANSWERS = {
    "a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", PIECE),
    "a body longer than it says": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", PIECE),
    "a body as long as no other": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        PIECE,
    ),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"10000\r\n" + PIECE + b"\r\n",
    ),
    "a chunk without a size": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0" * 1000,
    ),
    "a reason for a refusal": (b"HTTP/1.1 409 Conflict\r\n\r\n", PIECE),
    "a line of a header": (b"HTTP/1.1 200 OK\r\nX-Filler: ", PIECE),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Filler: x\r\n"),
    "a first line": (b"HTTP/1.1 200 ", PIECE),
    "heads before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "footers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-Filler: x\r\n",
    ),
}


async def _fetch(place: StoreEndpoint, folder: Path) -> None:
    await fetch(_offered(place), TIMINGS)


async def _copy(place: StoreEndpoint, folder: Path) -> None:
    store = BundleStore(folder / "taker", token="t", timings=TIMINGS)
    await store.start()
    try:
        await store.copy(_offered(place), "a.00000000")
    finally:
        await store.aclose()


async def _stream(place: StoreEndpoint, folder: Path) -> None:
    taken: list[int] = []
    await stream(_offered(place), 0, lambda part: taken.append(len(part)), TIMINGS)


async def _fetched_file(place: StoreEndpoint, folder: Path) -> None:
    async with fetched_file(_offered(place), TIMINGS):
        raise AssertionError("nothing was offered that could be a file")


async def _upload(place: StoreEndpoint, folder: Path) -> None:
    offer = await upload(place, "a", b"data", TIMINGS)
    assert len(offer.store.token) <= 200
    raise TransferFailed("the answer of a store is cut to the length of a token")


async def _deposit(place: StoreEndpoint, folder: Path) -> None:
    offer = await deposit(place, "a", lambda path: _write(path), TIMINGS)
    assert len(offer.store.token) <= 200
    raise TransferFailed("the answer of a store is cut to the length of a token")


def _write(path: Path) -> None:
    path.write_bytes(b"data")


TRIED = [
    *((read, answer) for read in (_fetch, _upload) for answer in ANSWERS),
    *(
        (read, answer)
        for read in (_copy, _stream, _fetched_file, _deposit)
        for answer in ("a body longer than it says", "a reason for a refusal", "headers")
    ),
]
"""All of them read answers with one client; each has bodies and refusals of its own."""


def _offered(place: StoreEndpoint) -> BundleOffer:
    return BundleOffer("a", 1000, 0, place)


@pytest.mark.parametrize(("read", "answer"), TRIED)
async def test_an_answer_without_an_end_is_given_up(
    read: Callable[[StoreEndpoint, Path], Awaitable[None]],
    answer: str,
    tmp_path: Path,
) -> None:
    with endless(*ANSWERS[answer]) as (port, sent):
        place = StoreEndpoint("127.0.0.1", port, "t", "another", "/none")
        async with asyncio.timeout(30):
            with pytest.raises(TransferFailed):
                await read(place, tmp_path)
    assert sent and max(sent) < MOST_SENT
