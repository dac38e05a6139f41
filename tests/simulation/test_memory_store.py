"""Bundle stores of a simulated cluster."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
from pathlib import Path

import pytest

from spotlight.errors import TransferFailed
from spotlight_simulation.memory_store import Network, Stores

pytestmark = pytest.mark.virtual_time


class Way:
    """Whether processes reach each other, and what was missed."""

    def __init__(self) -> None:
        self.open = True
        self.missed: list[tuple[str, str]] = []
        self.stores = Stores(
            random.Random(0),
            reaches=lambda source, destination: self.open,
            reader=lambda: "reader",
            transfer_s=(0.01, 0.1),
            missed=lambda reader, key: self.missed.append((reader, key)),
        )


async def test_what_is_put_can_be_fetched() -> None:
    way = Way()
    store = way.stores.open("holder", "folder")
    await store.start()
    assert await way.stores.fetch(store.put("samples/a", b"data")) == b"data"


async def test_what_is_uploaded_is_in_the_store() -> None:
    way = Way()
    store = way.stores.open("holder", "folder", "token")
    await store.start()
    offer = await way.stores.upload(store.writable_by("node"), "samples/a", b"data")
    assert store.disk.bundles == {"samples/a": b"data"}
    assert await way.stores.fetch(offer) == b"data"


async def test_a_bundle_that_was_deleted_is_missed() -> None:
    way = Way()
    store = way.stores.open("holder", "folder")
    await store.start()
    offer = store.put("samples/a/1", b"data")
    store.delete("samples/a")
    with pytest.raises(TransferFailed, match="no such bundle"):
        await way.stores.fetch(offer)
    assert way.missed == [("reader", "samples/a/1")]


async def test_deleting_a_folder_leaves_its_namesakes() -> None:
    store = Way().stores.open("holder", "folder")
    await store.start()
    store.put("samples/ab", b"data")
    store.delete("samples/a")
    assert list(store.disk.bundles) == ["samples/ab"]


async def test_a_store_whose_process_ended_refuses() -> None:
    way = Way()
    store = way.stores.open("holder", "folder")
    await store.start()
    offer = store.put("samples/a", b"data")
    way.stores.close_all_of("holder")
    with pytest.raises(TransferFailed, match="refused"):
        await way.stores.fetch(offer)


async def test_a_store_that_is_cut_off_cannot_be_reached_in_time() -> None:
    way = Way()
    store = way.stores.open("holder", "folder")
    await store.start()
    offer = store.put("samples/a", b"data")
    way.open = False
    with pytest.raises(TransferFailed, match="took longer"):
        await way.stores.fetch(offer)


async def test_a_folder_keeps_its_bundles_for_the_next_process() -> None:
    way = Way()
    store = way.stores.open("holder", "folder", "token")
    await store.start()
    store.put("samples/a", b"data")
    way.stores.close_all_of("holder")
    again = way.stores.open("holder", "folder", "token")
    assert again.disk.bundles == {"samples/a": b"data"}


async def test_who_may_read_may_not_leave_anything_and_a_revoked_token_is_of_no_use() -> None:
    way = Way()
    store = way.stores.open("holder", "folder", "token")
    await store.start()
    gone = store.writable_by("gone")
    assert gone == store.writable_by("gone")
    offer = await way.stores.upload(gone, "samples/a", b"data")
    store.revoke("gone")
    for endpoint in (gone, offer.store):
        with pytest.raises(TransferFailed, match="refused"):
            await way.stores.upload(endpoint, "samples/b", b"data")
    assert await way.stores.fetch(offer) == b"data"
    await way.stores.upload(store.writable_by("gone"), "samples/b", b"data")


async def test_a_bundle_becomes_a_file_that_stays(tmp_path: Path) -> None:
    store = Way().stores.open("holder", "folder")
    await store.start()
    for data in (b"first", b"second"):
        store.put("state/1", data)
        await store.hand_out("state/1", tmp_path / "checkpoints" / "one")
        assert (tmp_path / "checkpoints" / "one").read_bytes() == data
    store.delete("state")
    assert os.listdir(tmp_path / "checkpoints") == ["one"]


async def test_a_file_becomes_a_bundle(tmp_path: Path) -> None:
    way = Way()
    store = way.stores.open("holder", "folder")
    await store.start()
    (tmp_path / "file").write_bytes(b"data")
    assert await way.stores.fetch(await store.take_in(tmp_path / "file", "state/x")) == b"data"


async def test_what_is_not_there_is_neither_handed_out_nor_taken_in(tmp_path: Path) -> None:
    store = Way().stores.open("holder", "folder")
    await store.start()
    with pytest.raises(TransferFailed, match="state/1"):
        await store.hand_out("state/1", tmp_path / "file")
    with pytest.raises(TransferFailed, match="absent: No such file"):
        await store.take_in(tmp_path / "absent", "state/1")
    assert os.listdir(tmp_path) == []


# --- how long bytes take ---


async def seconds_of(*readers: str, network: Network, source: str = "a/0") -> float:
    """Until all of these have copied a bundle that stands for 100 bytes."""
    loop = asyncio.get_running_loop()
    current = contextvars.ContextVar("reader", default="")
    stores = Stores(
        random.Random(0),
        reaches=lambda source, destination: True,
        reader=current.get,
        transfer_s=(0.0, 0.0),
        missed=lambda reader, key: None,
        network=network,
    )
    store = stores.open(source, "folder")
    await store.start()
    offer = store.put("weights/lent", b"fingerprint", 100)

    async def copy(reader: str) -> int:
        current.set(reader)
        own = stores.open(reader, reader)
        await own.start()
        return (await own.copy(offer, "copy", limit_s=1.0)).nbytes

    began = loop.time()
    assert await asyncio.gather(*map(copy, readers)) == [100] * len(readers)
    return loop.time() - began


@pytest.mark.parametrize(
    ("readers", "seconds"),
    [
        (("b/0",), 10.0),
        (("b/0", "c/0"), 10.0),
        (("b/0", "c/0", "d/0", "e/0"), 16.0),
        (("b/0", "b/1", "b/2"), 12.0),
        (("a/1",), 0.0),
    ],
    ids=["one", "two", "more than the link sends", "more than the link takes", "on its machine"],
)
async def test_copies_take_the_time_of_their_bytes_and_share_the_links_of_machines(
    readers: tuple[str, ...], seconds: float
) -> None:
    network = Network(copy_bytes_per_s=10.0, link_bytes_per_s=25.0)
    assert await seconds_of(*readers, network=network) == pytest.approx(seconds)


async def test_bytes_take_no_time_where_nothing_is_said_of_the_network() -> None:
    assert await seconds_of("b/0", "c/0", network=Network()) == 0.0
