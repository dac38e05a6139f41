"""Which workers compute gradients while the ranks of a job train, instead of denoising: as many as
the plan of spot time says, by what was measured so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.request_plans import preview_settings
from spotlight.actors.protocol.gradients import OpenUpdate
from spotlight.actors.protocol.trainer import TrainedIteration
from spotlight.jobs import JobSpec
from spotlight.policies.slice_times import SliceTimes
from spotlight.policies.spot_time import GradientWork, Samples, SpotPlan, SpotWork, plan_spot_time
from spotlight.record.run_events import OtherDevice, SpotTimePlanned
from spotlight.types import BundleOffer, Pool

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_LEAST_S = 1e-6
"""A plan counts on no preview that takes fewer seconds."""


class GradientWorkers:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job, self._spec = job, job.spec
        job.lent.only_for(frozenset())
        self.computing: frozenset[str] = frozenset()
        """The workers that compute gradients, and nothing else."""
        self._slices = 0
        """How many slices a rank's share of an update has."""
        self._times = SliceTimes()
        self._measured: set[tuple[int, int, str]] = set()
        """Ranks, iterations and parts of which it is known how they came to their slices."""
        self._plan: SpotPlan | None = None
        self._other_devices: set[str] = set()
        """The kinds of devices that people were told of."""

    def assign(self) -> None:
        """Choose who computes gradients, of those that are there."""
        if self._spec.training.slices > 1 and self._job.phase.name == "train":
            self._set_computing(self._chosen())

    def release(self) -> None:
        """The ranks have trained: all denoise."""
        self._set_computing(frozenset())

    def note(self, opened: OpenUpdate) -> None:
        """A rank has begun an update."""
        self._slices = len(opened.share.slices)
        if opened.weights is not None:
            ranks = len(self._job.team.machine.ranks)
            self._times.weights_bytes = ranks * opened.weights.nbytes

    def came(self, gradient: BundleOffer) -> None:
        """A worker has computed this."""
        self._times.gradient_bytes = gradient.nbytes

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
        )
        metrics = self._job.progress.metrics
        metrics.slices += taken.own + taken.others
        metrics.slices_by_others += taken.others

    def _chosen(self) -> frozenset[str]:
        """Those who are able come in turn: who computes already, then reserved workers."""
        able = sorted(
            self._able(), key=lambda each: (each[0] not in self.computing, each[1] == "spot", each)
        )
        count = self._planned(able)
        return frozenset(name for name, _ in able[:count])

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
                if devices == {worker.device}:
                    found.append((worker.worker, node.pool))
                else:
                    self._tell_of_other(worker.worker, worker.device, devices)
        return found

    def _planned(self, able: list[tuple[str, Pool]]) -> int:
        """How many of these compute gradients. Until ranks have said how long a slice takes them,
        and previews what it is worth to choose among them, it is half of them, or all where nothing
        is explored."""
        work, explores = self.work(len(able)), self._spec.exploration.mode != "none"
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

    def work(self, able: int) -> SpotWork | None:
        """What there is to do in an iteration, as far as it was measured; None while it was not.

        Args:
            able: how many workers could compute gradients.
        """
        job, spec, times = self._job, self._spec, self._times
        step_s = job.profile.step_s(preview_settings(spec, job.machine.completed), 1)
        rank_slice_s = self._rank_slice_s()
        if rank_slice_s is None or step_s is None:
            return None
        sample_s = job.table.pace.score_s + spec.sampler.steps * step_s
        preview_s = job.table.pace.score_s + spec.preview_steps * step_s
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
                gradient_bytes=times.gradient_bytes or times.weights_bytes,
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

    def _set_computing(self, names: frozenset[str]) -> None:
        if names != self.computing:
            is_first = not self.computing
            self.computing = names
            self._job.lent.only_for(frozenset(name.partition("/")[0] for name in names))
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
