"""SP groups: what a node is asked for, how groups form and break, and how their members keep step.

A node plans the groups of its own workers. Every plan of a group has an epoch that only grows on
that node; whatever a group says carries it, and what comes from an older one changes nothing.
"""

from __future__ import annotations

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
