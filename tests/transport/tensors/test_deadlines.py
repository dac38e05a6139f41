"""How long a transfer may take when the other side does not go on."""

import asyncio
import gc
import socket
import zlib
from pathlib import Path

import pytest
from raw_requests import YES, head, impostor, put, say
from tensor_kit import BIG, TOKEN, files, sockets, until

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import fetch, upload
from spotlight.types import BundleOffer, StoreEndpoint


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


async def test_who_takes_no_connection_costs_no_more_than_the_deadline():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        number = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)):  # the only place in its queue
            endpoint = StoreEndpoint("127.0.0.1", number, TOKEN, "else", "/none")
            with pytest.raises(TransferFailed, match=r"get a at .* no connection within 0\.05 s"):
                await fetch(BundleOffer("a", 1, 0, endpoint), TransferTimings(connect_limit_s=0.05))


@pytest.mark.parametrize("host", ["203.0.113.1", "240.0.0.1", "2001:db8::1", "no-host.invalid"])
async def test_an_address_that_leads_nowhere_is_a_failed_transfer(host):
    endpoint = StoreEndpoint(host, 9, TOKEN, "else", "/none")
    with pytest.raises(TransferFailed, match=f"get a at {host}:9 failed"):
        await fetch(BundleOffer("a", 1, 0, endpoint), TransferTimings(connect_limit_s=0.05))


@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:169.254.169.254]", "fd00:ec2::254"])
async def test_nothing_is_fetched_from_where_clouds_trust_the_machine(host):
    endpoint = StoreEndpoint(host.strip("[]"), 80, TOKEN, "else", "/none")
    with pytest.raises(TransferFailed, match="link-local address"):
        await fetch(BundleOffer("latest/meta-data", 1, 0, endpoint))


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
