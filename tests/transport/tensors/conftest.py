"""A store on a port of its own, for the tests of tensor transport."""

import pytest
from tensor_kit import TOKEN

from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort


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
