"""Plans: what a node has its workers be and do.

A plan is whole and has a number that only grows: what an older one says changes nothing, and a plan
is repeated until the report agrees with it. So nothing that matters is told only once.
"""

from __future__ import annotations

from spotlight.actors.runtime import ActorRef
from spotlight.jobs import JobSpec
from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Record, StoreEndpoint, WorkerName


class Membership(Record, frozen=True):
    """Who runs a job, whom its workers pull from and tell what they do, and where results go."""

    runner: ActorRef
    """Whom trainer ranks obey, and who hears what workers do."""
    dispatcher: ActorRef
    sink: StoreEndpoint


class WeightsOffer(Record, frozen=True):
    """A weights version, and where its bundles can be read."""

    version: int
    rollout: BundleOffer
    evaluation: BundleOffer | None = None


class JobPlan(Record, frozen=True):
    """The job, as far as a node or a worker needs to know it."""

    job_id: str
    membership: Membership
    weights: tuple[WeightsOffer, ...] = ()
    """Versions to get and to serve, and where to read each."""
    versions: tuple[int, ...] = ()
    """Versions that are still needed: what is held of others is dropped."""
    spec: JobSpec | None = None
    """Left out for those who report to have it."""


class Seat(Record, frozen=True):
    """One member's place in a group; its index is the rank. Rank 0 leads."""

    worker: WorkerName
    worker_epoch: int
    leader: ActorRef
    member: ActorRef


class GroupPlan(Record, frozen=True):
    """The SP group that a worker is to be in, and no other."""

    epoch: int
    """Grows with every group that the node plans."""
    seats: tuple[Seat, ...]
    ring: int
    """Of the degree, so many parts are a ring; the rest is Ulysses."""
    at_once: bool
    """Someone of the worker's last group is lost: do not wait for a step to end."""


class WorkerPlan(Message, frozen=True):
    """Node to leader, which passes it on to its member and its trainer rank; answered with a
    `WorkerReport`. Sent whenever it changes, and again as the question whether the worker's loop
    still turns.
    """

    number: int
    """Of all plans of the node."""
    job: JobPlan | None = None
    """None: there is no job; drop what belongs to one, and stay warm."""
    group: GroupPlan | None = None
    """None before the first: the worker is alone."""
    stop_in_s: float | None = None
    """The node will be taken: commit now, go on, and stop so many seconds from now, with everything
    committed and given back. None: no notice stands."""
