"""Whoever reaches the ports, and has no key that the coordinator knows."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import zmq

from benchmarks.security.attack import NotPossible, attack, require
from benchmarks.security.clients import (
    Sayer,
    greeting_of,
    hello_of,
    host_and_port,
    is_kept_out,
    raw_socket,
    stays_open,
)
from benchmarks.security.network import ATTACKER, RESERVED
from benchmarks.security.site import Impostor, Site
from spotlight.actors.protocol.door import Enroll, GetGuests, NewToken, RevokeAccess
from spotlight.actors.protocol.sessions import BeginSession
from spotlight.actors.protocol.users import CancelJob, GetStatus, PreemptNode, SubmitJob
from spotlight.join_token import JoinToken
from spotlight.transport.control import KeyPair
from spotlight.transport.control.keys import key_bytes
from spotlight.transport.control.wire import encode
from spotlight_simulation.ports import unused_port

_HANDSHAKE_S = 10.0
"""The time in which libzmq ends a connection that proves no key."""


async def _comes_in(site: Site, keys: KeyPair | None, *, server: str = "", plain: bool) -> bool:
    def attempt() -> bool:
        with raw_socket(site.address, keys, server=server or None, plain=plain) as dealer:
            return dealer.came_in()

    return await asyncio.to_thread(attempt)


@attack("a connection offers no encryption (NULL)")
async def null(site: Site) -> None:
    require(not await _comes_in(site, None, plain=False), "it came in")


@attack("a connection offers a name and a password in clear (PLAIN)")
async def plain(site: Site) -> None:
    require(not await _comes_in(site, None, plain=True), "it came in")


@attack("a connection proves a key that nobody knows")
async def unknown_key(site: Site) -> None:
    require(not await _comes_in(site, KeyPair.new(), plain=False), "it came in")


@attack("a connection with a node's key takes the coordinator for another")
async def wrong_server_key(site: Site) -> None:
    other = KeyPair.new().public
    came_in = await _comes_in(site, site.impostor, server=other, plain=False)
    require(not came_in, "it came in")


@attack("a connection announces CURVE and goes on as if nothing were to be proved")
async def skipped_handshake(site: Site) -> None:
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    job = encode([b"\x90"])
    for mechanism in ("CURVE", "NULL"):
        with socket.create_connection(host_and_port(site.address), 10) as connection:
            connection.sendall(greeting_of(mechanism) + b"\x04" + bytes([len(ready)]) + ready)
            hello = hello_of(site.operator)
            for message in (hello, job):
                with suppress(OSError):
                    connection.sendall(b"\x00" + bytes([min(len(message), 255)]) + message)
            is_open = await asyncio.to_thread(stays_open, connection, _HANDSHAKE_S)
            require(not is_open, f"the connection that offers {mechanism} stays")


@attack("a process without a key does all that users, operators and joiners do")
async def users(site: Site) -> None:
    async with site.person(None) as stranger:
        me = await stranger.system.spawn(Sayer, "user")
        job = site.job()
        said = [
            await stranger.refusal(SubmitJob(job, "", False)),
            await stranger.refusal(CancelJob()),
            await stranger.refusal(PreemptNode(RESERVED, 30.0, False, yes=True)),
            await stranger.refusal(GetStatus()),
            await stranger.refusal(BeginSession("stranger", me, job.work, False), sender=me),
            await stranger.refusal(NewToken("operator", None, 1, 60.0), stranger.door),
            await stranger.refusal(RevokeAccess(RESERVED), stranger.door),
            await stranger.refusal(GetGuests(), stranger.door),
            await stranger.refusal(
                Enroll("stranger", KeyPair.new().public, "reserved"), stranger.door
            ),
        ]
    for each in said:
        require(is_kept_out(each), each)


@attack("a node of pool `reserved` joins without a key")
async def reserved_node(site: Site) -> None:
    async with site.person(None) as stranger:
        actor = Impostor(stranger.coordinator, {})
        me = await stranger.system.spawn(Sayer, "node")
        report = actor.report_of(me, node="trainers", pool="reserved", workers=())
        said = await stranger.refusal(report, sender=me)
    require(is_kept_out(said), said)
    there = {node.name for node in (await site.guests()).nodes if node.is_connected}
    require("trainers" not in there, there)


@attack("garbage comes on two hundred raw connections to the control port")
async def garbage(site: Site) -> None:
    before = site.resident_mb()
    with ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(
                socket.create_connection(host_and_port(site.address), 10)
            )
            connection.sendall(os.urandom(512) if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        await site.status()
    grown = site.resident_mb() - before
    require(grown < 150, f"{grown:.0f} MB more")


@attack("two hundred handshakes begin and come a byte at a time")
async def slow_handshakes(site: Site) -> None:
    hello = greeting_of("CURVE") + b"\x04\xc8" + b"\x05HELLO" + bytes(194)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(host_and_port(site.address), 10))
            for _ in range(200)
        ]
        end = time.monotonic() + _HANDSHAKE_S
        for byte in hello:
            for connection in connections:
                with suppress(OSError):
                    connection.sendall(bytes([byte]))
            await asyncio.sleep(0.1)
            if time.monotonic() > end:
                break
        await site.status()
        still = sum(map(_is_open, connections))
    require(still == 0, f"{still} of them are open after {_HANDSHAKE_S} s")


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65_536):  # what it was greeted with
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@attack("somebody else stands where a token says that the coordinator is")
async def posing(site: Site) -> None:
    """It has a key of its own; nobody who has a token tells it anything."""
    keys, port = KeyPair.new(), unused_port()
    token = site.submitter_token
    file = site.token_file(JoinToken(f"127.0.0.1:{port}", token.key, token.id, token.secret))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(keys.secret))
        router.bind(f"tcp://127.0.0.1:{port}")
        words = ("status", "--join", f"@{file}")
        code, said = await asyncio.to_thread(site.command, ATTACKER, *words)
        heard = router.poll(0)
    require(not heard, "it was told something")
    require(code != 0 and "Traceback" not in said, said)


@attack("somebody between a user and the coordinator changes bytes on their way")
async def tampering(site: Site) -> None:
    with _relay(host_and_port(site.address)) as (port, flipped):
        token = site.submitter_token
        file = site.token_file(JoinToken(f"127.0.0.1:{port}", token.key, token.id, token.secret))
        words = ("status", "--join", f"@{file}")
        code, said = await asyncio.to_thread(site.command, ATTACKER, *words)
    require(bool(flipped), "nothing went through")
    require(code != 0 and "Traceback" not in said, said)


@contextmanager
def _relay(to: tuple[str, int]) -> Iterator[tuple[int, list[int]]]:
    """A port that leads to another, and a list that grows by each byte that was changed: one of
    every piece after the first kilobyte, which is about the handshake."""
    flipped: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))
    sockets = [server]

    def pump(source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(65_536)):
                if passed > 600:
                    data[-1] ^= 1
                    flipped.append(passed)
                passed += len(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.create_connection(to, 10)
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1], flipped
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@attack("a trainer and its node are given orders by somebody who says that it is the coordinator")
async def orders(site: Site) -> None:
    """At every port of the reserved node, for every public key that there is: without a key, with
    one that nobody knows, and with that of a spot node. The coordinator's own key, which no
    attacker has, shows that these are the ports and the keys."""
    if not site.network.is_real:
        raise NotPossible("its ports are not known")
    ports = await asyncio.to_thread(site.network.open_ports, RESERVED)
    host = site.network.host(RESERVED)
    addresses = [f"tcp://{host}:{port}/{key}" for port in ports for key in site.keys_of(RESERVED)]
    coordinator = KeyPair.of((site.runs / ".coordinator.key").read_text().strip())

    def let_in(keys: KeyPair | None) -> list[str]:
        found = []
        for address in addresses:
            with raw_socket(address, keys) as dealer:
                if dealer.came_in(1.5):
                    found.append(address)
        return found

    doors = await asyncio.to_thread(let_in, coordinator)
    require(len(doors) >= 2, f"the attack does not find a node and its worker: {doors}")
    for keys in (None, KeyPair.new(), site.impostor):
        taken = await asyncio.to_thread(let_in, keys)
        require(not taken, f"{keys}: {taken}")
