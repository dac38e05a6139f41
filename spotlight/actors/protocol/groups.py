"""SP groups: what a node is asked for, how groups form and break, and how their members keep step.

A node plans the groups of its own workers. Every plan of a group has an epoch that only grows on
that node; whatever a group says carries it, and what comes from an older one changes nothing.
"""

from __future__ import annotations

from spotlight.actors.runtime import ActorRef
from spotlight.transport.control import Message
from spotlight.types import Record, Request, RequestKind, WorkerName


class DemandClass(Record, frozen=True):
    """Micro-batches of one kind that wait for a node's workers."""

    kind: RequestKind
    batches: int
    """This node's share."""
    steps: int
    step_s: dict[int, float]
    """Seconds of a denoising step by degree: measured, or estimated. Only the degrees that the
    model can do at this resolution; 1 is always among them.
    """


class Demand(Message, frozen=True):
    """Coordinator to node, whenever it changes much and every few seconds: what its groups should
    be good for.
    """

    job_id: str
    heads: int
    """Attention heads of the model: they say how a degree is laid out."""
    classes: tuple[DemandClass, ...]
    seconds_left: float | None
    """Until the phase ends; None while that is not known."""
    degree: int | None
    """The user wants groups of this degree wherever so many members are left; None: as the plan
    finds best."""
    apart: tuple[str, ...]
    """Workers that train: they denoise alone, so that nobody shares their fate."""


class Seat(Record, frozen=True):
    """One member's place in a group; its index is the rank. Rank 0 leads."""

    worker: WorkerName
    worker_epoch: int
    leader: ActorRef
    member: ActorRef


class FormGroup(Message, frozen=True):
    """Node to leader to member: from now on you are in this group, and in no other."""

    lane = "system"

    epoch: int
    seats: tuple[Seat, ...]
    ring: int
    """Of the degree, so many parts are a ring; the rest is Ulysses."""
    at_once: bool
    """Someone of your last group is lost: do not wait for a step to end."""


class GroupReady(Message, frozen=True):
    """Member to its leader: the group can denoise."""

    epoch: int
    seconds: float
    """From the order to form it."""


class GroupFailed(Message, frozen=True):
    """Member to leader to node: the group of this epoch did not form, or broke; the members named
    are why (nobody if that is not known).
    """

    epoch: int
    reason: str
    culprits: tuple[WorkerName, ...] = ()


class HeldVersions(Message, frozen=True):
    """A group's leaders to the one of rank 0, when it changes and every few seconds: what their
    member holds. A group serves what all of it hold.
    """

    epoch: int
    worker: WorkerName
    rollout: tuple[int, ...]
    evaluation: tuple[int, ...]


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
    """The member of rank 0 to the others: the next stretch of steps is of this batch; meet me in
    it.
    """

    epoch: int
    stretch: int
    """Number within the epoch; all ranks run the stretches in this order."""
    requests: tuple[Request, ...]
    checksum: int
    """Of the weights."""


class CannotFollow(Message, frozen=True):
    """The answer of a member that cannot take part."""

    epoch: int
    worker: WorkerName
    reason: str


class Alive(Message, frozen=True):
    """Leader to node, in answer to `AreYouThere` and when it changes: this loop turns."""

    worker: WorkerName
    epoch: int
    """Of the latest order to form a group; 0 before the first."""
    ready_for: str
    """The job whose model and weights the member has; empty for none."""
    draining: bool = False
    """Nothing more is taken, because the node is to leave."""
    forming: bool = False
    """That group cannot denoise yet, or no more."""
