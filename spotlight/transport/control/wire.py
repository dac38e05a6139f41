"""The messages of two ZeroMQ transports on one connection: a greeting, then batches of frames.

The dialer sends `Hello`; the acceptor answers `Welcome` or `Refusal` with its reason. Both say
which address they have, which must be one of the key that they have proved, and what they speak
(`Dialect`). Either side may say `Refusal` later too, and hears nothing more from then on. After a
welcome each ZeroMQ message is a MessagePack array of binary strings, one per frame: many small
frames cost one send.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

from spotlight.transport.control.bad_input import BadInput
from spotlight.transport.control.codec import FRAME_LIMIT, PROTOCOL_VERSION, other_version
from spotlight.transport.control.dialect import ANY_DIALECT, Dialect

BATCH_FRAMES = 256
BATCH_BYTES = 256 * 1024
MESSAGE_LIMIT = FRAME_LIMIT + 64 * 1024
"""Bytes of the largest ZeroMQ message; a connection that carries a larger one is cut by libzmq."""

Address = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[!-~]+\Z")]
"""An address is visible ASCII."""
Incarnation = Annotated[int, msgspec.Meta(gt=0)]


class Hello(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The dialer says who it is."""

    version: int
    address: Address
    incarnation: Incarnation
    heartbeats: bool = False
    """Whether it pings the acceptor, every `heartbeat_interval_s`."""
    dialect: Dialect = ANY_DIALECT


class Welcome(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The acceptor says who it is; frames may follow."""

    version: int
    address: Address
    incarnation: Incarnation
    dialect: Dialect = ANY_DIALECT


class Refusal(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The sender hears nothing more on this connection."""

    reason: str
    dialect: Dialect = ANY_DIALECT
    """What the sender speaks: before a welcome, another dialect is why."""


class _AnyHello(msgspec.Struct, frozen=True, tag="Hello"):
    """The part of a `Hello` that no version of the protocol changes."""

    version: int
    dialect: Dialect = ANY_DIALECT


class _AnyWelcome(msgspec.Struct, frozen=True, tag="Welcome"):
    """The same of a `Welcome`."""

    version: int
    dialect: Dialect = ANY_DIALECT


_encode = msgspec.msgpack.Encoder().encode
_Frames = Annotated[list[bytes], msgspec.Meta(max_length=BATCH_FRAMES)]
_Payload = Hello | Welcome | Refusal | _Frames
_decoder: msgspec.msgpack.Decoder[_Payload] = msgspec.msgpack.Decoder(_Payload)
_MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
_greetings: msgspec.msgpack.Decoder[_AnyHello | _AnyWelcome] = msgspec.msgpack.Decoder(
    _AnyHello | _AnyWelcome
)


def encode(payload: _Payload) -> bytes:
    """Encode one ZeroMQ message."""
    return _encode(payload)


def decode(payload: bytes | memoryview, *, whole: bool = True) -> _Payload:
    """Decode one ZeroMQ message; `whole` if it had one part only. Raises `BadInput`, for a greeting
    of another version too."""
    if not whole:
        raise BadInput("malformed", "a control message has several parts")
    try:
        received = _decoder.decode(payload)
    except msgspec.ValidationError as error:
        _check_version(payload)
        raise BadInput("wrong_type", f"a control message was refused: {error}") from error
    except _MALFORMED as error:
        raise BadInput("malformed", f"a control message was refused: {error}") from error
    if isinstance(received, Hello | Welcome) and received.version != PROTOCOL_VERSION:
        raise other_version(received.version)
    return received


def _check_version(payload: bytes | memoryview) -> None:
    """A greeting that is not understood may be one of another version; say so, then."""
    try:
        greeting = _greetings.decode(payload)
    except _MALFORMED:
        return
    if greeting.version != PROTOCOL_VERSION:
        raise other_version(greeting.version)
    if greeting.dialect != ANY_DIALECT:
        raise BadInput(
            "unknown_version",
            f"the sender is Spotlight {greeting.dialect}, whose greeting is not understood; install"
            " the same build on both machines",
        )


class Outbox:
    """Frames that wait to be sent to one peer, bounded by number and by bytes."""

    def __init__(self, frame_limit: int = 4096, byte_limit: int = 64 * 1024 * 1024) -> None:
        self._frame_limit = frame_limit
        self._byte_limit = byte_limit
        self._frames: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def offer(self, frame: bytes) -> bool:
        """Append a frame; False when there is no room."""
        if len(self._frames) >= self._frame_limit or self._bytes + len(frame) > self._byte_limit:
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        return True

    def first_batch(self) -> list[bytes]:
        """The frames that the next message carries: at least one, if there are any."""
        batch: list[bytes] = []
        size = 0
        for frame in self._frames:
            size += len(frame)
            if batch and (len(batch) == BATCH_FRAMES or size > BATCH_BYTES):
                break
            batch.append(frame)
        return batch

    def drop_batch(self, batch: list[bytes]) -> None:
        """Forget the first frames, which were sent."""
        for frame in batch:
            self._frames.popleft()
            self._bytes -= len(frame)

    def drain(self) -> list[bytes]:
        """Take everything."""
        frames = list(self._frames)
        self._frames.clear()
        self._bytes = 0
        return frames
