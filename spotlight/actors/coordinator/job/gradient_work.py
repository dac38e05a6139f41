"""Gradients of slices of the updates that a job's ranks take: which workers compute them instead of
denoising, and what becomes of them.

A rank says which update it begins; its slices are requests like others, the last one first, as the
rank itself begins with the first. What was computed is told to the rank, which adds it when its
turn comes, or has computed it itself by then. So nothing that is lost here costs more than time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from spotlight.actors.coordinator.tenant.request_plans import gradient_request, preview_settings
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.gradients import (
    MOST_SLICES,
    AddSlices,
    OpenUpdate,
    SliceDone,
    SliceOrder,
)
from spotlight.actors.protocol.trainer import TrainedIteration
from spotlight.jobs import JobSpec
from spotlight.policies.slice_times import SliceTimes
from spotlight.policies.spot_time import GradientWork as GradientTimes
from spotlight.policies.spot_time import Samples, SpotPlan, SpotWork, plan_spot_time
from spotlight.record.run_events import GradientsGivenUp, OtherDevice, SpotTimePlanned
from spotlight.types import BundleOffer, Pool, Request, Result, TrainingSample

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

log = structlog.get_logger(__name__)

_LEAST_S = 1e-6
"""A plan counts on no preview that takes fewer seconds."""


class _Update:
    """An update of a rank, and the slices of it that others have computed."""

    def __init__(self, opened: OpenUpdate) -> None:
        self.opened = opened
        self.done: dict[int, SliceDone] = {}


class GradientWork:
    """See the module's docstring. `computing` are the workers that compute gradients alone."""

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
        self.computing: frozenset[str] = frozenset()
        self._slices = 0
        """How many slices a rank's share of an update has."""
        self._times = SliceTimes()
        self._measured: set[tuple[int, int, str]] = set()
        """Ranks, iterations and parts of which it is known how they came to their slices."""
        self._plan: SpotPlan | None = None
        self._other_devices: set[str] = set()
        """The kinds of devices that people were told of."""

    def begin(self, iteration: int, samples: tuple[TrainingSample, ...], window_start: int) -> None:
        """The ranks train on these."""
        self._forget()
        self._iteration, self._samples, self._window_start = iteration, samples, window_start
        self.assign()

    def end(self) -> None:
        """The ranks have trained on them."""
        self._forget()
        if self._spec.training.slices > 1:
            self._job.requests.forget("gradient", self._iteration)
        self._set_computing(frozenset())

    def assign(self) -> None:
        """Choose who computes gradients, of those that are there."""
        if self._spec.training.slices > 1 and self._job.phase.name == "train":
            self._set_computing(self._chosen())

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
        self._slices = len(opened.share.slices)
        self._times.weights_bytes = opened.weights.nbytes
        places = reversed(range(1, len(opened.share.slices)))  # the rank begins with the first
        self._job.requests.submit([self._request(rank, opened, place) for place in places])

    def order_of(self, request: Request) -> SliceOrder | None:
        """What the worker is told that is granted this; None if nobody needs it any more."""
        rank, place = divmod(request.group, MOST_SLICES)
        update = self._updates.get(rank)
        if update is None or update.opened.number != request.seed:
            return None
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
            weights=opened.weights,
            reference=opened.reference,
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
                ranks.add(rank)
        for rank in sorted(ranks):
            self._tell(rank)

    def measured(self, rank: int, trained: TrainedIteration) -> None:
        """How a rank came to the slices of an iteration, or of a part of it."""
        which, taken = (rank, trained.iteration, trained.part), trained.slices
        if self._spec.training.slices == 1 or which in self._measured:
            return
        self._measured = {each for each in self._measured if each[1] == trained.iteration}
        self._measured.add(which)
        self._times.taken(**msgspec.structs.asdict(taken))
        metrics = self._job.progress.metrics
        metrics.slices += taken.own + taken.others
        metrics.slices_by_others += taken.others

    def given_up(self, requests: list[Request], reason: str) -> None:
        """Nobody could compute these: their ranks do."""
        if requests:
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
        lent = [opened.weights, *([opened.reference] if opened.reference is not None else [])]
        if any(offer.store.place != store.place for offer in lent):
            return "its weights are not in the store of the rank's node"
        return ""

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
        self._number = -1
        if self._updates:
            self._updates.clear()
            self._job.requests.cancel("gradient")

    def _request(self, rank: int, opened: OpenUpdate, place: int) -> Request:
        group = rank * MOST_SLICES + place
        return gradient_request(self._spec, opened.share.iteration, group, opened.number)

    def _chosen(self) -> frozenset[str]:
        """Those who are able come in turn: who computes already, then reserved workers."""
        able = sorted(
            self._able(), key=lambda each: (each[0] not in self.computing, each[1] == "spot", each)
        )
        count = self._planned(able)
        return frozenset(name for name, _ in able[:count])

    def _able(self) -> list[tuple[str, Pool]]:
        """The workers that could compute gradients, by name and pool."""
        devices = {rank.worker.device for rank in self._job.team.machine.ranks}
        if not devices:  # nobody trains yet
            return []
        found: list[tuple[str, Pool]] = []
        for node in self._job.roster.nodes.values():
            for worker in node.workers:
                if worker.worker in self._job.trainers or node.node in self._job.roster.leaving:
                    continue
                if devices == {worker.device}:
                    found.append((worker.worker, node.pool))
                else:
                    self._tell_of_other(worker.worker, worker.device, devices)
        return found

    def _planned(self, able: list[tuple[str, Pool]]) -> int:
        """How many of these compute gradients. Until ranks have said how long a slice takes them,
        and previews what it is worth to choose among them, it is half of them, or all where nothing
        is explored."""
        work, explores = self._work(able), self._spec.exploration.mode != "none"
        if work is None or (explores and not self._job.progress.exploration.worth.is_known):
            return len(able) // 2 if explores else len(able)
        before, self._plan = self._plan, plan_spot_time(work, self._plan)
        plan = self._plan
        if before is None or before.gradient_workers != plan.gradient_workers:
            self._job.event(
                SpotTimePlanned(
                    iteration=self._job.machine.completed,
                    gradient_workers=plan.gradient_workers,
                    why=plan.why,
                )
            )
        return plan.gradient_workers

    def _work(self, able: list[tuple[str, Pool]]) -> SpotWork | None:
        """What there is to do, as far as it was measured; None while it was not."""
        job, spec, times = self._job, self._spec, self._times
        step_s = job.profile.step_s(preview_settings(spec, job.machine.completed), 1)
        if times.rank_slice_s is None or step_s is None:
            return None
        sample_s = job.table.pace.score_s + spec.sampler.steps * step_s
        preview_s = job.table.pace.score_s + spec.preview_steps * step_s
        samples_from = _samples_from(spec)
        if samples_from == "finished" and job.progress.exploration.is_misled:
            samples_from, preview_s = "previews", sample_s
        batch = spec.sampler.micro_batch
        correlation = job.progress.exploration.agreement.correlation
        are_samples = samples_from == "fresh" and spec.trains_on_previews
        is_fixed = spec.exploration.mode != "none" and spec.exploration.budget == "fixed"
        ranks = job.team.machine.ranks
        workers = sum(len(node.workers) for node in job.roster.nodes.values())
        spot = sum(len(node.workers) for node in job.roster.nodes.values() if node.pool == "spot")
        return SpotWork(
            gradients=GradientTimes(
                ranks=len(ranks),
                updates=spec.training.updates_per_iteration,
                slices=self._slices or spec.training.slices,
                rank_slice_s=times.rank_slice_s,
                worker_slice_s=job.table.pace.slice_s,
                gradient_bytes=times.gradient_bytes or times.weights_bytes,
                weights_bytes=times.weights_bytes,
                up_bytes_per_s=times.bytes_per_s,
                down_bytes_per_s=times.bytes_per_s,
                rank_nodes=len({rank.node for rank in ranks}),
            ),
            spot_workers=spot,
            idle_workers=max(0, workers - spot - len(ranks)),
            able_workers=len(able),
            samples=spec.samples_per_iteration,
            samples_from=samples_from,
            preview_s=max(preview_s / batch, _LEAST_S),
            finish_s=0.0 if are_samples else sample_s / batch,
            evaluation_s=job.shares.seconds_of("evaluation") * job.roster.free_workers(),
            least_previews=spec.exploration.candidates if is_fixed else 0,
            most_previews=spec.exploration.candidates,
            may_wait=False,
            gain=self._gain(),
            agreement=1.0 if correlation is None else max(0.0, correlation),
        )

    def _gain(self) -> Callable[[float], float]:
        """What choosing among so many previews for each sample is worth."""
        if self._spec.exploration.mode == "none":
            return lambda previews: 1.0
        return self._job.progress.exploration.worth.curve()

    def _tell_of_other(self, worker: str, device: str, ranks: set[str]) -> None:
        if device not in self._other_devices:
            self._other_devices.add(device)
            event = OtherDevice(worker=worker, device=device, ranks=tuple(sorted(ranks)))
            self._job.event(event)

    def _set_computing(self, names: frozenset[str]) -> None:
        if names != self.computing:
            is_first = not self.computing
            self.computing = names
            self._job.requests.compute(names)
            self._job.briefing.share_backlog()
            if is_first:
                self._job.team.remind()  # the ranks lend their updates from now on


def _samples_from(spec: JobSpec) -> Samples:
    """What the iterations of a job train on."""
    if spec.exploration.mode == "none":
        return "regenerated"
    if spec.exploration.weights == "fresh":
        return "fresh"
    if spec.exploration.finish == "previous":
        return "finished"
    return "previews" if spec.trains_on_previews else "regenerated"
