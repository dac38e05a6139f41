"""What two ZeroMQ transports say to each other on one connection: a greeting, then batches of
frames.

The dialer sends `Hello`; the acceptor answers `Welcome` or `Refusal` with its reason. After a
welcome each ZeroMQ message is a MessagePack array of binary strings, one per frame: many small
frames cost one send.
"""

from __future__ import annotations

from collections import deque

import msgspec

from spotlight.errors import FrameRejected
from spotlight.transport.control.codec import FRAME_LIMIT, PROTOCOL_VERSION

BATCH_FRAMES = 256
BATCH_BYTES = 256 * 1024
MESSAGE_LIMIT = FRAME_LIMIT + 64 * 1024
"""Bytes of the largest ZeroMQ message; a connection that carries a larger one is cut by libzmq."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The dialer says who it is."""

    version: int
    address: str
    incarnation: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The acceptor says who it is; frames may follow."""

    version: int
    address: str
    incarnation: int


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The acceptor will not talk to the dialer."""

    reason: str


_encode = msgspec.msgpack.Encoder().encode
_Payload = Hello | Welcome | Refusal | list[bytes]
_decoder: msgspec.msgpack.Decoder[_Payload] = msgspec.msgpack.Decoder(_Payload)


def encode(payload: _Payload) -> bytes:
    """Encode one ZeroMQ message."""
    return _encode(payload)


def decode(payload: bytes | memoryview) -> _Payload:
    """Decode one ZeroMQ message. Raises `FrameRejected`."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise FrameRejected(f"a message on a control connection was refused: {error}") from error


def routing_id(address: str, incarnation: int) -> bytes:
    """The ZeroMQ routing id of a process: unlike a bare address it never means a former process."""
    return f"{address}#{incarnation:x}".encode()


def refusal_of(hello: Hello, identity: bytes) -> str | None:
    """Why a greeting cannot be accepted, or None."""
    if hello.version != PROTOCOL_VERSION:
        return (
            f"protocol version {hello.version} is not spoken here, only {PROTOCOL_VERSION}; "
            "install the same version of Spotlight on both machines"
        )
    if hello.incarnation <= 0 or identity != routing_id(hello.address, hello.incarnation):
        return f"routing id {identity!r} does not belong to {hello.address}"
    return None


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
