"""What every way from a store to a receiver has in common: the file itself on one machine, HTTP,
HTTP with TLS, and UCX.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from tensor_kit import BIG, TOKEN, elsewhere, files

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort, content_key, fetch
from spotlight.transport.tensors.certificates import new_certificate
from spotlight.transport.tensors.incoming import Incoming
from spotlight.types import BundleOffer

WAYS = ("file", "http", "https", "ucx")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "ucx":
        pytest.importorskip("ucxx", reason="UCXX is not installed")
    return name


@pytest.fixture
async def port(way: str, timings: TransferTimings) -> AsyncIterator[DataPort]:
    certificate = new_certificate() if way == "https" else None
    async with DataPort(timings=timings, certificate=certificate, ucx=way == "ucx") as port:
        yield port


@pytest.fixture
def seen(way: str) -> Callable[[BundleOffer], BundleOffer]:
    """An offer as its receiver sees it."""
    return elsewhere if way != "file" else lambda offer: offer


@pytest.fixture
async def taker(tmp_path: Path) -> AsyncIterator[BundleStore]:
    """A store that copies bundles of the other."""
    store = BundleStore(tmp_path / "taker", token=TOKEN)
    await store.start()
    yield store
    await store.aclose()


Seen = Callable[[BundleOffer], BundleOffer]


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_a_bundle_arrives_whole(store: BundleStore, seen: Seen, data: bytes) -> None:
    assert await fetch(seen(store.put("weights/1", data))) == data


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_a_copy_is_kept_whole(
    store: BundleStore, taker: BundleStore, seen: Seen, data: bytes
) -> None:
    offer = store.put("weights/1", data)
    key = content_key(offer.key, offer.checksum)
    assert await fetch(await taker.copy(seen(offer), key)) == data
    assert files(Path(taker.endpoint.root)) == {key}


async def test_many_bundles_come_at_once(store: BundleStore, seen: Seen) -> None:
    bundles = {f"samples/{number}": bytes([number]) * 300_000 for number in range(20)}
    offers = [seen(store.put(key, data)) for key, data in bundles.items()]
    assert await asyncio.gather(*map(fetch, offers)) == list(bundles.values())


async def test_a_wrong_token_gets_nothing(store: BundleStore, port: DataPort) -> None:
    offer = elsewhere(store.put("a", BIG))  # whoever sees the file may read it
    stranger = msgspec.structs.replace(offer.store, token="a guess")
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await fetch(msgspec.structs.replace(offer, store=stranger))
    assert port.refusals == {401: 1}


async def test_a_bundle_that_is_gone_is_a_failed_transfer(store: BundleStore, seen: Seen) -> None:
    offer = store.put("a", b"data")
    store.delete("a")
    with pytest.raises(TransferFailed, match=r"get a at .* no such bundle"):
        await fetch(seen(offer))


async def test_no_key_leads_out_of_the_folder(
    store: BundleStore, seen: Seen, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"outside")
    offer = msgspec.structs.replace(store.put("a", b"outside"), key="../a")
    with pytest.raises(TransferFailed, match="not a bundle key"):
        await fetch(seen(offer))


@pytest.mark.parametrize("damage", [b"whule", b"whol", b"whole!", b""])
async def test_damage_is_noticed(
    store: BundleStore, taker: BundleStore, seen: Seen, damage: bytes
) -> None:
    offer = seen(store.put("a", b"whole"))
    (Path(store.endpoint.root) / "a").write_bytes(damage)
    with pytest.raises(TransferFailed, match="arrived damaged"):
        await fetch(offer)
    with pytest.raises(TransferFailed, match="arrived damaged"):
        await taker.copy(offer, "a.0")
    assert not files(Path(taker.endpoint.root))


async def test_what_came_before_a_copy_was_cancelled_does_not_come_again(
    way: str,
    store: BundleStore,
    taker: BundleStore,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "file":
        pytest.skip("nothing comes: the file itself is linked")
    received, write = 0, Incoming.write

    def counted(incoming: Incoming, parts: Iterable[bytes | memoryview]) -> None:
        nonlocal received
        parts = list(parts)
        write(incoming, parts)
        received += sum(map(len, parts))
        if received == before:
            task.get_loop().call_soon_threadsafe(task.cancel)

    data, before = BIG * 4, 0
    offer = seen(store.put("weights/1", data))
    before = 8 << 20
    monkeypatch.setattr(Incoming, "write", counted)
    task = asyncio.ensure_future(taker.copy(offer, "weights/1.0"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert before <= received < len(data)
    assert await fetch(await taker.copy(offer, "weights/1.0")) == data
    assert received == len(data)


async def test_a_closed_port_ends_a_transfer(store: BundleStore, port: DataPort) -> None:
    offer = elsewhere(store.put("a", BIG * 20))
    task = asyncio.ensure_future(fetch(offer))
    async with asyncio.timeout(10):
        while not port.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await port.aclose()
    with pytest.raises(TransferFailed):
        await task
