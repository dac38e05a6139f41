"""The contents of control frames: typed MessagePack, decoded and validated in one step.

A frame is an `Envelope`: a positional header and the encoded message as an untouched slice of
bytes, so a transport or a router never decodes a body that is not for it. A message is a
MessagePack map that names its type in `type`; any MessagePack library can read it.

Invariants: nothing read from a wire can run code; what decodes has the declared types and ranges;
what does not is a `BadInput` with its reason, never another error, and so is a field that the
receiver does not know; a header that encodes here decodes there.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from spotlight.errors import FrameRejected
from spotlight.transport.control.bad_input import BadInput, clipped

PROTOCOL_VERSION = 1
FRAME_LIMIT = 16 * 1024 * 1024
"""Bytes of the largest frame; bulk data travels on the tensor transports."""

NAME_LIMIT = 1024
"""Characters of an address or a name."""
GREATEST_SECONDS = 1e9
"""The longest time of an ask, about thirty years: it is finite, so that it can be added to a clock.
"""

Lane = Literal["ordinary", "system"]
Name = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=GREATEST_SECONDS)]

_ACTOR_BITS = 20
"""Low bits of an incarnation that count the actors of one process; the bits above name the
process."""

_MALFORMED = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)


class ActorRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where an actor is. A value: hashable, printable, sendable, and never proof of life.

    Raises `BadInput` when its texts hold control characters: they go to logs and terminals.
    """

    address: Name
    """Address of the process's control transport."""
    name: Name
    """Name in that process; a child's begins with its parent's and a slash."""
    incarnation: Count
    """Differs for every start of an actor; 0 means whichever is there now."""

    def __post_init__(self) -> None:
        # A pattern in the type would take ten times as long, and this is in every frame.
        if not (self.address.isprintable() and self.name.isprintable()):
            text = f"{self.name!r} at {self.address!r} is not an actor: it has control characters"
            raise BadInput("wrong_type", text)

    @property
    def process(self) -> int:
        """The incarnation of the process that the actor lives in; 0 if the reference does not
        say."""
        return self.incarnation >> _ACTOR_BITS

    def __str__(self) -> str:
        return f"{self.name}@{self.address}#{self.incarnation:x}"


def actor_incarnation(process: int, count: int) -> int:
    """The incarnation of the `count`-th actor that a process starts."""
    return (process << _ACTOR_BITS) + count


_types: dict[str, type[Message]] = {}
_decoders: dict[str, msgspec.msgpack.Decoder[Message]] = {}


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that actors say to each other. Subclassing registers the type by its class
    name.

    A message with a field that its type has not is refused: dropped, an order for a part of
    something would be read as one for the whole. Structs in its fields should say
    `forbid_unknown_fields` as well; a dataclass cannot.

    Raises `TypeError` when another type of the same name exists, since names are what travels.
    """

    lane: ClassVar[Lane] = "ordinary"
    """`system` overtakes ordinary messages in the receiver's mailbox."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _types.get(cls.__name__)
        if known is not None and _origin(known) != _origin(cls):
            raise TypeError(
                f"message type {cls.__name__} of {cls.__module__} is already defined in "
                f"{known.__module__}; names of messages are unique, choose another"
            )
        _types[cls.__name__] = cls
        _decoders.pop(cls.__name__, None)


AnyMessage = TypeVar("AnyMessage", bound=Message)


def _origin(message_type: type) -> tuple[str, str]:
    return message_type.__module__, message_type.__qualname__


class Kind(enum.IntEnum):
    """What the receiver's runtime does with an envelope."""

    TELL = 0
    ASK = 1
    REPLY = 2
    FAILURE = 3
    """Answers an ask that has no reply."""
    SYSTEM = 4
    """A runtime says it to a runtime; no actor sees it."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a frame and its undecoded body. Positional, and `version` stays the first."""

    version: int
    source: ActorRef
    destination: ActorRef
    kind: Kind
    sequence: Count
    """Rises with each frame of the sending process."""
    correlation: Count
    """Ties a reply to its ask; 0 for neither."""
    seconds_left: Seconds | None
    """The asker gives up so many seconds from now; it is a duration, because clocks differ between
    machines."""
    lane: Lane
    body: msgspec.Raw


class _TypeTag(msgspec.Struct):
    """The part of a message that names its type."""

    type: str


class _Versioned(msgspec.Struct, frozen=True, array_like=True):
    """The part of a header that no version of the protocol changes."""

    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_versioned = msgspec.msgpack.Decoder(_Versioned).decode
_decode_tag: msgspec.msgpack.Decoder[_TypeTag | list[msgspec.Raw]] = msgspec.msgpack.Decoder(
    _TypeTag | list[msgspec.Raw]
)


def encode_message(message: Message) -> bytes:
    """Encode one message. Raises `FrameRejected` when a field holds what MessagePack cannot."""
    try:
        return _encode(message)
    except _MALFORMED as error:
        raise FrameRejected(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode_message(body: bytes | msgspec.Raw) -> Message:
    """Decode and validate one message. Raises `BadInput`."""
    name = ""
    try:
        name = _type_name(body)
        return _decoder(name).decode(body)
    except msgspec.ValidationError as error:
        text = f"a message {clipped(name) or 'without a type'} was refused: {error}"
        raise BadInput("wrong_type", text) from error
    except _MALFORMED as error:
        raise BadInput("malformed", f"a message body was refused: {error}") from error


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode a frame. Raises `FrameRejected` when it is larger than `FRAME_LIMIT`, or when its
    header holds what the receiver would refuse."""
    _check_header(envelope)
    frame = _encode(envelope)
    if len(frame) > FRAME_LIMIT:
        raise FrameRejected(
            f"a frame of {len(frame)} bytes to {envelope.destination} is over the limit of "
            f"{FRAME_LIMIT}; send bulk data as a tensor bundle"
        )
    return frame


def decode_envelope(frame: bytes) -> Envelope:
    """Decode the header of a frame and leave its body alone. Raises `BadInput`."""
    if len(frame) > FRAME_LIMIT:
        text = f"a frame of {len(frame)} bytes is over the limit of {FRAME_LIMIT}"
        raise BadInput("oversized", text)
    try:
        envelope = _decode_envelope(frame)
    except msgspec.ValidationError as error:
        _check_version(frame)
        raise BadInput("wrong_type", f"a frame was refused: {error}") from error
    except _MALFORMED as error:
        raise BadInput("malformed", f"a frame was refused: {error}") from error
    if envelope.version != PROTOCOL_VERSION:
        raise other_version(envelope.version)
    return envelope


def other_version(version: int) -> BadInput:
    """The error that says to both sides what to do about different versions."""
    return BadInput(
        "unknown_version",
        f"the sender speaks protocol version {version}, the receiver {PROTOCOL_VERSION}; "
        "install the same version of Spotlight on both machines",
    )


def _check_version(frame: bytes) -> None:
    """A header that is not understood may be one of a later version; say so, then."""
    try:
        version = _decode_versioned(frame).version
    except _MALFORMED:
        return
    if version != PROTOCOL_VERSION:
        raise other_version(version)


def _check_header(envelope: Envelope) -> None:
    """Refuse what `decode_envelope` would: nobody shall be cut off for an honest mistake."""
    seconds = envelope.seconds_left
    if seconds is not None and not 0 <= seconds <= GREATEST_SECONDS:
        raise FrameRejected(
            f"an ask of {envelope.destination} cannot wait {seconds} s; "
            f"give it between 0 and {GREATEST_SECONDS:g}"
        )
    for ref in (envelope.source, envelope.destination):
        if len(ref.address) > NAME_LIMIT or len(ref.name) > NAME_LIMIT:
            raise FrameRejected(
                f"{clipped(str(ref))} has an address or a name of over {NAME_LIMIT} characters; "
                "choose a shorter one"
            )


def _type_name(body: bytes | msgspec.Raw) -> str:
    """The type that a message says it is: its `type`, or its first element if it is an array."""
    tag = _decode_tag.decode(body)
    if isinstance(tag, _TypeTag):
        return tag.type
    if not tag:
        raise ValueError("a message without a type")
    return msgspec.msgpack.decode(tag[0], type=str)


def _decoder(name: str) -> msgspec.msgpack.Decoder[Message]:
    """The decoder of a registered type, built on first use because its annotations may refer to
    later types."""
    decoder = _decoders.get(name)
    if decoder is None:
        message_type = _types.get(name)
        if message_type is None:
            raise BadInput(
                "unknown_type",
                f"message type {clipped(name)!r} is not known here; "
                "install the same version of Spotlight on both machines",
            )
        try:
            decoder = msgspec.msgpack.Decoder(message_type)
        except NameError as error:
            raise ValueError(f"message type {name} has an unknown annotation: {error}") from error
        _decoders[name] = decoder
    return decoder
