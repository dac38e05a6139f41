"""What a node hands each worker process as it starts it, over its standard input: its keys.

They stand in no argument, environment or file, and are gone with the process.
"""

from __future__ import annotations

import msgspec

from spotlight.actors.protocol.door import Role
from spotlight.transport.control.keys import KeyPair
from spotlight.types import Record


class WorkerKeys(Record, frozen=True):
    """Whom a worker process is, and whom it knows."""

    start: str
    """What its node tells this process from others of the same name by; see `WorkerUp`."""
    pair: KeyPair
    """Its own; that of its slot."""
    guests: dict[str, Role]
    """Its node, the other workers of the node, and the coordinator, by their public keys."""

    def encode(self) -> bytes:
        """As the child's standard input holds it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> WorkerKeys:
        """Raises `msgspec.DecodeError` for what is none: nobody but a node starts a worker."""
        return msgspec.msgpack.decode(data, type=cls)
