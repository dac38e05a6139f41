"""A service that a good peer asks all the while, and raw peers, for the tests of bad input."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import msgspec
from transport_kit import RawPeer, eventually, raw_address

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    Envelope,
    Kind,
    ZeroMQTransport,
    encode_message,
)
from spotlight.transport.control.zeromq_settings import ZeroMQSettings
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

MEBIBYTE = 1024 * 1024
RAW = ActorRef(raw_address(), "liar", 7)


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
        self.transport = ZeroMQTransport(guests=Everybody(), settings=settings)
        self.system, self.client = (
            ActorSystem(each, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
            for each in (self.transport, ZeroMQTransport(guests=Everybody()))
        )
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
        host, _, port = self.transport.router.endpoint.removeprefix("tcp://").partition(":")
        self._connections.append(socket.create_connection((host, int(port))))
        return self._connections[-1]

    def frame(self, message: bytes | None = None, **changes: object) -> bytes:
        """A frame of the raw peer, as it should be but for the changes."""
        body = msgspec.Raw(message or encode_message(Count()))
        right = Envelope(PROTOCOL_VERSION, RAW, self.ref, Kind.TELL, 1, 0, None, "ordinary", body)
        return msgspec.msgpack.encode(msgspec.structs.replace(right, **changes))


Raw = Callable[..., RawPeer]
