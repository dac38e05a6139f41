"""More than there is room for: connections, messages and parts of messages, keys and words."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import zmq

from benchmarks.security.attack import attack, require
from benchmarks.security.clients import (
    Sayer,
    greeting_of,
    hello_of,
    host_and_port,
    raw_socket,
    secure,
    stays_open,
)
from benchmarks.security.network import RESERVED, SPOT
from benchmarks.security.site import Impostor, Site
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.actors.protocol.users import GetStatus
from spotlight.actors.runtime import ActorRef
from spotlight.actors.runtime.envelopes import Watch
from spotlight.errors import ActorError
from spotlight.transport.control.keys import key_text, place_of
from spotlight.transport.control.wire import encode

_MOST_MB = 150.0
"""Megabytes that the coordinator's memory may grow by while it is attacked."""
_HALF_OF_THE_PARTS_MB = 500.0
_PARTS_PER_S = 200
"""Parts of a megabyte: some 1.6 Gbit/s. Between processes of one machine a gigabyte takes less than
a second, and how much of it is taken before the connection ends depends on the machine."""
_IDLE = 10_000
_OWN_CONNECTIONS = 1_500


async def _bounded(site: Site, attempt: Callable[[], None], *, most_mb: float = _MOST_MB) -> None:
    """Require that the coordinator answers meanwhile, and takes not much more memory."""
    before = site.resident_mb()
    trying = asyncio.create_task(asyncio.to_thread(attempt))
    slowest = 0.0
    async with site.person(site.operator) as operator:
        while not trying.done():
            began = time.monotonic()
            await operator.ask(GetStatus(), timeout_s=20.0)
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.1)
    await trying
    await site.status()
    grown = site.resident_mb() - before
    require(grown < most_mb, f"{grown:.0f} MB more")
    require(slowest < 10.0, f"an answer took {slowest:.1f} s")


@attack("ten thousand connections to the control port say nothing")
async def idle(site: Site) -> None:
    def attempt() -> None:
        connections = []
        try:
            for _ in range(_IDLE):
                with suppress(OSError):
                    connections.append(socket.create_connection(host_and_port(site.address), 10))
            time.sleep(5.0)
        finally:
            for each in connections:
                each.close()

    await _bounded(site, attempt)


@attack("frames that say that they have 2^40 bytes, and parts without end, before any handshake")
async def strangers_frames(site: Site) -> None:
    def attempt() -> None:
        huge = b"\x06" + (2**40).to_bytes(8, "big")
        for mechanism in ("CURVE", "NULL"):
            for data, times in ((huge + bytes(1 << 20), 64), (b"\x01\xff" + bytes(255), 200_000)):
                with socket.create_connection(host_and_port(site.address), 10) as connection:
                    with suppress(OSError):
                        connection.sendall(greeting_of(mechanism))
                        for _ in range(times):
                            connection.sendall(data)
                    require(not stays_open(connection, 10.0), f"{mechanism}: it stays")

    await _bounded(site, attempt)


@attack("a node's key sends frames of 200 MB, before and behind its greeting")
async def huge_frames(site: Site) -> None:
    def attempt() -> None:
        for said in ((), (hello_of(site.impostor),)):
            with raw_socket(site.address, site.impostor) as dealer:
                dealer.say(*said) if said else None
                dealer.say(bytes(200_000_000))
                time.sleep(2.0)

    await _bounded(site, attempt)


@attack("a node's key sends a message of a thousand parts of a megabyte each")
async def endless_parts(site: Site) -> None:
    """No part is too large for itself. Before and behind its greeting. The connection is ended, but
    what its link brought until then has been taken."""

    def attempt() -> None:
        part = bytes(1_000_000)
        for greets in (False, True):
            with raw_socket(site.address, site.impostor) as dealer:
                if greets:
                    dealer.say(hello_of(site.impostor))
                dealer.socket.setsockopt(zmq.SNDTIMEO, 3000)
                with suppress(zmq.ZMQError):
                    for _ in range(1000):
                        dealer.socket.send(part, zmq.SNDMORE, copy=False)
                        time.sleep(1.0 / _PARTS_PER_S)
                    dealer.say(b"")
                time.sleep(3.0)

    await _bounded(site, attempt, most_mb=_HALF_OF_THE_PARTS_MB)


@attack("a node opens fifteen hundred connections with its key")
async def own_connections(site: Site) -> None:
    def attempt() -> None:
        with zmq.Context() as context:
            context.set(zmq.MAX_SOCKETS, 4 * _OWN_CONNECTIONS)
            opened = []
            for number in range(_OWN_CONNECTIONS):
                dealer = context.socket(zmq.DEALER)
                opened.append(dealer)
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.setsockopt(zmq.RECONNECT_IVL, -1)
                secure(dealer, site.address, site.impostor)
                dealer.connect(place_of(site.address))
                where = f"tcp://127.0.0.1:{number + 1}/{site.impostor.public}"
                dealer.send(hello_of(site.impostor, address=where))
            time.sleep(5.0)
            for dealer in opened:
                dealer.close(0)

    async with site.line(site.observer) as end:
        await asyncio.wait_for(end.up.wait(), 20)
        await _bounded(site, attempt)
        require(not end.lost.is_set(), f"somebody else had to go: {end.reason}")
    require(await site.nodes_there() >= {RESERVED, SPOT}, "they are gone")


class _Writes:
    """What runs when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self._path}",)


def _say(site: Site, *messages: bytes) -> None:
    with raw_socket(site.address, site.impostor) as dealer:
        for message in messages:
            dealer.say(message)
        time.sleep(0.5)


@attack("a node's key sends pickled objects, alone and behind its greeting")
async def pickles(site: Site) -> None:
    evil = pickle.dumps(_Writes(str(site.canary)))
    hello = hello_of(site.impostor)

    def attempt() -> None:
        _say(site, evil)
        _say(site, hello, evil)
        _say(site, hello, encode([evil, b"\x80\x04"]))
        _say(site, hello, encode([msgspec.msgpack.encode([evil])]))

    await _bounded(site, attempt)
    require(not site.canary.exists(), "it was unpickled")


@attack("a node's key nests ten thousand deep, or announces four thousand million items")
async def deep_messages(site: Site) -> None:
    deep = b"\x91" * 10_000 + b"\x00"
    hello = hello_of(site.impostor)

    def attempt() -> None:
        _say(site, deep)
        _say(site, b"\xdd\xff\xff\xff\xff")
        _say(site, hello, encode([deep, b"\xdf\xff\xff\xff\xff"]))
        _say(site, hello, b"\xdd\xff\xff\xff\xff")

    await _bounded(site, attempt)


@attack("a node vouches for ever more keys of workers")
async def endless_keys(site: Site) -> None:
    before = site.resident_mb()
    keys = await site.enrolled("employer-of-all")
    said = ""
    async with site.person(keys) as node:
        me = await node.system.spawn(Sayer, "node")
        actor = Impostor(node.coordinator, {}, "employer-of-all")
        for number in range(1, 200):
            workers = tuple(_workers("employer-of-all", number, 64))
            said = await node.refusal(actor.report_of(me, number, workers=workers), sender=me)
            if said:
                break
    require(bool(said), "it might go on")
    grown = site.resident_mb() - before
    require(grown < _MOST_MB, f"{grown:.0f} MB more")


def _workers(node: str, epoch: int, count: int) -> Iterator[WorkerRefs]:
    for number in range(count):
        public = key_text(os.urandom(32))  # nobody has the other key
        worker = ActorRef(f"tcp://127.0.0.1:1/{public}", "worker", epoch)
        yield WorkerRefs(f"{node}/{number}", epoch, worker, worker, worker)


@attack("a node has fifty thousand of its actors watch the coordinator")
async def watches(site: Site) -> None:
    before = site.resident_mb()
    async with site.person(site.impostor) as node:
        for number in range(50_000):
            watcher = ActorRef(node.system.address, f"watcher-{number}", 1 << 20)
            with suppress(ActorError):
                node.system.post.tell_runtime(site.address, Watch(watcher, (node.coordinator,)))
            if number % 200 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(2.0)
    await site.status()
    grown = site.resident_mb() - before
    require(grown < _MOST_MB, f"{grown:.0f} MB more")
