"""Between the coordinator and another program's training loop, which publishes weights and asks for
prompt groups in a session.

Whatever the program says may be said again: a session that is begun, weights that are offered and
groups that are submitted twice count once. So after a loss of either side's words, or of the
coordinator, the program repeats what is not answered yet. A group that is done is told with every
`TakeGroups` until the program names it as taken.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.users import Weight
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import WorkSpec
from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Record

SessionId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,64}\Z")]
"""Becomes part of the name of a folder."""
MOST_SEEDS = 1000
"""Samples of one prompt group."""
MOST_GROUPS = 1024
"""Most groups in one message."""
MOST_OPEN_GROUPS = 65_536
"""Most groups that are submitted and not taken yet."""
LONGEST_PROMPT = 65_536
"""Most characters of a prompt."""
MOST_STEPS = 1000
"""Most denoising steps of a sample."""

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]


class BeginSession(Message, frozen=True):
    """User to coordinator. Answered with `SessionBegan` or `SessionRefused`."""

    session: SessionId
    """Chosen by the user; the same one again is the same session."""
    user: ActorRef
    """Whoever speaks for the user: the session ends when it has been away for too long."""
    work: WorkSpec
    goes_on: bool
    """The session has begun before: if it has ended since, no other begins."""
    weight: Weight = 1.0


class TensorShape(Record, frozen=True):
    """One tensor of the weights that are trained."""

    name: str
    shape: tuple[int, ...]


class SessionBegan(Message, frozen=True):
    """The session is there."""

    runner: ActorRef
    """The actor to whom everything else is said."""
    tensors: tuple[TensorShape, ...]
    """What a publication holds."""


class SessionRefused(Message, frozen=True):
    """The answer to a request that cannot be carried out, with the reason."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class OfferWeights(Message, frozen=True):
    """User to session: nodes pull this version from now on; of the others only those in `keep` are
    still needed. Answered with `Acknowledged` or `SessionRefused`.
    """

    offer: WeightsOffer
    keep: Annotated[tuple[int, ...], msgspec.Meta(max_length=64)]


class GroupOrder(Record, frozen=True):
    """A prompt group to be denoised and scored: one sample for each seed."""

    number: _Count
    """Differs for every group of the session."""
    kind: Literal["rollout", "preview"]
    """Whether samples are made, or previews, of which only the rewards are kept; rollouts go first.
    """
    prompt: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_PROMPT)]
    seeds: Annotated[tuple[_Seed, ...], msgspec.Meta(min_length=1, max_length=MOST_SEEDS)]
    version: _Count
    """The version of the weights."""
    steps: _Steps | None = None
    """Denoising steps; those of the session's sampler when absent."""
    window_start: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """First step at which a stochastic sampler adds noise; its earliest when absent."""
    pictures: bool = False
    """Leave the images as PNG files, too."""
    metadata: Annotated[str, msgspec.Meta(max_length=LONGEST_PROMPT)] = ""
    """What scorers are to know of the prompt: an object in JSON; empty for nothing."""


class SubmitGroups(Message, frozen=True):
    """User to session. Answered with `Acknowledged` when all are queued, or with `SessionRefused`
    when none is.
    """

    groups: Annotated[tuple[GroupOrder, ...], msgspec.Meta(max_length=MOST_GROUPS)]


class WithdrawGroups(Message, frozen=True):
    """User to session: these are no longer wanted, done or not. Answered with `Acknowledged`."""

    numbers: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MOST_OPEN_GROUPS)]


class TakeGroups(Message, frozen=True):
    """User to session: which groups are done? Answered with `GroupsDone`, after a while even if
    none is."""

    taken: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MOST_OPEN_GROUPS)] = ()
    """Groups that the user has by now: their samples are deleted, and they are not told again."""
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_GROUPS)] = 64


class DoneSample(Record, frozen=True):
    """A denoised and scored sample."""

    seed: int
    rewards: tuple[float, ...]
    """One of each reward that the session names, in its order."""
    attempts: int
    """Leases that it took; 0 if an earlier coordinator had it done."""
    resumed_at: int
    """Denoising steps after which the worker that finished it took over; 0: it took them all."""
    bundle: BundleOffer | None = None
    """Its latents, and what a loss needs of the stochastic steps; None of a preview."""
    row: int = 0
    """The row of the sample in the bundle."""
    picture: BundleOffer | None = None


class FailedSample(Record, frozen=True):
    """A sample that could not be denoised or scored."""

    seed: int
    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class DoneGroup(Record, frozen=True):
    """A prompt group of which nothing is open any more."""

    number: int
    version: int
    """The version of the weights that made every sample."""
    samples: tuple[DoneSample, ...]
    """The samples in the order of the seeds."""
    failed: tuple[FailedSample, ...] = ()


class GroupsDone(Message, frozen=True):
    """Groups that the user has not taken yet, the first to be done first."""

    groups: tuple[DoneGroup, ...]


class GetFleet(Message, frozen=True):
    """User to session: who is there? Answered with `Fleet`."""


class NodeCapacity(Record, frozen=True):
    """A node that takes part in a session."""

    name: str
    pool: str
    workers: int
    notice: str = ""
    """Who said that it will be taken; empty while it may stay."""
    notice_s: float | None = None
    """Seconds from the notice until it is taken; None where its source does not say."""


class PoolUse(Record, frozen=True):
    """What the workers of a pool did so far."""

    pool: str
    seconds: dict[str, float]
    """Seconds of all workers together by state; they add up to the time for which workers were
    there."""


class Fleet(Message, frozen=True):
    """Who is there, and what was done so far."""

    nodes: tuple[NodeCapacity, ...]
    newest_version: int
    """The newest version of the weights; -1 before the first."""
    ready: int
    """Workers whose node has it."""
    waiting: int
    """Requests that are submitted and not done."""
    images_per_s: float
    """Images per second of rollouts, over the last minute."""
    samples: int
    """Rollouts that are done."""
    previews: int
    resumed: int
    """How many of both went on from steps that others had taken."""
    handed_on: int
    """Requests that were given to another worker, since the first was lost or too slow."""
    failed: int
    pools: tuple[PoolUse, ...]


class EndSession(Message, frozen=True):
    """User to session: nothing more is wanted. Answered with `Acknowledged`."""
