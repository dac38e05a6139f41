"""How many may be connected to a data port, and for how long; and that stores share one."""

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
from spotlight.transport.tensors import BundleStore, DataPort, data_port, fetch, upload
from spotlight.types import BundleOffer

LIMIT = 8


@pytest.fixture
def timings() -> TransferTimings:
    return TransferTimings()


@pytest.fixture
async def port(
    monkeypatch: pytest.MonkeyPatch, timings: TransferTimings
) -> AsyncIterator[DataPort]:
    monkeypatch.setattr(data_port, "connection_limit", lambda: LIMIT)
    port = DataPort(timings=timings)
    await port.start()
    yield port
    await port.aclose()


@pytest.fixture
async def store(
    tmp_path: Path, timings: TransferTimings, port: DataPort
) -> AsyncIterator[BundleStore]:
    store = BundleStore(tmp_path / "store", token="t", timings=timings, port=port)
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
def crowd(port: DataPort) -> Iterator[Callable[[], socket.socket]]:
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        made.append(socket.create_connection((port.host, port.port)))
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
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # threads of the port need the interpreter, too


def elsewhere(offer: BundleOffer) -> BundleOffer:
    place = msgspec.structs.replace(offer.store, machine="another")
    return msgspec.structs.replace(offer, store=place)


async def served(store: BundleStore) -> None:
    """A peer of ours comes, and is served."""
    await upload(store.writable_by("w"), "a", b"data")


async def stuck(store: BundleStore, owner: str) -> asyncio.StreamWriter:
    """An upload that has been allowed and does not go on."""
    sink = store.writable_by(owner)
    _, writer = await asyncio.open_connection(sink.host, sink.port)
    unfinished = Path(sink.root) / ".unfinished"
    before = len(list(unfinished.iterdir()))
    writer.write(
        f"PUT /stuck HTTP/1.1\r\nHost: store\r\nAuthorization: Bearer {sink.token}\r\n"
        f"Content-Length: 5\r\nX-Checksum: {zlib.crc32(b'whole'):x}\r\n\r\n".encode()
    )
    await until(lambda: len(list(unfinished.iterdir())) > before)
    return writer


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("said", [b"", b"GET /a", b"GET /a HTTP/1.1\r\nHost: half a he"])
async def test_beyond_the_bound_the_oldest_who_has_not_said_what_it_wants_goes(
    store: BundleStore, port: DataPort, crowd: Crowd, said: bytes
) -> None:
    strangers = []
    for number in range(3 * LIMIT):
        strangers.append(crowd())
        strangers[-1].sendall(said)
        await until(lambda number=number: port.connections >= min(number + 1, LIMIT))  # type: ignore[misc]
    await until(lambda: port.connections == LIMIT)
    await until(lambda: not any(map(is_open, strangers[: 2 * LIMIT])))
    assert all(map(is_open, strangers[2 * LIMIT :]))
    await served(store)


@pytest.mark.parametrize("timings", [TransferTimings(header_limit_s=0.05)])
async def test_who_does_not_say_what_it_wants_goes_soon(port: DataPort, crowd: Crowd) -> None:
    stranger = crowd()
    stranger.sendall(b"GET /a HTTP/1.1\r\nHost: half a he")
    await until(lambda: port.connections == 1)
    await until(lambda: not port.connections)


async def test_strangers_do_not_end_a_transfer(store: BundleStore, crowd: Crowd) -> None:
    writer = await stuck(store, "w")
    for _ in range(3 * LIMIT):
        crowd()
        await asyncio.sleep(0.002)
    writer.write(b"whole")
    await until(lambda: (Path(store.endpoint.root) / "stuck").exists())
    await close(writer)


async def test_no_more_transfers_are_begun_than_there_are_places_for(
    store: BundleStore, port: DataPort
) -> None:
    offer = store.put("a", b"data")
    writers = [await stuck(store, f"w{number}") for number in range(LIMIT)]
    for attempt in (fetch(elsewhere(offer)), served(store)):
        with pytest.raises(TransferFailed, match="8 transfers are under way; try again"):
            await attempt
    await close(writers.pop())
    await until(lambda: port.connections == LIMIT - 1)
    await served(store)
    await close(*writers)


async def test_one_of_several_may_not_take_all_places(store: BundleStore) -> None:
    writers = [await stuck(store, "greedy") for _ in range(LIMIT // 2)]
    with pytest.raises(TransferFailed, match="try again"):
        await upload(store.writable_by("greedy"), "a", b"data")
    await served(store)
    await close(*writers)


async def test_stores_share_a_port_and_the_token_says_which_is_meant(
    store: BundleStore, port: DataPort, tmp_path: Path
) -> None:
    other = BundleStore(tmp_path / "other", token="another", port=port)
    await other.start()
    here, there = store.put("a", b"here"), other.put("a", b"there")
    assert here.store.port == there.store.port == port.port
    assert [await fetch(elsewhere(each)) for each in (here, there)] == [b"here", b"there"]
    await upload(other.writable_by("w"), "b", b"left there")
    assert not (Path(store.endpoint.root) / "b").exists()
    await other.aclose()
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await fetch(elsewhere(there))
    assert await fetch(elsewhere(here)) == b"here"


async def test_a_closed_store_takes_nothing_more_on_a_port_that_others_share(
    store: BundleStore,
) -> None:
    writer = await stuck(store, "w")
    unfinished = Path(store.endpoint.root) / ".unfinished"
    await store.aclose()
    writer.write(b"whole")
    await until(lambda: not list(unfinished.iterdir()))
    assert not (Path(store.endpoint.root) / "stuck").exists()
    await close(writer)


async def test_a_port_may_be_chosen_and_named_otherwise() -> None:
    free = socket.create_server(("127.0.0.1", 0))
    number = free.getsockname()[1]
    free.close()
    chosen = DataPort(port=number)
    await chosen.start()
    assert (chosen.host, chosen.port) == ("127.0.0.1", number)
    forwarded = DataPort(advertise="forwarder.example", advertise_port=443)
    await forwarded.start()
    assert (forwarded.host, forwarded.port) == ("forwarder.example", 443)
    taken = DataPort(port=number)
    with pytest.raises(OSError, match="in use"):
        await taken.start()
    for each in (chosen, forwarded, taken):
        await each.aclose()
