"""Between the job runner and the trainer ranks."""

from __future__ import annotations

from spotlight.jobs import JobSpec
from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Record, StoreEndpoint


class StartTrainer(Message, frozen=True):
    """Become one trainer rank."""

    job_id: str
    job: JobSpec
    rank: int
    world: int
    rendezvous: str
    """host:port where the other ranks meet rank 0, which chooses it; empty for rank 0."""
    run_folder: str
    """Whatever this rank writes is below it."""
    completed: int
    """Iterations that the run's checkpoint holds; 0: begin with the job's model."""
    term: int
    """Differs for every decision to build the ranks anew; the same one again builds nothing."""


class TrainerListens(Message, frozen=True):
    """Rank 0 of several, as it is built: the others may come."""

    rendezvous: str
    """host:port."""
    term: int


class DropTrainer(Message, frozen=True):
    """Others are the trainer ranks now: free what ranks of an earlier term than this one hold."""

    job_id: str
    term: int


class TrainerReady(Message, frozen=True):
    """A trainer rank is built."""

    rank: int


class GetTrainer(Message, frozen=True):
    """Coordinator to a worker after it came back: are you a trainer rank of this job?"""

    job_id: str


class TrainerAt(Message, frozen=True):
    """The answer to `GetTrainer`."""

    completed: int
    """Iterations trained, those before the checkpoint it began from included; -1: no trainer, or
    one that is still being built."""
    term: int = 0
    """Of the order that built it, or has it built; 0 for none."""


class TrainingSample(Record, frozen=True):
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
    """Coordinator to rank 0: leave a checkpoint (and, at the end, the model that was validated) in
    the run folder.
    """

    iteration: int
    export: bool


class CheckpointSaved(Message, frozen=True):
    """The checkpoint is durable."""

    iteration: int


class TrainerFailed(Message, frozen=True):
    """A trainer rank cannot go on."""

    rank: int
    error: str
    lost_others: bool = False
    """Because others were out of reach: new ranks may be able to."""
