"""How many may be connected to a store, and for how long."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, fetch, serving, upload
from spotlight.types import BundleOffer

LIMIT = 8


@pytest.fixture
def timings() -> TransferTimings:
    return TransferTimings()


@pytest.fixture
async def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timings: TransferTimings
) -> AsyncIterator[BundleStore]:
    monkeypatch.setattr(serving, "connection_limit", lambda: LIMIT)
    store = BundleStore(tmp_path / "store", token="t", timings=timings)
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
def crowd(store: BundleStore) -> Iterator[Callable[[], socket.socket]]:
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        made.append(socket.create_connection((store.endpoint.host, store.endpoint.port)))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


Crowd = Callable[[], socket.socket]


def is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1000, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def elsewhere(offer: BundleOffer) -> BundleOffer:
    place = msgspec.structs.replace(offer.store, machine="another")
    return msgspec.structs.replace(offer, store=place)


async def served(store: BundleStore) -> None:
    """A peer of ours comes, and is served."""
    await upload(store.writable_by("w"), "a", b"data")


async def stuck(store: BundleStore, owner: str) -> asyncio.StreamWriter:
    """An upload that has been allowed and does not go on."""
    sink = store.writable_by(owner)
    reader, writer = await asyncio.open_connection(sink.host, sink.port)
    header = {"op": "put", "key": "stuck", "token": sink.token}
    data = msgspec.msgpack.encode({**header, "nbytes": 5, "checksum": zlib.crc32(b"whole")})
    writer.write(len(data).to_bytes(4, "big") + data)
    await reader.readexactly(10)
    return writer


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\x50half a header"])
async def test_beyond_the_bound_the_oldest_who_has_not_said_what_it_wants_goes(
    store: BundleStore, crowd: Crowd, said: bytes
) -> None:
    strangers = []
    for number in range(3 * LIMIT):
        strangers.append(crowd())
        strangers[-1].sendall(said)
        await until(lambda number=number: len(store._server) >= min(number + 1, LIMIT))  # type: ignore[misc]
    await until(lambda: len(store._server) == LIMIT)
    await until(lambda: not any(map(is_open, strangers[: 2 * LIMIT])))
    assert all(map(is_open, strangers[2 * LIMIT :]))
    await served(store)


@pytest.mark.parametrize("timings", [TransferTimings(header_limit_s=0.05)])
async def test_who_does_not_say_what_it_wants_goes_soon(store: BundleStore, crowd: Crowd) -> None:
    stranger = crowd()
    stranger.sendall(b"\0\0\0\x50half a header")
    await until(lambda: len(store._server) == 1)
    await until(lambda: not len(store._server))


async def test_strangers_do_not_end_a_transfer(store: BundleStore, crowd: Crowd) -> None:
    writer = await stuck(store, "w")
    for _ in range(3 * LIMIT):
        crowd()
        await asyncio.sleep(0.002)
    writer.write(b"whole")
    await until(lambda: (Path(store.endpoint.root) / "stuck").exists())
    await close(writer)


async def test_no_more_transfers_are_begun_than_there_are_places_for(store: BundleStore) -> None:
    offer = store.put("a", b"data")
    writers = [await stuck(store, f"w{number}") for number in range(LIMIT)]
    for attempt in (fetch(elsewhere(offer)), served(store)):
        with pytest.raises(TransferFailed, match="8 transfers are under way; try again"):
            await attempt
    await close(writers.pop())
    await until(lambda: len(store._server) == LIMIT - 1)
    await served(store)
    await close(*writers)


async def test_one_of_several_may_not_take_all_places(store: BundleStore) -> None:
    writers = [await stuck(store, "greedy") for _ in range(LIMIT // 2)]
    with pytest.raises(TransferFailed, match="try again"):
        await upload(store.writable_by("greedy"), "a", b"data")
    await served(store)
    await close(*writers)
