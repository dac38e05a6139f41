"""Nobody comes in without a key of a guest, whatever else goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import msgpack
import pytest
import zmq
from transport_kit import RAW_KEYS, RawPeer, Recorder, eventually, raw_address
from zmq.utils.monitor import parse_monitor_message

from spotlight.errors import PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control import NOT_ADMITTED, Guests, KeyPair, ZeroMQTransport, key_of
from spotlight.transport.control.doorkeeper import Doorkeeper
from spotlight.transport.control.keys import key_bytes, place_of
from spotlight.transport.control.zeromq import ZeroMQSettings

pytestmark = pytest.mark.both_loops

TIMES = ConnectionTimings(handshake_timeout_s=0.4, connect_timeout_s=0.6)
Raw = Callable[..., RawPeer]


class House:
    """A transport and what it heard; a guest and what that heard."""

    def __init__(self) -> None:
        self.keys, self.guest_keys = KeyPair.new(), KeyPair.new()
        self.host = self.transport(self.keys, Guests({self.guest_keys.public: "guest"}))
        self.guest = self.transport(self.guest_keys, Guests({self.keys.public: "host"}))
        self.at_host, self.at_guest = Recorder(), Recorder()

    def transport(self, keys: KeyPair, guests: Guests) -> ZeroMQTransport:
        return ZeroMQTransport(keys=keys, guests=guests, settings=ZeroMQSettings(times=TIMES))

    async def guest_is_heard(self) -> None:
        """The guest says something, and it arrives."""
        before = len(self.at_host.frames())
        self.guest.send(self.host.address, b"it is me")
        await self.at_host.until_frames(before + 1)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    await made.host.start(made.at_host)
    await made.guest.start(made.at_guest)
    yield made
    await made.guest.aclose()
    await made.host.aclose()


@pytest.fixture
async def stranger(house: House) -> AsyncIterator[tuple[ZeroMQTransport, Recorder]]:
    transport = house.transport(KeyPair.new(), Guests({house.keys.public: "host"}))
    recorder = Recorder()
    await transport.start(recorder)
    yield transport, recorder
    await transport.aclose()


async def test_who_is_no_guest_hears_so_at_once_and_is_counted(
    house: House, stranger: tuple[ZeroMQTransport, Recorder]
) -> None:
    transport, recorder = stranger
    transport.send(house.host.address, b"let me in")
    await recorder.until(lambda: bool(recorder.losses))
    assert recorder.losses == [NOT_ADMITTED]
    assert recorder.of("lost") == [("lost", house.host.address, 0)]
    await eventually(lambda: "not_admitted" in house.at_host.rejections())
    assert house.at_host.of("up") == house.at_host.of("frame") == []
    await house.guest_is_heard()


async def test_who_was_admitted_meanwhile_comes_in(
    house: House, stranger: tuple[ZeroMQTransport, Recorder]
) -> None:
    transport, _ = stranger
    house.host.guests.admit(key_of(transport.address), "guest")
    transport.send(house.host.address, b"let me in")
    await house.at_host.until(lambda: house.at_host.frames() == [b"let me in"])


async def test_nobody_is_dialled_whose_key_is_not_known(house: House) -> None:
    for address in (place_of(house.host.address), f"tcp://127.0.0.1:9/{KeyPair.new().public}"):
        with pytest.raises(PeerUnreachable, match="a key that is not known here"):
            house.guest.send(address, b"x")


async def test_somebody_with_another_key_at_an_address_hears_nothing(
    house: House, stranger: tuple[ZeroMQTransport, Recorder]
) -> None:
    transport, recorder = stranger
    house.guest.guests.admit(key_of(transport.address), "somebody else")
    claimed = f"{place_of(house.host.address)}/{key_of(transport.address)}"
    house.guest.send(claimed, b"for somebody else's eyes")
    await house.at_guest.until(lambda: bool(house.at_guest.losses))
    assert "another key" in house.at_guest.losses[0]
    assert house.at_host.frames() == recorder.frames() == []


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
async def test_a_client_without_a_guests_key_gets_no_message_through(
    house: House, mechanism: str
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if mechanism == "PLAIN":
            socket.setsockopt(zmq.PLAIN_USERNAME, b"spotlight")
            socket.setsockopt(zmq.PLAIN_PASSWORD, b"spotlight")
        elif mechanism == "CURVE":
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
            socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(house.keys.public))
        socket.connect(place_of(house.host.address))
        hello = {"type": "Hello", "version": 1, "address": raw_address(), "incarnation": 1}
        socket.send(msgpack.packb(hello))
        await eventually(lambda: bool(house.at_host.rejections()))
        assert socket.poll(0) == 0
    await house.guest_is_heard()
    assert len(house.at_host.of("up")) == 1


async def test_when_the_doorkeeper_is_gone_nobody_comes_in(house: House, raw: Raw) -> None:
    house.host.door.close()
    guest = raw(house.guest_keys)
    monitor = guest.socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
    )
    try:
        guest.connect(house.host.address)
        await eventually(lambda: monitor.poll(0) != 0)
        event = parse_monitor_message(monitor.recv_multipart())
    finally:
        guest.socket.disable_monitor()
        monitor.close(0)
    assert event["event"] == zmq.EVENT_DISCONNECTED
    assert set(house.at_host.rejections()) <= {"no_greeting"}
    assert house.at_host.of("up") == []


async def test_who_is_dismissed_is_cut_off_and_told_why(house: House) -> None:
    await house.guest_is_heard()
    house.host.dismiss(house.guest_keys.public, "revoked by the operator")
    assert house.at_host.events[-1][:2] == ("lost", house.guest.address)
    await house.at_guest.until(lambda: bool(house.at_guest.losses))
    assert house.at_guest.losses == ["refused: revoked by the operator"]


async def test_who_is_dismissed_does_not_come_back(house: House) -> None:
    await house.guest_is_heard()
    house.host.dismiss(house.guest_keys.public, "revoked by the operator")
    await house.at_guest.until(lambda: bool(house.at_guest.losses))
    await asyncio.sleep(TIMES.redial_after_s)
    house.guest.send(house.host.address, b"again")
    await house.at_guest.until(lambda: len(house.at_guest.losses) == 2)
    assert house.at_guest.losses[-1] == NOT_ADMITTED
    assert len(house.at_host.frames()) == 1


async def test_whom_we_dialled_can_be_dismissed_as_well(house: House) -> None:
    await house.guest_is_heard()
    house.guest.dismiss(house.keys.public, "it is another's now")
    assert house.at_guest.losses == ["it is another's now"]
    with pytest.raises(PeerUnreachable, match="a key that is not known here"):
        house.guest.send(house.host.address, b"x")


async def test_who_came_in_and_was_dismissed_before_it_greeted_is_refused(
    house: House, raw: Raw
) -> None:
    house.host.guests.admit(RAW_KEYS.public, "guest")
    peer = raw()
    await peer.come_in(house.host.address)
    house.host.dismiss(RAW_KEYS.public, "revoked")
    peer.say_hello()
    refusal = msgpack.unpackb(await peer.receive())
    assert refusal["type"] == "Refusal"
    assert house.at_host.of("up") == []


ZAP = [b"", b"1.0", b"1", b"spotlight", b"127.0.0.1", b"", b"CURVE", b"k" * 32]


@pytest.mark.parametrize(
    "request_",
    [
        [],
        [b""],
        [b"", b"1.0"],
        [*ZAP[:1], b"2.0", *ZAP[2:]],
        [*ZAP[:3], b"another domain", *ZAP[4:]],
        [*ZAP[:6], b"NULL"],
        [*ZAP[:6], b"PLAIN", b"user", b"password"],
        [*ZAP[:7], b"k" * 31],
        [*ZAP[:7], b""],
        [*ZAP, b"more"],
        [b"x", *ZAP[1:]],
    ],
)
async def test_a_question_that_is_not_libzmqs_is_not_answered_with_yes(
    request_: list[bytes],
) -> None:
    refused: list[str] = []
    with zmq.Context() as context:
        owner = SimpleNamespace(report_rejected=lambda _, reason, text: refused.append(reason))
        keeper = Doorkeeper(context, KeyPair.new(), Guests(), owner)
        with context.socket(zmq.DEALER) as asker:
            asker.connect("inproc://zeromq.zap.01")
            asker.send_multipart(request_ or [b"x"])
            await eventually(lambda: refused == ["not_admitted"])
            assert asker.poll(0) == 0
        keeper.close()
