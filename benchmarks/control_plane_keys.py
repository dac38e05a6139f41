"""One end of a connection for `benchmarks.control_plane`, with keys as all have them, or without.

Run as `python -m benchmarks.control_plane_keys plain|curve answerer|asker`. A line on its standard
input is an order: "ask N" and "tell N" (the asker to the answerer, N times), "greet N" (N
connections to the answerer, one after the other, each of a process of its own), "cpu", or "end".
Its answers go to its standard output as lines of JSON. "Plain" is nothing that the package can do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import zmq

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.errors import MailboxFull
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    Guests,
    KeyPair,
    ZeroMQTransport,
    key_of,
    wire,
    zeromq,
)
from spotlight.transport.control.doorkeeper import Doorkeeper
from spotlight.transport.control.keys import key_bytes, place_of
from spotlight_simulation.open_door import ANYBODY, ANYBODY_SAYS_ANYTHING

_BODY = b"x" * 128
_LIMIT_S = 120.0
_GREETERS = 9000
"""Processes that may greet."""


class Note(Message, frozen=True):
    """Count this."""

    body: bytes


class CountNotes(Message, frozen=True):
    """How many came so far?"""

    body: bytes


class NoteCount(Message, frozen=True):
    """So many."""

    count: int
    body: bytes


class Counter(Actor):
    """What is asked."""

    def __init__(self) -> None:
        self.notes = 0

    @handles(Note)
    async def on_note(self, message: Note) -> None:
        self.notes += 1

    @handles(CountNotes)
    async def on_count(self, message: CountNotes) -> NoteCount:
        return NoteCount(self.notes, message.body)


class OpenDoor(Doorkeeper):
    """Sets nothing on any socket, and believes whatever a greeting says."""

    def secure_bound(self, socket: zmq.Socket[bytes]) -> None:
        """Not at all."""

    def secure_dialing(self, socket: zmq.Socket[bytes], key: str) -> None:
        """Not at all."""

    def key_of_sender(self, payload: zmq.Frame) -> str:
        """That of the address that it says it has."""
        hello = wire.decode(payload.buffer)
        assert isinstance(hello, wire.Hello)
        return key_of(hello.address)


def _pair(name: str) -> KeyPair:
    """Both ends know all of them."""
    return KeyPair.derived(name.encode())


async def _tell(system: ActorSystem, counter: ActorRef, count: int) -> None:
    note = Note(_BODY)
    before = await _ask(system, counter)
    for _ in range(count):
        while True:
            try:
                system.tell(counter, note)
                break
            except MailboxFull:
                await asyncio.sleep(0)
    assert await _ask(system, counter) - before == count, "a tell was lost"


async def _ask(system: ActorSystem, counter: ActorRef) -> int:
    answer = await system.ask(counter, CountNotes(_BODY), timeout_s=_LIMIT_S)
    assert isinstance(answer, NoteCount)
    return answer.count


def _greet(context: zmq.Context[zmq.Socket[bytes]], address: str, number: int, plain: bool) -> None:
    """Connect, as a process of its own does, and be welcome."""
    pair = _pair(f"greeter {number}")
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        if not plain:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(key_of(address)))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, key_bytes(pair.public))
            socket.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(pair.secret))
        socket.connect(place_of(address))
        hello = wire.Hello(PROTOCOL_VERSION, f"tcp://127.0.0.1:1/{pair.public}", 1)
        socket.send(wire.encode(hello))
        assert socket.poll(round(1000 * _LIMIT_S)), "nobody answered"
        assert isinstance(wire.decode(socket.recv()), wire.Welcome)
    finally:
        socket.close()


async def _serve(plain: bool, name: str) -> None:
    guests = Guests({_pair(other).public: ANYBODY for other in ("answerer", "asker")})
    if name == "answerer":
        for number in range(_GREETERS):
            guests.admit(_pair(f"greeter {number}").public, ANYBODY)
    system = ActorSystem(
        ZeroMQTransport(keys=_pair(name), guests=guests),
        rng=random.Random(0),
        rights=ANYBODY_SAYS_ANYTHING,
    )
    with patch.object(zeromq, "Doorkeeper", OpenDoor) if plain else nullcontext():
        await system.start()
    counter = await system.spawn(Counter, "counter", mailbox=65536)
    orders: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, line.strip())
        loop.call_soon_threadsafe(orders.put_nowait, "end")

    threading.Thread(target=listen, daemon=True).start()
    _say(address=system.address)
    try:
        while (order := await orders.get()) != "end":
            what, _, rest = order.partition(" ")
            if what == "to":
                counter = system.well_known(rest, "counter")
            elif what == "ask":
                for _ in range(int(rest)):
                    await _ask(system, counter)
            elif what == "tell":
                await _tell(system, counter, int(rest))
            elif what == "greet":
                with zmq.Context() as context:
                    for number in range(int(rest)):
                        _greet(context, counter.address, number, plain)
            _say(cpu_s=time.process_time())
    finally:
        await system.aclose()


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    log_as_json_lines(logging.ERROR)  # to the standard error: the standard output is the driver's
    run(_serve(sys.argv[1] == "plain", sys.argv[2]))
