"""What the coordinator's log tells of a job or a session, from its start to its end: a line for
each iteration, each validation, and each event that an operator wants to know of. All say which job
it is, and whose.

Everything is in the run folder. What happens to every batch and worker is not logged as well, and
what goes wrong again and again is a line once in a while.
"""

from __future__ import annotations

from typing import Literal

import structlog

from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.record import run_events
from spotlight.record.run_events import RunEvent
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics

log = structlog.get_logger(__name__)

Level = Literal["info", "warning", "error"]

_LEVELS: dict[type[RunEvent], Level] = {
    run_events.RunStarted: "info",
    run_events.JournalTailDropped: "warning",
    run_events.MirrorFailed: "warning",
    run_events.ModelExported: "info",
    run_events.BudgetNear: "warning",
    run_events.CallbackTrouble: "warning",
    run_events.GroupDropped: "warning",
    run_events.RewardsFlat: "warning",
    run_events.RewardFell: "warning",
    run_events.ExplorationReduced: "info",
    run_events.SamplesRegenerated: "info",
    run_events.SamplesMadeAgain: "warning",
    run_events.PreviewsMisled: "info",
    run_events.SamplesOutdated: "error",
    run_events.NodeMustWait: "info",
    run_events.NodeUnpriced: "warning",
    run_events.NoticeReceived: "info",
    run_events.NoticeWithdrawn: "info",
    run_events.WeightsNotFetched: "warning",
    run_events.WorkerCannotServe: "error",
    run_events.WorkerFailed: "error",
    run_events.WorkerIsSick: "error",
    run_events.WorkTakenBack: "warning",
    run_events.RequestGivenUp: "error",
    run_events.DenoiseFailed: "warning",
    run_events.GradientFailed: "warning",
    run_events.GradientsGivenUp: "warning",
    run_events.OtherDevice: "warning",
    run_events.TrainingWaits: "info",
    run_events.ScorerFailed: "warning",
    run_events.TrainersFound: "info",
    run_events.TrainersBuilt: "info",
    run_events.TrainerOutOfReach: "warning",
    run_events.TrainersLost: "warning",
    run_events.TrainingFailed: "error",
}
"""The events that are told whatever they say. Nodes that come and go are the coordinator's to
tell."""

_OFTEN = (
    run_events.CallbackTrouble,
    run_events.DenoiseFailed,
    run_events.GradientFailed,
    run_events.GradientsGivenUp,
    run_events.MirrorFailed,
    run_events.NodeMustWait,
    run_events.ScorerFailed,
    run_events.WeightsNotFetched,
    run_events.WorkerFailed,
    run_events.WorkerLost,
    run_events.WorkTakenBack,
)
"""What may happen to every batch or worker: those for the same reason are told once a minute."""


class TenantLog:
    """See the module's docstring.

    Args:
        job_id: of the job or session.
        job: the name by which people know it.
        owner: who submitted it.
    """

    def __init__(self, job_id: str, job: str, owner: str) -> None:
        self.lines = log.bind(job_id=job_id, job=job, owner=owner)
        """Whatever else is to be told of the job or session."""
        self._often = LimitedLog(self.lines)
        self._progress = LimitedLog(self.lines, interval_s=1.0)
        self._score: float | None = None
        """The latest validation score."""
        self._since: float | None = None
        """The time of the iteration before."""

    def event(self, event: RunEvent) -> None:
        """Something happened."""
        level = _level(event)
        if level is None:
            return
        fields = event.fields()
        fields.pop("traceback", None)  # many lines, which are in the run folder
        if isinstance(event, _OFTEN):
            why = fields.get("error") or fields.get("reason") or ""
            self._often.line(level, event.name, about=why, **fields)
        else:
            getattr(self.lines, level)(event.name, **fields)

    def begins(self, now: float, score: float | None) -> None:
        """The run goes on from here, with this as its latest validation score."""
        self._since, self._score = now, score

    def iteration(self, metrics: IterationMetrics, now: float) -> None:
        """An iteration is done; where they are very fast, lines are left out and counted."""
        since, self._since = self._since, now
        self._progress.info(
            "iteration_done",
            completed=metrics.iteration + 1,
            reward_mean=metrics.reward_mean,
            validation=self._score,
            seconds=round(now - since, 3) if since is not None else None,
            samples=metrics.samples,
        )

    def validation(self, metrics: ValidationMetrics) -> None:
        """A weights version is validated; the same."""
        self._score = round(metrics.score, 6)  # as it is on record
        self._progress.info(
            "validated", weights_version=metrics.weights_version, score=metrics.score
        )


def _level(event: RunEvent) -> Level | None:
    match event:
        case run_events.RunFinished(outcome="failed"):
            return "error"
        case run_events.RunFinished():
            return "info"
        case run_events.WorkerLost():
            return "warning" if event.requests_handed_on else "info"
        case _:
            return _LEVELS.get(type(event))
