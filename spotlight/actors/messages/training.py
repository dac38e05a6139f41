"""Between the job runner and the trainer ranks."""

from __future__ import annotations

from spotlight.actors.messages.work import Record
from spotlight.jobs import JobSpec
from spotlight.transport.control import Message
from spotlight.transport.tensors import BundleOffer, StoreEndpoint


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
    completed: int
    """Iterations that the checkpoint holds."""
    term: int
    """Differs for every decision to build the ranks anew; the same one again builds nothing."""


class ReservePort(Message, frozen=True):
    """Coordinator to rank 0: choose a free rendezvous port on your machine."""


class PortReserved(Message, frozen=True):
    """host:port for the trainer ranks to meet at."""

    rendezvous: str


class TrainerReady(Message, frozen=True):
    """A trainer rank is built."""

    rank: int


class GetTrainer(Message, frozen=True):
    """Coordinator to a worker after it came back: are you a trainer rank of this job?"""

    job_id: str


class TrainerAt(Message, frozen=True):
    """The answer to `GetTrainer`."""

    completed: int
    """Iterations trained, those before the checkpoint it began from included; -1: no trainer."""


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
