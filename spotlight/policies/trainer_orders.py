"""What trainers are told, what they answer, and what `TrainerMachine` says is to be done.

Ranks are known by their numbers, from 0. These records travel nowhere: who carries the instructions
out translates orders into messages, and messages into answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotlight.policies.resume import ResumePoint
from spotlight.policies.training_parts import Part
from spotlight.record.run_events import RunEvent
from spotlight.types import BundleOffer, StoreEndpoint, TrainingSample

Offers = tuple[BundleOffer, ...]
Stores = tuple[StoreEndpoint, ...]


# --- orders ---


@dataclass(frozen=True)
class Start:
    """Become a trainer rank."""

    term: int
    rank: int
    world: int
    """The number of ranks."""
    rendezvous: str
    """Where the ranks meet rank 0; empty for rank 0, which chooses it."""
    completed: int
    """Iterations that the state holds; 0 to begin with the job's model."""
    state: tuple[Offers, ...]
    """Where each part of the state can be had."""


@dataclass(frozen=True)
class Publish:
    """Leave your part of a weights version in the store of your node."""

    version: int
    evaluation: bool
    """Whether the weights for evaluations are wanted, too."""


@dataclass(frozen=True)
class Save:
    """Leave the state of training in stores."""

    completed: int
    """How many iterations were trained."""
    is_checkpoint: bool
    """Whether it becomes a checkpoint in the run folder."""
    stores: Stores = ()
    """The stores of nodes."""
    in_run_folder: bool = False
    """Whether it is left in the run folder's store, too."""
    part: int = 0
    """Which part of the state this rank has."""


@dataclass(frozen=True)
class Train:
    """Take the optimizer steps of an iteration, or of a part of it."""

    iteration: int
    window_start: int
    samples: tuple[TrainingSample, ...]
    part: Part = "whole"
    publish: Publish | None = None
    """This is to be done before, unless it is done."""
    save: Save | None = None
    """This is to be done before, unless it is done."""


@dataclass(frozen=True)
class Export:
    """Leave the weights of a checkpoint in the run folder's store, for others to load: rank 0."""

    completed: int
    """How many iterations were trained."""
    checkpoint: int
    """Iterations that the checkpoint holds."""
    state: BundleOffer
    """Where the checkpoint can be had."""


Order = Start | Publish | Save | Train | Export


# --- answers ---


@dataclass(frozen=True)
class Built:
    """The rank is ready."""


@dataclass(frozen=True)
class HasTrained:
    """The rank has trained on an iteration, or on a part of it."""

    iteration: int
    part: Part
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class HasPublished:
    """The rank's part of a version is in a store."""

    version: int
    rollout: Offers
    evaluation: Offers


@dataclass(frozen=True)
class HasSaved:
    """The rank's part of the state is in stores; in none if it had trained on before."""

    completed: int
    offers: Offers


@dataclass(frozen=True)
class HasExported:
    """The files of a checkpoint are in the run folder's store."""

    checkpoint: int


@dataclass(frozen=True)
class HasFailed:
    """The rank cannot carry out an order."""

    error: str
    lost_others: bool
    """Others were out of reach: new ranks may be able to."""
    lost_state: bool
    """The state that it was to begin from cannot be had any more."""
    traceback: str = ""
    """Where a loss or a library raised."""


Answer = Built | HasTrained | HasPublished | HasSaved | HasExported | HasFailed


# --- instructions ---


@dataclass(frozen=True)
class Tell:
    """Tell a rank, by its number, to do something."""

    rank: int
    order: Order


@dataclass(frozen=True)
class Ask:
    """Ask one of those that are `there`, by its number, whether it still trains, at its own
    address; then say so with `answered`."""

    rank: int


@dataclass(frozen=True)
class AskStandings:
    """Ask all ranks, one after the other, how many iterations they have trained (of no ranks
    nothing is asked); then say so with `found`."""


@dataclass(frozen=True)
class GoOnFrom:
    """From now on the job stands there; what was recorded later is made again."""

    at: ResumePoint
    kept: tuple[int, ...] = ()
    """The weights versions that are still good."""


@dataclass(frozen=True)
class FetchState:
    """Find where the state or checkpoint can be had that trainers begin from; then say so with
    `appointed`."""

    at: ResumePoint


@dataclass(frozen=True)
class KeepTrainers:
    """Write down who trains (`on_record`), and the last recovery."""


@dataclass(frozen=True)
class ReplaceOthers:
    """Have nodes know that trainers of terms before this one are trainers no more."""

    term: int


@dataclass(frozen=True)
class Begin:
    """The job begins: with trainers that are ready, or weights that carry it until they are."""

    can_save: bool
    """Whether the trainers stand where the job does, so that they can leave that state."""


@dataclass(frozen=True)
class FirstPartTrained:
    """All ranks have trained on the first part of an iteration."""

    iteration: int


@dataclass(frozen=True)
class IterationTrained:
    """All ranks have trained on an iteration."""

    iteration: int
    seconds: float
    """What the slowest rank took, of all parts that were answered to this machine."""
    metrics: Mapping[str, float]
    """Those of the first rank."""


@dataclass(frozen=True)
class VersionPublished:
    """All parts of a weights version can be pulled, in the order of the ranks."""

    version: int
    rollout: Offers
    evaluation: Offers


@dataclass(frozen=True)
class WriteCheckpoint:
    """Make a checkpoint of the parts of a state in the run folder's store; then say so with
    `checkpoint_written`."""

    completed: int
    parts: int


@dataclass(frozen=True)
class Keep:
    """Write down where each part of a state of training can be had, to go on from after a loss."""

    completed: int
    parts: tuple[Offers, ...]


@dataclass(frozen=True)
class Checkpointed:
    """The checkpoint after so many iterations is durable."""

    completed: int


@dataclass(frozen=True)
class KeepExport:
    """Move the exported files into the run folder."""

    checkpoint: int


@dataclass(frozen=True)
class ForgetState:
    """Nobody has the state that is on record any more."""


@dataclass(frozen=True)
class RecoverLater:
    """Call `recover` after a pause: by then it may be known which rank was lost, whose worker is
    not to be appointed again."""

    problem: str


@dataclass(frozen=True)
class Recover:
    """A rank is lost: call `recover` with what others can go on from."""

    problem: str


@dataclass(frozen=True)
class Note:
    """Write an event down."""

    event: RunEvent


@dataclass(frozen=True)
class Replace:
    """Another runner of the job is to begin again, with a machine of a later term."""


@dataclass(frozen=True)
class Fail:
    """The job has failed."""

    reason: str


Instruction = (
    Tell
    | Ask
    | AskStandings
    | GoOnFrom
    | FetchState
    | KeepTrainers
    | ReplaceOthers
    | Begin
    | FirstPartTrained
    | IterationTrained
    | VersionPublished
    | WriteCheckpoint
    | Keep
    | Checkpointed
    | KeepExport
    | ForgetState
    | RecoverLater
    | Recover
    | Note
    | Replace
    | Fail
)
