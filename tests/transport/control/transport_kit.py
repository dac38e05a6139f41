"""What the tests of the control transports share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgpack
import zmq

from spotlight.transport.control import PROTOCOL_VERSION, Dialect, KeyPair, key_of
from spotlight.transport.control.keys import key_bytes, place_of

WITHIN_S = 15.0
"""A generous bound; nothing here asserts on how long things really take."""
RAW_KEYS = KeyPair.derived(b"raw")


def raw_address(number: int = 1) -> str:
    """Those that raw peers may say they have."""
    return f"tcp://raw:{number}/{RAW_KEYS.public}"


class Recorder:
    """A listener that records everything, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.losses: list[str] = []
        """Why peers were lost."""
        self._changed = asyncio.Event()

    def frame_received(self, address: str, frame: bytes) -> None:
        self._record("frame", address, bytes(frame))

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        self._record("undelivered", address, bytes(frame))

    def peer_up(self, address: str, incarnation: int) -> None:
        self._record("up", address, incarnation)

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        self.losses.append(reason)
        self._record("lost", address, incarnation)

    def other_version(self, address: str, dialect: Dialect) -> None:
        self._record("other version", address, dialect)

    def input_rejected(self, address: str, reason: str, detail: str) -> None:
        self._record("rejected", address, reason)

    def _record(self, *event: object) -> None:
        self.events.append(event)
        self._changed.set()

    def frames(self) -> list[bytes]:
        """The frames that arrived."""
        return [event[2] for event in self.events if event[0] == "frame"]  # type: ignore[misc]

    def rejections(self) -> list[str]:
        """Why things that arrived were not taken."""
        return [str(event[2]) for event in self.events if event[0] == "rejected"]

    def of(self, kind: str) -> list[tuple[object, ...]]:
        """The events of one kind."""
        return [event for event in self.events if event[0] == kind]

    async def until_frames(self, count: int) -> None:
        """Wait until so many frames arrived."""
        await self.until(lambda: len(self.frames()) >= count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was recorded satisfies a condition."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody announces."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.005)


class RawPeer:
    """A socket without our transport, for guests that do not behave."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair = RAW_KEYS,
        kind: int = zmq.DEALER,
    ) -> None:
        self.keys = keys
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(keys.secret))

    def bind(self) -> str:
        """Be dialled by whoever likes, at the address that this returns."""
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}/{self.keys.public}"

    def connect(self, where: str) -> None:
        """Dial an address, and prove whose key this is."""
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, key_bytes(self.keys.public))
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(key_of(where)))
        self.socket.connect(place_of(where))

    async def come_in(self, where: str) -> None:
        """The same, and return once the key is proved on both sides."""
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            self.connect(where)
            await eventually(lambda: monitor.poll(0) != 0)
        finally:
            self.socket.disable_monitor()
            monitor.close(0)

    async def receive(self) -> bytes:
        """The next message, whole."""
        await eventually(lambda: self.socket.poll(0) != 0)
        return self.socket.recv()

    async def greet(self, where: str, /, **changes: object) -> object:
        """Connect, say hello, and return what comes back."""
        self.connect(where)
        self.say_hello(**changes)
        return msgpack.unpackb(await self.receive())

    def say_hello(self, **changes: object) -> None:
        """As the raw peer does, but for the changes."""
        hello = {"type": "Hello", "version": PROTOCOL_VERSION, "address": raw_address()}
        self.socket.send(msgpack.packb({**hello, "incarnation": 255, **changes}))


class StallingProxy:
    """Carries bytes to a port of this machine, and back, until it is told to hold them back: as a
    frozen process does, whose system goes on to confirm that they have arrived."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> StallingProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def stall(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def go_on(self) -> None:
        """Let everything through again."""
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        for source, destination in ((reader, back), (there, writer)):
            self._pumps.add(asyncio.ensure_future(self._pump(source, destination)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
        await self._open.wait()
        writer.close()
