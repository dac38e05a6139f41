"""A store's bundle that becomes a file of outside, and the other way round."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, fetch

DISKS = (Path("/dev/shm"), Path(tempfile.gettempdir()))
"""Places of which one at least is hardly ever on the disk of the other."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BundleStore]:
    store = BundleStore(tmp_path / "store", token="t", durable=True)
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
def another_disk(tmp_path: Path) -> Iterator[Path]:
    here = os.stat(tmp_path).st_dev
    others = [disk for disk in DISKS if disk.is_dir() and os.stat(disk).st_dev != here]
    if not others:
        pytest.skip("there is one disk only")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        yield Path(folder)


def files(folder: Path) -> set[str]:
    """What is there, hidden or not."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


async def test_a_bundle_becomes_a_file_without_a_copy(store: BundleStore, tmp_path: Path) -> None:
    store.put("state/1", b"state")
    path = tmp_path / "checkpoints" / "one"
    await store.hand_out("state/1", path)
    assert path.read_bytes() == b"state"
    assert path.samefile(tmp_path / "store" / "state" / "1")


async def test_a_file_stays_when_another_bundle_takes_the_place_in_the_store(
    store: BundleStore, tmp_path: Path
) -> None:
    store.put("state/1", b"first")
    await store.hand_out("state/1", tmp_path / "first")
    store.put("state/1", b"second")
    await store.hand_out("state/1", tmp_path / "second")
    store.delete("state")
    assert [(tmp_path / name).read_bytes() for name in ("first", "second")] == [b"first", b"second"]


async def test_a_file_is_replaced_and_nothing_else_is_left(
    store: BundleStore, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "file"
    for data in (b"first", b"second", b"second"):
        store.put("state/1", data)
        await store.hand_out("state/1", path)
        assert path.read_bytes() == data
    assert files(path.parent) == {"file"}


async def test_what_a_kill_left_unfinished_is_replaced_too(
    store: BundleStore, tmp_path: Path
) -> None:
    (tmp_path / ".file.partial").write_bytes(b"left")
    store.put("state/1", b"state")
    await store.hand_out("state/1", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"state"
    assert not (tmp_path / ".file.partial").exists()


async def test_a_file_becomes_a_bundle_without_a_copy(store: BundleStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"state")
    for _ in range(2):
        offer = await store.take_in(path, "state/checkpoint")
    assert await fetch(offer) == b"state"
    assert path.samefile(tmp_path / "store" / "state" / "checkpoint")
    store.delete("state")
    assert path.read_bytes() == b"state"


async def test_a_link_that_a_user_left_in_place_of_a_file_is_followed(
    store: BundleStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"state")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert await fetch(await store.take_in(tmp_path / "link", "state/checkpoint")) == b"state"


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "", "a/../../b", ".hidden"])
async def test_what_is_no_key_is_refused(store: BundleStore, tmp_path: Path, key: str) -> None:
    (tmp_path / "outside").write_bytes(b"of somebody else")
    with pytest.raises(TransferFailed):
        await store.hand_out(key, tmp_path / "file")
    with pytest.raises(TransferFailed):
        await store.take_in(tmp_path / "outside", key)
    assert files(tmp_path) == {"outside"}


async def test_a_bundle_that_is_not_there_is_named_and_the_file_stays(
    store: BundleStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(TransferFailed, match="state/1"):
        await store.hand_out("state/1", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"before"


async def test_a_file_that_is_not_there_is_named(store: BundleStore, tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match=f"{tmp_path / 'absent'}: No such file"):
        await store.take_in(tmp_path / "absent", "state/checkpoint")


async def test_what_is_behind_a_link_in_the_store_is_not_handed_out(
    store: BundleStore, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"of somebody else")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(TransferFailed, match="link"):
        await store.hand_out("link", tmp_path / "file")
    assert not (tmp_path / "file").exists()


async def test_a_folder_cannot_be_taken_in(store: BundleStore, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(TransferFailed, match="state/checkpoint"):
        await store.take_in(tmp_path / "folder", "state/checkpoint")
    assert files(tmp_path / "store") == set()


# --- other disks ---


async def test_on_another_disk_a_file_is_a_copy(store: BundleStore, another_disk: Path) -> None:
    path = another_disk / "checkpoints" / "one"
    for data in (b"first", b"second"):
        store.put("state/1", data)
        await store.hand_out("state/1", path)
        assert path.read_bytes() == data
    assert files(another_disk) == {"checkpoints/one"}


async def test_what_is_on_another_disk_is_copied_into_the_store(
    store: BundleStore, another_disk: Path, tmp_path: Path
) -> None:
    for data in (b"first", b"second"):
        (another_disk / "file").write_bytes(data)
        assert await fetch(await store.take_in(another_disk / "file", "state/checkpoint")) == data
    assert files(tmp_path / "store") == {"state/checkpoint"}


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOTSUP])
async def test_a_disk_that_gives_no_second_name_gets_copies(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_links(monkeypatch, number)
    store.put("state/1", b"state")
    await store.hand_out("state/1", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"state"
    assert await fetch(await store.take_in(tmp_path / "file", "state/checkpoint")) == b"state"
    assert files(tmp_path / "store") == {"state/1", "state/checkpoint"}


async def test_another_error_of_a_link_is_no_reason_to_copy(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch, errno.EIO)
    store.put("state/1", b"state")
    with pytest.raises(TransferFailed, match="Input/output error"):
        await store.hand_out("state/1", tmp_path / "file")


async def test_a_full_disk_is_named_and_leaves_what_was_there(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"before")
    store.put("state/1", b"state")
    refuse_links(monkeypatch, errno.EXDEV)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(TransferFailed, match=r"state/1: .*No space left on device"):
        await store.hand_out("state/1", tmp_path / "file")
    with pytest.raises(TransferFailed, match=r"state/checkpoint: .*No space left on device"):
        await store.take_in(tmp_path / "file", "state/checkpoint")
    assert files(tmp_path) == {"file", "store/state/1"}
    assert (tmp_path / "file").read_bytes() == b"before"


async def test_a_file_is_on_the_disk_before_it_takes_its_place(
    store: BundleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("state/1", b"state")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_bytes(b"before")
    seen: list[bytes] = []
    plain = os.fsync

    def note(descriptor: int) -> None:
        seen.append((tmp_path / "out" / "file").read_bytes())
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    await store.hand_out("state/1", tmp_path / "out" / "file")
    assert seen == [b"before", b"state"], "the file, then its folder"


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
