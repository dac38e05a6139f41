"""Messages and envelopes as bytes."""

from __future__ import annotations

from typing import Literal

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.errors import FrameRejected
from spotlight.transport.control import (
    FRAME_LIMIT,
    PROTOCOL_VERSION,
    ActorRef,
    BadInput,
    Envelope,
    Kind,
    Message,
    actor_incarnation,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
)
from spotlight.transport.control.codec import GREATEST_SECONDS, AnyMessage


class Part(msgspec.Struct, frozen=True):
    """A record inside a message."""

    label: str
    weight: float


class Sampled(Message):
    """A message with a field of every kind that ours use."""

    number: int
    ratio: float
    name: str
    flag: bool
    blob: bytes
    ref: ActorRef
    parts: tuple[Part, ...] = ()
    scores: dict[str, list[int]] = {}  # noqa: RUF012  (msgspec copies it)
    note: str | None = None
    mode: Literal["fast", "slow"] = "fast"


class Positional(Message, array_like=True):
    """A message that travels as an array."""

    lane = "system"

    number: int
    text: str = ""


class Dangling(Message):
    """A message whose annotation names nothing."""

    field: NoSuchType  # type: ignore[name-defined]  # noqa: F821


finite = st.floats(allow_nan=False)
durations = st.floats(0, GREATEST_SECONDS)
texts = st.text(max_size=20)
names = texts.filter(str.isprintable)
refs = st.builds(ActorRef, names, names, st.integers(0, 2**63 - 1))
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Sampled,
        number=st.integers(-(2**63), 2**64 - 1),
        ratio=finite,
        name=texts,
        flag=st.booleans(),
        blob=st.binary(max_size=50),
        ref=refs,
        parts=st.lists(st.builds(Part, texts, finite), max_size=3).map(tuple),
        scores=st.dictionaries(texts, st.lists(st.integers(0, 9), max_size=3), max_size=3),
        note=st.none() | texts,
        mode=st.sampled_from(["fast", "slow"]),
    ),
    st.builds(Positional, number=st.integers(0, 9), text=texts),
)


def sample() -> Sampled:
    return Sampled(1, 0.5, "n", True, b"b", ActorRef("a", "b", 3))


def envelope(message: Message, **changes: object) -> Envelope:
    here, there = ActorRef("tcp://a:1", "x", 5), ActorRef("tcp://b:2", "y", 0)
    body = msgspec.Raw(encode_message(message))
    made = Envelope(PROTOCOL_VERSION, here, there, Kind.ASK, 9, 4, 1.5, type(message).lane, body)
    return msgspec.structs.replace(made, **changes)


def round_trip(message: AnyMessage) -> Message:
    return decode_message(decode_envelope(encode_envelope(envelope(message))).body)


@given(messages)
def test_every_message_survives_the_wire(message: Message) -> None:
    received = round_trip(message)
    assert received == message
    assert type(received) is type(message)


@given(messages, refs, refs, st.sampled_from(Kind), st.integers(0, 2**63), durations | st.none())
def test_every_header_survives_the_wire(
    message: Message,
    source: ActorRef,
    destination: ActorRef,
    kind: Kind,
    number: int,
    seconds: float | None,
) -> None:
    sent = envelope(
        message,
        source=source,
        destination=destination,
        kind=kind,
        sequence=number,
        correlation=number,
        seconds_left=seconds,
    )
    received = decode_envelope(encode_envelope(sent))
    assert bytes(received.body) == bytes(sent.body)
    blank = msgspec.Raw()
    assert msgspec.structs.replace(received, body=blank) == msgspec.structs.replace(
        sent, body=blank
    )


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_worse(garbage: bytes) -> None:
    for decode in (decode_envelope, decode_message):
        try:
            decode(garbage)
        except FrameRejected:
            continue


@given(messages, st.data())
def test_a_damaged_frame_is_refused_or_still_typed(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode_envelope(envelope(message)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = decode_message(decode_envelope(bytes(frame)).body)
    except FrameRejected:
        return
    assert isinstance(received, Message)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81" * 100_000,
        b"\xc9\xff\xff\xff\xff\x01",
    ],
)
def test_frames_that_announce_more_than_they_hold_are_refused(bomb: bytes) -> None:
    with pytest.raises(FrameRejected):
        decode_envelope(bomb)
    with pytest.raises(FrameRejected):
        decode_message(bomb)


def test_the_header_is_decoded_without_the_body() -> None:
    sent = envelope(sample(), body=msgspec.Raw(msgpack.packb({"type": "NeverHeardOf"})))
    assert decode_envelope(encode_envelope(sent)).destination == sent.destination


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(FrameRejected, match="NeverHeardOf"):
        decode_message(msgpack.packb({"type": "NeverHeardOf", "x": 1}))


@pytest.mark.parametrize(
    "body", [{}, {"x": 1}, {"type": 5}, [], [5], ["Positional"], 7, None, "Sampled", {"type": None}]
)
def test_a_body_that_is_no_message_is_refused(body: object) -> None:
    with pytest.raises(FrameRejected):
        decode_message(msgpack.packb(body))


def test_a_field_of_the_wrong_type_is_refused_with_its_path() -> None:
    fields = msgpack.unpackb(encode_message(sample()))
    fields["parts"] = [{"label": "a", "weight": "heavy"}]
    with pytest.raises(FrameRejected, match=r"parts\[0\]\.weight"):
        decode_message(msgpack.packb(fields))


def test_a_missing_field_is_refused_by_name() -> None:
    fields = msgpack.unpackb(encode_message(sample()))
    del fields["ratio"]
    with pytest.raises(FrameRejected, match="ratio"):
        decode_message(msgpack.packb(fields))


def test_an_unknown_field_is_refused_by_name() -> None:
    fields = msgpack.unpackb(encode_message(sample()))
    fields["from_the_future"] = [1, 2, 3]
    with pytest.raises(BadInput, match=r"Sampled .* unknown field `from_the_future`") as refusal:
        decode_message(msgpack.packb(fields))
    assert refusal.value.reason == "wrong_type"


def test_an_element_too_many_of_a_positional_message_is_refused() -> None:
    elements = msgpack.unpackb(encode_message(Positional(3, "x")))
    with pytest.raises(BadInput, match=r"Positional .* at most length 2"):
        decode_message(msgpack.packb([*elements, "more"]))


def test_an_element_too_many_in_the_header_is_refused() -> None:
    elements = msgpack.unpackb(encode_envelope(envelope(sample())))
    with pytest.raises(BadInput, match="at most length 9") as refusal:
        decode_envelope(msgpack.packb([*elements, "trace"]))
    assert refusal.value.reason == "wrong_type"


def test_a_header_that_a_later_version_made_longer_is_refused_by_its_version() -> None:
    elements = msgpack.unpackb(encode_envelope(envelope(sample(), version=99)))
    with pytest.raises(BadInput, match="version 99"):
        decode_envelope(msgpack.packb([*elements, "trace"]))


def test_another_protocol_version_is_refused() -> None:
    with pytest.raises(FrameRejected, match="version 99"):
        decode_envelope(encode_envelope(envelope(sample(), version=99)))


@pytest.mark.parametrize("bad", ["\x1b[2J", "a\nb", "\0", "\u202e", "\x7f", "\u2028"])
@pytest.mark.parametrize("field", ["address", "name"])
def test_a_reference_with_control_characters_is_refused(bad: str, field: str) -> None:
    good = ActorRef("tcp://a:1", "x", 5)
    with pytest.raises(BadInput, match="control characters"):
        msgspec.structs.replace(good, **{field: bad})
    frame = encode_envelope(envelope(sample(), source=ActorRef("spoilt", "spoilt", 5)))
    forged = frame.replace(b"\xa6spoilt", b"\xa6" + bad.encode().ljust(6)[:6])
    with pytest.raises(BadInput) as refusal:
        decode_envelope(forged)
    assert refusal.value.reason == "wrong_type"
    assert str(refusal.value).isprintable()


def test_a_reference_with_control_characters_in_a_message_is_refused() -> None:
    body = encode_message(msgspec.structs.replace(sample(), ref=ActorRef("tcp://a:1", "spoilt", 5)))
    with pytest.raises(BadInput, match="control characters"):
        decode_message(body.replace(b"spoilt", b"\x1b[31m!"))


def test_what_a_refusal_quotes_does_not_steer_a_terminal() -> None:
    with pytest.raises(BadInput) as refusal:
        decode_message(msgpack.packb({"type": "Sampled\x1b[2J\n", "number": "x"}))
    assert str(refusal.value).isprintable()


def test_an_annotation_that_names_nothing_is_refused_and_does_not_crash() -> None:
    with pytest.raises(FrameRejected, match="NoSuchType"):
        decode_message(msgpack.packb({"type": "Dangling", "field": 1}))


def test_frames_over_the_limit_are_refused_on_both_sides() -> None:
    large = msgspec.structs.replace(sample(), blob=b"x" * FRAME_LIMIT)
    with pytest.raises(FrameRejected, match="limit"):
        encode_envelope(envelope(large))
    with pytest.raises(FrameRejected, match="limit"):
        decode_envelope(b"x" * (FRAME_LIMIT + 1))


def test_the_msgpack_package_reads_our_frames() -> None:
    elements = msgpack.unpackb(encode_envelope(envelope(sample())))
    assert elements[:8] == [
        PROTOCOL_VERSION,
        ["tcp://a:1", "x", 5],
        ["tcp://b:2", "y", 0],
        int(Kind.ASK),
        9,
        4,
        1.5,
        "ordinary",
    ]
    assert elements[8]["type"] == "Sampled"
    assert elements[8]["ref"] == ["a", "b", 3]


def test_a_second_type_of_the_same_name_is_an_error() -> None:
    with pytest.raises(TypeError, match="Sampled"):
        type("Sampled", (Message,), {"__module__": "elsewhere"})


def test_messages_are_immutable() -> None:
    with pytest.raises(AttributeError):
        sample().number = 2  # type: ignore[misc]


def test_a_reference_names_its_process_and_prints_readably() -> None:
    ref = ActorRef("tcp://10.0.0.1:7777", "node/worker", actor_incarnation(12345, 7))
    assert ref.process == 12345
    assert str(ref) == f"node/worker@tcp://10.0.0.1:7777#{ref.incarnation:x}"
    assert len({ref, ActorRef(ref.address, ref.name, ref.incarnation)}) == 1
