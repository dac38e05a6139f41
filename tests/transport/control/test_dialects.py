"""Who speaks another dialect is not connected: both sides say whose build is which, and the process
that was dialled remembers the other by its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgpack
import pytest
import zmq
from transport_kit import RawPeer, Recorder, raw_address

from spotlight.transport.control import PROTOCOL_VERSION, Dialect, KeyPair, ZeroMQTransport, key_of
from spotlight.transport.control.dialect import ANY_DIALECT
from spotlight_simulation.open_door import Everybody

pytestmark = pytest.mark.both_loops

OLD = Dialect("0.1.0", "0123456789abcdef")
NEW = Dialect("0.2.0", "fedcba9876543210")
REBUILT = Dialect("0.2.0", "00000000ffffffff")
ADVICE = "install the same build on both machines"

Start = Callable[..., "asyncio.Future[tuple[ZeroMQTransport, Recorder]]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[ZeroMQTransport] = []

    async def start(
        dialect: Dialect, keys: KeyPair | None = None
    ) -> tuple[ZeroMQTransport, Recorder]:
        transport = ZeroMQTransport(keys=keys, guests=Everybody(), dialect=dialect)
        recorder = Recorder()
        await transport.start(recorder)
        started.append(transport)
        return transport, recorder

    yield start  # type: ignore[misc]
    for transport in reversed(started):
        await transport.aclose()


def raw_dialect(dialect: Dialect) -> dict[str, str]:
    return {"software": dialect.software, "messages": dialect.messages}


async def test_two_of_one_dialect_are_connected(start: Start) -> None:
    node, _ = await start(NEW)
    coordinator, heard = await start(NEW)
    node.send(coordinator.address, b"report")
    await heard.until_frames(1)
    assert heard.of("other version") == []


@pytest.mark.parametrize("other", [OLD, REBUILT, ANY_DIALECT], ids=str)
async def test_both_sides_are_told_whose_build_is_which(start: Start, other: Dialect) -> None:
    node, at_node = await start(other)
    coordinator, at_coordinator = await start(NEW)
    node.send(coordinator.address, b"report")
    await at_node.until(lambda: bool(at_node.losses))
    assert at_coordinator.of("other version") == [("other version", node.address, other)]
    assert at_node.events[0] == ("other version", coordinator.address, NEW)
    assert at_node.losses == [f"it is Spotlight {NEW}, and this is {other}; {ADVICE}"]
    for recorder in (at_node, at_coordinator):
        assert recorder.of("up") == recorder.frames() == []


async def test_a_build_that_was_put_right_is_let_in_with_the_same_key(start: Start) -> None:
    keys = KeyPair.new()
    old, at_old = await start(OLD, keys)
    coordinator, at_coordinator = await start(NEW)
    old.send(coordinator.address, b"report")
    await at_old.until(lambda: bool(at_old.losses))
    await old.aclose()
    node, _ = await start(NEW, keys)
    node.send(coordinator.address, b"report")
    await at_coordinator.until_frames(1)
    assert key_of(node.address) == key_of(str(at_coordinator.of("other version")[0][1]))


async def test_who_welcomes_in_another_dialect_is_not_taken_at_its_word(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    node, at_node = await start(NEW)
    server = raw(kind=zmq.ROUTER)
    address = server.bind()
    node.send(address, b"report")
    identity = await server.receive()
    assert msgpack.unpackb(await server.receive())["dialect"] == raw_dialect(NEW)
    who = {"address": address, "incarnation": 5, "dialect": raw_dialect(OLD)}
    welcome = {"type": "Welcome", "version": PROTOCOL_VERSION, **who}
    server.socket.send_multipart([identity, msgpack.packb(welcome)])
    await at_node.until(lambda: bool(at_node.losses))
    assert at_node.of("other version") == [("other version", address, OLD)]
    assert at_node.losses == [f"it is Spotlight {OLD}, and this is {NEW}; {ADVICE}"]
    await server.receive()
    refusal = msgpack.unpackb(await server.receive())
    assert refusal["dialect"] == raw_dialect(NEW)
    assert refusal["reason"] == f"it is Spotlight {NEW}, and this is {OLD}; {ADVICE}"


async def test_a_greeting_with_more_in_it_is_refused_by_the_build_that_it_names(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    coordinator, heard = await start(NEW)
    answer = await raw().greet(coordinator.address, dialect=raw_dialect(OLD), speed=3)
    assert f"the sender is Spotlight {OLD}" in answer["reason"]  # type: ignore[index]
    assert ADVICE in answer["reason"]  # type: ignore[index]
    assert answer["dialect"] == raw_dialect(NEW)  # type: ignore[index]
    assert heard.rejections() == ["unknown_version"]


@pytest.mark.parametrize(
    "dialect",
    [
        {"software": "0.2.0\x1b[2J", "messages": ""},
        {"software": "0.2.0\n", "messages": ""},
        {"software": "x" * 101, "messages": ""},
        {"software": "", "messages": "x" * 101},
        {"software": 3, "messages": ""},
        {"software": "", "messages": "", "more": 1},
        "0.2.0",
        None,
    ],
    ids=str,
)
async def test_a_dialect_that_is_none_is_refused(
    start: Start, raw: Callable[..., RawPeer], dialect: object
) -> None:
    coordinator, heard = await start(NEW)
    answer = await raw().greet(coordinator.address, dialect=dialect)
    assert answer["reason"].startswith("a control message was refused")  # type: ignore[index]
    assert heard.rejections() == ["wrong_type"]
    assert heard.of("other version") == []


async def test_a_foreign_client_of_another_dialect_is_told_so_in_words(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    coordinator, heard = await start(NEW)
    answer = await raw().greet(coordinator.address, dialect=raw_dialect(OLD))
    assert answer == {
        "type": "Refusal",
        "reason": f"it is Spotlight {NEW}, and this is {OLD}; {ADVICE}",
        "dialect": raw_dialect(NEW),
    }
    assert heard.events == [("other version", raw_address(), OLD)]


async def test_a_raw_peer_of_the_right_dialect_is_welcome(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    coordinator, heard = await start(NEW)
    answer = await raw().greet(coordinator.address, dialect=raw_dialect(NEW))
    assert answer["type"] == "Welcome"  # type: ignore[index]
    assert heard.of("up") == [("up", raw_address(), 255)]
