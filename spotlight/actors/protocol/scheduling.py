"""Pull scheduling: dispatcher, leaders, members; a leader passes on what is not for itself."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Commit, Record, Request, WorkerName, WorkerState


class HeldLease(Record, frozen=True):
    """A lease as its holder knows it: a coordinator that came back learns from it who works on
    what.
    """

    lease: int
    requests: tuple[str, ...]
    """Ids, in the order of the grant."""


class Pull(Message, frozen=True):
    """An SP group says what it can take and what it works on.

    Sent whenever either changes and every few seconds; the latest one counts. It renews the leases
    that it lists, so a group whose loop does not turn loses them.
    """

    worker: WorkerName
    epoch: int
    members: int
    """Of the group; 0 for a worker that follows another and only gives back what it still has."""
    credits: int
    """Leases it can take now, in all."""
    batch: int
    """Requests that fit one lease."""
    rollout_versions: tuple[int, ...]
    evaluation_versions: tuple[int, ...]
    prompts: tuple[str, ...] = ()
    """Prompts denoised lately: their embeddings are still there."""
    leases: tuple[HeldLease, ...] = ()
    followers: tuple[WorkerName, ...] = ()
    """The workers of the other members; they pull nothing meanwhile."""


class Grant(Message, frozen=True):
    """Dispatcher to leader to member: a lease on a batch of requests of one kind, one weights
    version, the same settings, and the same number of steps taken. Where that is all steps, the
    images are decoded and scored.
    """

    lease: int
    deadline_s: float
    """Seconds the holder has before it must renew."""
    requests: tuple[Request, ...]
    commits: tuple[Commit | None, ...]
    """Where to go on, for each request; None from its first step."""
    commit_every: int
    """Commit after so many steps; 0 only when told to."""


class Revoke(Message, frozen=True):
    """Dispatcher to leader to member: nobody wants these leases' results any more; drop them."""

    lane = "system"

    leases: tuple[int, ...]


class Recall(Message, frozen=True):
    """Dispatcher to leader to member: a group that is free will go on with these: commit at the
    next step and give the leases back.
    """

    leases: tuple[int, ...]


class LeaseFailed(Message, frozen=True):
    """Member to leader to dispatcher: the batch cannot be done here."""

    worker: WorkerName
    epoch: int
    lease: int
    error: str
    what: Literal["denoising", "commits", "scoring"] = "denoising"
    """Which part failed; with `commits`, those that came with the lease cannot be used, and nothing
    else is wrong."""
    failed: tuple[str, ...] = ()
    """Ids of the requests that cannot be done, when that is known: the others are only given back.
    """


class CannotServe(Message, frozen=True):
    """Leader to job runner: the model of the job cannot be loaded here, so this worker takes
    nothing.
    """

    worker: str
    reason: str


class StateChanged(Message, frozen=True):
    """Worker to job runner: what it does from now on."""

    worker: WorkerName
    state: WorkerState
    detail: str = ""


class CommitSteps(Message, frozen=True):
    """Member to leader to dispatcher: should this group be lost, others go on from here. Answered
    with a `Receipt` once it is durable.

    The last step is committed, too: the images then only wait for their rewards.
    """

    worker: WorkerName
    epoch: int
    lease: int
    requests: tuple[str, ...]
    """Ids, in the order of the bundle's rows."""
    step: int
    bundle: BundleOffer
    cost_s: float
    """Time for which committing kept the accelerator from denoising."""


class ReturnLease(Message, frozen=True):
    """Member to leader to dispatcher: another group must do this; it is nobody's failure. What was
    committed of it is told before.
    """

    worker: WorkerName
    epoch: int
    lease: int


class Completed(Message, frozen=True):
    """Member to leader to dispatcher: the batch is denoised and scored. Answered with a `Receipt`
    once it is durable.
    """

    worker: WorkerName
    epoch: int
    lease: int
    requests: tuple[str, ...]
    """Ids, in the order of the bundle's rows and of the rewards."""
    bundle: BundleOffer
    """That of the commit of the last step."""
    rewards: tuple[float, ...]
    """In [0, 1]."""
    steps: int
    """Denoising steps taken here."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Time that they took, without waiting and delivery."""
    members: int = 1
    """With so many members all these steps were taken; 0 if the group changed on the way."""
    scoring_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """That scoring took, beside whatever else the worker did."""


class Receipt(Message, frozen=True):
    """How many requests of a `Completed` or `CommitSteps` counted; the others were done already,
    or the lease was not valid any more.
    """

    accepted: int
    ask_again: bool = False
    """The coordinator has just come back and cannot tell yet: send the same again in a second."""
