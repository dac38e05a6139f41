"""A bad frame is counted by its reason and cuts off its sender, and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgpack
import msgspec
import pytest
import zmq
from bad_input_kit import MEBIBYTE, RAW, Count, Raw, Service
from hypothesis import given
from hypothesis import strategies as st
from transport_kit import WITHIN_S, eventually, raw_address

from spotlight.actors.runtime import ActorRef, Message
from spotlight.errors import FrameRejected, PeerUnreachable
from spotlight.transport.control import (
    FRAME_LIMIT,
    PROTOCOL_VERSION,
    BadInput,
    Envelope,
    Kind,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
    wire,
)
from spotlight.transport.control.bad_input import DETAIL_LIMIT, CutOffs
from spotlight.transport.control.codec import NAME_LIMIT


def nested(depth: int) -> bytes:
    return b"\x82\xa4type\xa5Count\xa5ratio" + b"\x91" * depth


BAD_FRAMES: dict[str, tuple[str, Callable[[Service], bytes]]] = {
    "garbage": ("malformed", lambda s: b"\xc1\xff garbage"),
    "nothing": ("malformed", lambda s: b""),
    "another value": ("wrong_type", lambda s: b"\x05"),
    "truncated": ("malformed", lambda s: s.frame()[:-7]),
    "more than it holds": ("malformed", lambda s: s.frame(b"\xdd\xff\xff\xff\xff")),
    "nested header": ("wrong_type", lambda s: b"\x91\x91" * 100_000),
    "nested body": ("malformed", lambda s: s.frame(nested(100_000))),
    "nested unknown field": (
        "malformed",
        lambda s: s.frame(b"\x82\xa4type\xa5Count\xa1x" + b"\x91" * 100_000),
    ),
    "no text": ("malformed", lambda s: s.frame(b"\x81\xa4type\xa5\xff\xff\xff\xff\xff")),
    "wrong type": ("wrong_type", lambda s: s.frame(msgpack.packb({"type": "Count", "ratio": "x"}))),
    "no type": ("wrong_type", lambda s: s.frame(msgpack.packb({"ratio": 1.0}))),
    "unknown type": ("unknown_type", lambda s: s.frame(msgpack.packb({"type": "Pickle"}))),
    "unknown type of a megabyte": (
        "unknown_type",
        lambda s: s.frame(msgpack.packb({"type": "x" * MEBIBYTE})),
    ),
    "unknown version": ("unknown_version", lambda s: s.frame(version=99)),
    "another header": ("unknown_version", lambda s: msgpack.packb([2, {"source": "x"}])),
    "unknown kind": ("wrong_type", lambda s: s.frame(kind=17)),
    "endless ask": ("wrong_type", lambda s: s.frame(seconds_left=float("inf"))),
    "ask that cannot be timed": ("wrong_type", lambda s: s.frame(seconds_left=float("nan"))),
    "ask from the past": ("wrong_type", lambda s: s.frame(seconds_left=-1.0)),
    "negative number": ("wrong_type", lambda s: s.frame(sequence=-1)),
    "negative incarnation": ("wrong_type", lambda s: s.frame(source=ActorRef("a", "b", -1))),
    "name that steers terminals": (
        "wrong_type",
        lambda s: s.frame(source=ActorRef(RAW.address, "bad", 1)).replace(b"bad", b"\x1b[m"),
    ),
    "long name": ("wrong_type", lambda s: s.frame(source=ActorRef(RAW.address, "x" * 70_000, 1))),
    "number beyond 64 bits": ("wrong_type", lambda s: s.frame(correlation=1e30)),
    "oversized": ("oversized", lambda s: s.frame() + b"x" * FRAME_LIMIT),
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
async def test_a_bad_frame_is_counted_by_its_reason_and_cuts_its_sender_off(
    service: Service, raw: Raw, kind: str
) -> None:
    reason, make = BAD_FRAMES[kind]
    peer = raw()
    await peer.greet(service.transport.address)
    peer.socket.send(msgpack.packb([make(service), service.frame(), service.frame(sequence=2)]))
    refusal = msgpack.unpackb(await peer.receive())
    assert refusal["type"] == "Refusal"
    assert refusal["reason"].startswith("cut off: ")
    assert len(refusal["reason"]) < 2 * DETAIL_LIMIT
    assert service.rejected == {reason: 1}
    await service.goes_on()


async def test_a_process_that_was_cut_off_is_refused_until_it_starts_again(
    service: Service, raw: Raw
) -> None:
    peer = raw()
    await peer.greet(service.transport.address)
    peer.socket.send(msgpack.packb([b"garbage"]))
    await peer.receive()
    refusal = await raw().greet(service.transport.address)
    assert refusal["type"] == "Refusal"  # type: ignore[index]
    assert refusal["reason"].startswith("cut off: a frame was refused")  # type: ignore[index]
    assert service.rejected["cut_off"] == 1
    restarted = await raw().greet(service.transport.address, incarnation=256)
    assert restarted["type"] == "Welcome"  # type: ignore[index]


async def test_the_connection_of_a_peer_that_was_cut_off_ends(service: Service, raw: Raw) -> None:
    peer = raw()
    monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        await peer.greet(service.transport.address)
        peer.socket.send(b"\xc1")
        await eventually(lambda: monitor.poll(0) != 0)
    finally:
        peer.socket.disable_monitor()
        monitor.close(0)


async def test_a_flood_after_the_first_bad_message_is_not_decoded(
    service: Service, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = wire.decode

    def count(payload: memoryview, *, whole: bool = True) -> object:
        if bytes(payload[:5]) == b"flood":
            decoded.append(b"flood")
        return decode(payload, whole=whole)

    monkeypatch.setattr(wire, "decode", count)
    peer = raw()
    await peer.greet(service.transport.address)
    with contextlib.suppress(zmq.Again):  # its connection ended meanwhile
        for _ in range(2_000):
            peer.socket.send(b"flood", zmq.NOBLOCK)
    await eventually(lambda: service.rejected.get("cut_off", 0) > 0)
    await service.goes_on()
    assert len(decoded) == 1


async def test_whoever_says_the_address_of_another_is_refused_and_the_other_not_disturbed(
    service: Service, raw: Raw
) -> None:
    incarnation = service.client.post.transport.incarnation
    thief = raw()
    thief.socket.setsockopt(zmq.ROUTING_ID, service.client.address.encode())
    refusal = await thief.greet(
        service.transport.address, address=service.client.address, incarnation=incarnation
    )
    assert refusal["type"] == "Refusal"  # type: ignore[index]
    assert "is not an address of the key" in refusal["reason"]  # type: ignore[index]
    assert service.rejected == {"not_allowed": 1}
    await service.goes_on()


async def test_whoever_says_nothing_but_frames_of_another_is_refused(
    service: Service, raw: Raw
) -> None:
    thief = raw()
    thief.connect(service.transport.address)
    thief.socket.send(msgpack.packb([service.frame(source=service.client.ref)]))
    refusal = msgpack.unpackb(await thief.receive())
    assert refusal["type"] == "Refusal"
    assert service.rejected == {"no_greeting": 1}


async def test_a_peer_we_connect_to_is_cut_off_as_well(service: Service, raw: Raw) -> None:
    server = raw(kind=zmq.ROUTER)
    address = server.bind()
    asking = asyncio.ensure_future(
        service.system.ask(ActorRef(address, "x", 0), Count(), timeout_s=WITHIN_S)
    )
    identity = await server.receive()
    await server.receive()
    welcome = wire.encode(wire.Welcome(PROTOCOL_VERSION, address, 5))
    server.socket.send_multipart([identity, welcome])
    server.socket.send_multipart([identity, msgpack.packb([b"garbage"])])
    with pytest.raises(PeerUnreachable, match="cut off: a frame was refused"):
        await asking
    assert service.rejected == {"wrong_type": 1}


# --- tables and the codec ---------------------------------------------------------------


def test_only_the_latest_cut_offs_are_remembered() -> None:
    cut_offs = CutOffs(kept=10)
    for incarnation in range(1, 1000):
        cut_offs.add(raw_address(), incarnation, "x" * 10_000)
    assert len(cut_offs) == 10
    assert cut_offs.reason(raw_address(), 989) is None
    reason = cut_offs.reason(raw_address(), 990)
    assert reason is not None
    assert len(reason) < 2 * DETAIL_LIMIT


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_an_ask_that_its_receiver_would_refuse_is_not_sent(seconds: float) -> None:
    body = msgspec.Raw(encode_message(Count()))
    frame = Envelope(PROTOCOL_VERSION, RAW, RAW, Kind.ASK, 1, 1, seconds, "ordinary", body)
    with pytest.raises(FrameRejected, match="cannot wait"):
        encode_envelope(frame)


def test_a_name_that_its_receiver_would_refuse_is_not_sent() -> None:
    body = msgspec.Raw(encode_message(Count()))
    to = ActorRef(raw_address(), "x" * (NAME_LIMIT + 1), 1)
    frame = Envelope(PROTOCOL_VERSION, RAW, to, Kind.TELL, 1, 0, None, "ordinary", body)
    with pytest.raises(FrameRejected, match="shorter"):
        encode_envelope(frame)


def valid_frame() -> bytes:
    watch = {
        "type": "Watch",
        "watcher": list(msgspec.structs.astuple(RAW)),
        "refs": [["a", "b", 1]],
    }
    body = msgspec.Raw(msgpack.packb(watch))
    return encode_envelope(
        Envelope(PROTOCOL_VERSION, RAW, RAW, Kind.SYSTEM, 3, 4, 1.5, "ordinary", body)
    )


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid payload with pieces replaced, removed, doubled and inserted."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[start:end]) * 2)))
        data[start:end] = piece
    return bytes(data)


@given(mutated(valid_frame()))
def test_a_mutated_frame_is_taken_with_its_types_or_refused_with_a_reason(frame: bytes) -> None:
    try:
        message = decode_message(decode_envelope(frame).body)
    except BadInput as error:
        assert error.reason in ("malformed", "wrong_type", "unknown_type", "unknown_version")
        assert len(str(error)) < 2 * DETAIL_LIMIT
    else:
        assert isinstance(message, Message)


@given(
    mutated(wire.encode(wire.Hello(PROTOCOL_VERSION, raw_address(), 255)))
    | mutated(wire.encode([b"one", b"two"]))
)
def test_a_mutated_control_message_is_taken_or_refused_with_a_reason(payload: bytes) -> None:
    try:
        wire.decode(payload)
    except BadInput as error:
        assert error.reason in ("malformed", "wrong_type", "unknown_version")
