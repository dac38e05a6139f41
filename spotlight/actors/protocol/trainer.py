"""Between the job runner and the trainer ranks: orders, and one report that answers them all.

An order is repeated until a report says that it is carried out. A rank carries none out twice: the
same order again is answered with the same report.
"""

from __future__ import annotations

from spotlight.actors.protocol.down import WeightsOffer
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


class GetTrainer(Message, frozen=True):
    """Coordinator to a worker after it came back, or while its node is out of reach: are you a
    trainer rank of this job? Answered with a `TrainerReport`.
    """

    job_id: str


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


class Publish(Message, frozen=True):
    """Coordinator to rank 0: put the weights of this version into your node's store."""

    version: int
    evaluation: bool
    store: StoreEndpoint


class SaveCheckpoint(Message, frozen=True):
    """Coordinator to rank 0: leave a checkpoint in the run folder."""

    iteration: int


class ExportModel(Message, frozen=True):
    """Coordinator to rank 0, when all is trained: write the averaged weights of a checkpoint into
    the run folder's `export/`.
    """

    iteration: int
    """Iterations trained."""
    checkpoint: int
    """Iterations that the checkpoint holds."""


class TrainedIteration(Record, frozen=True):
    """The result of an iteration's optimizer steps."""

    iteration: int
    metrics: dict[str, float]
    seconds: float


class TrainerReport(Message, frozen=True):
    """Trainer rank to the actor that gave an order or asked: its progress, and the result of an
    order.
    """

    term: int = 0
    """Of the order that built it, or has it built; 0: it is no trainer rank of the job."""
    rank: int = -1
    completed: int = -1
    """Iterations trained, those before the checkpoint it began from included; -1: no trainer, or
    one that is still being built."""
    listens_at: str = ""
    """host:port where rank 0 of several meets the others, from before it is built; empty for the
    others."""
    trained: TrainedIteration | None = None
    """The answer to `Train`."""
    published: WeightsOffer | None = None
    """The answer to `Publish`: where nodes pull the version from."""
    saved: int | None = None
    """The answer to `SaveCheckpoint`: iterations that the checkpoint holds, which is durable."""
    exported: int | None = None
    """The answer to `ExportModel`: iterations that the checkpoint holds whose weights it wrote."""
    error: str = ""
    """Why the latest order cannot be carried out; empty if nothing is wrong."""
    lost_others: bool = False
    """The error is that others were out of reach: new ranks may be able to."""
