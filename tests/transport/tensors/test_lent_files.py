"""Files that lie elsewhere, which readers get by their keys, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.client import stream
from spotlight.types import BundleOffer

DATA = bytes(range(256)) * 20_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"secret")
    path = tmp_path / "elsewhere"
    path.write_bytes(DATA)
    return path


def offer(store: BundleStore, key: str, nbytes: int = len(DATA)) -> BundleOffer:
    return BundleOffer(key, nbytes, 0, store.readable(key))


async def read(wanted: BundleOffer, first: int = 0) -> bytes:
    parts: list[bytes] = []
    await stream(wanted, first, lambda part: parts.append(bytes(part)))
    assert max(map(len, parts), default=0) <= 1024 * 1024
    return b"".join(parts)


async def test_a_lent_file_is_streamed_from_any_byte_on(store: BundleStore, file: Path) -> None:
    store.lend({"a/b.safetensors": file})
    assert await read(offer(store, "a/b.safetensors")) == DATA
    assert await read(offer(store, "a/b.safetensors"), 1000) == DATA[1000:]
    assert await read(offer(store, "a/b.safetensors"), len(DATA)) == b""


async def test_nothing_beside_a_lent_file_is_served(store: BundleStore, file: Path) -> None:
    store.lend({"a/b.safetensors": file})
    for key in ("a/secret", "a/../secret", "a/b.safetensors/../secret", "%2e%2e/secret", "a"):
        with pytest.raises(TransferFailed):
            await read(offer(store, key))


async def test_only_those_with_its_token_get_it(store: BundleStore, file: Path) -> None:
    store.lend({"a/b": file})
    stranger = structs.replace(store.endpoint, token="another")
    with pytest.raises(TransferRefused, match="wrong token"):
        await read(structs.replace(offer(store, "a/b"), store=stranger))


async def test_what_is_lent_no_more_is_gone(store: BundleStore, file: Path) -> None:
    store.lend({"a/b": file})
    store.lend({})
    with pytest.raises(TransferRefused, match="no such bundle"):
        await read(offer(store, "a/b"))
    assert file.stat().st_size == len(DATA)  # noqa: ASYNC240


async def test_a_file_of_another_size_is_not_what_was_offered(
    store: BundleStore, file: Path
) -> None:
    store.lend({"a/b": file})
    with pytest.raises(TransferFailed, match="damaged"):
        await read(offer(store, "a/b", len(DATA) - 1))
