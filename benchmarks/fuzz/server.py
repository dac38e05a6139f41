"""A real control port, which strangers and lying guests speak to while good guests go on.

Strangers send bytes over TCP: greetings and handshakes of ZMTP (ZeroMQ RFC 23 and 26) as they were
once recorded, with pieces altered, and those of other mechanisms and versions. A lying guest has
proved its key, and sends greetings and batches that are almost right.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
import psutil
import zmq

from benchmarks.fuzz.inputs import altered, anything, mutated, packed
from benchmarks.fuzz.loops import WatchedLoop
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    Dialect,
    Guests,
    KeyPair,
    Rejection,
    ZeroMQTransport,
    key_of,
    wire,
)
from spotlight.transport.control.keys import key_bytes, place_of

Chunks = list[bytes]
"""What is written to a connection, one after the other."""

_SERVER, _GOOD, _LIAR = (KeyPair.derived(name) for name in (b"server", b"good", b"liar"))
_LIMIT_S = 30.0
_ANSWERED_WITHIN_S = 0.01
_GREETING_BYTES = 64
_LONG = 2
"""A flag: eight bytes say the length of a unit, not one."""
_MECHANISM, _AS_SERVER = slice(12, 32), 32
_MECHANISMS = (b"CURVE", b"NULL", b"PLAIN", b"GSSAPI", b"", b"x" * 20)
_OTHERS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
    b"\x01\x00",  # ZMTP 1.0: an empty identity
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\0",  # ZMTP 2.0
    b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",  # of NULL
    b"\x04\x0f\x05HELLO\x04user\x04pass",  # of PLAIN
    b"\x04\x08\x05ERROR\x01x",
    b"\x04\x07\x04PING\0\0",
    b"\x06\xff\xff\xff\xff\xff\xff\xff\xff",  # a command of 2**64 bytes
    b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff",  # a message of 2**63 bytes
    b"\x01\0" * 50,  # parts of a message without end
)


class _Recorder:
    """What a transport tells: counted, not kept."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()

    def frame_received(self, address: str, frame: bytes) -> None:
        """From a good guest it is expected; a liar's is nothing that anybody waits for."""
        if key_of(address) != _LIAR.public:
            self.frames.put_nowait(frame)

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """Of no interest."""

    def peer_up(self, address: str, incarnation: int) -> None:
        """Somebody came in."""
        self.up["the liar" if key_of(address) == _LIAR.public else address] += 1

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """Somebody went."""
        self.lost[reason] += 1

    def other_version(self, address: str, dialect: Dialect) -> None:
        """Somebody was refused."""
        self.rejected["other_version"] += 1

    def input_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Something was refused."""
        assert detail.isprintable()
        self.rejected[reason] += 1


class Server:
    """See the module's docstring; there until `close`."""

    def __init__(self) -> None:
        self._loop = WatchedLoop()
        roles = {_SERVER.public: "server", _GOOD.public: "good", _LIAR.public: "liar"}
        self._heard, self._told = _Recorder(), _Recorder()
        self._server = ZeroMQTransport(keys=_SERVER, guests=Guests(roles))
        self._good = ZeroMQTransport(keys=_GOOD, guests=Guests(roles))
        self._asked = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop.run(self._start())
        self._address = self._server.address
        self._descriptors = psutil.Process().num_fds()
        self._units = self._loop.run(self._recorded())

    def close(self) -> None:
        """Leave nothing behind."""
        self._loop.run(self._stop())
        self._context.destroy(0)
        self._loop.close()

    # --- strangers --------------------------------------------------------------------

    def make_handshake(self, rng: Random) -> Chunks:
        """A recorded handshake with units that are altered, lack, or are repeated."""
        units = list(self._units)
        if rng.randrange(4) == 0:
            greeting = bytearray(units[0])
            greeting[_MECHANISM] = rng.choice(_MECHANISMS).ljust(20, b"\0")
            greeting[_AS_SERVER] = rng.choice((0, 1, 255))
            units[0] = bytes(greeting)
        for _ in range(rng.choice((0, 1, 2, 4))):
            place = rng.randrange(len(units)) if units else 0
            match rng.randrange(5):
                case 0:
                    units[place : place + 1] = []
                case 1:
                    units[place:place] = [rng.choice(_OTHERS)]
                case 2:
                    units[place : place + 1] = units[place : place + 1] * rng.choice((2, 20))
                case 3:
                    units = units[: place + 1]
                case _:
                    units[place : place + 1] = [mutated(u, rng) for u in units[place : place + 1]]
        return units if rng.random() < 0.5 else [b"".join(units)]

    def check_handshake(self, chunks: Chunks) -> str:
        """A stranger sends that: nobody comes in, and the good guest is served."""
        outcome = self._loop.run(self._send(chunks))
        self._is_as_ever()
        return outcome

    async def _send(self, chunks: Chunks) -> str:
        host, _, port = place_of(self._address).removeprefix("tcp://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0)
            while await asyncio.wait_for(reader.read(65_536), _ANSWERED_WITHIN_S):
                pass
        except TimeoutError:
            return "left waiting"
        except OSError:
            return "reset"
        else:
            return "ended"
        finally:
            writer.transport.abort()

    # --- lying guests -----------------------------------------------------------------

    def make_lies(self, rng: Random) -> list[Chunks]:
        """Messages, each of some parts: a greeting and batches, almost right."""
        address = rng.choice((_LIAR, _LIAR, _LIAR, _GOOD, _SERVER)).public
        hello = wire.Hello(
            PROTOCOL_VERSION, f"tcp://127.0.0.1:1/{address}", rng.randrange(1, 2**43)
        )
        greeting = wire.encode(hello)
        if rng.random() < 0.5:
            greeting = mutated(packed(altered(msgspec.to_builtins(hello), rng)), rng)
        messages = [[greeting]]
        for _ in range(rng.randrange(4)):
            batch = [rng.randbytes(rng.randrange(30)) for _ in range(rng.choice((0, 1, 5, 300)))]
            said = rng.choice((batch, batch, anything(rng), {"type": "Refusal", "reason": "x"}))
            parts = rng.choice((1, 1, 1, 1, 3))
            messages.append([mutated(packed(altered(said, rng)), rng)] * parts)
        return messages

    def check_lies(self, messages: list[Chunks]) -> str:
        """A guest says that: it is not taken for another, and the good guest is served."""
        outcome = self._loop.run(self._lie(messages))
        self._is_as_ever()
        return outcome

    async def _lie(self, messages: list[Chunks]) -> str:
        liar = self._connected(_LIAR)
        try:
            for message in messages:
                liar.send_multipart(message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LIMIT_S):
                    while not liar.poll(0):  # noqa: ASYNC110 - there is no event to wait for
                        await asyncio.sleep(0)
            return type(wire.decode(liar.recv(zmq.NOBLOCK))).__name__
        finally:
            liar.close(0)

    # --- everybody else ---------------------------------------------------------------

    def _is_as_ever(self) -> None:
        self._loop.run(self._serves())
        assert self._heard.up.keys() <= {"the liar", self._good.address}, "a stranger came in"
        assert not self._told.lost, f"the good guest lost the server: {self._told.lost}"
        self._asked += 1
        if self._asked % 1000 == 0:
            self._loop.run(self._has_nothing_left())

    async def _serves(self) -> None:
        """The good guest's frame arrives, and the next one is its own as well."""
        frame = self._asked.to_bytes(8, "big")
        self._good.send(self._address, frame)
        async with asyncio.timeout(_LIMIT_S):
            assert await self._heard.frames.get() == frame, "somebody else was heard"

    async def _has_nothing_left(self) -> None:
        """The connections of all others end, and hold nothing."""
        async with asyncio.timeout(_LIMIT_S):
            while len(self._server.router.open) > 1:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        assert psutil.Process().num_fds() <= self._descriptors + 20

    async def _start(self) -> None:
        await self._server.start(self._heard)
        await self._good.start(self._told)
        self._address = self._server.address
        await self._serves()

    async def _stop(self) -> None:
        await self._good.aclose()
        await self._server.aclose()

    def _connected(self, pair: KeyPair, place: str = "") -> zmq.Socket[bytes]:
        found = self._context.socket(zmq.DEALER)
        found.setsockopt(zmq.LINGER, 0)
        found.setsockopt(zmq.RECONNECT_IVL, -1)
        found.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(_SERVER.public))
        found.setsockopt(zmq.CURVE_PUBLICKEY, key_bytes(pair.public))
        found.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(pair.secret))
        found.connect(place or place_of(self._address))
        return found

    async def _recorded(self) -> Chunks:
        """The units that a guest's libzmq sends, up to its first message."""
        sent = bytearray()
        host, _, port = place_of(self._address).removeprefix("tcp://").partition(":")

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, server = await asyncio.open_connection(host, int(port))
            answering = asyncio.ensure_future(_pass_on(answers, writer))
            while data := await reader.read(65_536):
                sent.extend(data)
                server.write(data)
            server.transport.abort()
            await answering

        between = await asyncio.start_server(carry, "127.0.0.1", 0)
        guest = self._connected(_LIAR, f"tcp://127.0.0.1:{between.sockets[0].getsockname()[1]}")
        guest.send(wire.encode(wire.Hello(PROTOCOL_VERSION, f"tcp://h:1/{_LIAR.public}", 1)))
        async with asyncio.timeout(_LIMIT_S):
            while not guest.poll(0):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)
        guest.close(0)
        between.close()
        await between.wait_closed()
        await self._has_nothing_left()
        return list(_units(bytes(sent)))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


def _units(sent: bytes) -> Iterator[bytes]:
    """The greeting, and the commands and messages behind it."""
    yield sent[:_GREETING_BYTES]
    rest = sent[_GREETING_BYTES:]
    while rest:
        head = 9 if rest[0] & _LONG else 2
        whole = head + int.from_bytes(rest[1:head])
        yield rest[:whole]
        rest = rest[whole:]
