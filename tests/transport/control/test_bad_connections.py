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
from transport_kit import WITHIN_S, eventually, raw_address

from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport, key_of
from spotlight.transport.control.keys import place_of
from spotlight_simulation.open_door import ANYBODY, ANYBODY_SAYS_ANYTHING


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


def greeting(mechanism: bytes) -> bytes:
    """What a client of libzmq says first (ZMTP 3.1)."""
    return b"\xff" + b"\0" * 8 + b"\x7f\x03\1" + mechanism.ljust(20, b"\0") + b"\0" * 32


BESIEGED = """
import asyncio, random, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from spotlight.actors.runtime import Actor, ActorSystem, Message, handles
from spotlight_simulation.open_door import ANYBODY, ANYBODY_SAYS_ANYTHING
from spotlight.transport.control import Guests, ZeroMQTransport

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
    transport = ZeroMQTransport(guests=Guests({sys.argv[1]: ANYBODY}))
    system = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
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


@pytest.mark.parametrize("mechanism", [b"", b"NULL", b"PLAIN", b"CURVE"])
async def test_a_connection_that_proves_no_key_in_time_is_ended(
    service: Service, mechanism: bytes
) -> None:
    connection = service.connect()
    if mechanism:
        connection.sendall(greeting(mechanism))

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


@pytest.mark.parametrize("service", [{"connections": 64}], indirect=True)
@pytest.mark.parametrize("mechanism", [b"", b"CURVE"])
async def test_a_thousand_idle_connections_neither_stay_nor_disturb(
    service: Service, mechanism: bytes
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    before = psutil.Process().memory_info().rss
    connections = []
    limit = service.transport.settings.connections
    for number in range(1000):
        connections.append(service.connect())
        if mechanism:
            connections[-1].sendall(greeting(mechanism))
        if number % 20 == 0:
            await eventually(lambda: len(service.transport.router.open) <= limit)
    for connection in connections:
        await eventually(lambda connection=connection: ended(connection))  # type: ignore[misc]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await eventually(lambda: len(service.transport.router.open) == 1)
    await eventually(lambda: sum(service.rejected.values()) == 1000)
    assert service.rejected["no_room"] > 0
    assert psutil.Process().memory_info().rss - before < 64 * MEBIBYTE
    await service.goes_on()


@pytest.mark.parametrize("size", [2**20, 2**40])
async def test_a_large_frame_before_a_key_is_proved_ends_the_connection(
    service: Service, size: int
) -> None:
    connection = service.connect()
    connection.sendall(greeting(b"CURVE"))
    before = psutil.Process().memory_info().rss
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    part = b"\x03" + size.to_bytes(8, "big") + b"x" * MEBIBYTE
    with pytest.raises(ConnectionError):
        for _ in range(64):
            await asyncio.wait_for(loop.sock_sendall(connection, part), WITHIN_S)
            await asyncio.sleep(0.005)
    assert psutil.Process().memory_info().rss - before < 64 * MEBIBYTE


@pytest.mark.parametrize("service", [{"times": {"guard_period_s": 0.05}}], indirect=True)
@pytest.mark.parametrize("says_hello", [False, True])
async def test_a_message_of_very_many_parts_is_ended_before_its_last_part(
    service: Service, raw: Raw, says_hello: bool
) -> None:
    guest = raw()
    if says_hello:
        await guest.greet(service.transport.address)
    else:
        await guest.come_in(service.transport.address)
    guest.socket.send_multipart([bytes(MEBIBYTE)] * 1024)
    await eventually(lambda: service.rejected == {"oversized": 1})
    await eventually(lambda: len(service.transport.router.open) == 1)
    await service.goes_on()
    assert service.rejected == {"oversized": 1}


@pytest.mark.parametrize(
    "address", ["tcp://a\n:1", "tcp://\x1b[2J:1", "", "tcp://a b:1", "tcp://ä:1", "x" * 201]
)
async def test_a_greeting_with_an_address_that_is_none_is_refused(
    service: Service, raw: Raw, address: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        refusal = await raw().greet(service.transport.address, address=address)
    assert refusal["type"] == "Refusal"  # type: ignore[index]
    assert service.rejected == {"wrong_type": 1}
    assert str(logs).isprintable()


@pytest.mark.parametrize("service", [{"connections": 32}], indirect=True)
async def test_guests_that_greet_and_say_nothing_go_for_those_who_speak(
    service: Service, raw: Raw
) -> None:
    peers = [raw() for _ in range(60)]
    with structlog.testing.capture_logs() as logs:
        for number, peer in enumerate(peers):
            await peer.greet(service.transport.address, address=raw_address(number))
        await eventually(lambda: len(service.transport.router.open) <= 32)
        await service.goes_on()
    assert service.rejected == {"no_room": 29}
    assert len([line for line in logs if line["event"] == "peer_lost"]) < 20


async def test_one_key_cannot_take_the_places_of_all_others(service: Service, raw: Raw) -> None:
    first = raw()
    await first.greet(service.transport.address)
    for number in range(2, 66):
        await raw().greet(service.transport.address, address=raw_address(number))
    refusal = msgpack.unpackb(await first.receive())
    assert refusal["reason"] == "over 64 connections of one key"
    assert service.rejected == {"no_room": 1}


async def test_a_guest_may_be_quiet(service: Service, raw: Raw) -> None:
    peer = raw()
    await peer.greet(service.transport.address)
    await asyncio.sleep(1.0)
    assert peer.socket.poll(0) == 0
    assert service.rejected == {}


async def test_strangers_leave_descriptors_to_guests_however_few_there_are() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows too few open files")
    keys = KeyPair.new()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BESIEGED, keys.public, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await asyncio.wait_for(process.stdout.readline(), WITHIN_S * 2)).decode().strip()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    transport = ZeroMQTransport(keys=keys, guests=Guests({key_of(address): ANYBODY}))
    client = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
    crowd: list[socket.socket] = []
    host, _, port = place_of(address).removeprefix("tcp://").partition(":")
    try:
        await client.start()
        for _ in range(300):
            crowd.append(socket.create_connection((host, int(port))))
            crowd[-1].sendall(greeting(b"CURVE"))
            await asyncio.sleep(0.003)
        for _ in range(5):
            ask = client.ask(ActorRef(address, "opener", 0), Count(), timeout_s=WITHIN_S)
            assert isinstance(await ask, Counted)
    finally:
        await client.aclose()
        for connection in crowd:
            connection.close()
        process.terminate()
        await process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_log_lines_about_strangers_are_few(service: Service, raw: Raw) -> None:
    with structlog.testing.capture_logs() as logs:
        for number in range(60):
            await raw().greet(service.transport.address, incarnation=number + 1, version=99)
    assert service.rejected == {"unknown_version": 60}
    assert 1 <= len([line for line in logs if line["event"] == "input_rejected"]) < 20
