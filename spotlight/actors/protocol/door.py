"""At the coordinator's door: how a key gets a role, and loses it.

A join token (`spotlight.join_token`) is a secret that many may hold; the pair of keys derived from
it is a `joiner`'s, or, if the token is a user's, that user's own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.transport.control import Message
from spotlight.transport.control.keys import KEY_PATTERN
from spotlight.types import NodeName, Pool, Priority, Record, Role, TokenRole

__all__ = [
    "AccessRevoked",
    "Enroll",
    "Enrolled",
    "GetGuests",
    "GuestList",
    "Key",
    "KnownNode",
    "KnownToken",
    "NameUnknown",
    "NewToken",
    "NotEnrolled",
    "Pool",
    "RevokeAccess",
    "Role",
    "TokenMade",
    "TokenRole",
]

Key = Annotated[str, msgspec.Meta(pattern=rf"^{KEY_PATTERN}\Z")]


class Enroll(Message, frozen=True):
    """Joiner (or operator) to door: let this key in as that of a node. Answered with `Enrolled` or
    `NotEnrolled`. The same again, while the node is known by this key, changes nothing."""

    node: NodeName
    key: Key
    """The public key of a pair that the node has made for itself."""
    pool: Pool | None = None
    """The pool in which it means to be; None for that of the token."""


class Enrolled(Message, frozen=True):
    """The key is that of a node of this pool from now on."""

    node: NodeName
    pool: Pool


class NotEnrolled(Message, frozen=True):
    """Nothing was changed at the door, and why."""

    reason: str
    soon: bool = False
    """Whether the same may be granted in a few minutes, when who has the name may be gone."""
    is_expected: bool = False
    """Whether nobody has the name now: a node is expected under it, for some minutes at most."""
    token_ended: bool = False
    """Whether the token of whoever asks is used up, expired or revoked."""

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class NewToken(Message, frozen=True):
    """Operator to door: make a join token. Answered with `TokenMade` or `NotEnrolled`."""

    role: TokenRole
    pool: Pool | None
    """The pool of nodes that join by it; None for users."""
    uses: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    """How many nodes may join by it; of no meaning for users."""
    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=10 * 366 * 86_400)]
    """Seconds for which it lets anybody in; only the coordinator's clock counts."""
    priority: Priority = 0
    """The highest one that a submitter may give to its jobs. Tokens for others say 0."""


class TokenMade(Message, frozen=True):
    """The token, to be shown once and kept by nobody."""

    token: str


class RevokeAccess(Message, frozen=True):
    """Operator to door: whoever has this name, of a node or of a token, is to be let in no more,
    and its connections end now. Answered with `AccessRevoked`, `NameUnknown`, or `NotEnrolled` if
    it holds now but could not be written down."""

    name: Annotated[str, msgspec.Meta(max_length=200)]


class AccessRevoked(Message, frozen=True):
    """Done."""

    tokens: tuple[str, ...]
    """Ids of tokens by which the node could come back under another name; of a token's end, none.
    """
    nodes: tuple[str, ...] = ()
    """Names of nodes that came by the token and stay; of a node's end, none."""


class NameUnknown(Message, frozen=True):
    """No node and no token has that name; these are there."""

    nodes: tuple[str, ...]
    tokens: tuple[str, ...]


class GetGuests(Message, frozen=True):
    """Operator or observer to door: who may come in? Answered with a `GuestList`."""


class KnownToken(Record, frozen=True):
    """A join token, without its secret."""

    id: str
    role: TokenRole
    pool: Pool | None
    uses_left: int
    expires_in_s: float | None
    """Negative if it has expired; None if it never does."""
    revoked: bool = False
    priority: int = 0
    """The highest one that a submitter may give to its jobs."""
    software: str = ""
    """The build of Spotlight of whoever came by it last, if that does not fit the coordinator's;
    empty if it does."""

    def __post_init__(self) -> None:
        clean_fields(self, "software")


class KnownNode(Record, frozen=True):
    """A node that has enrolled."""

    name: str
    pool: Pool
    token: str
    """The id of the token by which it came; empty if it needed none."""
    is_connected: bool
    software: str = ""
    """Its build of Spotlight if that does not fit the coordinator's; empty if it does."""
    revoked: bool = False

    def __post_init__(self) -> None:
        clean_fields(self, "software")


class GuestList(Message, frozen=True):
    """Who may come in, and who is there."""

    tokens: tuple[KnownToken, ...]
    nodes: tuple[KnownNode, ...]
    software: str
    """The coordinator's build."""
