"""Between the job runner and the trainer ranks: orders, and one report that answers them all.

An order is repeated until a report says that it is carried out. A rank carries none out twice: the
same order again is answered with the same report.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.gradients import OpenUpdate, SlicesTaken
from spotlight.jobs import JobSpec
from spotlight.policies.training_parts import Part
from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.tracebacks import LONGEST_TRACEBACK
from spotlight.transport.control import Message
from spotlight.types import (
    LONGEST_METRIC,
    NO_CONTROLS,
    BundleOffer,
    Record,
    StoreEndpoint,
    TrainingSample,
)

MetricName = Annotated[str, msgspec.Meta(max_length=LONGEST_METRIC, pattern=NO_CONTROLS)]
STATE = "state"
"""The folder of states of training in a store."""
EXPORT = "export"
"""The folder of exported files in a store."""


def state_key(iteration: int, part: int = 0) -> str:
    """Where a store has a part of the state of training after so many iterations. The newest is
    there at any time, and the one before it until the next takes its place.
    """
    return f"{STATE}/{iteration % 2}-{part}"


StateParts = tuple[tuple[BundleOffer, ...], ...]
"""Where each part of a state of training can be had, any of its offers: one part of ranks that hold
the same, or one of every rank of a sharded model."""


class StartTrainer(Message, frozen=True):
    """Become one trainer rank."""

    job_id: str
    job: JobSpec
    rank: int
    world: int
    rendezvous: str
    """host:port where the other ranks meet rank 0, which chooses it; empty for rank 0."""
    completed: int
    """Iterations that the state holds; 0: begin with the job's model."""
    state: StateParts
    """Where the state of training after these iterations can be had; empty to begin with the job's
    model."""
    term: int
    """Differs for every decision to build the ranks anew; the same one again builds nothing."""
    images: BundleOffer | None = None
    """The images that prompts come with are there; None where they have none."""

    @property
    def own_parts(self) -> StateParts:
        """The parts of the state that this rank needs. Of as many ranks as left them each begins
        from its own; of others, rows of every part may be its own."""
        if self.job.training.sharded and len(self.state) == self.world:
            return (self.state[self.rank],)
        return self.state


class GetTrainer(Message, frozen=True):
    """Coordinator to a worker after it came back, or while its node is out of reach: are you a
    trainer rank of this job? Answered with a `TrainerReport`.
    """

    job_id: str


class Publish(Message, frozen=True):
    """Coordinator to a rank: put your part of this version's weights into your node's store."""

    version: int
    evaluation: bool
    store: StoreEndpoint


class SaveState(Message, frozen=True):
    """Coordinator to a rank: leave the state of training in these stores, for ranks that go on
    after a loss and for the checkpoint.
    """

    iteration: int
    """How many iterations were trained."""
    stores: tuple[StoreEndpoint, ...]
    part: int = 0
    """Which one of the state it holds."""


class Train(Message, frozen=True):
    """The samples of an iteration, or of a part of it, in canonical order, the same for every rank;
    and what a rank must take from its weights before it changes them, as the orders that say so may
    have been lost.
    """

    iteration: int
    window_start: int
    samples: tuple[TrainingSample, ...]
    part: Part = "whole"
    publish: Publish | None = None
    save: SaveState | None = None
    lend_to: StoreEndpoint | None = None
    """Where to leave what others need to compute slices of its updates: the store of the rank's
    node; None while nobody would compute any."""


class ExportModel(Message, frozen=True):
    """Coordinator to rank 0, when all is trained: leave the averaged weights of a checkpoint in a
    store, as files below `export/` that other libraries load.
    """

    iteration: int
    """How many iterations were trained."""
    checkpoint: int
    """Iterations that the checkpoint holds."""
    state: BundleOffer
    """Where the checkpoint can be had."""
    store: StoreEndpoint


class TrainedIteration(Record, frozen=True):
    """The result of the optimizer steps of an iteration, or of a part of it."""

    iteration: int
    metrics: dict[MetricName, float]
    """The metrics of the whole iteration, once its last part is trained; empty before."""
    seconds: float
    part: Part = "whole"
    slices: SlicesTaken = SlicesTaken()
    """Who computed the gradients of its updates."""


class SavedState(Record, frozen=True):
    """The state of training after some iterations, and where it can be had: in the order of the
    stores of the order to save it; nowhere if the rank had trained on before it was told.
    """

    iteration: int
    offers: tuple[BundleOffer, ...]


class ExportedModel(Record, frozen=True):
    """The files that were written of a checkpoint's weights."""

    checkpoint: int
    """Iterations that the checkpoint holds."""
    files: tuple[BundleOffer, ...]


class TrainerReport(Message, frozen=True):
    """Trainer rank to the actor that gave an order or asked: its progress, and the result of an
    order.
    """

    term: int = 0
    """The term of the order that built it, or has it built; 0: it is no trainer rank of the job."""
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
    """The answer to `Publish`: where nodes pull this rank's part of the version from."""
    saved: SavedState | None = None
    """The answer to `SaveState`."""
    exported: ExportedModel | None = None
    """The answer to `ExportModel`."""
    opened: OpenUpdate | None = None
    """The update that it takes now, if others may compute slices of it."""
    error: str = ""
    """Why the latest order cannot be carried out; empty if nothing is wrong."""
    lost_others: bool = False
    """The error is that others were out of reach: new ranks may be able to."""
    lost_state: bool = False
    """The error is that the state it was to begin from cannot be had any more."""
    traceback: Annotated[str, msgspec.Meta(max_length=LONGEST_TRACEBACK)] = ""
    """Where a loss or a library raised the error; empty if none did."""

    def __post_init__(self) -> None:
        clean_fields(self, "error", most=LONGEST_ERROR)
