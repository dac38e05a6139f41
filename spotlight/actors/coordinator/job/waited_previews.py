"""For how many previews training waits, where exploration would end with it otherwise: as many as
are worth it by the plan of spot time.

That is planned where spot workers have something else to do than to preview, as gradients of
slices, and where for long there was none. It is on record when an iteration begins, so a kill
changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotlight.policies.spot_time import LONG, plan_spot_time
from spotlight.record.run_events import SettingsWithoutSpot

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_TO_BEGIN_WITH = 2
"""Previews for each sample while too few have told what a choice is worth."""


class WaitedPreviews:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        asked = job.spec.exploration
        self._may_wait = asked.mode != "none" and (
            (asked.budget, asked.weights, asked.finish) == ("window", "previous", "newest")
        )

    def plan(self) -> None:
        """The next iteration is about to be settled: decide for the exploration beside it."""
        if not self._may_wait:
            return
        progress, nodes = self._job.progress, self._job.roster.nodes.values()
        before = progress.saved.iterations_without_spot
        has_spot = any(node.pool == "spot" and node.workers for node in nodes)
        progress.iterations_without_spot = 0 if has_spot else before + 1
        was_long, is_long = before >= LONG, progress.iterations_without_spot >= LONG
        is_planned = is_long or self._job.spec.training.slices > 1
        progress.least_previews = self._worth_waiting_for() if is_planned else 0
        if was_long != is_long:
            samples = self._job.spec.samples_per_iteration
            self._job.event(
                SettingsWithoutSpot(
                    iteration=self._job.machine.completed,
                    without_spot=is_long,
                    previews=round(progress.least_previews / samples, 2),
                )
            )

    def _worth_waiting_for(self) -> int:
        job, workers = self._job, self._job.gradients.workers
        samples = job.spec.samples_per_iteration
        if not job.progress.exploration.worth.is_known:
            return min(_TO_BEGIN_WITH, job.spec.exploration.candidates) * samples
        work = workers.work(workers.able)
        return 0 if work is None else round(plan_spot_time(work).waited_for * samples)
