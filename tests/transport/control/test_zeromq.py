"""What only the ZeroMQ transport has: greetings, hostile peers, high-water marks, and addresses
behind NAT."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable

import msgpack
import pytest
import zmq
from transport_kit import RAW_KEYS, RawPeer, Recorder, raw_address

from spotlight.errors import AddressInUse, MailboxFull, PeerUnreachable, UserError
from spotlight.timings import ConnectionTimings
from spotlight.transport.control import PROTOCOL_VERSION, KeyPair, ZeroMQTransport, key_of, wire
from spotlight.transport.control.zeromq import ZeroMQSettings
from spotlight_simulation.open_door import Everybody

pytestmark = pytest.mark.both_loops

Start = Callable[..., "asyncio.Future[tuple[ZeroMQTransport, Recorder]]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[ZeroMQTransport] = []

    async def start(
        bind: str = "tcp://127.0.0.1:0",
        *,
        advertise: str | None = None,
        times: ConnectionTimings | None = None,
        **settings: int,
    ) -> tuple[ZeroMQTransport, Recorder]:
        transport = ZeroMQTransport(
            bind,
            guests=Everybody(),
            advertise=advertise,
            settings=ZeroMQSettings(times=times or ConnectionTimings(), **settings),
        )
        recorder = Recorder()
        await transport.start(recorder)
        started.append(transport)
        return transport, recorder

    yield start  # type: ignore[misc]
    for transport in reversed(started):
        await transport.aclose()


# --- two processes that dial each other ---


async def test_two_that_dialled_each_other_at_once_do_not_lose_each_other(start: Start) -> None:
    """Each may send over the connection that the other one made, and its own stays silent."""
    a, at_a = await start()
    b, at_b = await start()
    a.send(b.address, b"one")
    b.send(a.address, b"two")
    await at_a.until_frames(1)
    await at_b.until_frames(1)
    await asyncio.sleep(0.2)
    a.send(b.address, b"three")
    b.send(a.address, b"four")
    await at_a.until_frames(2)
    await at_b.until_frames(2)
    assert at_a.of("lost") == at_b.of("lost") == []
    assert at_a.rejections() == at_b.rejections() == []


# --- greetings ------------------------------------------------------------------------


async def test_a_foreign_client_can_speak_the_protocol_with_plain_msgpack(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    peer = raw()
    welcome = {
        "type": "Welcome",
        "version": PROTOCOL_VERSION,
        "address": transport.address,
        "incarnation": transport.incarnation,
        "dialect": {"software": "", "messages": ""},
    }
    assert await peer.greet(transport.address) == welcome
    peer.socket.send(msgpack.packb([b"one", b"two"]))
    await recorder.until(lambda: recorder.frames() == [b"one", b"two"])
    transport.send(raw_address(), b"back")
    assert msgpack.unpackb(await peer.receive()) == [b"back"]


async def test_another_protocol_version_is_refused_with_a_reason(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    answer = await raw().greet(transport.address, version=99)
    assert isinstance(answer, dict)
    assert answer["type"] == "Refusal"
    assert "version 99" in answer["reason"]
    assert recorder.events == [("rejected", "", "unknown_version")]


async def test_a_greeting_with_the_address_of_another_key_is_refused(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    claimed = f"tcp://raw:1/{KeyPair.new().public}"
    answer = await raw().greet(transport.address, address=claimed)
    assert isinstance(answer, dict)
    assert answer["type"] == "Refusal"
    assert (
        f"is not an address of the key that its sender has proved, {RAW_KEYS.public}"
        in (answer["reason"])
    )
    assert recorder.events == [("rejected", claimed, "not_allowed")]


async def test_being_refused_is_a_loss_with_the_reason(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    server = raw(kind=zmq.ROUTER)
    address = server.bind()
    transport.send(address, b"x")
    identity = await server.receive()
    assert wire.decode(await server.receive()) == wire.Hello(
        PROTOCOL_VERSION, transport.address, transport.incarnation, heartbeats=True
    )
    refusal = wire.encode(wire.Refusal("too old for us"))
    server.socket.send_multipart([identity, refusal])
    await recorder.until(lambda: ("undelivered", address, b"x") in recorder.events)
    assert recorder.events[0] == ("lost", address, 0)
    with pytest.raises(PeerUnreachable, match="too old for us"):
        transport.send(address, b"y")


# --- addresses ------------------------------------------------------------------------


async def test_a_process_behind_nat_is_answered_over_its_own_connection(start: Start) -> None:
    public, at_public = await start()
    hidden, at_hidden = await start(advertise="tcp://10.255.255.1:7777")
    hidden.send(public.address, b"here I am")
    await at_public.until(lambda: bool(at_public.frames()))
    public.send(hidden.address, b"answer")
    await at_hidden.until(lambda: at_hidden.frames() == [b"answer"])
    hidden.abort()
    await at_public.until(lambda: bool(at_public.of("lost")))
    assert at_public.of("lost") == [("lost", hidden.address, hidden.incarnation)]
    assert hidden.address.startswith("tcp://10.255.255.1:7777/")


async def test_a_peer_that_calls_itself_otherwise_is_known_by_both_addresses(start: Start) -> None:
    server, at_server = await start(advertise="tcp://coordinator.example:7777")
    dialed = f"{server.router.endpoint}/{key_of(server.address)}"
    client, at_client = await start()
    client.send(dialed, b"by the dialled address")
    await at_server.until(lambda: len(at_server.frames()) == 1)
    client.send(server.address, b"by its own address")
    await at_server.until(lambda: len(at_server.frames()) == 2)
    server.abort()
    await at_client.until(lambda: len(at_client.of("lost")) == 2)
    assert {event[1] for event in at_client.of("lost")} == {
        dialed,
        server.address,
    }
    assert {event[2] for event in at_client.of("lost")} == {server.incarnation}


async def test_port_0_of_what_others_use_stands_for_the_bound_one(start: Start) -> None:
    server, at_server = await start("tcp://0.0.0.0:0", advertise="tcp://127.0.0.1:0")
    assert server.address.startswith("tcp://127.0.0.1:")
    assert ":0/" not in server.address
    client, _ = await start()
    client.send(server.address, b"x")
    await at_server.until(lambda: at_server.frames() == [b"x"])


async def test_a_port_that_another_program_uses_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AddressInUse, match=address):
            await start(address)


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"])
async def test_binding_to_all_interfaces_needs_an_address_for_others(
    start: Start, bind: str
) -> None:
    with pytest.raises(UserError, match="advertise"):
        await start(bind)


async def test_an_address_that_cannot_be_bound_is_named(start: Start) -> None:
    with pytest.raises(UserError, match=r"203\.0\.113\.1"):
        await start("tcp://203.0.113.1:7777")


@pytest.mark.parametrize(
    "address", ["memory://x", "tcp://", "nonsense", f"tcp://host:port/{RAW_KEYS.public}"]
)
async def test_an_address_that_makes_no_sense_is_unreachable(start: Start, address: str) -> None:
    transport, recorder = await start(
        times=ConnectionTimings(connect_timeout_s=0.2, handshake_timeout_s=0.1)
    )
    with pytest.raises(PeerUnreachable):
        transport.send(address, b"x")
        await recorder.until(lambda: bool(recorder.of("lost")))
        transport.send(address, b"x")


async def test_only_so_many_connections_are_made(start: Start) -> None:
    transport, recorder = await start(dialed=2)
    others = [await start() for _ in range(3)]
    for other, at_other in others[:2]:
        transport.send(other.address, b"x")
        await at_other.until(lambda at_other=at_other: bool(at_other.frames()))  # type: ignore[misc]
    with pytest.raises(PeerUnreachable, match="there are 2 connections from here already"):
        transport.send(others[2][0].address, b"x")
    others[0][0].abort()
    await recorder.until(lambda: bool(recorder.of("lost")))
    transport.send(others[2][0].address, b"x")
    await others[2][1].until(lambda: bool(others[2][1].frames()))


# --- hostile peers --------------------------------------------------------------------


async def still_works(start: Start, transport: ZeroMQTransport, recorder: Recorder) -> None:
    before = len(recorder.frames())
    other, _ = await start()
    other.send(transport.address, b"still there?")
    await recorder.until(lambda: len(recorder.frames()) == before + 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00NULL" + b"\x00" * 48 + b"garbage" * 50,
    ],
)
async def test_garbage_on_the_port_is_counted_and_harms_nobody(
    start: Start, garbage: bytes
) -> None:
    transport, recorder = await start()
    host, _, port = transport.router.endpoint.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(garbage)
    await recorder.until(lambda: recorder.rejections() == ["no_greeting"])
    await still_works(start, transport, recorder)


@pytest.mark.parametrize("parts", [[b""], [b"garbage"], [b"\x91\xc4\x01x"], [b"a", b"b", b"c"]])
async def test_messages_before_a_greeting_are_counted_and_dropped(
    start: Start, raw: Callable[..., RawPeer], parts: list[bytes]
) -> None:
    transport, recorder = await start()
    peer = raw()
    peer.connect(transport.address)
    peer.socket.send_multipart(parts)
    await recorder.until(lambda: bool(recorder.events))
    assert [event[0] for event in recorder.events] == ["rejected"]
    await still_works(start, transport, recorder)


@pytest.mark.parametrize(
    "parts", [[b""], [b"\xc1"], [b"\xdd\xff\xff\xff\xff"], [b"\x91\x05"], [b"\x90", b"\x90"]]
)
async def test_a_malformed_message_after_a_greeting_costs_its_sender_the_connection(
    start: Start, raw: Callable[..., RawPeer], parts: list[bytes]
) -> None:
    transport, recorder = await start()
    peer = raw()
    await peer.greet(transport.address)
    peer.socket.send_multipart(parts)
    peer.socket.send(msgpack.packb([b"good"]))
    refusal = msgpack.unpackb(await peer.receive())
    assert refusal["type"] == "Refusal"
    assert refusal["reason"].startswith("cut off: ")
    await recorder.until(lambda: "cut_off" in recorder.rejections())
    assert recorder.frames() == []
    assert [event[0] for event in recorder.events] == ["up", "rejected", "lost", "rejected"]


async def test_an_oversized_message_costs_its_sender_the_connection(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    peer = raw()
    await peer.greet(transport.address)
    peer.socket.send(b"x" * (wire.MESSAGE_LIMIT + 1))
    await recorder.until(lambda: bool(recorder.of("lost")))
    assert recorder.frames() == []
    await still_works(start, transport, recorder)


async def test_an_oversized_message_before_a_greeting_is_counted(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    peer = raw()
    peer.connect(transport.address)
    peer.socket.send(b"x" * (wire.MESSAGE_LIMIT + 1))
    await recorder.until(lambda: recorder.rejections() == ["no_greeting"])
    await still_works(start, transport, recorder)


async def test_a_process_that_reconnects_was_lost_in_between(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    first = raw()
    await first.greet(transport.address)
    second = raw()
    await second.greet(transport.address)
    assert [event[0] for event in recorder.events] == ["up", "lost", "up"]
    second.socket.send(msgpack.packb([b"from the second"]))
    await recorder.until(lambda: recorder.frames() == [b"from the second"])


async def test_a_new_process_at_an_address_ends_the_former_one(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    await raw().greet(transport.address)
    await raw().greet(transport.address, incarnation=256)
    assert recorder.events == [
        ("up", raw_address(), 255),
        ("lost", raw_address(), 255),
        ("up", raw_address(), 256),
    ]


async def test_what_a_peer_said_before_it_went_comes_before_its_loss(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    for incarnation in range(1, 6):
        peer = raw()
        await peer.greet(transport.address, incarnation=incarnation)
        peer.socket.send(msgpack.packb([b"last words"]))
        peer.socket.close(1000)
        time.sleep(0.05)  # noqa: ASYNC251  (both the words and the loss are there by now)
        transport.router.monitor_reader.drain()  # the loss happens to be looked at first
        await recorder.until(lambda n=incarnation: len(recorder.of("lost")) == n)  # type: ignore[misc]
    assert [event[0] for event in recorder.events] == ["up", "frame", "lost"] * 5


async def test_a_descriptor_that_is_used_again_is_not_mistaken_for_the_former_peer(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, recorder = await start()
    former = raw()
    await former.greet(transport.address)
    former.socket.close(0)
    time.sleep(0.05)  # noqa: ASYNC251  (the loop must find the loss and the greeting at once)
    latter = raw()
    latter.connect(transport.address)
    latter.say_hello(address=raw_address(2))
    time.sleep(0.05)  # noqa: ASYNC251
    await latter.receive()
    await asyncio.sleep(0.05)
    assert recorder.of("up") == [("up", raw_address(), 255), ("up", raw_address(2), 255)]
    assert recorder.of("lost") == [("lost", raw_address(), 255)]


# --- flow -----------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_pushes_back_and_loses_nothing(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, _ = await start(high_water_mark=2, outbox_frames=200)
    peer = raw()
    await peer.greet(transport.address)
    sent: list[bytes] = []
    with pytest.raises(MailboxFull):
        for number in range(100_000):
            frame = b"%d" % number + b"x" * 50_000
            transport.send(raw_address(), frame)
            sent.append(frame)
            await asyncio.sleep(0)
    received: list[bytes] = []
    while len(received) < len(sent):
        received.extend(msgpack.unpackb(await peer.receive()))
    assert received == sent


async def test_many_frames_of_one_turn_travel_in_few_messages(
    start: Start, raw: Callable[..., RawPeer]
) -> None:
    transport, _ = await start()
    peer = raw()
    await peer.greet(transport.address)
    for number in range(600):
        transport.send(raw_address(), b"%d" % number)
    batches = [msgpack.unpackb(await peer.receive()) for _ in range(3)]
    assert [len(batch) for batch in batches] == [256, 256, 88]
