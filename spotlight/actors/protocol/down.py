"""Down: the plans of the coordinator for nodes, and of nodes for their workers; and leases.

A plan is complete and has a number that only grows, so an older plan changes nothing. A plan is
repeated until the report agrees with it, so nothing important is sent only once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import WorkSpec
from spotlight.jobs.hub_names import HubFile
from spotlight.policies.departure import LONGEST_NOTICE_S
from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.transport.control import Message
from spotlight.types import (
    BundleOffer,
    Commit,
    NodeName,
    Record,
    Request,
    RequestKind,
    StoreEndpoint,
    WorkerName,
)

MOST_HUB_FILES = 1024
"""Most files of a checkpoint."""
MOST_DROPPED = 1024
"""Most bundles that one message drops."""
NoticeSeconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_NOTICE_S)]
"""Seconds from a notice until the node is taken: a clock is set by it."""


class Keeper(Record, frozen=True):
    """A reserved node in whose store a node's workers leave samples and commits."""

    node: NodeName
    store: StoreEndpoint
    """Where they are left, with a token for this node's folders alone."""


class Membership(Record, frozen=True):
    """The actors of a job: its runner, the dispatcher that workers pull from, and the stores for
    results."""

    runner: ActorRef
    """Whom trainer ranks obey, and who hears what workers do."""
    dispatcher: ActorRef
    sink: StoreEndpoint
    """The coordinator's store: pictures are left there, and whatever the keeper does not take."""
    keeper: Keeper | None = None
    """Samples and commits are left there first; None: in the coordinator's store."""
    images: BundleOffer | None = None
    """The images that prompts come with are there; None where they have none."""


class Keeping(Record, frozen=True):
    """What a node that keeps samples and commits is to know of them."""

    leases_from: int = 0
    """Nobody needs any more what was made under an earlier lease."""
    revoked: dict[NodeName, int] = msgspec.field(default_factory=dict)
    """Nodes that were shown out, each with the number from which on its tokens are good."""


class WeightsOffer(Record, frozen=True):
    """A weights version, and where its bundles can be read: of each role one per trainer rank,
    which together hold all weights.
    """

    version: int
    rollout: tuple[BundleOffer, ...]
    evaluation: tuple[BundleOffer, ...] = ()
    """The average that is validated; empty if this version is not."""

    def __post_init__(self) -> None:
        if not self.rollout:
            raise ValueError("rollout: a weights version has at least one bundle")
        for parts in (self.rollout, self.evaluation):
            if len({part.key for part in parts}) < len(parts):
                raise ValueError("rollout, evaluation: a bundle is named twice")

    @property
    def parts(self) -> tuple[BundleOffer, ...]:
        """All of both roles."""
        return (*self.rollout, *self.evaluation)

    @property
    def store(self) -> StoreEndpoint:
        """Where the first part is; with a copy, all of them."""
        return self.rollout[0].store

    def has_bytes_of(self, other: WeightsOffer) -> bool:
        """Whether these are the same weights, wherever they are."""
        return [(part.nbytes, part.checksum) for part in self.parts] == [
            (part.nbytes, part.checksum) for part in other.parts
        ]


class CheckpointSource(Record, frozen=True):
    """Where a node takes a checkpoint of the hub from."""

    listing: BundleOffer | None
    """The list of the files in the store of another node that has it; None: the hub."""
    files: Annotated[tuple[HubFile, ...], msgspec.Meta(max_length=MOST_HUB_FILES)] = ()
    """The files that another node has, and their checksums as the hub says them to the coordinator.
    Nothing else may come from there."""


class JobPlan(Record, frozen=True):
    """The job, as far as a node or a worker needs to know it."""

    job_id: str
    membership: Membership
    weights: tuple[WeightsOffer, ...] = ()
    """Versions to get and to serve, and where to read each; a node reads from its trainer or from
    another node, a worker from its own node."""
    versions: tuple[int, ...] = ()
    """Versions that are still needed: what is held of others is dropped. Empty while a job runner
    that has just come has yet to say; then nothing is dropped."""
    lent: tuple[WeightsOffer, ...] = ()
    """Weights of an update, for whoever computes slices of it, and where to read each: the version
    is how many updates were taken before. Only nodes whose workers compute slices have any."""
    trainers_term: int = 0
    """Trainer ranks that were built by an order of an earlier term than this free what they hold;
    others train instead."""
    checkpoint: CheckpointSource | None = None
    """Where a node whose hub's cache lacks the job's checkpoint takes it from. None: wait; another
    node downloads it, or feeds others."""
    spec: WorkSpec | None = None
    """Left out for those who report to have it."""
    keeping: Keeping | None = None
    """What a node that keeps samples and commits is to know of them; None for any other."""


class Seat(Record, frozen=True):
    """One member's place in a group; its index is the rank. Rank 0 leads."""

    worker: WorkerName
    leader: ActorRef
    member: ActorRef


class GroupPlan(Record, frozen=True):
    """The SP group that a worker is to be in, and no other."""

    epoch: int
    """Grows with every group that the node plans."""
    seats: tuple[Seat, ...]
    ring: int
    """How many parts of the degree are a ring; the rest is Ulysses."""
    at_once: bool
    """Someone of the worker's last group is lost: do not wait for a step to end."""


class WorkerPlan(Message, frozen=True):
    """Node to leader, which passes it on to its member and its trainer rank; answered with a
    `WorkerReport`. Sent whenever it changes, and again as the question whether the worker's loop
    still turns.
    """

    number: int
    """The number among all plans of the node."""
    job: JobPlan | None = None
    """None: there is no job; drop what belongs to one, and stay warm."""
    group: GroupPlan | None = None
    """None before the first: the worker is alone."""
    stop_in_s: float | None = None
    """The node will be taken: commit now, go on, and stop so many seconds from now, with everything
    committed and given back. None: no notice stands."""
    store: StoreEndpoint | None = None
    """The store of the node, where its own workers leave gradients for trainer ranks to fetch."""


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


class Demand(Record, frozen=True):
    """The work that the SP groups of a node should be planned for."""

    job_id: str
    heads: int
    """Attention heads of the model: they say how a degree is laid out."""
    classes: tuple[DemandClass, ...]
    seconds_left: float | None
    """Seconds until the phase ends; None while that is not known."""
    degree: int | None
    """The user wants groups of this degree wherever so many members are left; None: as the plan
    finds best."""
    apart: tuple[str, ...]
    """Workers that train: they denoise alone, so that nobody shares their fate."""


class UserNotice(Record, frozen=True):
    """A user gives a node notice, or takes it back."""

    number: int
    """Grows with every notice: each is followed once."""
    notice_s: NoticeSeconds
    """What is left of it."""
    cancel: bool


class SickWorker(Record, frozen=True):
    """A worker's process that fails what others can do: its node ends it."""

    worker: WorkerName
    epoch: int
    """The epoch of the process; a later one of the name is another."""
    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason")


class NodePlan(Message, frozen=True):
    """Coordinator to node: its whole task. Sent whenever it changes, and in answer to a report that
    does not agree with it.
    """

    lane = "system"

    number: int
    """The number among all plans of this coordinator."""
    coordinator: ActorRef
    """Whose plan it is: the node watches it."""
    job: JobPlan | None = None
    """The job, with where to pull its weights from."""
    demand: Demand | None = None
    """None where there is nothing to plan."""
    over: bool = False
    """No job runs: workers drop what belongs to one, and stay warm. False without a job: there is
    none for this node yet, so it leaves everything as it is."""
    notice: UserNotice | None = None
    """The latest; None if a user never gave one."""
    sick: tuple[SickWorker, ...] = ()
    """Those of its workers that are still there."""
    give_back_in_s: NoticeSeconds | None = None
    """The node is to give its work back in so many seconds, as after a notice, since it will work
    for another job, or for none; then it comes back. None: it need not."""


class DropBundles(Message, frozen=True):
    """Job runner to a node that keeps samples and commits: nobody needs these. One that is lost
    costs room until `Keeping.leases_from` is above."""

    keys: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_DROPPED)]


class NodeRefused(Message, frozen=True):
    """The coordinator's answer to a node that cannot join, and why."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class Grant(Message, frozen=True):
    """Dispatcher to leader to member: a lease on a batch of requests of one kind, one weights
    version, the same settings, and the same number of steps taken. Where that is all steps, the
    images are decoded and scored: together, if they are to be compared.
    """

    lease: int
    requests: tuple[Request, ...]
    commits: tuple[Commit | None, ...]
    """Where to go on, for each request; None from its first step."""
    commit_every: int
    """Commit after so many steps; 0 only when told to."""
    slice: SliceOrder | None = None
    """What a gradient is of, where it is granted: then there is one request, and nothing is
    denoised."""


class Revoke(Message, frozen=True):
    """Dispatcher to leader to member: the results of these leases are no longer wanted; drop
    them."""

    lane = "system"

    leases: tuple[int, ...]


class Recall(Message, frozen=True):
    """Dispatcher to leader to member: a group that is free will go on with these: commit at the
    next step and give the leases back.
    """

    leases: tuple[int, ...]


class Receipt(Message, frozen=True):
    """How many requests of a `Completed` or `CommitSteps` counted. The others were done already, or
    the lease was no longer valid.
    """

    accepted: int
    ask_again: bool = False
    """The coordinator has just come back and cannot tell yet: send the same again in a second."""
