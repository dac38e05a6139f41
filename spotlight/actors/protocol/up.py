"""Up: the reports of workers and nodes, and the results of requests.

A report is complete: the latest one counts. It is sent on change and every few seconds, so a lost
report only costs a little time.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.actors.protocol.down import CheckpointSource, WeightsOffer
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import MOST_WORKERS_OF_NODE
from spotlight.policies.ledger.node_times import MOST_STRETCHES
from spotlight.record.ledger import Price, WorkerTimes
from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.tracebacks import LONGEST_TRACEBACK
from spotlight.transport.control import Message
from spotlight.types import (
    NO_CONTROLS,
    BundleOffer,
    NodeName,
    Record,
    StoreEndpoint,
    WorkerName,
    WorkerState,
)

LONGEST_DEVICE = 200
"""Characters of what a kind of device is called."""


class WorkerRefs(Record, frozen=True):
    """The actors of one worker process."""

    worker: WorkerName
    epoch: int
    """Differs for every process that ever bears the name."""
    leader: ActorRef
    member: ActorRef
    trainer_rank: ActorRef
    device: Annotated[str, msgspec.Meta(max_length=LONGEST_DEVICE, pattern=NO_CONTROLS)] = ""
    """The kind of device that it computes on, as far as the bits of sums depend on it."""


class WorkerUp(Message, frozen=True):
    """Worker to its node: the process is warm and its actors are there. It is repeated until it is
    answered."""

    refs: WorkerRefs
    start: str
    """What the node handed the process as it started it (`WorkerKeys`), so that no other process
    comes in its place."""
    device: str
    """What it computes on: `cuda`, `cpu`, or `simulated`."""


class WorkerReport(Message, frozen=True):
    """What a worker holds, does, and is ready for.

    Member to its leader whenever it changes; the leader adds what it knows itself and sends it to
    the node, to the job runner, and to the leader of rank 0 of its SP group. It is also the answer
    to a `WorkerPlan`: a process whose loop does not turn gives none.
    """

    worker: WorkerName
    epoch: int
    """The epoch of the worker's process."""
    plan: int = 0
    """Number of the latest plan that it follows; 0 before the first."""
    job_id: str = ""
    """The job whose spec it has; empty for none."""
    rollout: tuple[int, ...] = ()
    """Weights versions of that job which the member has, model included, for rollouts."""
    evaluation: tuple[int, ...] = ()
    """The same for evaluations."""
    cannot_serve: str = ""
    """Why the worker can do nothing for the job: its model cannot be loaded here, or the
    accelerator is lost; empty if nothing is known against it."""
    ends: bool = False
    """Whether the process ends for that reason, so that its node may start another."""
    group: int = 0
    """Epoch of the SP group that it is in, or tries to form; 0 before the first."""
    formed: bool = True
    """Whether that group can denoise."""
    failure: str = ""
    """Why that group did not form, or broke; empty if it did not."""
    culprits: tuple[WorkerName, ...] = ()
    """The members that are why; nobody if that is not known."""
    draining: bool = False
    """Whether it takes nothing more, because the node is to leave."""
    drained: bool = False
    """Whether nothing is left there that could be lost, either."""
    state: WorkerState = "starting"
    """What the worker does."""
    detail: str = ""
    """The same in words."""

    def __post_init__(self) -> None:
        clean_fields(self, "cannot_serve", "failure", "detail")

    @property
    def ready_for(self) -> str:
        """The job that it can denoise for; empty for none."""
        return self.job_id if self.rollout else ""


class NodeNotice(Record, frozen=True):
    """The node will be taken."""

    source: str
    """Who gave notice: a cloud's name, `signal`, `file` or `user`."""
    lead_s: float | None
    """Seconds from the notice until the node is taken; None if the source does not say."""

    def __post_init__(self) -> None:
        clean_fields(self, "source")


class MissedWeights(Record, frozen=True):
    """A weights version that could not be had from the store that the plan names."""

    version: int
    store: StoreEndpoint


class NodeCheckpoint(Record, frozen=True):
    """What a node has of a checkpoint of the hub."""

    name: Annotated[str, msgspec.Meta(max_length=400)]
    """The name that the job has for it, with a commit."""
    is_whole: bool
    listing: BundleOffer | None = None
    """Where others find the list of its files; None for one that cannot feed others."""
    offline: bool = False
    """Whether the node may not ask the hub."""
    missed: CheckpointSource | None = None
    """The source of the latest plan, if the node could not have it from there."""


class WorkerTrouble(Record, frozen=True):
    """What is wrong with a worker."""

    worker: WorkerName
    reason: str
    tries: int = 0
    """Processes in a row that ended badly; 0 for one that is still there."""
    given_up: bool = False
    """No other process is started; another runner of a job has that tried again."""

    def __post_init__(self) -> None:
        clean_fields(self, "reason")


class NodeReport(Message, frozen=True):
    """Node to coordinator, which passes it on to the running job: what it is, and what it has.
    Answered with the `NodePlan` if the report does not agree with that, else with `Acknowledged`,
    or with `NodeRefused`.
    """

    lane = "system"

    number: int
    """Grows with every report of a process: what an older one says changes nothing."""
    node: NodeName
    pool: Literal["reserved", "spot"]
    scheduler: ActorRef
    workers: Annotated[tuple[WorkerRefs, ...], msgspec.Meta(max_length=MOST_WORKERS_OF_NODE)]
    store: StoreEndpoint
    notice: NodeNotice | None = None
    """None while the node may stay: grant nothing to the workers of one that may not."""
    left: bool = False
    """Whether a node with notice has left: nothing is there that could be lost, so there is nothing
    to wait for."""
    coordinator: ActorRef | None = None
    """Whose plan it follows; None before the first."""
    plan: int = 0
    """Number of that plan."""
    job_id: str = ""
    """The job whose spec it has; empty for none."""
    weights: tuple[WeightsOffer, ...] = ()
    """Its copies, from which others may pull."""
    missed: tuple[MissedWeights, ...] = ()
    """What it could not get; it tries again with the next plan."""
    lent: tuple[WeightsOffer, ...] = ()
    """Its copies of what ranks have lent, from which others may pull."""
    lent_missed: tuple[MissedWeights, ...] = ()
    """The same of what it could not get."""
    checkpoint: NodeCheckpoint | None = None
    """How it stands with the checkpoint of the job; None if that is not one of the hub, or not
    known yet."""
    size: int = 0
    """Workers that it should have."""
    troubles: Annotated[
        tuple[WorkerTrouble, ...], msgspec.Meta(max_length=MOST_WORKERS_OF_NODE)
    ] = ()
    """Workers whose processes end badly, until one of them is ready."""
    times: Annotated[tuple[WorkerTimes, ...], msgspec.Meta(max_length=MOST_STRETCHES)] = ()
    """What its workers did for each of the latest jobs, in the order in which it worked for them;
    the last is the present one."""
    machine_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The machine had been starting for so long when the process began; 0 for a machine that was
    there for other things before."""
    price: Price | None = None
    """What a GPU of it costs, if it was told."""
    share: StoreEndpoint | None = None
    """Its token lets the coordinator say who may leave and read samples and commits of the job in
    the node's store; None for one that keeps none."""


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
    """Members of the group; 0 for a worker that follows another and only gives back what it still
    has."""
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


class Completed(Message, frozen=True):
    """Member to leader to dispatcher: the batch is denoised and scored, or yet to be scored with
    others. Answered with a `Receipt` once it is durable.
    """

    worker: WorkerName
    epoch: int
    lease: int
    requests: tuple[str, ...]
    """Ids, in the order of the bundle's rows and of the rewards."""
    bundle: BundleOffer
    """The bundle of the commit of the last step."""
    rewards: tuple[tuple[float, ...], ...]
    """The rewards of each request, one for each that the job names; empty if its images are to be
    compared with others."""
    steps: int
    """Denoising steps taken here."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Time that they took, without waiting and delivery."""
    members: int = 1
    """How many members took all these steps; 0 if the group changed on the way."""
    scoring_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Time that scoring took, beside whatever else the worker did."""


class ReturnLease(Message, frozen=True):
    """Member to leader to dispatcher: another group must do this; it is nobody's failure. What was
    committed of it is told before.
    """

    worker: WorkerName
    epoch: int
    lease: int


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
    """Ids of the requests that cannot be done, or whose commits cannot be used, when that is known:
    the others are only given back."""
    traceback: Annotated[str, msgspec.Meta(max_length=LONGEST_TRACEBACK)] = ""
    """Where a scorer raised; empty if none did."""

    def __post_init__(self) -> None:
        clean_fields(self, "error", most=LONGEST_ERROR)
