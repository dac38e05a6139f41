"""Between the members of an SP group: how the group forms, and how members stay in step.

Every plan of a group has an epoch that only grows on its node; every message of a member carries
it, and a message of an older epoch changes nothing.
"""

from __future__ import annotations

from spotlight.transport.control import Message
from spotlight.types import Request, WorkerName


class Introduce(Message, frozen=True):
    """Member to member of a group that forms: what the other needs to connect, and to refuse a
    member that is not of its kind.
    """

    epoch: int
    rank: int
    model: str
    """Fingerprint of the job and its model: it must be the same in all of a group."""
    key: str
    value: bytes
    """An entry of the rendezvous store of torch; both empty in the first of a member's words."""


class Follow(Message, frozen=True):
    """The member of rank 0 to the others: the next run of steps is of this batch; meet me in
    it.
    """

    epoch: int
    run: int
    """Number within the epoch; all ranks take the runs in this order."""
    requests: tuple[Request, ...]
    checksum: int
    """The checksum of the weights."""


class CannotFollow(Message, frozen=True):
    """The answer of a member that cannot take part."""

    epoch: int
    worker: WorkerName
    reason: str
