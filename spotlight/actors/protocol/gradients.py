"""Gradients of slices: a trainer rank says which update others may compute slices of; a worker is
granted a slice as it is granted a batch, and leaves its gradient in the store of its node; the rank
is told where, and adds it when its turn comes.

Nothing of this must arrive: what a rank does not hear of in time it computes itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.transport.control import Message
from spotlight.types import BundleOffer, Record, Slice, TrainingSample, UpdateSlices

MOST_SLICES = 64
"""A rank's share of an update has so many slices at most."""
GRADIENTS = "gradients"
"""The folder of gradients in the store of the node whose worker computed them."""


class OpenUpdate(Record, frozen=True):
    """An update that a rank begins, and what others need to compute slices of it."""

    number: Annotated[int, msgspec.Meta(ge=0)]
    """How many updates were taken before, in this run."""
    share: UpdateSlices
    """The rank's share of it: samples are places among those of the order to train."""
    weights: BundleOffer | None
    """The rank's part of the weights that are trained. None if these are the very ones that roll
    out, which workers hold."""
    reference: BundleOffer | None = None
    """Its part of those that the job began with; None if the loss does not need them."""


class SliceOrder(Record, frozen=True):
    """All that a worker needs to compute the gradient of a slice, besides the weights that roll
    out, of the version of its request."""

    training: TrainingSpec
    sampler: SamplerSpec
    seed: int
    """The seed of the job."""
    reuse: bool
    """Whether samples may be older than those weights."""
    window_start: int
    share: UpdateSlices
    """The rank's share of the update, with this slice alone."""
    samples: tuple[TrainingSample, ...]
    """The samples of the slice, in its order."""
    weights: tuple[BundleOffer, ...] = ()
    """The weights that are trained, as the ranks left them: the worker's node has a copy, or gets
    one. Empty if they are those that roll out."""
    reference: tuple[BundleOffer, ...] = ()
    """The same of the weights that the job began with; empty if the loss does not need them."""

    @property
    def slice(self) -> Slice:
        """The slice itself."""
        return self.share.slices[0]


class SlicesTaken(Record, frozen=True):
    """How a rank came to the slices of an iteration, or of a part of it."""

    own: int = 0
    """Slices that it computed itself."""
    own_s: float = 0.0
    """Seconds that these took."""
    others: int = 0
    """Slices that others computed."""
    fetched_bytes: int = 0
    """Bytes of gradients of others that it fetched."""
    fetch_s: float = 0.0
    """Seconds in which at least one of them was on its way."""


class SliceDone(Record, frozen=True):
    """The gradient of a slice, and where it can be had."""

    place: Annotated[int, msgspec.Meta(ge=0, lt=MOST_SLICES)]
    """The place of the slice in its update."""
    gradient: BundleOffer


class AddSlices(Message, frozen=True):
    """Job runner to a rank: these slices of an update were computed elsewhere. All of them so far:
    the latest message counts."""

    number: int
    """The number of the update, as `OpenUpdate` has it."""
    slices: Annotated[tuple[SliceDone, ...], msgspec.Meta(max_length=MOST_SLICES)]
