"""What a store refuses: tokens, keys and bundles that are wrong."""

import asyncio
import contextlib
import os
import threading
import zlib
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_requests import derived, head, put, say
from tensor_kit import BIG, TOKEN, elsewhere, files, remote, until

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.transport.tensors import BundleStore, fetch, upload
from spotlight.transport.tensors.incoming import in_thread
from spotlight.transport.tensors.keys import checked
from spotlight.types import BundleOffer


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
    assert offer.store == store.readable("a")
    assert offer.store.place == store.writable_by("w").place


async def test_everybody_who_may_leave_something_has_a_token_of_his_own(store):
    sinks = [store.writable_by(name) for name in ("a", "b", "a")]
    assert sinks[0] == sinks[2]
    assert len({sink.token for sink in (*sinks, store.readable("a"))}) == 3
    assert all(TOKEN not in sink.token for sink in (*sinks, store.readable("a")))


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


@pytest.mark.parametrize(
    ("key", "is_own"),
    [
        ("samples/n/0/1-1", True),
        ("pictures/7/n/0/1.png", True),
        ("samples/n", False),
        ("samples/other/0/1-1", False),
        ("samples/nn/0", False),
        ("pictures/n/0/1.png", False),
        ("pictures/7/8/n/0/1.png", False),
        ("state/0-0", False),
        ("n/samples/a", False),
    ],
)
async def test_a_token_for_folders_is_good_below_these_alone(store, key, is_own):
    sink = remote(store.writable_by("n", "samples/n", "pictures/*/n"))
    if is_own:
        assert await fetch(elsewhere(await upload(sink, key, b"data"))) == b"data"
        return
    with pytest.raises(TransferRefused, match="this token is not for") as refused:
        await upload(sink, key, b"data")
    assert refused.value.status == 403
    assert files(Path(store.endpoint.root)) == set()


async def test_an_offer_lets_its_holders_read_what_it_names_and_nothing_else(store):
    offer = store.put("samples/n/1", b"data")
    for key in ("samples/n/2", "samples/n", "samples", "samples/n/11", "state/0-0"):
        with pytest.raises(TransferRefused, match="wrong token"):
            await fetch(elsewhere(offer, key=key))
    assert await fetch(elsewhere(offer)) == b"data"


async def test_what_a_store_is_known_by_lets_nobody_do_anything(store):
    offer = store.put("a", b"data")
    known = remote(store.endpoint)
    with pytest.raises(TransferRefused, match="wrong token"):
        await fetch(msgspec.structs.replace(offer, store=known))
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(known, "b", b"data")


async def test_who_may_read_a_folder_reads_what_is_in_it_and_nothing_beside(store):
    inside, beside = store.put("checkpoint/vae/a", b"inside"), store.put("checkpoints/a", b"beside")
    reader = remote(store.readable("checkpoint"))
    assert await fetch(msgspec.structs.replace(inside, store=reader)) == b"inside"
    with pytest.raises(TransferRefused, match="wrong token"):
        await fetch(msgspec.structs.replace(beside, store=reader))


async def test_offers_outlive_the_process_that_made_them(tmp_path):
    offers = []
    for _ in range(2):
        store = BundleStore(tmp_path / "store", token=TOKEN)
        await store.start()
        offers.append(store.put("a", b"data"))
        here = remote(offers[0].store, port=store.endpoint.port)
        assert await fetch(msgspec.structs.replace(offers[-1], store=here)) == b"data"
        await store.aclose()


async def test_what_an_earlier_process_gave_to_leave_bundles_with_is_void(tmp_path):
    sinks = []
    for term in ("first", "second"):
        store = BundleStore(tmp_path / "store", token=TOKEN, term=term)
        await store.start()
        sinks.append(remote(store.writable_by("w"), port=store.endpoint.port))
        if term == "second":
            with pytest.raises(TransferRefused, match="wrong token"):
                await upload(remote(sinks[0], port=store.endpoint.port), "a", b"data")
        await upload(sinks[-1], "a", b"data")
        await store.aclose()


async def test_all_tokens_of_one_are_revoked_at_once(store):
    sinks = [store.writable_by("n", "a"), store.writable_by("n", "b"), store.writable_by("o")]
    assert len({sink.token for sink in sinks}) == 3
    store.revoke("n")
    for sink, key in zip(sinks[:2], ("a/x", "b/x"), strict=True):
        with pytest.raises(TransferFailed, match="wrong token"):
            await upload(sink, key, b"data")
    await upload(sinks[2], "a/x", b"data")


@pytest.mark.parametrize("end", ["py", "PY", "pyc", "so", "pth", "zip", "abi3.so"])
async def test_a_bundle_never_has_the_end_of_a_file_of_code(store, end):
    with pytest.raises(TransferFailed, match="the end of a file of code"):
        await upload(remote(store.writable_by("w")), f"samples/evil.{end}", b"data")
    with pytest.raises(TransferFailed, match="the end of a file of code"):
        store.put(f"evil.{end}", b"data")


async def test_an_upload_ends_when_its_token_is_revoked_though_nothing_more_comes(store):
    gone = store.writable_by("w")
    reader, writer = await asyncio.open_connection(gone.host, gone.port)
    writer.write(put(4, b"data"))
    await until(lambda: files(Path(gone.root)))
    store.revoke("w")
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()
    await until(lambda: files(Path(gone.root)) == set())
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(remote(gone), "b", b"data")


async def test_an_upload_whose_token_is_revoked_before_it_is_kept_is_dropped(store, monkeypatch):
    """All of it has come, and another thread is about to keep it."""
    sink, root = remote(store.writable_by("w")), Path(store.endpoint.root)
    keeping, revoked = threading.Event(), threading.Event()

    async def held_up(work):
        def later():
            if any((root / file).stat().st_size for file in files(root)):
                keeping.set()
                assert revoked.wait(10)
            return work()

        return await in_thread(later)

    monkeypatch.setattr("spotlight.transport.tensors.store.in_thread", held_up)
    uploading = asyncio.create_task(upload(sink, "a", b"data"))
    await until(keeping.is_set)
    store.revoke("w")
    revoked.set()
    with pytest.raises(TransferFailed):
        await uploading
    await until(lambda: files(root) == set())


async def test_a_bundle_that_is_not_there_is_refused(store):
    offer = BundleOffer("b", 4, 0, remote(store.readable("b")))
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
    offer = BundleOffer(key, 7, zlib.crc32(b"outside"), store.readable(key))
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


@settings(max_examples=100, deadline=None)
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
    offer = BundleOffer("a" * 300, 0, 0, remote(store.readable("a" * 300)))
    with pytest.raises(TransferFailed, match="no such bundle"):
        await fetch(offer)


# --- the reason, as a status of HTTP ---

REFUSED = {
    "token": (head(token="a guess"), 401, b"wrong token"),
    "no token": (b"GET /a HTTP/1.1\r\nHost: store\r\n\r\n", 401, b"wrong token"),
    "token of a reader": (put(5, token=derived("read a")) + b"whole", 401, b"wrong token"),
    "no bundle": (head(key="b"), 404, b"no such bundle"),
    "too many bytes": (put(1001) + bytes(1001), 413, b"1001 bytes are more than 1000"),
    "range behind the end": (head(Range="bytes=1000-"), 416, b"6 bytes, and no byte 1000"),
    "range at the end": (head(Range="bytes=6-"), 416, b"6 bytes, and no byte 6"),
    "range of huge numbers": (head(Range=f"bytes={9**99}-"), 416, b"must be one"),
    "range that ends": (head(Range="bytes=0-3"), 416, b"must be one"),
    "range from the end": (head(Range="bytes=-3"), 416, b"must be one"),
    "ranges that overlap": (head(Range="bytes=0-3,2-5"), 416, b"must be one"),
    "range that is none": (head(Range="bytes=x-y"), 416, b"must be one"),
    "full": (put(995) + bytes(995), 507, b"995 bytes do not fit: 6 of 1000"),
    "key that leaves the folder": (head(key="../a"), 409, b"is not a bundle key"),
    "no checksum": (head("PUT", Content_Length=3) + b"abc", 409, b"says its X-Checksum"),
    "bad checksum": (put(5, b"whole") + b"whule", 409, b"checksum differs"),
}


@pytest.mark.parametrize(("request_", "status", "problem"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_says_why_and_is_counted(tmp_path, port, request_, status, problem):
    store = BundleStore(
        tmp_path / "store", token=TOKEN, port=port, max_nbytes=1000, quota_nbytes=1000
    )
    await store.start()
    await upload(store.writable_by("w"), "a", b"served")
    answer = await say(store.endpoint, request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status) and problem in answer
    assert port.refusals == {status: 1}
    assert files(tmp_path / "store") == {"a"}
    await store.aclose()


async def test_the_receiver_knows_the_status_of_a_refusal(store):
    offer = BundleOffer("b", 4, 0, remote(store.readable("b")))
    with pytest.raises(TransferRefused, match=r"get b at .* refused: no such bundle") as refused:
        await fetch(offer)
    assert refused.value.status == 404
    with pytest.raises(TransferRefused, match="refused: wrong token") as refused:
        await upload(remote(store.endpoint), "b", b"data")
    assert refused.value.status == 401


async def test_a_port_says_what_it_refused_when_it_closes(store, port):
    await say(store.endpoint, head(token="a guess"))
    await say(store.endpoint, head(key="b"))
    with structlog.testing.capture_logs() as logs:
        await port.aclose()
    assert [log["requests"] for log in logs] == [{401: 1, 404: 1}]
