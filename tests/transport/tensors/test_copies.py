"""One store keeps the bundle of another: linked on one machine, received over TCP from others."""

import asyncio
import contextlib
import errno
import os
import shutil
import threading
import zlib
from pathlib import Path
from typing import Self

import msgspec
import pytest
from tensor_kit import store_on

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, content_key, fetch, own_file
from spotlight.transport.tensors.incoming import Incoming
from spotlight.types import BundleOffer, StoreEndpoint

BIG = os.urandom(1 << 20) * 9
KEY = content_key("weights/1", zlib.crc32(BIG))


@pytest.fixture
async def stores(tmp_path, monkeypatch):
    """The origin, a store on the same machine, and one elsewhere."""
    made = [
        await store_on(machine, tmp_path / name, monkeypatch)
        for name, machine in (("origin", "a"), ("beside", "a"), ("away", "b"))
    ]
    yield made
    for store in made:
        await store.aclose()


def folder(store: BundleStore) -> Path:
    return Path(store.endpoint.root)


def files(store: BundleStore) -> set[str]:
    root = folder(store)
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
@pytest.mark.parametrize("taker", [0, 1, 2], ids=["itself", "beside", "away"])
async def test_a_copy_is_whole_and_others_can_fetch_it(stores, taker, data):
    origin, store = stores[0], stores[taker]
    key = content_key("weights/1", zlib.crc32(data))
    copy = await store.copy(origin.put("weights/1", data), key)
    assert copy == BundleOffer(key, len(data), zlib.crc32(data), store.readable(key))
    origin.delete("weights/1")
    assert files(store) == {key}
    assert await fetch(copy) == data


async def test_on_one_machine_no_bytes_are_copied(stores):
    origin, beside, _ = stores
    offer = origin.put("weights/1", BIG)
    await origin.aclose()
    await beside.copy(offer, KEY)
    assert (folder(beside) / KEY).samefile(folder(origin) / "weights/1")


async def test_a_copy_of_what_it_has_already_leaves_one_file(stores):
    origin = stores[0]
    copy = await origin.copy(origin.put("weights/1", BIG), KEY)
    assert await origin.copy(copy, KEY) == copy
    assert files(origin) == {"weights/1", KEY}


async def test_on_one_machine_a_file_that_cannot_be_linked_is_received(stores, monkeypatch):
    def refuse(*_, **__) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    origin, beside, _ = stores
    monkeypatch.setattr(os, "link", refuse)
    await beside.copy(origin.put("weights/1", BIG), KEY)
    assert (folder(beside) / KEY).read_bytes() == BIG
    assert not (folder(beside) / KEY).samefile(folder(origin) / "weights/1")


@pytest.mark.parametrize("taker", [1, 2], ids=["beside", "away"])
@pytest.mark.parametrize("damage", [b"whule", b"whol", b"whole!", b""])
async def test_a_damaged_bundle_is_not_kept(stores, taker, damage):
    origin, store = stores[0], stores[taker]
    offer = origin.put("a", b"whole")
    (folder(origin) / "a").write_bytes(damage)
    with pytest.raises(TransferFailed, match=r"a arrived damaged from 127.0.0.1"):
        await store.copy(offer, "a.00000000")
    assert files(store) == set()


@pytest.mark.parametrize("taker", [1, 2], ids=["beside", "away"])
async def test_a_bundle_that_is_gone_is_a_failed_transfer(stores, taker):
    offer = stores[0].put("a", b"whole")
    stores[0].delete("a")
    with pytest.raises(TransferFailed, match=r"get a at .*no such bundle"):
        await stores[taker].copy(offer, "a.00000000")


async def test_a_store_that_is_closed_is_a_failed_transfer(stores):
    offer = stores[0].put("a", b"whole")
    await stores[0].aclose()
    with pytest.raises(TransferFailed, match=r"get a at .* failed"):
        await stores[2].copy(offer, "a.00000000")
    assert files(stores[2]) == set()


async def test_a_store_that_falls_silent_costs_no_more_than_the_deadline(stores):
    release = asyncio.Event()

    async def serve(reader, writer) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = StoreEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], "", "else", "/none")
    with pytest.raises(TransferFailed, match=r"took longer than 0\.05 s"):
        await stores[2].copy(BundleOffer("a", 5, 0, endpoint), "a.00000000", limit_s=0.05)
    release.set()
    server.close()
    await server.wait_closed()
    assert files(stores[2]) == set()


class Cutting:
    """A way to a store on which connections break after so many bytes of a body."""

    def __init__(self, store: BundleStore, nbytes: int) -> None:
        self._store = store
        self._nbytes = nbytes
        self.passed: list[int] = []
        """Bytes of the body, by connection."""
        self.ranges: list[bytes] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def offer(self, offer: BundleOffer) -> BundleOffer:
        """The same, by this way."""
        port = self._server.sockets[0].getsockname()[1]
        store = msgspec.structs.replace(offer.store, port=port)
        return msgspec.structs.replace(offer, store=store)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint = self._store.endpoint
        there, to_there = await asyncio.open_connection(endpoint.host, endpoint.port)
        head = await reader.readuntil(b"\r\n\r\n")
        self.ranges += [line for line in head.split(b"\r\n") if line.startswith(b"Range")]
        to_there.write(head)
        writer.write(await there.readuntil(b"\r\n\r\n"))
        self.passed.append(0)
        while self.passed[-1] < self._nbytes and (part := await there.read(1 << 16)):
            writer.write(part)
            await writer.drain()
            self.passed[-1] += len(part)
        for each in (writer, to_there):
            each.close()


async def test_what_came_before_a_copy_broke_off_does_not_come_again(stores):
    origin, beside, away = stores
    offer = origin.put("weights/1", BIG)
    other = beside.put("weights/1", BIG)
    async with Cutting(origin, 4 << 20) as first, Cutting(beside, 1 << 30) as second:
        with pytest.raises(TransferFailed, match="in the middle of a bundle"):
            await away.copy(first.offer(offer), KEY)
        copy = await away.copy(second.offer(other), KEY)
    assert await fetch(copy) == BIG
    assert len(first.passed) == len(second.passed) == 1
    assert sum(first.passed + second.passed) < 1.2 * len(BIG)
    assert len(second.ranges) == 1
    assert files(away) == {KEY}


async def test_a_copy_that_broke_off_may_be_linked_and_never_written_on(stores, monkeypatch):
    origin, beside, away = stores
    keep, go_on = Incoming.keep, threading.Event()
    kept = threading.Event()

    def slow(incoming: Incoming) -> None:
        kept.set()
        go_on.wait(30.0)
        keep(incoming)

    async with Cutting(origin, 4 << 20) as way:
        with pytest.raises(TransferFailed):
            await away.copy(way.offer(origin.put("weights/1", BIG)), KEY)
    near = msgspec.structs.replace(beside.put("a", BIG).store, machine="b")
    offer = BundleOffer("a", len(BIG), zlib.crc32(BIG), near)
    with monkeypatch.context() as patch:
        patch.setattr(Incoming, "keep", slow)
        task = asyncio.ensure_future(away.copy(offer, KEY))
        assert await asyncio.to_thread(kept.wait, 30.0)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert files(away) == set()
    assert (folder(beside) / "a").read_bytes() == BIG
    again = await away.copy(origin.put("weights/1", BIG), KEY)
    assert await fetch(again) == BIG


async def test_what_came_of_other_bytes_is_not_gone_on_with(stores):
    origin, _, away = stores
    async with Cutting(origin, 4 << 20) as way:
        with pytest.raises(TransferFailed):
            await away.copy(way.offer(origin.put("weights/1", BIG)), KEY)
    changed = BIG[::-1]
    key = content_key("weights/1", zlib.crc32(changed))
    assert await fetch(await away.copy(origin.put("weights/1", changed), key)) == changed


async def test_only_so_many_copies_that_broke_off_are_kept(stores):
    origin, _, away = stores
    for number in range(5):
        async with Cutting(origin, 4 << 20) as way:
            with pytest.raises(TransferFailed):
                offer = origin.put(f"weights/{number}", bytes([number]) + BIG)
                await away.copy(way.offer(offer), f"weights/{number}.0")
    assert len(files(away)) == 2
    await away.aclose()
    assert not files(away)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30])
@pytest.mark.parametrize("taker", [1, 2], ids=["beside", "away"])
async def test_a_cancelled_copy_leaves_nothing(stores, taker, turns):
    offer = stores[0].put("weights/1", BIG)
    task = asyncio.ensure_future(stores[taker].copy(offer, KEY))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (KEY in files(stores[taker])) != task.cancelled()
    await stores[taker].aclose()
    assert files(stores[taker]) == (set() if task.cancelled() else {KEY})


@pytest.mark.parametrize("taker", [1, 2], ids=["beside", "away"])
async def test_a_copy_that_is_cancelled_as_it_is_kept_leaves_nothing(stores, taker, monkeypatch):
    keep, kept, go_on = Incoming.keep, threading.Event(), threading.Event()

    def slow(incoming: Incoming) -> None:
        keep(incoming)
        kept.set()
        go_on.wait(30.0)

    offer = stores[0].put("weights/1", BIG)
    monkeypatch.setattr(Incoming, "keep", slow)
    task = asyncio.ensure_future(stores[taker].copy(offer, KEY))
    assert await asyncio.to_thread(kept.wait, 30.0)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(stores[taker]) == set()


async def test_a_folder_that_is_deleted_meanwhile_is_a_typed_error(stores):
    offer = stores[0].put("weights/1", BIG)
    task = asyncio.ensure_future(stores[2].copy(offer, KEY))
    while not files(stores[2]):  # noqa: ASYNC110
        await asyncio.sleep(0)
    shutil.rmtree(stores[2].endpoint.root)
    with pytest.raises(TransferFailed, match="cannot be kept"):
        await task


async def test_a_copy_for_which_there_is_no_room_is_not_begun(stores, tmp_path):
    small = BundleStore(tmp_path / "small", token="t", quota_nbytes=1000)
    await small.start()
    offer = stores[0].put("weights/1", BIG)
    away = msgspec.structs.replace(offer.store, machine="another")
    with pytest.raises(TransferFailed, match="do not fit"):
        await small.copy(msgspec.structs.replace(offer, store=away), KEY)
    assert files(small) == set()
    await small.aclose()


async def test_no_key_leads_out_of_the_folder(stores):
    offer = stores[0].put("a", b"x")
    with pytest.raises(TransferFailed, match="not a bundle key"):
        await stores[1].copy(offer, "../a")
    with pytest.raises(TransferFailed, match="not a bundle key"):
        await stores[1].copy(msgspec.structs.replace(offer, key="../a"), "b")


async def test_a_durable_copy_is_on_disk_before_it_is_offered(stores, tmp_path, monkeypatch):
    synced: list[str] = []
    plain_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        plain_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    durable = BundleStore(tmp_path / "durable", token="t", durable=True)
    await durable.start()
    await durable.copy(stores[0].put("weights/1", b"x"), "weights/1.00000000")
    await durable.aclose()
    assert synced == ["0", "weights"]


# --- files that are read as they are ---


async def own(tmp_path: Path) -> tuple[BundleStore, BundleOffer]:
    """A store of this machine, closed, and its verified copy."""
    store = BundleStore(tmp_path / "own", token="token")
    await store.start()
    copy = await store.copy(store.put("weights/1", BIG), KEY)
    await store.aclose()
    return store, copy


async def test_a_verified_copy_of_this_machine_is_read_as_it_is(tmp_path):
    _, copy = await own(tmp_path)
    assert own_file(copy) == tmp_path / "own" / KEY


@pytest.mark.parametrize(
    "change",
    [
        {"key": "weights/1"},
        {"checksum": 1},
        {"nbytes": len(BIG) + 1},
        {"key": content_key("weights/2", zlib.crc32(BIG))},
    ],
    ids=["no copy", "other bytes", "other size", "not there"],
)
async def test_whatever_else_is_offered_must_be_fetched(tmp_path, change):
    _, copy = await own(tmp_path)
    assert own_file(msgspec.structs.replace(copy, **change)) is None


async def test_a_copy_of_another_machine_must_be_fetched(tmp_path):
    _, copy = await own(tmp_path)
    elsewhere = msgspec.structs.replace(copy.store, machine="another")
    assert own_file(msgspec.structs.replace(copy, store=elsewhere)) is None


async def test_a_copy_keeps_its_bytes_when_the_bundle_is_replaced(tmp_path):
    store, copy = await own(tmp_path)
    store.put("weights/1", bytes(len(BIG)))
    path = own_file(copy)
    assert path is not None and path.read_bytes() == BIG
