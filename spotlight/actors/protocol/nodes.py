"""Nodes and workers: who is there, what a job needs of them, and preemption."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.actors.protocol.down import Membership
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import MOST_WORKERS_OF_NODE, JobSpec
from spotlight.policies.departure import LONGEST_NOTICE_S
from spotlight.transport.control import Message
from spotlight.types import BundleOffer, NodeName, StoreEndpoint, WorkerName

NoticeSeconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_NOTICE_S)]
"""From a notice until the node is taken: a clock is set by it."""


class NodeDown(Message, frozen=True):
    """Coordinator to the running job: a node is gone, with all its workers."""

    lane = "system"

    node: str
    reason: str
    announced: bool = False
    """It had notice, and left."""


class AdmitNode(Message, frozen=True):
    """The running job to its coordinator: a node that came and went too often may join now, if it
    is still there.
    """

    node: str


class JoinNode(Message, frozen=True):
    """Node to coordinator: here are my pool and my workers; sent again whenever they change."""

    node: NodeName
    pool: Literal["reserved", "spot"]
    scheduler: ActorRef
    workers: Annotated[tuple[WorkerRefs, ...], msgspec.Meta(max_length=MOST_WORKERS_OF_NODE)]
    store: StoreEndpoint


class NodeJoined(Message, frozen=True):
    """The coordinator's answer; the node watches it."""

    coordinator: ActorRef


class NodeRefused(Message, frozen=True):
    """The coordinator's answer to a node that cannot join, and why."""

    reason: str


class PrepareJob(Message, frozen=True):
    """Coordinator to node to leader to member: get this job's model ready."""

    job_id: str
    job: JobSpec
    membership: Membership


class HoldWeights(Message, frozen=True):
    """Job runner to node, which answers with `WeightsCopied` or `WeightsMissed`; node to leader to
    member, with the node's own copy: fetch a weights version, keep it and those in `keep`, drop the
    others.
    """

    job_id: str
    version: int
    rollout: BundleOffer
    evaluation: BundleOffer | None
    keep: tuple[int, ...]


class WeightsCopied(Message, frozen=True):
    """Node to job runner, after every `HoldWeights` while it holds the version: others may pull it
    from there.
    """

    node: NodeName
    version: int
    rollout: BundleOffer
    evaluation: BundleOffer | None


class WeightsMissed(Message, frozen=True):
    """Node to job runner: the version could not be had from the store that `HoldWeights` named."""

    node: NodeName
    version: int
    store: StoreEndpoint


class EndJob(Message, frozen=True):
    """Coordinator to node to workers: drop what belongs to the job, stay warm."""

    job_id: str
    term: int = 0
    """Trainer ranks of a later term stay: the job was resumed before this came. 0 ends all."""


class Acknowledged(Message, frozen=True):
    """Done; nothing more to say."""


class PreemptNode(Message, frozen=True):
    """User to coordinator: give a node notice as its cloud would. Answered with `Acknowledged` or
    `NodeUnknown`.
    """

    node: str
    notice_s: NoticeSeconds
    cancel: bool


class NodeUnknown(Message, frozen=True):
    """No node of that name is there; `nodes` are."""

    nodes: tuple[str, ...]


class NoticeGiven(Message, frozen=True):
    """Coordinator (for a user) to node: the node will be taken, or is not taken after all."""

    lane = "system"

    notice_s: NoticeSeconds
    cancel: bool


class NodeLeaving(Message, frozen=True):
    """Node to coordinator to dispatcher: grant nothing to these workers, they will be gone; or
    (`cancelled`) grant again.
    """

    lane = "system"

    node: NodeName
    workers: tuple[WorkerName, ...]
    source: str
    """Who gave notice: a cloud's name, `signal`, `file` or `user`."""
    lead_s: float | None
    """Time until the node is taken; None if the source does not say."""
    cancelled: bool = False


class NodeLeft(Message, frozen=True):
    """Node to coordinator: drained; there is nothing left to wait for. The node joins again if it
    is still there much later.
    """

    lane = "system"

    node: NodeName
