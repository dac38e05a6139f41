"""Bundles that arrive damaged, requests that are none, and servers that answer nonsense."""

import asyncio
import zlib
from pathlib import Path

import pytest
from raw_requests import YES, head, impostor, put, say
from tensor_kit import BIG, elsewhere, files, until

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import fetch
from spotlight.types import BundleOffer


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
    assert answer[:10] in (b"", b"HTTP/1.1 4", b"HTTP/1.0 4")
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
