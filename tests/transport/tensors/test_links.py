"""Symbolic links below a store's folder are never followed."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, content_key, fetch, own_file, upload
from spotlight.transport.tensors.files import deposit
from spotlight.types import BundleOffer

SECRET = b"of somebody else"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BundleStore]:
    """Besides it, a file that is none of its business, in a folder of its own."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    store = BundleStore(tmp_path / "store", token="t")
    await store.start()
    yield store
    await store.aclose()
    assert os.listdir(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside" / "secret").read_bytes() == SECRET


def plant(store: BundleStore, kind: str) -> str:
    """A link to the file, or to its folder; returns the key under which the file would be found."""
    root = Path(store.endpoint.root)
    if kind == "file":
        (root / "link").symlink_to(root.parent / "outside" / "secret")
        return "link"
    (root / "folder").symlink_to(root.parent / "outside")
    return "folder/secret"


both = pytest.mark.parametrize("kind", ["file", "folder"])


@both
@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "over tcp"])
async def test_what_is_behind_a_link_is_not_read(store: BundleStore, kind: str, away: bool) -> None:
    key = plant(store, kind)
    place = store.readable(key)
    if away:
        place = msgspec.structs.replace(place, machine="another")
    offer = BundleOffer(key, len(SECRET), zlib.crc32(SECRET), place)
    with pytest.raises(TransferFailed, match="no such bundle"):
        await fetch(offer)


@both
async def test_what_is_behind_a_link_is_not_mapped(store: BundleStore, kind: str) -> None:
    planted, checksum = plant(store, kind), zlib.crc32(SECRET)
    root = Path(store.endpoint.root)
    if kind == "file":
        (root / planted).rename(root / content_key(planted, checksum))
    else:
        (root / "folder").unlink()
        (root / "folder").symlink_to(root.parent / "named")
        (root.parent / "named").mkdir()
        (root.parent / "named" / content_key("secret", checksum)).write_bytes(SECRET)
    key = content_key(planted, checksum)
    assert own_file(BundleOffer(key, len(SECRET), checksum, store.endpoint)) is None


async def test_a_bundle_takes_the_place_of_a_link_and_leaves_what_it_meant(
    store: BundleStore,
) -> None:
    key = plant(store, "file")
    offer = await upload(store.writable_by("w"), key, b"a bundle")
    assert not (Path(store.endpoint.root) / key).is_symlink()
    assert await fetch(offer) == b"a bundle"


async def test_nothing_is_put_behind_a_link(store: BundleStore) -> None:
    key = plant(store, "folder")
    with pytest.raises(TransferFailed, match="cannot be kept"):
        await upload(store.writable_by("w"), key, b"overwritten")
    with pytest.raises(TransferFailed, match="cannot be kept"):
        store.put("folder/new", b"left outside")


@both
async def test_what_is_behind_a_link_is_not_copied(
    store: BundleStore, kind: str, tmp_path: Path
) -> None:
    key = plant(store, kind)
    offer = BundleOffer(key, len(SECRET), zlib.crc32(SECRET), store.readable(key))
    other = BundleStore(tmp_path / "other", token="t")
    await other.start()
    with pytest.raises(TransferFailed, match="no such bundle"):
        await other.copy(offer, "copied")
    assert [path for path in (tmp_path / "other").rglob("*") if not path.is_dir()] == []
    await other.aclose()


@both
async def test_a_copy_is_not_put_behind_a_link(
    store: BundleStore, kind: str, tmp_path: Path
) -> None:
    key = plant(store, kind)
    other = BundleStore(tmp_path / "other", token="t")
    await other.start()
    offer = other.put("a", b"a bundle")
    if kind == "file":
        assert await fetch(await store.copy(offer, key)) == b"a bundle"
    else:
        with pytest.raises(TransferFailed, match="cannot be kept"):
            await store.copy(offer, key)
    await other.aclose()


async def test_deleting_a_link_leaves_what_it_meant(store: BundleStore) -> None:
    plant(store, "file")
    plant(store, "folder")
    store.delete("folder/secret")
    store.delete("folder")
    store.delete("link")
    assert os.listdir(store.endpoint.root) == [".unfinished"]


async def test_deleting_a_folder_leaves_what_links_in_it_mean(store: BundleStore) -> None:
    store.put("samples/a", b"x")
    root = Path(store.endpoint.root)
    (root / "samples" / "link").symlink_to(root.parent / "outside")
    store.delete("samples")
    assert not (root / "samples").exists()


async def test_a_link_in_place_of_unfinished_uploads_is_removed_at_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    (tmp_path / "store" / ".unfinished").symlink_to(tmp_path / "outside")
    store = BundleStore(tmp_path / "store", token="t")
    await store.start()
    await upload(store.writable_by("w"), "a", b"a bundle")
    await store.aclose()
    assert (tmp_path / "outside" / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "over tcp"])
async def test_a_pipe_is_no_bundle_and_keeps_nobody_waiting(store: BundleStore, away: bool) -> None:
    os.mkfifo(Path(store.endpoint.root) / "pipe")
    place = store.readable("pipe")
    if away:
        place = msgspec.structs.replace(place, machine="another")
    with pytest.raises(TransferFailed, match="no such bundle"):
        await fetch(BundleOffer("pipe", 0, 0, place))


async def test_a_folder_that_is_reached_by_a_link_may_hold_a_store(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    store = BundleStore(tmp_path / "runs" / "artifacts", token="t")
    await store.start()
    assert await fetch(await upload(store.writable_by("w"), "a", b"data")) == b"data"
    await store.aclose()


def _write(path: Path) -> None:
    path.write_bytes(b"x")


@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_no_folder_that_is_no_store_is_read_or_written_whatever_an_offer_says(
    tmp_path: Path, mode: int
) -> None:
    """A message may name any folder of the machine as that of a store."""
    private = tmp_path / "private"
    private.mkdir(mode=mode)
    (private / "key").write_bytes(b"of somebody")
    sum_ = zlib.crc32(b"of somebody")
    (private / f"copy.{sum_:08x}").write_bytes(b"of somebody")
    store = BundleStore(tmp_path / "store", token="t")
    await store.start()
    forged = msgspec.structs.replace(store.endpoint, port=1, root=str(private))
    for key in ("key", f"copy.{sum_:08x}"):
        offer = BundleOffer(key, 11, sum_, forged)
        assert own_file(offer) is None
        with pytest.raises(TransferFailed):
            await fetch(offer)
        with pytest.raises(TransferFailed):
            await store.copy(offer, "stolen")
    with pytest.raises(TransferFailed):
        await deposit(forged, "left", _write)
    with pytest.raises(TransferFailed):
        await upload(forged, "left", bytes(8 * 1024 * 1024))
    assert {path.name for path in private.iterdir()} == {"key", f"copy.{sum_:08x}"}
    assert private.stat().st_mode & 0o777 == mode
    await store.aclose()
