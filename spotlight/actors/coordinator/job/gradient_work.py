"""Gradients of slices of the updates that a job's ranks take: who is to compute them, and what
becomes of them.

A rank says which update it begins; its slices are requests like others, the last one first, as the
rank itself begins with the first. What was computed is told to the rank, which adds it when its
turn comes, or has computed it itself by then. So nothing that is lost here costs more than time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import structlog

from spotlight.actors.coordinator.job.gradient_workers import GradientWorkers
from spotlight.actors.coordinator.tenant.request_plans import gradient_request
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.gradients import (
    MOST_SLICES,
    AddSlices,
    OpenUpdate,
    SliceDone,
    SliceOrder,
)
from spotlight.record.run_events import GradientsGivenUp
from spotlight.types import BundleOffer, Request, Result, TrainingSample

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

log = structlog.get_logger(__name__)

_BEGINNING = 0
"""No update is taken: these are the weights that the job began with, which all updates need."""


class _Granted(NamedTuple):
    """The first slice of an update was given to a worker that had nothing else to do before it."""

    at: float
    """When, on the loop's clock."""
    helping: frozenset[str]
    """The workers that could have computed it."""


class _Update:
    """An update of a rank, and the slices of it that others have computed."""

    def __init__(self, opened: OpenUpdate) -> None:
        self.opened = opened
        self.done: dict[int, SliceDone] = {}


class GradientWork:
    """See the module's docstring. `workers` says who computes them."""

    def __init__(self, job: JobRunner) -> None:
        self._job, self._spec = job, job.spec
        self._iteration = -1
        """The iteration that the updates are of."""
        self._samples: tuple[TrainingSample, ...] = ()
        """What the ranks train on now."""
        self._window_start = 0
        self._updates: dict[int, _Update] = {}
        """The update that each rank has begun."""
        self._number = -1
        """How many updates were taken before it; -1 while none is begun."""
        self._granted: _Granted | None = None
        """None while no slice of it was given out so, or was to no avail for want of something else
        than weights."""
        self.workers = GradientWorkers(job)

    def begin(self, iteration: int, samples: tuple[TrainingSample, ...], window_start: int) -> None:
        """The ranks train on these."""
        self._forget()
        self._iteration, self._samples, self._window_start = iteration, samples, window_start
        self.workers.assign()

    def end(self) -> None:
        """The ranks have trained on them."""
        self._forget()
        if self._spec.training.slices > 1:
            self._job.requests.forget("gradient", self._iteration)
        self.workers.release()

    def opened(self, rank: int, opened: OpenUpdate) -> None:
        """A rank has begun an update, perhaps long ago: then it may not know what is done of it."""
        if problem := self._problem_of(rank, opened):
            log.error("update_refused", rank=rank, update=opened.number, reason=problem)
            return
        if opened.number < self._number:
            return
        if opened.number > self._number:  # ranks take updates together
            self._forget()
            self._number = opened.number
        if rank in self._updates:
            return self._tell(rank)
        self._updates[rank] = _Update(opened)
        if len(self._updates) == len(self._job.team.machine.ranks):
            most = max(len(each.opened.share.slices) for each in self._updates.values())
            if most < 2:
                return  # no rank has anything to give away
            self.workers.note(most, _bytes_of(self._parts_of("weights")))
            self._lend()
            self._job.requests.submit(self._in_turn(most))

    def order_of(self, request: Request) -> SliceOrder | None:
        """What the worker is told that is granted this; None if nobody needs it any more."""
        rank, place = divmod(request.group, MOST_SLICES)
        update = self._updates.get(rank)
        if update is None or update.opened.number != request.seed:
            return None
        if self._granted is None and not self._job.table.waits_its_turn(request.id):
            self._granted = _Granted(self._job.now(), self.workers.helping)
        opened = update.opened
        its_slice = opened.share.slices[place]
        return SliceOrder(
            training=self._spec.training,
            sampler=self._spec.sampler,
            seed=self._spec.seed,
            reuse=self._spec.trains_on_older,
            window_start=self._window_start,
            share=msgspec.structs.replace(opened.share, slices=(its_slice,)),
            samples=tuple(self._samples[sample] for sample in its_slice.samples),
            weights=self._parts_of("weights"),
            reference=self._parts_of("reference"),
        )

    def finished(self, results: list[Result]) -> None:
        """Gradients are there: tell their ranks."""
        ranks = set()
        for result in results:
            rank, place = divmod(result.request.group, MOST_SLICES)
            update = self._updates.get(rank)
            is_open = update is not None and update.opened.number == result.request.seed
            if update is not None and is_open and self._is_in_its_store(result.bundle):
                update.done[place] = SliceDone(place, result.bundle)
                self.workers.came(result.bundle)
                ranks.add(rank)
        for rank in sorted(ranks):
            self._tell(rank)

    def given_up(self, requests: list[Request], reason: str) -> None:
        """Nobody could compute these: their ranks do."""
        if requests:
            self._granted = None
            event = GradientsGivenUp(request=requests[0].id, count=len(requests), reason=reason)
            self._job.event(event)

    def _problem_of(self, rank: int, opened: OpenUpdate) -> str:
        """Why slices of an update cannot be given out; empty if they can."""
        share, count, most = opened.share, len(self._samples), self._spec.training.slices
        if (share.rank, share.iteration) != (rank, self._iteration):
            return f"it is of rank {share.rank} and iteration {share.iteration}"
        if len(share.slices) > most:
            return f"it has {len(share.slices)} slices, where `training.slices` is {most}"
        for place, its in enumerate(share.slices):
            named = (*its.samples, *its.draws)
            if its.index != place or len(its.samples) != len(its.draws):
                return f"slice {place} says that it is slice {its.index}, of {len(named)} samples"
            if not all(0 <= sample < count for sample in named):
                return f"slice {place} names a sample that is none of the {count}"
        store = self._job.team.machine.ranks[rank].store
        lent = [opened.weights, opened.reference]
        if any(offer is not None and offer.store.place != store.place for offer in lent):
            return "its weights are not in the store of the rank's node"
        if opened.number == self._number and any(
            [offer is None for offer in lent]
            != [offer is None for offer in (other.opened.weights, other.opened.reference)]
            for other in self._updates.values()
        ):
            return "it lends other weights than other ranks do"
        return ""

    def _lend(self) -> None:
        """Have the nodes whose workers compute slices get what the ranks have left, each its part
        of the weights."""
        parts_of = {_BEGINNING: self._parts_of("reference")}
        if current := self._parts_of("weights"):
            parts_of[self._number] = current
        for version, parts in parts_of.items():
            if parts:
                self._job.lent.add_new(WeightsOffer(version, parts), keep={_BEGINNING})
        self._job.briefing.weights_published()

    def _parts_of(self, what: Literal["weights", "reference"]) -> tuple[BundleOffer, ...]:
        """What all ranks have left of it, in their order."""
        opened = (update.opened for _, update in sorted(self._updates.items()))
        return tuple(part for each in opened if (part := getattr(each, what)) is not None)

    def _in_turn(self, most: int) -> list[Request]:
        """The slices of all ranks, which have so many at most: the last ones first, and of each
        rank as many as of the others, since an update takes as long as the slowest rank. Ranks
        begin with their first ones."""
        return [
            self._request(rank, update.opened, len(update.opened.share.slices) - before_end)
            for before_end in range(1, most)
            for rank, update in sorted(self._updates.items())
            if before_end < len(update.opened.share.slices)
        ]

    def _is_in_its_store(self, gradient: BundleOffer) -> bool:
        """Whether a gradient is in the store of the node whose worker computed it: from nowhere
        else does a rank take any."""
        node = self._job.roster.nodes.get(gradient.key.split("/")[1])
        return node is not None and node.store.place == gradient.store.place

    def _tell(self, rank: int) -> None:
        update, ranks = self._updates[rank], self._job.team.machine.ranks
        if update.done and rank < len(ranks):
            done = tuple(update.done[place] for place in sorted(update.done))
            message = AddSlices(update.opened.number, done)
            try_tell(self._job, ranks[rank].worker.trainer_rank, message)

    def _forget(self) -> None:
        """Nobody needs slices of the updates so far any more."""
        self._judge_link()
        self._number, self._granted = -1, None
        self._job.lent.keep({_BEGINNING})
        if self._updates:
            self._updates.clear()
            self._job.requests.cancel("gradient")

    def _judge_link(self) -> None:
        """If no gradient came from anybody though all who could compute are there still, the
        weights for it did not arrive."""
        lent, granted = self._parts_of("weights"), self._granted
        if granted is None or any(update.done for update in self._updates.values()):
            return
        if lent and granted.helping <= self.workers.helping:
            self.workers.nothing_came(_bytes_of(lent), self._job.now() - granted.at)

    def _request(self, rank: int, opened: OpenUpdate, place: int) -> Request:
        group = rank * MOST_SLICES + place
        return gradient_request(self._spec, opened.share.iteration, group, opened.number)


def _bytes_of(parts: Iterable[BundleOffer]) -> int:
    return sum(part.nbytes for part in parts)
