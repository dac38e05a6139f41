"""For how many previews training waits, where exploration would end with it otherwise: as many as
are worth it by the plan of spot time, whoever is there to make them.

It is on record when an iteration begins, so a kill changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spotlight.policies.exploration.choice_worth import TELLING
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

        While the worth of a choice is a guess, a plan by it is worth little: training waits for
        some, unless there are so many without waiting that a few iterations tell.
        """
        job, workers = self._job, self._job.gradients.workers
        exploration = job.progress.exploration
        if not exploration.worth.is_known:
            enough = TELLING * job.spec.samples_per_iteration
            if not job.progress.saved.least_previews and exploration.latest.previews >= enough:
                return _Wanted(0.0, _UNTOLD)
            return _Wanted(min(_TO_BEGIN_WITH, job.spec.exploration.candidates), _UNTOLD)
        work = workers.work(workers.able)
        plan = None if work is None else plan_spot_time(work)
        return None if plan is None else _Wanted(plan.waited_for, plan.why)


class _Wanted(NamedTuple):
    previews: float
    """How many previews for each sample training waits for."""
    why: str
