"""The folder of a store, and the room in it."""

import asyncio
import contextlib
import errno
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from raw_requests import put
from tensor_kit import BIG, TOKEN, files, remote, until

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, fetch, upload
from spotlight.types import BundleOffer


async def test_the_folder_is_private(tmp_path):
    (tmp_path / "store").mkdir(mode=0o755)
    store = BundleStore(tmp_path / "store", token=TOKEN)
    await store.start()
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    await store.aclose()


async def test_a_bundle_or_a_folder_of_them_can_be_dropped(store):
    for key in ("weights/1-rollout", "weights/2-rollout", "samples/1", "weights-old"):
        store.put(key, b"x")
    store.delete("weights/1-rollout")
    assert files(Path(store.endpoint.root)) == {"weights/2-rollout", "samples/1", "weights-old"}
    store.delete("weights")
    store.delete("never-there")
    assert files(Path(store.endpoint.root)) == {"samples/1", "weights-old"}


async def test_the_files_stay_when_the_store_closes(store):
    store.put("a", b"x")
    root = Path(store.endpoint.root)
    await store.aclose()
    assert files(root) == {"a"}


@pytest.fixture
def full_disk(monkeypatch):
    """New files can be made and take nothing."""
    plain_open = os.open

    def open_full(path: Any, flags: int, *args: Any, **options: Any) -> int:
        descriptor = plain_open(path, flags, *args, **options)
        if flags & os.O_CREAT:
            os.close(descriptor)
            return plain_open("/dev/full", os.O_WRONLY)
        return descriptor

    monkeypatch.setattr(os, "open", open_full)


async def test_a_full_disk_is_a_typed_error_and_leaves_the_old_bundle(store, monkeypatch):
    def refuse(*_, **__) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    offer = store.put("a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(TransferFailed, match=r"cannot be kept.*No space left.*\(bundle a\)"):
            store.put("a", b"new")
    assert await fetch(offer) == b"old"
    assert files(Path(store.endpoint.root)) == {"a"}


async def test_the_sender_is_told_of_a_full_disk(store, full_disk):
    with pytest.raises(TransferFailed, match=r"refused: .*No space left on device"):
        await upload(store.writable_by("w"), "a", b"data")
    assert files(Path(store.endpoint.root)) == set()


async def test_the_sender_of_much_is_told_of_a_full_disk_too(store, full_disk):
    with pytest.raises(TransferFailed, match=r"refused: .*No space left on device"):
        await upload(store.writable_by("w"), "a", BIG)


async def test_an_upload_goes_to_disk_as_it_comes(store):
    root = Path(store.endpoint.root)
    _, writer = await asyncio.open_connection(store.endpoint.host, store.endpoint.port)
    writer.write(put(len(BIG) + 1) + BIG)
    unfinished = root / ".unfinished"
    await until(lambda: any(file.stat().st_size >= 6 << 20 for file in unfinished.iterdir()))
    assert files(root) == {".unfinished/0"}
    writer.close()
    await until(lambda: not files(root))
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_what_a_killed_process_left_unfinished_is_removed_at_the_start(tmp_path):
    (tmp_path / "store" / ".unfinished").mkdir(parents=True)
    (tmp_path / "store" / ".unfinished" / "0").write_bytes(b"half a bundle")
    (tmp_path / "store" / "a").write_bytes(b"whole")
    store = BundleStore(tmp_path / "store", token=TOKEN)
    await store.start()
    assert files(tmp_path / "store") == {"a"}
    await upload(store.writable_by("w"), "b", b"data")
    await store.aclose()


async def test_a_store_whose_folder_was_deleted_goes_on_with_an_empty_one(store):
    root = Path(store.endpoint.root)
    store.put("a", b"data")
    shutil.rmtree(root)
    await upload(store.writable_by("w"), "b", b"data")
    assert files(root) == {"b"}
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700


async def test_the_loop_turns_while_the_disk_is_slow(tmp_path, monkeypatch):
    release = threading.Event()
    plain_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        release.wait(10)
        plain_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = BundleStore(tmp_path / "durable", token=TOKEN, durable=True)
    await store.start()
    slow = asyncio.ensure_future(upload(store.writable_by("w"), "a", BIG))
    await until(lambda: files(tmp_path / "durable"))
    with pytest.raises(TransferFailed, match="no such bundle"):
        await fetch(BundleOffer("b", 1, 0, remote(store.readable("b"))))
    assert not slow.done()
    release.set()
    await slow
    await store.aclose()


async def test_an_upload_for_which_there_is_no_room_is_refused_before_it_is_sent(tmp_path):
    store = BundleStore(tmp_path / "store", token=TOKEN, quota_nbytes=1000)
    await store.start()
    sink = store.writable_by("w")
    await upload(sink, "a", bytes(600))
    reader, writer = await asyncio.open_connection(sink.host, sink.port)
    writer.write(put(401, token=sink.token))
    answer = await asyncio.wait_for(reader.readuntil(b"1000"), 10)
    assert b"401 bytes do not fit: 600 of 1000" in answer
    writer.close()
    await writer.wait_closed()
    store.delete("a")
    await upload(sink, "b", bytes(1000))
    await upload(sink, "b", bytes(0))
    await upload(sink, "c", bytes(1000))
    await store.aclose()


async def test_what_is_under_way_counts_and_what_breaks_off_does_not(tmp_path):
    store = BundleStore(tmp_path / "store", token=TOKEN, quota_nbytes=1000)
    await store.start()
    sink = store.writable_by("w")
    _, writer = await asyncio.open_connection(sink.host, sink.port)
    writer.write(put(600))
    await until(lambda: files(tmp_path / "store"))
    with pytest.raises(TransferFailed, match="do not fit"):
        await upload(sink, "b", bytes(401))
    writer.close()
    await writer.wait_closed()
    await until(lambda: not files(tmp_path / "store"))
    await upload(sink, "b", bytes(1000))
    await store.aclose()


async def test_what_was_there_before_the_start_counts(tmp_path):
    (tmp_path / "store" / "samples").mkdir(parents=True)
    (tmp_path / "store" / "samples" / "a").write_bytes(bytes(600))
    store = BundleStore(tmp_path / "store", token=TOKEN, quota_nbytes=1000)
    await store.start()
    with pytest.raises(TransferFailed, match="600 of 1000"):
        await upload(store.writable_by("w"), "b", bytes(401))
    store.delete("samples")
    await upload(store.writable_by("w"), "b", bytes(401))
    await store.aclose()


async def test_a_key_that_is_a_folder_already_is_refused(store):
    store.put("weights/1", b"x")
    with pytest.raises(TransferFailed, match="cannot be kept"):
        await upload(store.writable_by("w"), "weights", b"data")
    with pytest.raises(TransferFailed, match="cannot be kept"):
        await upload(store.writable_by("w"), "weights/1/2", b"data")
    assert files(Path(store.endpoint.root)) == {"weights/1"}


async def test_one_of_several_may_not_take_all_the_room(tmp_path):
    store = BundleStore(tmp_path / "store", token=TOKEN, quota_nbytes=1000)
    await store.start()
    greedy, modest = store.writable_by("greedy"), store.writable_by("modest")
    await upload(greedy, "a", bytes(500))
    with pytest.raises(TransferFailed, match="greedy already uses 500 of the 500"):
        await upload(greedy, "b", bytes(1))
    await upload(modest, "c", bytes(500))
    await store.aclose()
