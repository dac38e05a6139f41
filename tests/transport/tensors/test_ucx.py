"""Copies by UCX: which way they take, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from raw_requests import head, say
from tensor_kit import BIG, TOKEN, elsewhere, files, until

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort, fetch, ucx
from spotlight.types import BundleOffer

pytest.importorskip("ucxx", reason="UCXX is not installed")


@pytest.fixture
async def port(timings: TransferTimings) -> AsyncIterator[DataPort]:
    async with DataPort(timings=timings, ucx=True) as port:
        yield port


@pytest.fixture
async def taker(tmp_path: Path) -> AsyncIterator[BundleStore]:
    timings = TransferTimings(idle_limit_s=2.0)
    store = BundleStore(tmp_path / "taker", token=TOKEN, timings=timings)
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every transfer that was sent by UCX."""
    found, send = [], ucx.send

    def noted(target: ucx.Target, file: Any, first: int, nbytes: int, *rest: Any) -> None:
        found.append(nbytes)
        send(target, file, first, nbytes, *rest)

    monkeypatch.setattr(ucx, "send", noted)
    return found


async def test_a_copy_goes_by_ucx_where_the_offer_says_so(
    store: BundleStore, taker: BundleStore, sent: list[int]
) -> None:
    offer = elsewhere(store.put("weights/1", BIG))
    assert offer.store.ucx
    assert await fetch(await taker.copy(offer, "weights/1.0")) == BIG
    assert sent == [len(BIG)]


async def test_a_receiver_without_ucxx_takes_http(
    store: BundleStore, taker: BundleStore, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx, "is_installed", lambda: False)
    copy = await taker.copy(elsewhere(store.put("weights/1", BIG)), "weights/1.0")
    assert await fetch(copy) == BIG
    assert sent == []


async def test_a_wrong_token_is_refused_before_anything_is_sent(
    store: BundleStore, taker: BundleStore, port: DataPort, sent: list[int]
) -> None:
    offer = elsewhere(store.put("weights/1", BIG))
    stranger = msgspec.structs.replace(offer.store, token="a guess")
    with pytest.raises(TransferFailed, match="refused: wrong token"):
        await taker.copy(msgspec.structs.replace(offer, store=stranger), "weights/1.0")
    assert sent == []
    assert port.refusals == {401: 1}


@pytest.mark.parametrize("target", ["", "x", "0 AAAA", f"{0:016x} A===", f"{-1:016x} AAAAAAAA"])
async def test_what_is_no_target_is_refused(store: BundleStore, target: str) -> None:
    store.put("a", b"data")
    answer = await say(store.endpoint, head(X_UCX=target))
    assert answer.startswith(b"HTTP/1.1 409 ") and b"no tag and address of UCX" in answer


@pytest.mark.parametrize("address", [b"garbage of somebody", bytes(200)])
async def test_an_address_that_is_none_ends_the_transfer_and_not_the_process(
    store: BundleStore, address: bytes
) -> None:
    store.put("a", b"data")
    answer = await say(store.endpoint, head(X_UCX=str(ucx.Target(address, 1))))
    assert answer.startswith(b"HTTP/1.1 200 ") and b"data" not in answer


@pytest.mark.parametrize("timings", [TransferTimings(idle_limit_s=0.1)])
async def test_a_receiver_that_takes_nothing_is_given_up(
    store: BundleStore, port: DataPort
) -> None:
    store.put("a", BIG)
    with ucx.receiver() as idle:
        answer = await say(store.endpoint, head(X_UCX=str(idle.target)))
    assert b"X-UCX: %d\r\n" % len(BIG) in answer
    await until(lambda: not port.connections)
    await until(lambda: not any(each.name.startswith("ucx") for each in threading.enumerate()))


@pytest.mark.parametrize("timings", [TransferTimings(idle_limit_s=0.1)])
async def test_a_receiver_that_leaves_ends_the_transfer(
    store: BundleStore, port: DataPort, taker: BundleStore
) -> None:
    offer = elsewhere(store.put("weights/1", BIG * 20))
    task = asyncio.ensure_future(taker.copy(offer, "weights/1.0"))
    await until(lambda: files(Path(taker.endpoint.root)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not port.connections)


@pytest.mark.parametrize("timings", [TransferTimings(idle_limit_s=0.05)])
async def test_after_some_transfers_that_broke_off_there_is_only_http(
    store: BundleStore, taker: BundleStore, port: DataPort, sent: list[int]
) -> None:
    offer = elsewhere(store.put("weights/1", BIG))
    for _ in range(8):
        assert port.ucx
        with ucx.receiver() as idle:
            await say(store.endpoint, head(key="weights/1", X_UCX=str(idle.target)))
    assert not port.ucx
    assert await fetch(await taker.copy(offer, "weights/1.0")) == BIG
    assert len(sent) == 8


async def test_a_transfer_that_ends_well_is_not_held_against_ucx(
    store: BundleStore, taker: BundleStore, port: DataPort
) -> None:
    offer = elsewhere(store.put("weights/1", BIG))
    for number in range(9):
        await taker.copy(offer, f"weights/1.{number}")
    await until(lambda: not port.connections)
    assert port.ucx


HOLDER = """
import asyncio, os, sys
from pathlib import Path
import msgspec
from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.transport.tensors import BundleStore, DataPort

async def serve(root: str) -> None:
    async with DataPort(ucx=True) as port:
        store = BundleStore(Path(root), token="t", port=port)
        await store.start()
        offer = store.put("weights/1", os.urandom(1 << 20) * 256)
        print(msgspec.json.encode(offer).decode(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await store.aclose()

die_with_parent(int(sys.argv[2]))
asyncio.run(serve(sys.argv[1]))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], BundleOffer]]:
    """Another process with a bundle."""
    argv = [sys.executable, "-c", HOLDER, str(tmp_path / "holder"), str(os.getpid())]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process:
        offer = msgspec.json.decode(process.stdout.readline(), type=BundleOffer)
        yield process, elsewhere(offer)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)


def begun(root: Path) -> int:
    """Bytes of copies that are not whole."""
    return sum(path.stat().st_size for path in (root / ".unfinished").iterdir())


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_sender_that_stops_or_dies_costs_no_more_than_the_deadline(
    holder: tuple[subprocess.Popen[bytes], BundleOffer], taker: BundleStore, number: int
) -> None:
    process, offer = holder
    root = Path(taker.endpoint.root)
    task = asyncio.ensure_future(taker.copy(offer, "weights/1.0"))
    async with asyncio.timeout(20):
        while not begun(root):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # the transfer needs the interpreter, too
    process.send_signal(number)
    with pytest.raises(TransferFailed, match=r"silent for 2 s|in the middle of a bundle"):
        await task
    assert files(root) == {".unfinished/0"}
