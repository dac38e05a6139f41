"""For how many previews training waits, where exploration would end with it otherwise: as many as
are worth it by the plan of spot time, whoever is there to make them.

It is on record when an iteration begins, so a kill changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spotlight.policies.spot_time import plan_spot_time
from spotlight.record.run_events import TrainingWaits

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_TO_BEGIN_WITH = 2
"""Previews for each sample while too few have told what a choice is worth."""
_UNTOLD = "too few previews have told what a choice among them is worth"


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
        progress, samples = self._job.progress, self._job.spec.samples_per_iteration
        before = progress.saved.least_previews
        wanted = self._wanted()
        if wanted is None:
            progress.least_previews = before
            return
        progress.least_previews = round(wanted.previews * samples)
        if (progress.least_previews > 0) != (before > 0):
            self._job.event(
                TrainingWaits(
                    iteration=self._job.machine.completed,
                    previews=round(wanted.previews, 2),
                    why=wanted.why,
                )
            )

    def _wanted(self) -> _Wanted | None:
        """By the plan; None where nothing says anything else than before, as after a restart.

        While the worth of a choice is a guess, the plan says only whether to wait: it might go on
        with one preview for each sample, and only a choice tells what choices are worth.
        """
        job, workers = self._job, self._job.gradients.workers
        work, latest = workers.work(workers.able), job.progress.exploration.latest
        plan = None if work is None else plan_spot_time(work)
        if not job.progress.exploration.worth.is_known:
            leaves_choice = latest.previews > job.spec.samples_per_iteration
            if plan is None or plan.waited_for or not leaves_choice:
                return _Wanted(min(_TO_BEGIN_WITH, job.spec.exploration.candidates), _UNTOLD)
        return None if plan is None else _Wanted(plan.waited_for, plan.why)


class _Wanted(NamedTuple):
    previews: float
    """For each sample, which training waits for."""
    why: str
