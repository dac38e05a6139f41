"""Which workers compute gradients before all else while the ranks of a job train: as many as the
plan of spot time says, by what was measured so far. They and the others take turns: who has nothing
of its own kind to do does the other thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.request_plans import preview_settings
from spotlight.actors.protocol.trainer import TrainedIteration
from spotlight.jobs import JobSpec
from spotlight.policies.slice_times import SliceTimes
from spotlight.policies.spot_time import (
    MOST_GRADIENT_BYTES,
    GradientWork,
    Samples,
    SpotPlan,
    SpotWork,
    plan_spot_time,
)
from spotlight.record.run_events import OtherDevice, SpotTimePlanned
from spotlight.types import BundleOffer, Pool

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_LEAST_S = 1e-6
"""A plan counts on no preview that takes fewer seconds."""
_TRIED_EVERY = 10
"""A link that was too slow is tried again so many iterations after the latest gradient."""


class GradientWorkers:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job, self._spec = job, job.spec
        job.lent.only_for(frozenset())
        self.computing: frozenset[str] = frozenset()
        """The workers that compute gradients, before all else."""
        self.helping: frozenset[str] = frozenset()
        """Those, and others that compute while they have nothing to denoise."""
        self._slices = 0
        """How many slices a rank's share of an update has."""
        self._times = SliceTimes()
        self._measured: set[tuple[int, int, str]] = set()
        """Ranks, iterations and parts of which it is known how they came to their slices."""
        self._plan: SpotPlan | None = None
        self._tried_in = 0
        """The latest iteration of which a gradient came, or in which one was to."""
        self._other_devices: set[str] = set()
        """The kinds of devices that people were told of."""

    def assign(self) -> None:
        """Choose who computes gradients, of those that are there."""
        if self._spec.training.slices > 1 and self._job.phase.name == "train":
            self._set_computing(*self._chosen())

    def release(self) -> None:
        """The ranks have trained: all denoise."""
        self._set_computing(frozenset(), frozenset())

    def note(self, slices: int, weights_bytes: int) -> None:
        """All ranks have begun an update, of so many slices each at most, and have lent so many
        bytes of weights for it: none where others hold these."""
        self._slices = slices
        if weights_bytes:
            self._times.weights_bytes = weights_bytes

    def came(self, gradient: BundleOffer) -> None:
        """A worker has computed this."""
        self._tried_in = self._job.machine.completed
        self._times.gradient_bytes = gradient.nbytes

    def nothing_came(self, nbytes: int, after_s: float) -> None:
        """A slice was given out so many seconds ago, and no gradient is there: the weights for it,
        of so many bytes, did not get to any worker."""
        self._tried_in = self._job.machine.completed
        self._times.not_there(nbytes, after_s)

    def measured(self, rank: int, trained: TrainedIteration) -> None:
        """How a rank came to the slices of an iteration, or of a part of it."""
        which, taken = (rank, trained.iteration, trained.part), trained.slices
        if self._spec.training.slices == 1 or which in self._measured:
            return
        self._measured = {each for each in self._measured if each[1] == trained.iteration}
        self._measured.add(which)
        self._times.taken(
            own=taken.own,
            own_s=taken.own_s,
            fetched_bytes=taken.fetched_bytes,
            fetch_s=taken.fetch_s,
            updates=max(1, (taken.own + taken.others) // max(1, self._slices)),
        )
        metrics = self._job.progress.metrics
        metrics.slices += taken.own + taken.others
        metrics.slices_by_others += taken.others

    def _chosen(self) -> tuple[frozenset[str], frozenset[str]]:
        """Those who compute, and all who do so while there is nothing else: nobody where no slice
        is granted. Those who are able come in turn: who computes already, then reserved workers."""
        able = sorted(
            self._able(), key=lambda each: (each[0] not in self.computing, each[1] == "spot", each)
        )
        count = self._planned(able)
        names = [name for name, _ in able]
        return frozenset(names[:count]), frozenset(names if self._all_help() else names[:count])

    def _all_help(self) -> bool:
        """Whether all others compute, too, when they have nothing to denoise: not where gradients
        come too late, nor where previews leave no time, for which weights would be sent in vain."""
        plan = self._plan
        if plan is None:
            return self._gradient_bytes() <= MOST_GRADIENT_BYTES
        all_are_made = plan.previews >= self._spec.exploration.candidates
        return plan.grants_slices and (plan.gradient_workers > 0 or all_are_made)

    @property
    def able(self) -> int:
        """How many workers could compute gradients."""
        return len(self._able())

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
                if self._job.table.fails_gradients(worker.worker):
                    continue
                if devices == {worker.device}:
                    found.append((worker.worker, node.pool))
                else:
                    self._tell_of_other(worker.worker, worker.device, devices)
        return found

    def _planned(self, able: list[tuple[str, Pool]]) -> int:
        """How many of these compute gradients. Until ranks have said how long a slice takes them,
        and previews what it is worth to choose among them, it is half of them, or all where nothing
        is explored; and none where gradients came too late, or are too large."""
        work, explores = self.work(len(able)), self._spec.exploration.mode != "none"
        to_begin_with = len(able) // 2 if explores else len(able)
        if work is None:
            return to_begin_with if self._gradient_bytes() <= MOST_GRADIENT_BYTES else 0
        is_worth_known = not explores or self._job.progress.exploration.worth.is_known
        if not is_worth_known and work.gradients.comes_in_time(work.gradients.slices):
            return to_begin_with
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
        return plan.gradient_workers or self._trial(work, plan)

    def _trial(self, work: SpotWork, plan: SpotPlan) -> int:
        """Where a gradient would come too late, one worker tries now and then: links get faster,
        and only what comes over one says so."""
        too_large = work.gradients.gradient_bytes > MOST_GRADIENT_BYTES
        if plan.grants_slices or too_large or not work.able_workers:
            return 0
        iteration = self._job.machine.completed
        if iteration >= self._tried_in + _TRIED_EVERY:
            self._tried_in, self._times.is_old = iteration, True
        return int(iteration == self._tried_in)

    def work(self, able: int) -> SpotWork | None:
        """What there is to do in an iteration, as far as it was measured; None while it was not.

        Args:
            able: how many workers could compute gradients.
        """
        job, spec, times = self._job, self._spec, self._times
        step_s, rank_slice_s = self._step_s(), self._rank_slice_s()
        if rank_slice_s is None or step_s is None:
            return None
        # The next one is denoised while this one is scored.
        sample_s = max(job.table.pace.score_s, spec.sampler.steps * step_s)
        preview_s = max(job.table.pace.score_s, spec.preview_steps * step_s)
        samples_from = _samples_from(spec)
        if samples_from == "finished" and job.progress.previews_mislead:
            samples_from, preview_s = "previews", sample_s
        batch = spec.sampler.micro_batch
        correlation = job.progress.exploration.agreement.correlation
        are_samples = samples_from == "fresh" and spec.trains_on_previews
        is_fixed = spec.exploration.mode != "none" and spec.exploration.budget == "fixed"
        ranks = job.team.machine.ranks
        workers = sum(len(node.workers) for node in job.roster.nodes.values())
        spot = sum(len(node.workers) for node in job.roster.nodes.values() if node.pool == "spot")
        return SpotWork(
            gradients=GradientWork(
                ranks=len(ranks),
                updates=spec.training.updates_per_iteration,
                slices=self._slices or spec.training.slices,
                rank_slice_s=rank_slice_s,
                worker_slice_s=job.table.pace.slice_s,
                gradient_bytes=self._gradient_bytes(),
                weights_bytes=times.weights_bytes,
                up_bytes_per_s=times.bytes_per_s,
                down_bytes_per_s=times.bytes_per_s,
                receivers=len(ranks),
                may_be_given_away=spec.training.slices > 1,
            ),
            spot_workers=spot,
            idle_workers=max(0, workers - spot - len(ranks)),
            able_workers=able,
            samples=spec.samples_per_iteration,
            samples_from=samples_from,
            preview_s=max(preview_s / batch, _LEAST_S),
            finish_s=0.0 if are_samples else sample_s / batch,
            evaluation_s=job.shares.seconds_of("evaluation") * job.roster.free_workers(),
            least_previews=spec.exploration.candidates if is_fixed else 0,
            most_previews=spec.exploration.candidates,
            gain=self._gain(),
            agreement=1.0 if correlation is None else max(0.0, correlation),
        )

    def _gradient_bytes(self) -> int:
        """Bytes of a slice's gradient. Before any has come, as many as weights have: a gradient of
        a model in bfloat16 has twice as many."""
        times = self._times
        return times.gradient_bytes or times.weights_bytes or self._job.publications.newest_nbytes

    def _rank_slice_s(self) -> float | None:
        """Seconds of a slice; where an update has a single one, it is all that ranks train."""
        training = self._spec.training
        if training.slices > 1:
            return self._times.rank_slice_s
        train_s = self._job.progress.window.predict()
        return train_s / training.updates_per_iteration if 0 < train_s < math.inf else None

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

    def _set_computing(self, names: frozenset[str], helping: frozenset[str]) -> None:
        if (names, helping) != (self.computing, self.helping):
            is_first = not self.helping
            self.computing, self.helping = names, helping
            self._job.lent.only_for(frozenset(name.partition("/")[0] for name in helping))
            self._tell()
            self._job.briefing.share_backlog()
            if is_first:
                self._job.team.remind()  # the ranks lend their updates from now on

    def _tell(self) -> None:
        """Have slices granted to those that compute, and to others while these have nothing to do;
        and to the first, previews while there is no slice, if slices need not wait for them. Where
        scores take longer than previews, who previews has time for slices: then all do that first.
        """
        computing, versatile = self.computing, self.helping
        denoise_s, slice_s = self._preview_s(), self._rank_slice_s()
        if denoise_s is None or slice_s is None or denoise_s > slice_s:
            versatile -= computing
        elif denoise_s < self._job.table.pace.score_s:
            computing = frozenset()
        self._job.requests.compute(computing, versatile)

    def _preview_s(self) -> float | None:
        """Seconds in which a worker denoises a micro-batch of previews; None before any was
        measured, and where none are made."""
        step_s, explores = self._step_s(), self._spec.exploration.mode != "none"
        return self._spec.preview_steps * step_s if explores and step_s is not None else None

    def _step_s(self) -> float | None:
        """Seconds that one worker takes for a step of a micro-batch of previews; None before any
        was measured."""
        settings = preview_settings(self._spec, self._job.machine.completed)
        return self._job.profile.step_s(settings, 1)


def _samples_from(spec: JobSpec) -> Samples:
    """What the iterations of a job train on."""
    if spec.exploration.mode == "none":
        return "regenerated"
    if spec.exploration.weights == "fresh":
        return "fresh"
    if spec.exploration.finish == "previous":
        return "finished"
    return "previews" if spec.trains_on_previews else "regenerated"
