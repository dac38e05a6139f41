"""Whole bundles: fetched, uploaded, replaced, offered."""

import asyncio
import contextlib
import os
import resource
import zlib
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from raw_requests import put, say
from tensor_kit import BIG, TOKEN, elsewhere, files, remote, until

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, DataPort, fetch, upload
from spotlight.types import BundleOffer


def refuse_more_than(nbytes: int) -> Callable[[HTTPConnection, Any], None]:
    """A way to send that takes only so much at a time."""
    send = HTTPConnection.send

    def checked_send(connection: HTTPConnection, data: Any) -> None:
        assert len(data) <= nbytes
        send(connection, data)

    return checked_send


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_a_bundle_arrives_whole_over_tcp(store, data):
    offer = store.put("weights/000001-rollout", data)
    assert await fetch(elsewhere(offer)) == data


@pytest.mark.parametrize("seen", [lambda place: place, remote], ids=["beside", "elsewhere"])
@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_an_upload_is_kept_whole_and_can_be_fetched(store, data, seen):
    key = "samples/worker-0/3-17"
    offer = await upload(seen(store.writable_by("w")), key, data)
    assert offer == BundleOffer(key, len(data), zlib.crc32(data), seen(store.readable(key)))
    offer = msgspec.structs.replace(offer, store=store.readable(offer.key))
    assert await fetch(offer) == await fetch(elsewhere(offer)) == data
    assert files(Path(store.endpoint.root)) == {"samples/worker-0/3-17"}


async def test_on_the_same_machine_a_large_upload_is_written_and_not_sent(store, monkeypatch):
    monkeypatch.setattr(HTTPConnection, "send", refuse_more_than(4096))
    offer = await upload(store.writable_by("w"), "a", BIG)
    assert (Path(store.endpoint.root) / "a").read_bytes() == BIG
    assert offer.store == store.readable("a")


async def test_an_upload_whose_file_the_store_does_not_see_is_sent(store, tmp_path):
    # As in two containers of one machine: the same identity and path, other files.
    (tmp_path / "other").mkdir()
    confused = msgspec.structs.replace(store.writable_by("w"), root=str(tmp_path / "other"))
    await upload(confused, "a", BIG)
    assert (Path(store.endpoint.root) / "a").read_bytes() == BIG
    assert files(tmp_path / "other") == set()


async def test_a_written_upload_that_is_damaged_is_not_kept(store):
    unfinished = Path(store.endpoint.root) / ".unfinished"
    (unfinished / f"{'0' * 16}-0").write_bytes(b"whule")
    answer = await say(store.endpoint, put(0, b"whole", X_Written=f"{'0' * 16}-0"))
    assert b"checksum differs" in answer
    assert files(Path(store.endpoint.root)) == set()


@pytest.mark.parametrize("name", ["0", "../a", "a", f"{'0' * 16}-0/../../a", f"{'0' * 16}-1"])
async def test_an_upload_names_no_file_but_its_own(store, name):
    offer = store.put("a", b"mine")
    (Path(store.endpoint.root) / ".unfinished" / "0").write_bytes(b"of another")
    answer = await say(store.endpoint, put(0, b"of another", key="b", X_Written=name))
    assert b"409" in answer.splitlines()[0]
    assert await fetch(offer) == b"mine"
    assert files(Path(store.endpoint.root)) == {"a", ".unfinished/0"}


async def test_a_cancelled_upload_leaves_no_file(store):
    for turns in (0, 1, 3, 10):
        task = asyncio.ensure_future(upload(store.writable_by("w"), "a", BIG))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: not list((Path(store.endpoint.root) / ".unfinished").iterdir()))


async def test_a_process_with_many_descriptors_may_upload(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("the system allows no more than the usual number")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert await fetch(await upload(remote(store.writable_by("w")), "a", BIG)) == BIG
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_on_the_same_machine_the_file_itself_is_read(store):
    offer = store.put("a", b"from the file")
    await store.aclose()
    assert await fetch(offer) == b"from the file"


async def test_a_store_whose_files_are_out_of_reach_is_asked_over_tcp(store):
    offer = store.put("a", b"over tcp")
    out_of_reach = msgspec.structs.replace(offer.store, root="/nowhere")
    assert await fetch(msgspec.structs.replace(offer, store=out_of_reach)) == b"over tcp"


async def test_another_file_at_the_same_path_is_not_taken_for_the_bundle(store, tmp_path):
    # As in two containers of one machine: the same identity and path, other files.
    offer = store.put("a", b"the bundle")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_bytes(b"the botch!")
    confused = msgspec.structs.replace(offer.store, root=str(tmp_path / "other"))
    assert await fetch(msgspec.structs.replace(offer, store=confused)) == b"the bundle"


async def test_a_bundle_replaces_the_one_of_the_same_key(store):
    old = store.put("a", b"old")
    new = await upload(store.writable_by("w"), "a", b"new!")
    assert await fetch(elsewhere(new)) == b"new!"
    with pytest.raises(TransferFailed, match="arrived damaged"):
        await fetch(elsewhere(old))


async def test_keys_that_differ_by_a_suffix_do_not_disturb_each_other(store):
    offers = [store.put(key, key.encode()) for key in ("a.part", "a", "a.part.part")]
    assert [await fetch(offer) for offer in offers] == [b"a.part", b"a", b"a.part.part"]


async def test_many_transfers_run_at_once(store):
    bundles = {f"samples/{number}": os.urandom(100_000) for number in range(30)}
    offers = await asyncio.gather(
        *(upload(store.writable_by("w"), key, data) for key, data in bundles.items())
    )
    fetched = await asyncio.gather(*(fetch(elsewhere(offer)) for offer in offers))
    assert fetched == list(bundles.values())


async def test_concurrent_uploads_of_one_key_leave_one_of_them_whole(store):
    contents = [bytes([number]) * 300_000 for number in range(8)]
    await asyncio.gather(*(upload(store.writable_by("w"), "a", data) for data in contents))
    assert (Path(store.endpoint.root) / "a").read_bytes() in contents
    assert files(Path(store.endpoint.root)) == {"a"}


async def test_a_store_has_no_address_before_it_is_started(tmp_path):
    with pytest.raises(RuntimeError, match="not started"):
        _ = BundleStore(tmp_path, token=TOKEN).endpoint


async def test_a_store_is_reached_by_what_it_advertises(tmp_path):
    port = DataPort("0.0.0.0", advertise="127.0.0.1")
    await port.start()
    store = BundleStore(tmp_path / "store", token=TOKEN, port=port)
    endpoint = await store.start()
    assert endpoint.host == store.writable_by("w").host == "127.0.0.1"
    assert await fetch(elsewhere(await upload(store.writable_by("w"), "a", b"data"))) == b"data"
    await port.aclose()


async def test_a_durable_store_has_file_and_folder_on_disk_before_it_says_so(tmp_path, monkeypatch):
    synced: list[str] = []
    plain_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        plain_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = BundleStore(tmp_path / "durable", token="t", durable=True)
    await store.start()
    try:
        await upload(store.writable_by("w"), "samples/a", b"data")
    finally:
        await store.aclose()
    folder = tmp_path / "durable" / "samples"
    assert synced == [str(tmp_path / "durable" / ".unfinished" / "0"), str(folder)]


async def test_what_somebody_left_can_be_offered_to_others(store):
    await upload(store.writable_by("w"), "pictures/1.png", b"a picture")
    offer = await store.offer("pictures/1.png")
    assert (offer.nbytes, offer.store) == (9, store.readable("pictures/1.png"))
    assert await fetch(offer) == b"a picture"


async def test_what_nobody_left_cannot_be_offered(store):
    with pytest.raises(TransferFailed, match="no bundle pictures/2"):
        await store.offer("pictures/2.png")
