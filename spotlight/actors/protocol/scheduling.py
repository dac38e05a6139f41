"""Pull scheduling: between the dispatcher, group leaders, members and reward workers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Commit, Record, Request, WorkerName


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
    """A lease on a batch of requests of one kind, one weights version, the same settings, and the
    same number of steps taken.
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


class Denoise(Message, frozen=True):
    """Leader to member: do this batch; the fields are those of the `Grant`."""

    lease: int
    requests: tuple[Request, ...]
    commits: tuple[Commit | None, ...]
    commit_every: int


class Denoised(Message, frozen=True):
    """Member to leader: the batch is done; rows of the bundle are in the order of the requests."""

    lease: int
    bundle: BundleOffer
    steps: int
    """Denoising steps taken here."""
    seconds: float
    """Time that they took, without waiting and delivery."""
    members: int = 1
    """With so many members all these steps were taken; 0 if the group changed on the way."""


class StepsCommitted(Message, frozen=True):
    """Member to leader: the batch's progress after `step` steps is in the sink; rows of the bundle
    are in the order of the requests.
    """

    lease: int
    step: int
    bundle: BundleOffer
    cost_s: float
    """Time for which committing kept the accelerator from denoising."""


class Yielded(Message, frozen=True):
    """Member to leader: the batch was stopped before its end because the node must leave; what was
    committed of it is told before.
    """

    lease: int


class DenoiseError(Message, frozen=True):
    """Member to leader: the batch cannot be done here."""

    lease: int
    error: str
    bad_commits: bool = False
    """The commits that came with it cannot be used; nothing else is wrong."""
    failed: tuple[str, ...] = ()
    """Ids of the requests that cannot be done, when that is known: the others are only given back.
    """


class DenoiseFailed(Message, frozen=True):
    """Leader to dispatcher: the batch cannot be done here."""

    worker: WorkerName
    epoch: int
    lease: int
    error: str
    bad_commits: bool = False
    failed: tuple[str, ...] = ()
    """As in `DenoiseError`."""


class CannotServe(Message, frozen=True):
    """Leader to job runner: the model of the job cannot be loaded here, so this worker takes
    nothing.
    """

    worker: str
    reason: str


class CommitSteps(Message, frozen=True):
    """Leader to dispatcher: should this group be lost, others go on from here. Answered with a
    `Receipt` once it is durable.
    """

    worker: WorkerName
    epoch: int
    lease: int
    step: int
    bundle: BundleOffer
    cost_s: float


class ReturnLease(Message, frozen=True):
    """Leader to dispatcher: another group must do this; it is nobody's failure."""

    worker: WorkerName
    epoch: int
    lease: int


class Completed(Message, frozen=True):
    """Leader to dispatcher: the batch is denoised and its bundle is in the sink."""

    worker: WorkerName
    epoch: int
    lease: int
    requests: tuple[str, ...]
    """Ids, in the order of the bundle's rows."""
    bundle: BundleOffer
    steps: int
    seconds: float
    members: int = 1
    """As in `Denoised`."""


class Receipt(Message, frozen=True):
    """How many requests of a `Completed` or `CommitSteps` counted; the others were done already,
    or the lease was not valid any more.
    """

    accepted: int
    ask_again: bool = False
    """The coordinator has just come back and cannot tell yet: send the same again in a second."""


class PullScores(Message, frozen=True):
    """A reward worker asks for denoised batches to score; sent every few seconds like `Pull`, and
    renews the leases that it lists.
    """

    worker: WorkerName
    epoch: int
    credits: int
    leases: tuple[int, ...] = ()


class ScoreGrant(Message, frozen=True):
    """Score these rows of a bundle."""

    lease: int
    deadline_s: float
    bundle: BundleOffer
    rows: tuple[int, ...]
    prompts: tuple[str, ...]


class Scored(Message, frozen=True):
    """One reward per row, in [0, 1]."""

    worker: WorkerName
    epoch: int
    lease: int
    rewards: tuple[float, ...]
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """That scoring took, beside whatever else the worker did."""


class ScoreFailed(Message, frozen=True):
    """The scorer could not score the batch; this is never a reward."""

    worker: WorkerName
    epoch: int
    lease: int
    error: str
