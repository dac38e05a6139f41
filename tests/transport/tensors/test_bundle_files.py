"""Bundles that are files on both sides: left with a store, and had from one."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors import files as files_module
from spotlight.transport.tensors.files import deposit, fetched_file
from spotlight.types import BundleOffer, StoreEndpoint

BIG = os.urandom(1 << 20) * 9  # more than any socket buffers


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BundleStore]:
    store = BundleStore(tmp_path / "store", token="t")
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture(autouse=True)
def nothing_unfinished_stays(tmp_path: Path, scratch: Path) -> None:  # type: ignore[misc]
    """In no folder."""
    yield
    assert there(scratch) == set()
    assert there(tmp_path / "store" / ".unfinished") == set()


def there(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def writes(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def of_another_machine(store: StoreEndpoint) -> StoreEndpoint:
    return msgspec.structs.replace(store, machine="another")


def elsewhere(offer: BundleOffer) -> BundleOffer:
    """As another machine sees it."""
    return msgspec.structs.replace(offer, store=of_another_machine(offer.store))


def no_bytes_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither there nor here."""

    def refuse(*_: object) -> None:
        raise AssertionError("bytes on their way")

    monkeypatch.setattr("spotlight.transport.tensors.client._send_body", refuse)
    monkeypatch.setattr(files_module, "download", refuse)


# --- left with a store ---


async def test_on_the_stores_machine_a_file_is_written_where_it_stays(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_bytes_are_sent(monkeypatch)
    inodes: list[int] = []

    def write(path: Path) -> None:
        path.write_bytes(BIG)
        inodes.append(path.stat().st_ino)

    offer = await deposit(store.writable_by("w"), "state/1", write)
    assert await fetch(offer) == BIG
    assert inodes == [(tmp_path / "store" / "state" / "1").stat().st_ino]


@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "from another machine"])
async def test_a_writer_may_put_another_file_in_its_place(store: BundleStore, away: bool) -> None:
    """As libraries do that have a file there whole or not at all."""

    def write(path: Path) -> None:
        other = path.with_name(f"{path.name}.other")
        other.write_bytes(BIG)
        other.replace(path)

    to = store.writable_by("w")
    await deposit(of_another_machine(to) if away else to, "state/1", write)
    assert await fetch(await store.offer("state/1")) == BIG


async def test_from_another_machine_a_file_is_sent(store: BundleStore) -> None:
    to = of_another_machine(store.writable_by("w"))
    offer = await deposit(to, "state/1", writes(BIG))
    assert await fetch(await store.offer("state/1")) == BIG
    assert (offer.key, offer.nbytes) == ("state/1", len(BIG))
    reader = of_another_machine(store.readable("state/1"))
    assert offer.store == reader, "whoever has it may read, no more"


async def test_a_namesake_of_the_stores_folder_is_not_taken_for_it(
    store: BundleStore, tmp_path: Path
) -> None:
    """Two containers of one machine have folders of their own."""
    (tmp_path / "namesake").mkdir()
    to = msgspec.structs.replace(store.writable_by("w"), root=str(tmp_path / "namesake"))
    await deposit(to, "state/1", writes(BIG))
    assert await fetch(await store.offer("state/1")) == BIG
    assert there(tmp_path / "namesake") <= {".unfinished"}


async def test_a_folder_that_may_not_be_written_to_is_passed_over(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is another user."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    await deposit(store.writable_by("w"), "state/1", writes(BIG))
    offer = await store.offer("state/1")
    async with fetched_file(offer) as path:
        assert path.read_bytes() == BIG


async def test_what_was_there_is_replaced_at_once_and_stays_for_whoever_reads_it(
    store: BundleStore, tmp_path: Path
) -> None:
    await deposit(store.writable_by("w"), "state/1", writes(b"before"))
    with (tmp_path / "store" / "state" / "1").open("rb") as reader:
        await deposit(store.writable_by("w"), "state/1", writes(b"after"))
        assert reader.read() == b"before"
    assert await fetch(await store.offer("state/1")) == b"after"


async def test_an_error_of_the_writer_is_the_callers_and_leaves_the_earlier_bundle(
    store: BundleStore,
) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half of")
        raise ValueError("the disk is full")

    await deposit(store.writable_by("w"), "state/1", writes(b"before"))
    with pytest.raises(ValueError, match="the disk is full"):
        await deposit(store.writable_by("w"), "state/1", fail)
    assert await fetch(await store.offer("state/1")) == b"before"


@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "from another machine"])
async def test_a_store_that_refuses_is_named(store: BundleStore, away: bool) -> None:
    to = store.writable_by("w")
    store.revoke("w")
    with pytest.raises(TransferFailed, match="wrong token"):
        await deposit(of_another_machine(to) if away else to, "state/1", writes(BIG))


async def test_a_store_that_falls_silent_in_the_middle_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = StoreEndpoint("127.0.0.1", silent.getsockname()[1], "t", "another", "/nowhere")
        timings = TransferTimings(idle_limit_s=0.2)
        with pytest.raises(TransferFailed, match=r"was silent for 0\.2 s"):
            await deposit(to, "state/1", writes(BIG * 4), timings)


async def test_a_deposit_that_is_cancelled_while_it_is_written_leaves_nothing(
    store: BundleStore,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def write(path: Path) -> None:
        path.write_bytes(BIG)
        begun.set()
        may_end.wait(10.0)

    task = asyncio.ensure_future(deposit(store.writable_by("w"), "state/1", write))
    await asyncio.to_thread(begun.wait, 10.0)
    task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TransferFailed, match="no bundle"):
        await store.offer("state/1")


async def test_a_deposit_that_is_cancelled_while_it_is_sent_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = StoreEndpoint("127.0.0.1", silent.getsockname()[1], "t", "another", "/nowhere")
        task = asyncio.ensure_future(deposit(to, "state/1", writes(BIG * 4)))
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            await asyncio.to_thread(connection.recv, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


# --- had from a store ---


async def test_on_the_stores_machine_the_very_file_is_had(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = store.put("state/1", BIG)
    no_bytes_are_sent(monkeypatch)
    async with fetched_file(offer) as path:
        assert path.samefile(tmp_path / "store" / "state" / "1")
        assert path.read_bytes() == BIG
    assert await fetch(offer) == BIG, "it stays in the store"


async def test_from_another_machine_a_file_is_downloaded(store: BundleStore, scratch: Path) -> None:
    async with fetched_file(elsewhere(store.put("state/1", BIG))) as path:
        assert path.read_bytes() == BIG
        assert scratch in path.parents


async def test_a_file_that_is_had_stays_though_its_bundle_is_replaced(store: BundleStore) -> None:
    async with fetched_file(store.put("state/1", b"before")) as path:
        store.put("state/1", b"after!")
        store.delete("state")
        assert path.read_bytes() == b"before"


@pytest.mark.parametrize("other", [b"after!", b"longer than before"])
@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "from another machine"])
async def test_a_bundle_that_another_has_replaced_is_refused(
    store: BundleStore, away: bool, other: bytes
) -> None:
    offer = store.put("state/1", b"before")
    store.put("state/1", other)
    with pytest.raises(TransferFailed, match="damaged"):
        async with fetched_file(elsewhere(offer) if away else offer):
            pytest.fail("it is another one")


@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "from another machine"])
async def test_a_bundle_that_is_not_there_is_refused(store: BundleStore, away: bool) -> None:
    offer = store.put("state/1", b"before")
    store.delete("state/1")
    with pytest.raises(TransferFailed, match="no such bundle"):
        async with fetched_file(elsewhere(offer) if away else offer):
            pytest.fail("it is gone")


async def test_an_error_of_the_reader_is_the_callers(store: BundleStore) -> None:
    with pytest.raises(ValueError, match="not a checkpoint"):
        async with fetched_file(store.put("state/1", b"bundle")):
            raise ValueError("not a checkpoint")


async def test_a_download_that_is_cancelled_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        from_ = StoreEndpoint("127.0.0.1", silent.getsockname()[1], "t", "another", "/nowhere")

        async def have() -> None:
            async with fetched_file(BundleOffer("state/1", 100, 1, from_)):
                pytest.fail("nobody sends it")

        task = asyncio.ensure_future(have())
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            await asyncio.to_thread(connection.recv, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
