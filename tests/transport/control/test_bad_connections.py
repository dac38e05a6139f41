"""Connections that greet wrongly, or say too little or too much, are ended and disturb nobody."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import sys

import msgpack
import psutil
import pytest
import structlog
from bad_input_kit import MEBIBYTE, Count, Counted, Raw, Service
from transport_kit import WITHIN_S, eventually

from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.transport.control import PROTOCOL_VERSION, Kind, ZeroMQTransport, wire


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
