"""What `local_cluster` hands its daemons as it starts them, over their standard input: their keys.

A cluster of one machine has no tokens on disk: who starts it makes all keys, knows everybody, and
hands the same keys to a daemon that it starts again.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from spotlight.actors.protocol.door import Pool
from spotlight.transport.control.keys import KeyPair
from spotlight.types import Record

T = TypeVar("T", bound="_Handed")


class _Handed(Record, frozen=True):
    def encode(self) -> bytes:
        """As the child's standard input holds it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls: type[T], data: bytes) -> T:
        """Raises `msgspec.DecodeError` for what is none: nobody but a program of ours hands it."""
        return msgspec.msgpack.decode(data, type=cls)


class KnownNode(Record, frozen=True):
    """A node that need not enroll."""

    name: str
    pool: Pool
    key: str


class CoordinatorKeys(_Handed, frozen=True):
    """Handed to `spotlight-coordinator`."""

    pair: KeyPair
    operator: str
    """The public key of who started it."""
    nodes: tuple[KnownNode, ...]


class NodeKeys(_Handed, frozen=True):
    """Handed to `spotlight-node`."""

    pair: KeyPair
    coordinator: str
    """Its control address, with its key."""
