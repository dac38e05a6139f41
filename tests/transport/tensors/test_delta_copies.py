"""A bundle of which the receiver has a similar one: what differs is sent, if that is worth it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from raw_requests import head, say
from tensor_kit import TOKEN, elsewhere, files

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, content_key, deltas, fetch
from spotlight.transport.tensors import store as store_module
from spotlight.transport.tensors.client import download
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming
from spotlight.types import BundleOffer

OLD = os.urandom(2 * deltas.CHUNK + 1000)
LIMIT_S = 60.0


def stepped(data: bytes, every: int = 100) -> bytes:
    """One of so many words is another."""
    words = np.frombuffer(data, np.uint16).copy()
    words[::every] ^= 1
    return words.tobytes()


NEW = stepped(OLD)


@pytest.fixture
async def taker(tmp_path: Path) -> AsyncIterator[BundleStore]:
    """A store that copies bundles of the other."""
    taker = BundleStore(tmp_path / "taker", token=TOKEN)
    await taker.start()
    yield taker
    await taker.aclose()


@pytest.fixture
def slow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_DELTA_BYTES_PER_S", float("inf"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the chunks were that were made from a base."""
    made: list[int] = []

    def decode(base, read, real=deltas.decoded):
        made.append(len(base))
        return real(base, read)

    monkeypatch.setattr(deltas, "decoded", decode)
    return made


async def copied(
    taker: BundleStore, offer: BundleOffer, base: BundleOffer | None = None
) -> BundleOffer:
    key = content_key(offer.key, offer.checksum)
    return await taker.copy(elsewhere(offer), key, base=base)


@pytest.fixture
async def base(store: BundleStore, taker: BundleStore) -> BundleOffer:
    """A copy of the older bundle, which the origin has under the same key."""
    offer = store.put("weights/1", OLD)
    copy = await copied(taker, offer)
    await store.copy(offer, copy.key)
    return copy


@pytest.fixture
def incoming(tmp_path: Path) -> Iterator[Incoming]:
    folder = Folder(tmp_path / "incoming")
    folder.create()
    with Incoming(folder, "new", durable=False) as incoming:
        yield incoming


async def test_what_differs_makes_the_whole_bundle(
    store: BundleStore,
    taker: BundleStore,
    base: BundleOffer,
    slow_network: None,
    decoded: list[int],
) -> None:
    copy = await copied(taker, store.put("weights/2", NEW), base)
    assert decoded == [deltas.CHUNK, deltas.CHUNK, 1000]
    assert await fetch(copy) == NEW
    assert files(Path(taker.endpoint.root)) == {base.key, copy.key}


async def test_few_bytes_are_sent(store: BundleStore, base: BundleOffer) -> None:
    store.put("weights/2", NEW)
    answer = await say(store.endpoint, head(key="weights/2", X_Base=base.key))
    assert answer.startswith(b"HTTP/1.1 200")
    assert len(answer) < len(NEW) / 20


async def test_where_bundles_come_fast_they_come_whole(
    store: BundleStore,
    taker: BundleStore,
    base: BundleOffer,
    monkeypatch: pytest.MonkeyPatch,
    decoded: list[int],
) -> None:
    monkeypatch.setattr(store_module, "_DELTA_BYTES_PER_S", 0.0)
    copy = await copied(taker, store.put("weights/2", NEW), base)
    assert (decoded, await fetch(copy)) == ([], NEW)


async def test_before_any_bundle_came_whole_nothing_is_known_of_the_network(
    store: BundleStore, taker: BundleStore, decoded: list[int]
) -> None:
    base = taker.put(content_key("weights/1", store.put("weights/1", OLD).checksum), OLD)
    await copied(taker, store.put("weights/2", NEW), base)
    assert not decoded


@pytest.mark.parametrize(
    "new",
    [stepped(OLD, every=2), NEW + b"xx", NEW[:-2], b""],
    ids=["much differs", "longer", "shorter", "empty"],
)
async def test_what_has_too_little_in_common_comes_whole(
    store: BundleStore,
    taker: BundleStore,
    base: BundleOffer,
    slow_network: None,
    decoded: list[int],
    new: bytes,
) -> None:
    copy = await copied(taker, store.put("weights/2", new), base)
    assert (decoded, await fetch(copy)) == ([], new)


async def test_a_sender_without_the_base_sends_all(
    store: BundleStore,
    taker: BundleStore,
    base: BundleOffer,
    slow_network: None,
    decoded: list[int],
) -> None:
    store.delete("weights/1")
    store.delete(base.key)
    copy = await copied(taker, store.put("weights/2", NEW), base)
    assert (decoded, await fetch(copy)) == ([], NEW)


async def test_a_receiver_that_lost_the_base_takes_all(
    store: BundleStore,
    taker: BundleStore,
    base: BundleOffer,
    slow_network: None,
    decoded: list[int],
) -> None:
    taker.delete(base.key)
    copy = await copied(taker, store.put("weights/2", NEW), base)
    assert (decoded, await fetch(copy)) == ([], NEW)


async def test_a_base_of_other_bytes_is_noticed(
    store: BundleStore, taker: BundleStore, base: BundleOffer, slow_network: None
) -> None:
    await asyncio.to_thread(Path(taker.endpoint.root, base.key).write_bytes, bytes(len(OLD)))
    with pytest.raises(TransferFailed, match="arrived damaged"):
        await copied(taker, store.put("weights/2", NEW), base)
    assert files(Path(taker.endpoint.root)) == {base.key}


@pytest.mark.parametrize(
    ("begun", "made"), [(deltas.CHUNK, [deltas.CHUNK, 1000]), (deltas.CHUNK + 4, [])]
)
async def test_it_goes_on_where_the_one_before_broke_off(
    store: BundleStore,
    base: BundleOffer,
    incoming: Incoming,
    decoded: list[int],
    begun: int,
    made: list[int],
) -> None:
    offer = store.put("weights/2", NEW)
    incoming.write([NEW[:begun]])
    await download(elsewhere(offer), incoming, TransferTimings(), LIMIT_S, base)
    assert (incoming.checksum, incoming.nbytes) == (offer.checksum, len(NEW))
    assert decoded == made


async def test_a_key_outside_the_store_is_no_base(store: BundleStore, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(OLD)
    store.put("weights/2", NEW)
    answer = await say(store.endpoint, head(key="weights/2", X_Base="../outside"))
    assert OLD[:100] not in answer
    assert b"X-Base" not in answer


async def test_what_differs_is_not_told_of_a_bundle_in_another_folder(store: BundleStore) -> None:
    store.put("state/1", OLD)
    store.put("weights/2", NEW)
    answer = await say(store.endpoint, head(key="weights/2", X_Base="state/1"))
    assert b"X-Base" not in answer and answer.endswith(NEW)


async def test_a_receiver_that_leaves_costs_the_sender_nothing(
    store: BundleStore, base: BundleOffer
) -> None:
    offer = store.put("weights/2", NEW)
    reader, writer = await asyncio.open_connection(store.endpoint.host, store.endpoint.port)
    writer.write(head(key="weights/2", X_Base=base.key))
    await reader.read(10)
    writer.close()
    await writer.wait_closed()
    assert await fetch(elsewhere(offer)) == NEW
