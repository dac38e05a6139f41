import asyncio
import contextlib
import errno
import gc
import hashlib
import hmac
import os
import shutil
import socket
import stat
import threading
import zlib
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort, fetch, upload
from spotlight.transport.tensors.keys import checked
from spotlight.types import BundleOffer, StoreEndpoint

TOKEN = "a secret"
BIG = os.urandom(1 << 20) * 9  # more than one chunk and more than any socket buffers


@pytest.fixture
def timings():
    return TransferTimings()


@pytest.fixture
async def port(timings):
    port = DataPort(timings=timings)
    await port.start()
    yield port
    await port.aclose()


@pytest.fixture
async def store(tmp_path, timings, port):
    store = BundleStore(tmp_path / "store", token=TOKEN, timings=timings, port=port)
    await store.start()
    store.writable_by("w")
    yield store
    await store.aclose()


def elsewhere(offer: BundleOffer, **changes) -> BundleOffer:
    """The same offer as another machine sees it: the files are out of reach."""
    return msgspec.structs.replace(offer, store=remote(offer.store), **changes)


def remote(endpoint: StoreEndpoint, **changes) -> StoreEndpoint:
    changes = {"machine": "another machine", "root": "/nowhere", **changes}
    return msgspec.structs.replace(endpoint, **changes)


def files(root: Path) -> set[str]:
    """What is there, finished or not."""
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def sockets() -> set[str]:
    """Inodes of the sockets that this process has open."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith("socket:"):
                found.add(target)
    return found


def head(method: str = "GET", key: str = "a", token: str | None = None, **fields: object) -> bytes:
    """The head of a request to a store; with `_` in place of `-` in its fields."""
    derived = b"write 1 w" if method == "PUT" else b"read"
    token = (
        hmac.new(TOKEN.encode(), derived, hashlib.sha256).hexdigest() if token is None else token
    )
    lines = [f"{method} /{key} HTTP/1.1", "Host: store", f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def put(nbytes: int, data: bytes = b"", **options: Any) -> bytes:
    """The head of an upload of so many bytes."""
    return head("PUT", Content_Length=nbytes, X_Checksum=f"{zlib.crc32(data):x}", **options)


async def say(endpoint: StoreEndpoint, data: bytes, *, end: bool = False) -> bytes:
    """Send raw bytes to a store, and all that it answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.read(), 10)
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def impostor(answer: bytes, *, after: str = "close"):
    """A server that answers anything with these bytes, then closes or stays silent for ever."""
    release, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer) -> None:
        await reader.read(1000)
        writer.write(answer)
        await writer.drain()
        if after == "silence":
            await release.wait()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield StoreEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN, "else", "/none")
    finally:
        release.set()
        server.close()
        await closed.wait()


def refuse_more_than(nbytes: int) -> Callable[[HTTPConnection, Any], None]:
    """A way to send that takes only so much at a time."""
    send = HTTPConnection.send

    def checked_send(connection: HTTPConnection, data: Any) -> None:
        assert len(data) <= nbytes
        send(connection, data)

    return checked_send


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something holds that no event announces."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


# --- whole transfers ---


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_a_bundle_arrives_whole_over_tcp(store, data):
    offer = store.put("weights/000001-rollout", data)
    assert await fetch(elsewhere(offer)) == data


@pytest.mark.parametrize("seen", [lambda place: place, remote], ids=["beside", "elsewhere"])
@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
async def test_an_upload_is_kept_whole_and_can_be_fetched(store, data, seen):
    offer = await upload(seen(store.writable_by("w")), "samples/worker-0/3-17", data)
    assert offer == BundleOffer(
        "samples/worker-0/3-17", len(data), zlib.crc32(data), seen(store.endpoint)
    )
    offer = msgspec.structs.replace(offer, store=store.endpoint)
    assert await fetch(offer) == await fetch(elsewhere(offer)) == data
    assert files(Path(store.endpoint.root)) == {"samples/worker-0/3-17"}


async def test_on_the_same_machine_a_large_upload_is_written_and_not_sent(store, monkeypatch):
    monkeypatch.setattr(HTTPConnection, "send", refuse_more_than(4096))
    offer = await upload(store.writable_by("w"), "a", BIG)
    assert (Path(store.endpoint.root) / "a").read_bytes() == BIG
    assert offer.store == store.endpoint


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


# --- the folder ---


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
        await fetch(BundleOffer("b", 1, 0, remote(store.endpoint)))
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


# --- refusals ---


@pytest.mark.parametrize("token", ["", "a secre", "a secret ", "ä secret", "\ud7ff"])
async def test_a_wrong_token_gets_nothing_and_leaves_nothing(store, token):
    offer = store.put("a", b"data")
    stranger = remote(store.endpoint, token=token)
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await fetch(msgspec.structs.replace(offer, store=stranger))
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await upload(stranger, "b", BIG)
    assert files(Path(store.endpoint.root)) == {"a"}


async def test_who_may_read_may_not_leave_anything(store):
    offer = store.put("a", b"data")
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await upload(offer.store, "a", b"overwritten")
    assert await fetch(elsewhere(offer)) == b"data"


async def test_who_may_leave_something_may_not_read(store):
    offer = store.put("a", b"data")
    writer = remote(store.writable_by("w"))
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await fetch(msgspec.structs.replace(offer, store=writer))


async def test_the_offer_of_an_upload_only_lets_its_holders_read(store):
    offer = await upload(store.writable_by("w"), "a", b"data")
    assert offer.store == store.endpoint
    assert offer.store.place == store.writable_by("w").place


async def test_everybody_who_may_leave_something_has_a_token_of_his_own(store):
    sinks = [store.writable_by(name) for name in ("a", "b", "a")]
    assert sinks[0] == sinks[2]
    assert len({sink.token for sink in (*sinks, store.endpoint)}) == 3
    assert all(TOKEN not in sink.token for sink in (*sinks, store.endpoint))


async def test_a_token_that_is_revoked_is_of_no_use_and_others_are(store):
    gone, other = store.writable_by("gone"), store.writable_by("other")
    kept = await upload(gone, "a", b"data")
    store.revoke("gone")
    store.revoke("nobody")
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await upload(gone, "b", b"data")
    await upload(other, "c", b"data")
    assert await fetch(elsewhere(kept)) == b"data"
    back = store.writable_by("gone")
    assert back.token != gone.token
    await upload(back, "b", b"data")
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await upload(gone, "b", b"data")


async def test_an_upload_ends_when_its_token_is_revoked(store):
    gone = store.writable_by("w")
    reader, writer = await asyncio.open_connection(gone.host, gone.port)
    writer.write(put(4, b"data"))
    await until(lambda: files(Path(gone.root)))
    store.revoke("w")
    writer.write(b"data")
    assert b"wrong token" in await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    assert files(Path(gone.root)) == set()


async def test_one_of_several_may_not_take_all_the_room(tmp_path):
    store = BundleStore(tmp_path / "store", token=TOKEN, quota_nbytes=1000)
    await store.start()
    greedy, modest = store.writable_by("greedy"), store.writable_by("modest")
    await upload(greedy, "a", bytes(500))
    with pytest.raises(TransferFailed, match="greedy already uses 500 of the 500"):
        await upload(greedy, "b", bytes(1))
    await upload(modest, "c", bytes(500))
    await store.aclose()


async def test_a_bundle_that_is_not_there_is_refused(store):
    offer = elsewhere(store.put("a", b"data"), key="b")
    with pytest.raises(TransferFailed, match=r"get b at .*no such bundle"):
        await fetch(offer)


async def test_a_bundle_that_is_too_large_is_refused_before_it_is_sent(tmp_path):
    store = BundleStore(tmp_path / "store", token=TOKEN, max_nbytes=1000)
    await store.start()
    endpoint = store.writable_by("w")
    await upload(endpoint, "fits", bytes(1000))
    with pytest.raises(TransferFailed, match=f"{len(BIG)} bytes are more than 1000"):
        await upload(endpoint, "a", BIG)
    assert files(tmp_path / "store") == {"fits"}
    await store.aclose()


BAD_KEYS = [
    "",
    ".",
    "..",
    "../a",
    "a/../../b",
    "a/..",
    "/etc/passwd",
    "a//b",
    "a/",
    ".hidden",
    "a/.b",
    "a\\..\\b",
    "a\0b",
    "a\n",
    "~/a",
    "a b",
    "ä",
    "a/\u2024\u2024/b",
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
async def test_a_key_that_could_leave_the_folder_is_refused_everywhere(store, tmp_path, key):
    (tmp_path / "a").write_bytes(b"outside")
    offer = BundleOffer(key, 7, zlib.crc32(b"outside"), store.endpoint)
    attempts = [
        lambda: fetch(offer),
        lambda: fetch(elsewhere(offer)),
        lambda: upload(store.writable_by("w"), key, b"overwritten"),
    ]
    for attempt in attempts:
        with pytest.raises(TransferFailed, match="not a bundle key"):
            await attempt()
    for attempt in (lambda: store.put(key, b"x"), lambda: store.delete(key)):
        with pytest.raises(TransferFailed, match="not a bundle key"):
            attempt()
    assert files(tmp_path) == {"a"}
    assert (tmp_path / "a").read_bytes() == b"outside"


@settings(max_examples=300, deadline=None)
@given(
    key=st.one_of(
        st.text(max_size=30),
        st.text(alphabet="./ab-_~\\\0\n", max_size=12),
        st.lists(st.sampled_from(["..", ".", "a", "b.c", "", "..a", "-"]), max_size=5).map(
            "/".join
        ),
    )
)
def test_no_key_leads_out_of_the_folder(key):
    root = Path("/some/where/store")
    try:
        path = root / checked(key)
    except TransferFailed:
        return
    resolved = Path(os.path.normpath(path))
    assert resolved.is_relative_to(root) and resolved != root
    assert resolved == path


async def test_a_key_longer_than_the_file_system_allows_is_refused(store):
    with pytest.raises(TransferFailed, match="File name too long"):
        await upload(store.writable_by("w"), "a" * 300, b"data")
    offer = BundleOffer("a" * 300, 0, 0, remote(store.endpoint))
    with pytest.raises(TransferFailed, match="no such bundle"):
        await fetch(offer)


# --- damage ---


async def test_a_damaged_file_is_noticed_on_both_ways(store):
    offer = store.put("a", b"whole")
    for damage in (b"whule", b"whol", b"whole!", b""):
        (Path(store.endpoint.root) / "a").write_bytes(damage)
        for seen in (offer, elsewhere(offer)):
            with pytest.raises(TransferFailed, match="arrived damaged"):
                await fetch(seen)


async def test_an_upload_that_is_damaged_on_the_way_is_not_kept(store):
    answer = await say(store.endpoint, put(5, b"whole") + b"whule")
    assert b"checksum differs" in answer
    assert files(Path(store.endpoint.root)) == set()


async def test_an_upload_that_breaks_off_is_not_kept(store):
    await say(store.endpoint, put(1000) + bytes(999), end=True)
    await until(lambda: not files(Path(store.endpoint.root)))


GARBAGE = {
    "nothing": b"",
    "short": b"\0\0",
    "no-token": b"GET /a HTTP/1.1\r\nHost: store\r\n\r\n",
    "too-long": b"GET /" + b"a" * 100_000,
    "too-many-headers": head(**{f"X{number}": "x" for number in range(1000)}),
    "not-http": b"\xc1\xc1\r\n\r\n",
    "unknown-method": head("RUN"),
    "no-size": head("PUT", X_Checksum="0"),
    "no-checksum": head("PUT", Content_Length=3) + b"abc",
    "negative-size": head("PUT", Content_Length=-1, X_Checksum="0"),
    "chunked": head("PUT", Transfer_Encoding="chunked", X_Checksum="0") + b"3\r\nabc\r\n0\r\n\r\n",
    "no-range": head(Range="bytes=x-y"),
    "beyond": head(Range="bytes=1000-"),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_closes_the_connection_and_harms_nobody(store, garbage, caplog):
    store.put("a", b"served")
    answer = await say(store.endpoint, garbage, end=True)
    assert answer[:12] in (b"", b"HTTP/1.1 409", b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert b"Traceback" not in answer
    assert not caplog.records
    offer = store.put("a", b"still served")
    assert await fetch(elsewhere(offer)) == b"still served"
    assert files(Path(store.endpoint.root)) == {"a"}


async def test_a_client_that_leaves_in_the_middle_harms_nobody(store):
    offer = store.put("a", BIG)
    reader, writer = await asyncio.open_connection(store.endpoint.host, store.endpoint.port)
    writer.write(head())
    await reader.readexactly(1000)
    writer.transport.abort()
    await asyncio.sleep(0)
    assert await fetch(elsewhere(offer)) == BIG


async def test_an_unknown_header_of_a_newer_version_is_ignored(store):
    store.put("a", b"data")
    assert (await say(store.endpoint, head(X_Priority=3))).endswith(b"data")


YES = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "closed connection without response"),
        (b"\0\0\0", "failed: "),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000, "more than 100 headers"),
        (YES + b"who", "in the middle"),
        (YES + b"whule", "arrived damaged"),
        (YES.replace(b"5", b"-5") + b"whole", "arrived damaged"),
        (YES.replace(b"5", b"%d" % (1 << 50)), "arrived damaged"),
        (b"HTTP/1.1 200 OK\r\n\r\nwhole", "arrived damaged"),
        (b"HTTP/1.1 409 No\r\nContent-Length: 5\r\n\r\nmoved", "refused: moved"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://else/\r\n\r\n", "refused: 302 Found"),
    ],
)
async def test_a_server_that_answers_nonsense_is_a_failed_transfer(answer, problem):
    async with impostor(answer) as endpoint:
        offer = BundleOffer("a", 5, zlib.crc32(b"whole"), endpoint)
        with pytest.raises(TransferFailed, match=problem):
            await fetch(offer)


# --- deadlines ---


@pytest.mark.parametrize("answer", [b"", YES, YES + b"who"], ids=["silent", "promising", "stuck"])
async def test_a_server_that_does_not_go_on_costs_no_more_than_the_deadline(answer):
    async with impostor(answer, after="silence") as endpoint:
        offer = BundleOffer("a", 5, zlib.crc32(b"whole"), endpoint)
        with pytest.raises(TransferFailed, match=r"get a at .* took longer than 0\.05 s"):
            await fetch(offer, TransferTimings(transfer_limit_s=0.05))


async def test_a_server_that_reads_nothing_costs_no_more_than_the_deadline():
    before = sockets()
    async with impostor(YES, after="silence") as endpoint:
        with pytest.raises(TransferFailed, match=r"put a at .* took longer than"):
            await upload(endpoint, "a", BIG, TransferTimings(transfer_limit_s=0.05))
    gc.collect()
    assert sockets() <= before


async def test_nobody_there_is_a_failed_transfer():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    endpoint = StoreEndpoint("127.0.0.1", port, TOKEN, "else", "/none")
    with pytest.raises(TransferFailed, match=f"get a at 127.0.0.1:{port} failed"):
        await fetch(BundleOffer("a", 1, 0, endpoint))
    with pytest.raises(TransferFailed, match=f"put a at 127.0.0.1:{port} failed"):
        await upload(endpoint, "a", b"x")


@pytest.mark.parametrize("timings", [TransferTimings(header_limit_s=0.05, idle_limit_s=0.05)])
@pytest.mark.parametrize("said", [b"", head()[:7], put(1000) + b"x"])
async def test_a_silent_client_is_dropped(store, said):
    assert await say(store.endpoint, said) == b""
    assert files(Path(store.endpoint.root)) == set()


@pytest.mark.parametrize("timings", [TransferTimings(idle_limit_s=0.05)])
async def test_a_client_that_takes_nothing_is_dropped(store, port):
    store.put("a", BIG * 4)
    with socket.create_connection((store.endpoint.host, store.endpoint.port)) as idle:
        idle.sendall(head())
        await until(lambda: port.connections)
        await until(lambda: not port.connections)


@pytest.mark.parametrize("timings", [TransferTimings(idle_limit_s=0.1)])
async def test_a_slow_transfer_may_take_longer_than_the_idle_limit(store):
    loop = asyncio.get_running_loop()
    began = loop.time()
    reader, writer = await asyncio.open_connection(store.endpoint.host, store.endpoint.port)
    writer.write(put(10, b"slow bytes"))
    for byte in b"slow bytes":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.03)
    await reader.read()
    writer.close()
    await writer.wait_closed()
    assert loop.time() - began > 0.1
    assert (Path(store.endpoint.root) / "a").read_bytes() == b"slow bytes"


async def test_a_cancelled_fetch_leaves_no_connection():
    before = sockets()
    async with impostor(b"", after="silence") as endpoint:
        task = asyncio.ensure_future(fetch(BundleOffer("a", 5, 0, endpoint)))
        await until(lambda: len(sockets() - before) == 3)  # listening, and both ends
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sockets() <= before


# --- closing ---


async def test_nothing_is_left_open_after_closing(tmp_path):
    before, tasks, threads = sockets(), asyncio.all_tasks(), threading.enumerate()
    port = DataPort()
    await port.start()
    store = BundleStore(tmp_path / "store", token=TOKEN, port=port)
    endpoint = await store.start()
    offer = store.put("a", BIG * 4)
    await fetch(elsewhere(offer))
    await upload(store.writable_by("w"), "b", BIG)
    silent = socket.create_connection((endpoint.host, endpoint.port))
    stuck = socket.create_connection((endpoint.host, endpoint.port))
    stuck.sendall(head())
    await until(lambda: port.connections == 2)
    await store.aclose()
    await asyncio.wait_for(port.aclose(), 10)
    for client in (silent, stuck):
        client.close()
    assert sockets() <= before
    assert asyncio.all_tasks() == tasks
    started = set(threading.enumerate()) - set(threads)
    assert not [each.name for each in started if each.name == "data-port"]


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_connection_that_has_just_arrived_is_closed_too(accepted):
    before = sockets()
    port = DataPort()
    await port.start()
    with socket.create_connection((port.host, port.port)):
        if accepted:
            await until(lambda: port.connections)
        await port.aclose()
    assert sockets() <= before


async def test_a_closed_store_takes_no_more_connections(store):
    offer = elsewhere(store.put("a", b"x"))
    await store.aclose()
    with pytest.raises(TransferFailed, match="failed"):
        await fetch(offer)


async def test_closing_ends_transfers_with_an_error_for_the_other_side(tmp_path, caplog):
    port = DataPort()
    await port.start()
    store = BundleStore(tmp_path / "store", token=TOKEN, port=port)
    offer = (await store.start(), store.put("a", BIG * 40))[1]
    task = asyncio.ensure_future(fetch(elsewhere(offer)))
    await until(lambda: port.connections)
    await port.aclose()
    with pytest.raises(TransferFailed):
        await task
    assert not caplog.records


async def test_closing_twice_or_before_starting_is_harmless(store, tmp_path):
    await store.aclose()
    await store.aclose()
    await BundleStore(tmp_path / "never", token=TOKEN).aclose()


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
    assert (offer.nbytes, offer.store) == (9, store.endpoint)
    assert await fetch(offer) == b"a picture"


async def test_what_nobody_left_cannot_be_offered(store):
    with pytest.raises(TransferFailed, match="no bundle pictures/2"):
        await store.offer("pictures/2.png")
