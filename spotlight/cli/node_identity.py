"""Who a node is to its coordinator: by a join token, by a key in a file, or by what the process
that started it hands over.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from pathlib import Path

from spotlight.actors.node.enrolment import Enrolment
from spotlight.actors.protocol.door import Enroll, Pool
from spotlight.actors.runtime.loop import unless_told
from spotlight.errors import UserError
from spotlight.running.handed_keys import NodeKeys
from spotlight.running.join_option import resolve, transport_of
from spotlight.running.key_files import key_pair_of
from spotlight.transport.control.keys import KeyPair


@dataclass(frozen=True)
class NodeIdentity:
    """See the module's docstring."""

    pair: KeyPair
    coordinator: str
    """Its control address, with its key."""
    pool: Pool | None
    """None if only the coordinator can tell: the node has to enroll first."""
    enrolment: Enrolment | None
    """None if the coordinator knew the node before it was started."""

    async def settled_pool(self) -> Pool | None:
        """The node's pool, once its coordinator knows it; None if a signal tells the process to end
        before. Raises `AccessRefused`."""
        if self.pool is not None or self.enrolment is None:
            return self.pool
        enrolled = await unless_told(self.enrolment.insist())
        return enrolled.pool if enrolled is not None else None


def handed_identity(pool: Pool | None, handed: bytes) -> NodeIdentity:
    """That of a node which another process has started for itself."""
    keys = NodeKeys.decode(handed)
    return NodeIdentity(keys.pair, keys.coordinator, pool, None)


def joining_identity(
    join: str, name: str, pool: Pool | None, key_file: Path | None
) -> NodeIdentity:
    """That of a node which joins by a token. With a key in a file it may be known already.

    Raises `UserError` that names the option.
    """
    if key_file is not None:
        if pool == "spot":
            raise UserError(
                "--key-file: the key of a spot node is in its memory alone, since anybody may get"
                " the machine next; leave it out"
            )
        pool = "reserved"
    token = resolve("--join", join)
    pair, was_there = KeyPair.new(), False
    if key_file is not None:
        pair, was_there = key_pair_of("--key-file", key_file)
    enrolment = Enrolment(
        token.coordinator,
        Enroll(name, pair.public, pool),
        lambda: transport_of(token),
        random.Random(secrets.randbits(64)),
    )
    return NodeIdentity(pair, token.coordinator, pool if was_there else None, enrolment)
