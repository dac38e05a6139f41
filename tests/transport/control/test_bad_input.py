"""Bad input on the control port: counted by its reason, its sender cut off, everybody else served,
memory bounded.

A good peer asks all the while in every test that has a `service`, and none of its asks may fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import msgpack
import msgspec
import psutil
import pytest
import structlog
import zmq
from hypothesis import given
from hypothesis import strategies as st
from transport_kit import WITHIN_S, RawPeer, eventually

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.errors import FrameRejected, PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control import (
    FRAME_LIMIT,
    PROTOCOL_VERSION,
    BadInput,
    Envelope,
    Kind,
    ZeroMQTransport,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
    wire,
)
from spotlight.transport.control.bad_input import DETAIL_LIMIT, CutOffs
from spotlight.transport.control.codec import NAME_LIMIT
from spotlight.transport.control.zeromq_settings import ZeroMQSettings

MEBIBYTE = 1024 * 1024
RAW = ActorRef("tcp://raw:1", "liar", 7)


class Count(Message, frozen=True):
    """Ask how often this was asked."""

    ratio: float = 0.5


class Counted(Message, frozen=True):
    """How often."""

    times: int


class Counter(Actor):
    """Counts what it is asked and told."""

    def __init__(self) -> None:
        self.times = 0

    @handles(Count)
    async def on_count(self, message: Count) -> Counted:
        self.times += 1
        return Counted(self.times)


class Service:
    """An actor system on a port, and a good peer that asks it all the while."""

    def __init__(self, settings: ZeroMQSettings) -> None:
        self.transport = ZeroMQTransport(settings=settings)
        self.system = ActorSystem(self.transport, rng=random.Random(0))
        self.client = ActorSystem(ZeroMQTransport(), rng=random.Random(0))
        self.asked = 0
        self._connections: list[socket.socket] = []

    async def start(self) -> None:
        await self.system.start()
        await self.client.start()
        self.ref = await self.system.spawn(Counter, "counter")
        self._asking = asyncio.ensure_future(self._ask())

    async def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        self._asking.cancel()
        try:
            await self._asking
        except asyncio.CancelledError:
            pass
        finally:
            await self.client.aclose()
            await self.system.aclose()

    async def _ask(self) -> None:
        while True:
            reply = await self.client.ask(self.ref, Count(), timeout_s=5.0)
            assert isinstance(reply, Counted)
            self.asked += 1
            assert reply.times == self.asked, "somebody else was heard"
            await asyncio.sleep(0.002)

    async def goes_on(self) -> None:
        """Wait for some more of the good peer's asks."""
        before = self.asked
        await eventually(lambda: self._asking.done() or self.asked >= before + 5)
        if self._asking.done():
            await self._asking

    @property
    def rejected(self) -> dict[str, int]:
        return self.system.post.frames_rejected

    def connect(self) -> socket.socket:
        """A TCP connection to the port."""
        host, _, port = self.transport.address.removeprefix("tcp://").partition(":")
        self._connections.append(socket.create_connection((host, int(port))))
        return self._connections[-1]

    def frame(self, message: bytes | None = None, **changes: object) -> bytes:
        """A frame of the raw peer, as it should be but for the changes."""
        body = msgspec.Raw(message or encode_message(Count()))
        right = Envelope(PROTOCOL_VERSION, RAW, self.ref, Kind.TELL, 1, 0, None, "ordinary", body)
        return msgspec.msgpack.encode(msgspec.structs.replace(right, **changes))


@pytest.fixture
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    changes = dict(getattr(request, "param", {}))
    times = changes.pop("times", {})
    settings = ZeroMQSettings(
        times=ConnectionTimings(connect_timeout_s=1.0, handshake_timeout_s=0.7, **times), **changes
    )
    made = Service(settings)
    await made.start()
    await made.goes_on()
    yield made
    await made.goes_on()
    await made.stop()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawPeer]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[RawPeer] = []

    def raw(identity: bytes = b"tcp://raw:1#ff", kind: int = zmq.DEALER) -> RawPeer:
        made.append(RawPeer(context, identity, kind))
        return made[-1]

    yield raw
    for peer in made:
        peer.socket.close(0)
    context.term()


Raw = Callable[..., RawPeer]


def ended(connection: socket.socket) -> bool:
    """Whether the other side closed a connection."""
    try:
        while data := connection.recv(4096, socket.MSG_DONTWAIT):
            assert data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def greeted_zmtp(connection: socket.socket, identity: bytes = b"") -> None:
    """Do what libzmq does before the first message."""
    connection.sendall(b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48)
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    ready += b"\x08Identity" + len(identity).to_bytes(4, "big") + identity
    connection.sendall(b"\x04" + bytes([len(ready)]) + ready)


# --- frames of a peer that has greeted --------------------------------------------------


def nested(depth: int) -> bytes:
    return b"\x82\xa4type\xa5Count\xa5ratio" + b"\x91" * depth


BAD_FRAMES: dict[str, tuple[str, Callable[[Service], bytes]]] = {
    "garbage": ("malformed", lambda s: b"\xc1\xff garbage"),
    "nothing": ("malformed", lambda s: b""),
    "another value": ("wrong_type", lambda s: b"\x05"),
    "truncated": ("malformed", lambda s: s.frame()[:-7]),
    "more than it holds": ("malformed", lambda s: s.frame(b"\xdd\xff\xff\xff\xff")),
    "nested header": ("wrong_type", lambda s: b"\x91\x91" * 100_000),
    "nested body": ("malformed", lambda s: s.frame(nested(100_000))),
    "nested unknown field": (
        "malformed",
        lambda s: s.frame(b"\x82\xa4type\xa5Count\xa1x" + b"\x91" * 100_000),
    ),
    "no text": ("malformed", lambda s: s.frame(b"\x81\xa4type\xa5\xff\xff\xff\xff\xff")),
    "wrong type": ("wrong_type", lambda s: s.frame(msgpack.packb({"type": "Count", "ratio": "x"}))),
    "no type": ("wrong_type", lambda s: s.frame(msgpack.packb({"ratio": 1.0}))),
    "unknown type": ("unknown_type", lambda s: s.frame(msgpack.packb({"type": "Pickle"}))),
    "unknown type of a megabyte": (
        "unknown_type",
        lambda s: s.frame(msgpack.packb({"type": "x" * MEBIBYTE})),
    ),
    "unknown version": ("unknown_version", lambda s: s.frame(version=99)),
    "another header": ("unknown_version", lambda s: msgpack.packb([2, {"source": "x"}])),
    "unknown kind": ("wrong_type", lambda s: s.frame(kind=17)),
    "endless ask": ("wrong_type", lambda s: s.frame(seconds_left=float("inf"))),
    "ask that cannot be timed": ("wrong_type", lambda s: s.frame(seconds_left=float("nan"))),
    "ask from the past": ("wrong_type", lambda s: s.frame(seconds_left=-1.0)),
    "negative number": ("wrong_type", lambda s: s.frame(sequence=-1)),
    "negative incarnation": ("wrong_type", lambda s: s.frame(source=ActorRef("a", "b", -1))),
    "name that steers terminals": (
        "wrong_type",
        lambda s: s.frame(source=ActorRef(RAW.address, "bad", 1)).replace(b"bad", b"\x1b[m"),
    ),
    "long name": ("wrong_type", lambda s: s.frame(source=ActorRef(RAW.address, "x" * 70_000, 1))),
    "number beyond 64 bits": ("wrong_type", lambda s: s.frame(correlation=1e30)),
    "oversized": ("oversized", lambda s: s.frame() + b"x" * FRAME_LIMIT),
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
async def test_a_bad_frame_is_counted_by_its_reason_and_cuts_its_sender_off(
    service: Service, raw: Raw, kind: str
) -> None:
    reason, make = BAD_FRAMES[kind]
    peer = raw()
    await peer.greet(service.transport.address)
    peer.socket.send(msgpack.packb([make(service), service.frame(), service.frame(sequence=2)]))
    refusal = msgpack.unpackb(await peer.receive())
    assert refusal["type"] == "Refusal"
    assert refusal["reason"].startswith("cut off: ")
    assert len(refusal["reason"]) < 2 * DETAIL_LIMIT
    assert service.rejected == {reason: 1}
    await service.goes_on()


async def test_a_process_that_was_cut_off_is_refused_until_it_starts_again(
    service: Service, raw: Raw
) -> None:
    peer = raw()
    await peer.greet(service.transport.address)
    peer.socket.send(msgpack.packb([b"garbage"]))
    await peer.receive()
    refusal = await raw().greet(service.transport.address)
    assert refusal["type"] == "Refusal"  # type: ignore[index]
    assert refusal["reason"].startswith("cut off: a frame was refused")  # type: ignore[index]
    assert service.rejected["cut_off"] == 1
    restarted = await raw(b"tcp://raw:1#100").greet(service.transport.address, incarnation=256)
    assert restarted["type"] == "Welcome"  # type: ignore[index]


async def test_the_connection_of_a_peer_that_was_cut_off_ends(service: Service, raw: Raw) -> None:
    peer = raw()
    monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        await peer.greet(service.transport.address)
        peer.socket.send(b"\xc1")
        await eventually(lambda: monitor.poll(0) != 0)
    finally:
        peer.socket.disable_monitor()
        monitor.close(0)


async def test_a_flood_after_the_first_bad_message_is_not_decoded(
    service: Service, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = wire.decode

    def count(payload: memoryview, *, whole: bool = True) -> object:
        if bytes(payload[:5]) == b"flood":
            decoded.append(b"flood")
        return decode(payload, whole=whole)

    monkeypatch.setattr(wire, "decode", count)
    peer = raw()
    await peer.greet(service.transport.address)
    with contextlib.suppress(zmq.Again):  # its connection ended meanwhile
        for _ in range(2_000):
            peer.socket.send(b"flood", zmq.NOBLOCK)
    await eventually(lambda: service.rejected.get("cut_off", 0) > 0)
    await service.goes_on()
    assert len(decoded) == 1


async def test_whoever_takes_the_name_of_another_speaks_for_nobody(
    service: Service, raw: Raw
) -> None:
    address, incarnation = service.client.address, service.client.post.transport.incarnation
    thief = raw(wire.routing_id(address, incarnation))
    thief.socket.connect(service.transport.address)
    service._asking.cancel()
    for _ in range(2):  # the first may be left over from whoever had the descriptor before
        thief.socket.send(msgpack.packb([service.frame(source=service.client.ref)]))
    refusal = msgpack.unpackb(await thief.receive())
    assert refusal["type"] == "Refusal"
    assert service.rejected.keys() <= {"no_greeting", "cut_off"}

    async def comes_back() -> None:  # the good peer has to connect again, and may
        while True:
            try:
                await service.client.ask(service.ref, Count(), timeout_s=0.5)
                return
            except PeerUnreachable:
                await asyncio.sleep(0.05)

    async with asyncio.timeout(WITHIN_S):
        await comes_back()
    service.asked = (await service.client.ask(service.ref, Count(), timeout_s=5.0)).times  # type: ignore[attr-defined]
    service._asking = asyncio.ensure_future(service._ask())


async def test_a_peer_we_connect_to_is_cut_off_as_well(service: Service, raw: Raw) -> None:
    server = raw(b"", zmq.ROUTER)
    address = f"tcp://127.0.0.1:{server.socket.bind_to_random_port('tcp://127.0.0.1')}"
    asking = asyncio.ensure_future(
        service.system.ask(ActorRef(address, "x", 0), Count(), timeout_s=WITHIN_S)
    )
    identity = await server.receive()
    await server.receive()
    welcome = wire.encode(wire.Welcome(PROTOCOL_VERSION, address, 5))
    server.socket.send_multipart([identity, welcome])
    server.socket.send_multipart([identity, msgpack.packb([b"garbage"])])
    with pytest.raises(PeerUnreachable, match="cut off: a frame was refused"):
        await asking
    assert service.rejected == {"wrong_type": 1}


# --- other versions ---------------------------------------------------------------------

OLDER_NODE = """
import asyncio, random, sys
from spotlight.transport.control import codec
codec.PROTOCOL_VERSION += 1
from spotlight.actors.runtime import remote
from spotlight.transport.control import links, wire, zeromq
for module in (remote, links, wire, zeromq):
    module.PROTOCOL_VERSION = codec.PROTOCOL_VERSION
from spotlight.actors.runtime.envelopes import Done
from spotlight.actors.runtime import ActorSystem

async def main():
    system = ActorSystem(zeromq.ZeroMQTransport(), rng=random.Random(0))
    await system.start()
    try:
        await system.ask(system.well_known(sys.argv[1], "counter"), Done(), timeout_s=10.0)
    except Exception as error:
        print(type(error).__name__, error)
    await system.aclose()

asyncio.run(main())
"""


async def test_a_node_of_another_version_and_its_peer_both_say_what_to_do(
    service: Service,
) -> None:
    with structlog.testing.capture_logs() as logs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OLDER_NODE, service.system.address, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), WITHIN_S * 2)
    advice = (
        f"speaks protocol version {PROTOCOL_VERSION + 1}, the receiver {PROTOCOL_VERSION}; "
        "install the same version of Spotlight on both machines"
    )
    there = output.decode()
    assert "PeerUnreachable" in there
    assert advice in there
    assert "peer_lost" in there  # its log
    assert service.rejected == {"unknown_version": 1}
    assert any(advice in str(line.get("detail")) for line in logs)


@pytest.mark.parametrize(
    "welcome",
    [
        {"type": "Welcome", "version": 99, "address": "tcp://x:1", "incarnation": 5},
        {"type": "Welcome", "version": 99, "whatever": [1, 2]},
    ],
)
async def test_a_welcome_of_another_version_fails_the_ask_with_the_versions(
    service: Service, raw: Raw, welcome: dict[str, object]
) -> None:
    server = raw(b"", zmq.ROUTER)
    address = f"tcp://127.0.0.1:{server.socket.bind_to_random_port('tcp://127.0.0.1')}"
    asking = asyncio.ensure_future(
        service.client.ask(ActorRef(address, "x", 0), Count(), timeout_s=WITHIN_S)
    )
    identity = await server.receive()
    await server.receive()
    server.socket.send_multipart([identity, msgpack.packb(welcome)])
    with pytest.raises(PeerUnreachable, match=r"version 99.*same version"):
        await asking


@pytest.mark.parametrize("hello", [{"type": "Hello", "version": 2, "name": {"x": 1}}])
async def test_a_greeting_that_only_a_later_version_understands_is_refused_by_its_version(
    service: Service, raw: Raw, hello: dict[str, object]
) -> None:
    peer = raw()
    peer.socket.connect(service.transport.address)
    peer.socket.send(msgpack.packb(hello))
    refusal = msgpack.unpackb(await peer.receive())
    assert "same version" in refusal["reason"]
    assert service.rejected == {"unknown_version": 1}


BESIEGED = """
import asyncio, random, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from spotlight.actors.runtime import Actor, ActorSystem, Message, handles
from spotlight.transport.control import ZeroMQTransport

class Count(Message, frozen=True):
    ratio: float = 0.5

class Counted(Message, frozen=True):
    times: int

class Opener(Actor):
    @handles(Count)
    async def on_count(self, message: Count) -> Counted:
        files = [open("/dev/null") for _ in range(32)]
        for file in files:
            file.close()
        return Counted(len(files))

async def main():
    system = ActorSystem(ZeroMQTransport(), rng=random.Random(0))
    await system.start()
    await system.spawn(Opener, "opener")
    print(system.address, flush=True)
    await system.wait_closed()

asyncio.run(main())
"""


# --- connections that do not behave -----------------------------------------------------


async def test_fifty_connections_with_garbage_disturb_nobody(service: Service) -> None:
    rng = random.Random(0)
    connections = [service.connect() for _ in range(50)]
    for connection in connections:
        connection.sendall(rng.randbytes(rng.randrange(1, 2_000)))
    for connection in connections:
        await eventually(lambda connection=connection: ended(connection))  # type: ignore[misc]
    await service.goes_on()
    assert service.rejected["no_greeting"] == 50


@pytest.mark.parametrize("greets", [False, True])
async def test_a_connection_that_says_nothing_or_too_slowly_is_ended(
    service: Service, greets: bool
) -> None:
    connection = service.connect()
    if greets:
        greeted_zmtp(connection)

    async def drip() -> None:
        while not ended(connection):
            try:
                connection.send(b"\xff")
            except ConnectionError:
                return
            await asyncio.sleep(0.3)

    async with asyncio.timeout(WITHIN_S):
        await drip()
    await eventually(lambda: service.rejected == {"no_greeting": 1})


@pytest.mark.parametrize("service", [{"strangers": 64}], indirect=True)
@pytest.mark.parametrize("greets", [False, True])
async def test_a_thousand_idle_connections_neither_stay_nor_disturb(
    service: Service, greets: bool
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    before = psutil.Process().memory_info().rss
    connections = []
    limit = service.transport.settings.strangers
    for number in range(1000):
        connections.append(service.connect())
        if greets:
            greeted_zmtp(connections[-1])
        if number % 20 == 0:
            await eventually(lambda: service.transport.router.pending.strangers <= limit)
    for connection in connections:
        await eventually(lambda connection=connection: ended(connection))  # type: ignore[misc]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await eventually(lambda: service.transport.router.pending.strangers == 0)
    await eventually(lambda: sum(service.rejected.values()) == 1000)
    assert service.rejected["too_many_waiting"] > 0
    assert psutil.Process().memory_info().rss - before < 64 * MEBIBYTE
    await service.goes_on()


@pytest.mark.parametrize("says_hello", [False, True])
async def test_a_message_without_end_is_ended(service: Service, says_hello: bool) -> None:
    connection = service.connect()
    greeted_zmtp(connection, b"tcp://raw:1#ff")
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    received = b""
    while b"READY" not in received:
        received += await asyncio.wait_for(loop.sock_recv(connection, 4096), WITHIN_S)
    if says_hello:
        hello = wire.encode(wire.Hello(PROTOCOL_VERSION, "tcp://raw:1", 255))
        connection.sendall(b"\x00" + bytes([len(hello)]) + hello)
    before = psutil.Process().memory_info().rss
    part = b"\x03" + MEBIBYTE.to_bytes(8, "big") + b"x" * MEBIBYTE
    sent = 0
    with pytest.raises(ConnectionError):
        while sent < 1024:
            await asyncio.wait_for(loop.sock_sendall(connection, part), WITHIN_S)
            sent += 1
            await asyncio.sleep(0.005)
    assert service.rejected == {"oversized": 1}
    assert psutil.Process().memory_info().rss - before < 512 * MEBIBYTE


@pytest.mark.parametrize(
    "address", ["tcp://a\n:1", "tcp://\x1b[2J:1", "", "tcp://a b:1", "tcp://ä:1", "x" * 201]
)
async def test_a_greeting_with_an_address_that_is_none_is_refused(
    service: Service, raw: Raw, address: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        identity = f"{address}#ff".encode()[:255]
        refusal = await raw(identity).greet(service.transport.address, address=address)
    assert refusal["type"] == "Refusal"  # type: ignore[index]
    assert service.rejected == {"wrong_type": 1}
    assert str(logs).isprintable()


@pytest.mark.parametrize("service", [{"strangers": 32}], indirect=True)
async def test_peers_that_greet_and_say_nothing_neither_stay_nor_disturb(
    service: Service, raw: Raw
) -> None:
    peers = [raw(b"tcp://raw:%d#ff" % number) for number in range(100)]
    with structlog.testing.capture_logs() as logs:
        for number, peer in enumerate(peers):
            await peer.greet(service.transport.address, address=f"tcp://raw:{number}")
        await eventually(lambda: service.transport.router.pending.strangers <= 32)
        await service.goes_on()
    assert service.rejected == {"too_many_waiting": 68}
    assert len(service.transport.router.pending) <= 32 + 1, "and the good peer"
    assert len([line for line in logs if line["event"] == "peer_lost"]) < 20


@pytest.mark.parametrize("service", [{"times": {"silence_s": 0.3}}], indirect=True)
async def test_a_peer_that_greets_and_says_nothing_is_told_why_it_is_ended(
    service: Service, raw: Raw
) -> None:
    peer = raw(b"tcp://raw:1#ff")
    await peer.greet(service.transport.address)
    refusal = msgpack.unpackb(await peer.receive())
    assert refusal == {"type": "Refusal", "reason": "nothing but a greeting within 0.3 s"}
    assert service.rejected == {"silent": 1}
    again = await raw(b"tcp://raw:1#ff").greet(service.transport.address)
    assert again["type"] == "Welcome"  # type: ignore[index]


@pytest.mark.parametrize("service", [{"times": {"silence_s": 0.3}}], indirect=True)
async def test_a_peer_that_has_said_something_may_be_quiet(service: Service, raw: Raw) -> None:
    peer = raw(b"tcp://raw:1#ff")
    await peer.greet(service.transport.address)
    nobody = ActorRef(service.transport.address, "nobody", 0)
    ask = service.frame(kind=Kind.ASK, correlation=1, seconds_left=9.0, destination=nobody)
    peer.socket.send(msgpack.packb([ask]))
    await peer.receive()
    await asyncio.sleep(0.7)
    assert peer.socket.poll(0) == 0
    assert service.rejected == {}


async def test_strangers_leave_descriptors_to_others_however_few_there_are(raw: Raw) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows too few open files")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BESIEGED, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await asyncio.wait_for(process.stdout.readline(), WITHIN_S * 2)).decode().strip()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    client = ActorSystem(ZeroMQTransport(), rng=random.Random(0))
    try:
        await client.start()
        for number in range(300):
            crowd = raw(b"tcp://raw:%d#ff" % number).socket
            crowd.connect(address)
            crowd.send(wire.encode(wire.Hello(PROTOCOL_VERSION, f"tcp://raw:{number}", 255)))
            await asyncio.sleep(0.003)
        for _ in range(5):
            ask = client.ask(ActorRef(address, "opener", 0), Count(), timeout_s=WITHIN_S)
            assert isinstance(await ask, Counted)
    finally:
        await client.aclose()
        process.terminate()
        await process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_log_lines_about_strangers_are_few(service: Service, raw: Raw) -> None:
    with structlog.testing.capture_logs() as logs:
        for number in range(60):
            peer = raw(b"tcp://raw:1#%x" % (number + 1))
            await peer.greet(service.transport.address, incarnation=number + 1, version=99)
    assert service.rejected == {"unknown_version": 60}
    assert 1 <= len([line for line in logs if line["event"] == "input_rejected"]) < 20


# --- tables and the codec ---------------------------------------------------------------


def test_only_the_latest_cut_offs_are_remembered() -> None:
    cut_offs = CutOffs(kept=10)
    for incarnation in range(1, 1000):
        cut_offs.add("tcp://raw:1", incarnation, "x" * 10_000)
    assert len(cut_offs) == 10
    assert cut_offs.reason("tcp://raw:1", 989) is None
    reason = cut_offs.reason("tcp://raw:1", 990)
    assert reason is not None
    assert len(reason) < 2 * DETAIL_LIMIT


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_an_ask_that_its_receiver_would_refuse_is_not_sent(seconds: float) -> None:
    body = msgspec.Raw(encode_message(Count()))
    frame = Envelope(PROTOCOL_VERSION, RAW, RAW, Kind.ASK, 1, 1, seconds, "ordinary", body)
    with pytest.raises(FrameRejected, match="cannot wait"):
        encode_envelope(frame)


def test_a_name_that_its_receiver_would_refuse_is_not_sent() -> None:
    body = msgspec.Raw(encode_message(Count()))
    to = ActorRef("tcp://raw:1", "x" * (NAME_LIMIT + 1), 1)
    frame = Envelope(PROTOCOL_VERSION, RAW, to, Kind.TELL, 1, 0, None, "ordinary", body)
    with pytest.raises(FrameRejected, match="shorter"):
        encode_envelope(frame)


def valid_frame() -> bytes:
    watch = {
        "type": "Watch",
        "watcher": list(msgspec.structs.astuple(RAW)),
        "refs": [["a", "b", 1]],
    }
    body = msgspec.Raw(msgpack.packb(watch))
    return encode_envelope(
        Envelope(PROTOCOL_VERSION, RAW, RAW, Kind.SYSTEM, 3, 4, 1.5, "ordinary", body)
    )


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid payload with pieces replaced, removed, doubled and inserted."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[start:end]) * 2)))
        data[start:end] = piece
    return bytes(data)


@given(mutated(valid_frame()))
def test_a_mutated_frame_is_taken_with_its_types_or_refused_with_a_reason(frame: bytes) -> None:
    try:
        message = decode_message(decode_envelope(frame).body)
    except BadInput as error:
        assert error.reason in ("malformed", "wrong_type", "unknown_type", "unknown_version")
        assert len(str(error)) < 2 * DETAIL_LIMIT
    else:
        assert isinstance(message, Message)


@given(
    mutated(wire.encode(wire.Hello(PROTOCOL_VERSION, "tcp://raw:1", 255)))
    | mutated(wire.encode([b"one", b"two"]))
)
def test_a_mutated_control_message_is_taken_or_refused_with_a_reason(payload: bytes) -> None:
    try:
        wire.decode(payload)
    except BadInput as error:
        assert error.reason in ("malformed", "wrong_type", "unknown_version")
