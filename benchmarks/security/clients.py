"""What attackers speak with: raw TCP, sockets of ZeroMQ with any keys or none, and processes that
speak the whole protocol with keys that they have, and say what they like.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import get_args

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.door import Enroll, NotEnrolled, Role
from spotlight.actors.protocol.down import NodePlan, NodeRefused
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.sessions import SessionRefused
from spotlight.actors.protocol.users import CancelRefused, JobRefused
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, handles
from spotlight.errors import ActorError, NotAdmitted, PeerUnreachable
from spotlight.transport.control import (
    NOT_ADMITTED,
    PROTOCOL_VERSION,
    Envelope,
    Guests,
    KeyPair,
    Kind,
    Message,
    ZeroMQTransport,
    actor_incarnation,
    encode_envelope,
    encode_message,
    key_of,
)
from spotlight.transport.control.bad_input import Rejection
from spotlight.transport.control.dialect import Dialect
from spotlight.transport.control.keys import key_bytes, place_of
from spotlight.transport.control.wire import Hello, decode, encode

_EVERYBODY = {said: frozenset(get_args(Role)) if who else who for said, who in MAY_SAY.items()}
"""What somebody goes by who does not care who may say what."""
LIMIT_S = 10.0
_REFUSALS = (CancelRefused, JobRefused, NodeRefused, SessionRefused, NotEnrolled)


class Sayer(Actor):
    """In whose name messages are sent that must come from an actor. It follows no plan."""

    @handles(NodePlan)
    async def on_plan(self, message: NodePlan) -> None:
        """Nothing."""


class Person:
    """A process that has keys, at a coordinator."""

    def __init__(self, system: ActorSystem, coordinator: str) -> None:
        self.system = system
        self.coordinator = system.well_known(coordinator, "coordinator")
        self.door = system.well_known(coordinator, "door")
        self._forged = itertools.count(1 << 40)
        """Numbers of frames that are later than all others."""

    async def ask(
        self,
        message: Message,
        to: ActorRef | None = None,
        *,
        sender: ActorRef | None = None,
        timeout_s: float = LIMIT_S,
    ) -> Message:
        """The answer. Raises `ActorError`."""
        whom = to or self.coordinator
        return await self.system.ask(whom, message, timeout_s=timeout_s, sender=sender)

    async def refusal(
        self, message: Message, to: ActorRef | None = None, *, sender: ActorRef | None = None
    ) -> str:
        """Why it was not done: the kind of refusal and its words; empty if it was."""
        try:
            answer = await self.ask(message, to, sender=sender)
        except ActorError as error:
            return f"{type(error).__name__}: {error}"
        if isinstance(answer, _REFUSALS):
            return f"{type(answer).__name__}: {answer.reason}"
        return ""

    def forge(self, source: ActorRef, to: ActorRef, message: Message) -> None:
        """Say something in the name of another, over our own connection."""
        body = msgspec.Raw(encode_message(message))
        number = next(self._forged)
        frame = encode_envelope(
            Envelope(PROTOCOL_VERSION, source, to, Kind.TELL, number, 0, None, message.lane, body)
        )
        self.system.post.transport.send(to.address, frame)


@asynccontextmanager
async def person(
    coordinator: str,
    keys: KeyPair | None,
    *,
    knows: Mapping[str, str] | None = None,
) -> AsyncIterator[Person]:
    """A process with these keys (or fresh ones, which nobody knows) that knows the coordinator's
    key, and those of others by their roles."""
    guests = Guests({key_of(coordinator): "coordinator", **(knows or {})})
    transport = ZeroMQTransport(
        "tcp://127.0.0.1:0", keys=keys, guests=guests, dialect=own_dialect()
    )
    rng = random.Random(secrets.randbits(64))
    system = ActorSystem(transport, rng=rng, rights=_EVERYBODY)
    await system.start()
    try:
        yield Person(system, coordinator)
    finally:
        await system.aclose()


class Line:
    """One end of a control connection without actors: remembers what happens to it, and when."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.lost = asyncio.Event()
        self.lost_at = 0.0
        self.reason = ""
        self.frames: list[bytes] = []

    def frame_received(self, address: str, frame: bytes) -> None:
        """Keep it."""
        self.frames.append(frame)

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """Nothing was expected of it."""

    def peer_up(self, address: str, incarnation: int) -> None:
        """The connection stands."""
        self.up.set()

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """The connection has ended."""
        self.lost_at, self.reason = time.monotonic(), reason
        self.lost.set()

    def other_version(self, address: str, dialect: Dialect) -> None:
        """Nobody dials it."""

    def input_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Nothing of ours."""


@asynccontextmanager
async def line(address: str, keys: KeyPair | None) -> AsyncIterator[Line]:
    """A connection that is dialled, whether it is taken or not."""
    guests = Guests({key_of(address): "coordinator"})
    transport = ZeroMQTransport(
        "tcp://127.0.0.1:0", keys=keys, guests=guests, dialect=own_dialect()
    )
    end = Line()
    await transport.start(end)
    here = ActorRef(transport.address, "", actor_incarnation(transport.incarnation, 0))
    there = ActorRef(address, "nobody", 0)
    body = msgspec.Raw(encode_message(Enroll("nobody", key_of(transport.address))))
    frame = Envelope(PROTOCOL_VERSION, here, there, Kind.TELL, 1, 0, None, "ordinary", body)
    try:
        with suppress(ActorError):
            transport.send(address, encode_envelope(frame))  # what nobody hears makes it connect
        yield end
    finally:
        await transport.aclose()


def secure(dealer: zmq.Socket[bytes], address: str, keys: KeyPair) -> None:
    """Have a socket prove these keys, and take the other side for whom its address says."""
    dealer.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(key_of(address)))
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, key_bytes(keys.public))
    dealer.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(keys.secret))


class RawSocket:
    """A DEALER with any keys, which says any bytes to the process at an address."""

    def __init__(
        self,
        address: str,
        keys: KeyPair | None = None,
        *,
        server: str | None = None,
        name: bytes = b"",
        plain: bool = False,
    ) -> None:
        """Without `keys` it offers NULL, or PLAIN if it is told so. `server` is the key that it
        takes the other side's for, if not that of the address. `name` is its routing id."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if name:
            self.socket.setsockopt(zmq.ROUTING_ID, name)
        if plain:
            self.socket.setsockopt(zmq.PLAIN_USERNAME, b"admin")
            self.socket.setsockopt(zmq.PLAIN_PASSWORD, b"admin")
        if keys is not None:
            secure(self.socket, f"tcp://other/{server}" if server else address, keys)
        events = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_DISCONNECTED
        )
        self._monitor = self.socket.get_monitor_socket(events)
        self.socket.connect(place_of(address))

    def came_in(self, limit_s: float = 4.0) -> bool:
        """Whether the handshake succeeds in that time."""
        end = time.monotonic() + limit_s
        while (left := end - time.monotonic()) > 0:
            if self._monitor.poll(round(left * 1000)):
                event = parse_monitor_message(self._monitor.recv_multipart())
                return bool(event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return False

    def say(self, *parts: bytes) -> None:
        """Send one message of these parts, or wait for three seconds and give up."""
        self.socket.setsockopt(zmq.SNDTIMEO, 3000)
        with suppress(zmq.ZMQError):
            self.socket.send_multipart(parts)

    def answers(self, limit_s: float = 2.0) -> list[object]:
        """What is heard within that time, as our transports read it."""
        heard: list[object] = []
        end = time.monotonic() + limit_s
        while (left := end - time.monotonic()) > 0 and self.socket.poll(round(left * 1000)):
            heard.append(decode(self.socket.recv()))
        return heard

    def close(self) -> None:
        """At once."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self._context.destroy(0)


@contextmanager
def raw_socket(
    address: str,
    keys: KeyPair | None = None,
    *,
    server: str | None = None,
    name: bytes = b"",
    plain: bool = False,
) -> Iterator[RawSocket]:
    """One, until it is left."""
    opened = RawSocket(address, keys, server=server, name=name, plain=plain)
    try:
        yield opened
    finally:
        opened.close()


def is_kept_out(said: str) -> bool:
    """Whether a refusal (`Person.refusal`) means that there is no connection for that key. Who was
    just told so does not try again at once, and says it in other words."""
    told_before = said.startswith(PeerUnreachable.__name__) and NOT_ADMITTED in said
    return said.startswith(NotAdmitted.__name__) or told_before


def hello_of(keys: KeyPair, *, address: str = "", dialect: Dialect | None = None) -> bytes:
    """The greeting of the holder of these keys, unless it says another address or dialect."""
    speaks = dialect or own_dialect()
    where = address or f"tcp://127.0.0.1:1/{keys.public}"
    return encode(Hello(PROTOCOL_VERSION, where, 7, False, speaks))


def host_and_port(address: str) -> tuple[str, int]:
    """Of a control address, for raw connections."""
    host, _, port = place_of(address).removeprefix("tcp://").rpartition(":")
    return host, int(port)


def stays_open(connection: socket.socket, limit_s: float) -> bool:
    """Whether the other side has not ended a connection after that time. What it says is read."""
    connection.settimeout(0.2)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if not connection.recv(65_536):
                return False
        except TimeoutError:
            continue
        except OSError:
            return False
    return True


def greeting_of(mechanism: str, *, as_server: bool = False) -> bytes:
    """The 64 bytes by which ZMTP 3.1 begins (ZeroMQ RFC 37)."""
    signature = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
    return signature + mechanism.encode().ljust(20, b"\0") + bytes([as_server]) + bytes(31)


def z85_of(key: str) -> str:
    """The same key as ZeroMQ writes it."""
    encoded: bytes = z85.encode(key_bytes(key))
    return encoded.decode()
