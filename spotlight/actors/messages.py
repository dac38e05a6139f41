"""Everything that actors say to each other, as frozen typed structs.

Grouped by conversation. A reader who knows these messages knows the protocol; the handlers are in
the actors' own files. Offers name tensor bundles that travel on the tensor transport; no bulk data
is in a message.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from spotlight.actors.runtime import ActorRef
from spotlight.jobs import JobSpec, SamplerKind
from spotlight.transport.control import Message
from spotlight.transport.tensors import BundleOffer, StoreEndpoint

RequestKind = Literal["preview", "rollout", "evaluation"]
WorkerState = Literal[
    "starting", "loading", "rollout", "explore", "evaluate", "score", "train", "idle", "gone"
]
Outcome = Literal["", "finished", "cancelled", "failed"]


class _Record(msgspec.Struct, frozen=True):
    """A part of a message."""


# --- what is denoised -----------------------------------------------------------------------------


class SamplingSettings(_Record, frozen=True):
    """How a request is denoised; the fields are those of `diffusion.samplers.SamplerSettings`."""

    kind: SamplerKind
    steps: int
    shift: float | None
    guidance: float
    noise_level: float
    window: tuple[int, int] | None
    height: int
    width: int
    micro_batch: int


class Request(_Record, frozen=True):
    """One unit of denoising work; the sample is a function of weights, prompt, seed and settings
    alone.
    """

    id: str
    kind: RequestKind
    iteration: int
    group: int
    """Index of the prompt group in its iteration (of the validation prompt for an evaluation)."""
    prompt: str
    seed: int
    weights_version: int
    settings: SamplingSettings
    image_key: str = ""
    """Where the member leaves the image as PNG in the coordinator's store; empty for nowhere."""


class Result(_Record, frozen=True):
    """A denoised and scored request."""

    request: Request
    reward: float
    bundle: BundleOffer
    row: int


# --- nodes and workers ----------------------------------------------------------------------------


class WorkerRefs(_Record, frozen=True):
    """The actors of one worker process."""

    worker: str
    epoch: int
    """Differs for every process that ever bears the name."""
    leader: ActorRef
    member: ActorRef
    reward_worker: ActorRef
    trainer_rank: ActorRef


class NodeDown(Message, frozen=True):
    """Coordinator to the running job: a node is gone, with all its workers."""

    lane = "system"

    node: str
    reason: str


class WorkerUp(Message, frozen=True):
    """Worker to its node: the process is warm and its actors are there."""

    refs: WorkerRefs


class JoinNode(Message, frozen=True):
    """Node to coordinator: here are my pool and my workers; sent again whenever they change."""

    node: str
    pool: Literal["reserved", "spot"]
    scheduler: ActorRef
    workers: tuple[WorkerRefs, ...]
    store: StoreEndpoint


class NodeJoined(Message, frozen=True):
    """The coordinator's answer; the node watches it."""

    coordinator: ActorRef


class Membership(_Record, frozen=True):
    """Whom a job's workers pull from, whom they tell what they do, and where results go."""

    dispatcher: ActorRef
    ledger: ActorRef
    sink: StoreEndpoint


class PrepareJob(Message, frozen=True):
    """Coordinator to node to leader to member: get this job's model ready."""

    job_id: str
    job: JobSpec
    membership: Membership


class HoldWeights(Message, frozen=True):
    """Fetch a weights version, keep it and those in `keep`, drop the others."""

    job_id: str
    version: int
    rollout: BundleOffer
    evaluation: BundleOffer | None
    keep: tuple[int, ...]


class WeightsHeld(Message, frozen=True):
    """The receiver of `HoldWeights` now serves that version."""

    version: int


class EndJob(Message, frozen=True):
    """Coordinator to node to workers: drop what belongs to the job, stay warm."""

    job_id: str


class Acknowledged(Message, frozen=True):
    """Done; nothing more to say."""


# --- pull scheduling ------------------------------------------------------------------------------


class Pull(Message, frozen=True):
    """An idle SP group asks for work. Sent again whenever capacity or weights change; the latest
    one counts.
    """

    worker: str
    epoch: int
    leader: ActorRef
    credits: int
    """Leases it can take now, in all."""
    batch: int
    """Requests that fit one lease."""
    rollout_versions: tuple[int, ...]
    evaluation_versions: tuple[int, ...]


class Grant(Message, frozen=True):
    """A lease on a batch of requests of one kind, one weights version and the same settings."""

    lease: int
    deadline_s: float
    """Seconds the holder has before it must renew."""
    requests: tuple[Request, ...]


class Revoke(Message, frozen=True):
    """Dispatcher to leader to member: nobody wants these leases' results any more; drop them."""

    lane = "system"

    leases: tuple[int, ...]


class Denoise(Message, frozen=True):
    """Leader to member: do this batch."""

    lease: int
    requests: tuple[Request, ...]


class Denoised(Message, frozen=True):
    """Member to leader: the batch is done; rows of the bundle are in the order of the requests."""

    lease: int
    bundle: BundleOffer
    seconds: float


class DenoiseError(Message, frozen=True):
    """Member to leader: the batch cannot be done here."""

    lease: int
    error: str


class DenoiseFailed(Message, frozen=True):
    """Leader to dispatcher: the batch cannot be done here."""

    worker: str
    epoch: int
    lease: int
    error: str


class RenewLease(Message, frozen=True):
    """The actor loop that holds a lease is alive."""

    worker: str
    epoch: int
    lease: int
    book: Literal["denoise", "score"]


class Completed(Message, frozen=True):
    """Leader to dispatcher: the batch is denoised and its bundle is in the sink."""

    worker: str
    epoch: int
    lease: int
    bundle: BundleOffer
    seconds: float


class Receipt(Message, frozen=True):
    """How many requests of a `Completed` counted; the others were done already."""

    accepted: int


# --- scoring --------------------------------------------------------------------------------------


class PullScores(Message, frozen=True):
    """A reward worker asks for denoised batches to score."""

    worker: str
    epoch: int
    reward_worker: ActorRef
    credits: int


class ScoreGrant(Message, frozen=True):
    """Score these rows of a bundle."""

    lease: int
    deadline_s: float
    bundle: BundleOffer
    rows: tuple[int, ...]
    prompts: tuple[str, ...]


class Scored(Message, frozen=True):
    """One reward per row, in [0, 1]."""

    worker: str
    epoch: int
    lease: int
    rewards: tuple[float, ...]


class ScoreFailed(Message, frozen=True):
    """The scorer could not score the batch; this is never a reward."""

    worker: str
    epoch: int
    lease: int
    error: str


# --- inside the coordinator -----------------------------------------------------------------------


class SubmitRequests(Message, frozen=True):
    """Queue requests; those already known are ignored. Results go to `reply_to`."""

    requests: tuple[Request, ...]
    reply_to: ActorRef


class CancelRequests(Message, frozen=True):
    """Forget the requests of a kind; leases on them are revoked, and what still comes is late."""

    kind: RequestKind


class BarWorkers(Message, frozen=True):
    """Grant nothing to these workers until the next `BarWorkers`: they are training."""

    workers: tuple[str, ...]


class AddWorker(Message, frozen=True):
    """A worker may pull from now on."""

    lane = "system"

    worker: str
    node: str
    pool: str
    epoch: int


class RemoveWorker(Message, frozen=True):
    """A worker is gone: re-issue what it held."""

    lane = "system"

    worker: str
    reason: str


class RequestsFinished(Message, frozen=True):
    """Denoised and scored."""

    results: tuple[Result, ...]


class RequestsGivenUp(Message, frozen=True):
    """These requests failed for good, with the reason."""

    requests: tuple[Request, ...]
    reason: str


class StartExploration(Message, frozen=True):
    """Explore the prompts of an iteration with the weights that members hold, for the time that
    training takes.
    """

    iteration: int
    weights_version: int
    prompts: tuple[str, ...]
    window_s: float
    """Predicted training time; ignored when the budget is fixed."""


class StopExploration(Message, frozen=True):
    """Training is over: select from what is scored (a fixed budget is finished first)."""

    iteration: int


class Explored(Message, frozen=True):
    """The seeds to regenerate for each prompt group."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    preview_rewards: tuple[tuple[float | None, ...], ...]
    """Preview reward of each chosen seed; None where exploration did not reach."""
    previews: int
    late: int


class StartValidation(Message, frozen=True):
    """Score this weights version on the validation prompts."""

    version: int


class ValidationDone(Message, frozen=True):
    """Mean reward of a weights version, and the images it is made of."""

    version: int
    score: float
    results: tuple[Result, ...]


class ValidationFailed(Message, frozen=True):
    """No image of the version could be scored."""

    version: int


class StateChanged(Message, frozen=True):
    """Worker to ledger: what it does from now on."""

    worker: str
    state: WorkerState
    detail: str = ""


# --- training -------------------------------------------------------------------------------------


class StartTrainer(Message, frozen=True):
    """Become one trainer rank; `rendezvous` is host:port of rank 0's store, chosen by the
    coordinator's rank 0.
    """

    job_id: str
    job: JobSpec
    rank: int
    world: int
    rendezvous: str
    checkpoint: str
    """Path of the checkpoint to resume from; empty for a fresh start."""


class ReservePort(Message, frozen=True):
    """Coordinator to rank 0: choose a free rendezvous port on your machine."""


class PortReserved(Message, frozen=True):
    """host:port for the trainer ranks to meet at."""

    rendezvous: str


class TrainerReady(Message, frozen=True):
    """A trainer rank is built."""

    rank: int


class TrainingSample(_Record, frozen=True):
    """One sample of a training batch."""

    prompt: str
    bundle: BundleOffer
    row: int
    advantage: float


class Train(Message, frozen=True):
    """One iteration's samples in canonical order, the same for every rank."""

    iteration: int
    window_start: int
    samples: tuple[TrainingSample, ...]


class Trained(Message, frozen=True):
    """A rank has taken its optimizer steps."""

    iteration: int
    rank: int
    metrics: dict[str, float]
    seconds: float


class Publish(Message, frozen=True):
    """Coordinator to rank 0: put the weights of this version into your node's store."""

    version: int
    evaluation: bool
    store: StoreEndpoint


class Published(Message, frozen=True):
    """Where nodes pull the version from."""

    version: int
    rollout: BundleOffer
    evaluation: BundleOffer | None


class SaveCheckpoint(Message, frozen=True):
    """Coordinator to rank 0: leave a checkpoint (and, at the end, the exported model) in the run
    folder.
    """

    iteration: int
    path: str
    export_to: str
    """Folder for the exported model; empty for none."""


class CheckpointSaved(Message, frozen=True):
    """The checkpoint is durable."""

    iteration: int
    path: str


class TrainerFailed(Message, frozen=True):
    """A trainer rank cannot go on."""

    rank: int
    error: str


# --- users ----------------------------------------------------------------------------------------


class SubmitJob(Message, frozen=True):
    """Start a job, or go on with the one in `run_folder`."""

    job: JobSpec
    run_folder: str
    resume: bool


class JobAccepted(Message, frozen=True):
    """The job runs; its files are in `run_folder`."""

    job_id: str
    run_folder: str


class JobRefused(Message, frozen=True):
    """The job does not run, and why."""

    reason: str


class CancelJob(Message, frozen=True):
    """End the job now; it can be resumed from its run folder."""


class GetStatus(Message, frozen=True):
    """Ask for a `JobStatus`."""


class WorkerStatus(_Record, frozen=True):
    """What one worker does."""

    name: str
    node: str
    pool: str
    state: str
    detail: str


class JobStatus(Message, frozen=True):
    """Progress of the job, for people."""

    job: str
    phase: str
    iteration: int
    iterations: int
    weights_version: int
    elapsed_s: float
    done: int
    wanted: int
    images_per_s: float
    reward_mean: float | None
    validation: tuple[tuple[float, float], ...]
    workers: tuple[WorkerStatus, ...]
    previews: int
    reissued: int
    late: int
    dead_letters: int
    outcome: Outcome
    reason: str
    run_folder: str


class JobEnded(Message, frozen=True):
    """Job runner to coordinator: the last status."""

    status: JobStatus
