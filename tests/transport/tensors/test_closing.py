"""What is left of transfers and connections when a store or its port closes."""

import asyncio
import socket
import threading

import pytest
from raw_requests import head
from tensor_kit import BIG, TOKEN, elsewhere, sockets, until

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, DataPort, fetch, upload


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
