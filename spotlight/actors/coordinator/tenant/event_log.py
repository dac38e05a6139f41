"""What the coordinator's log tells of a job or a session: one line for each event that an operator
wants to know of, with the name of the job.

Everything is in the run folder. What happens to every batch and worker is not logged as well.
"""

from __future__ import annotations

from typing import Literal

import structlog

from spotlight.actors.runtime.log_limiter import LogLimiter
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
    run_events.CallbackTrouble: "warning",
    run_events.GroupDropped: "warning",
    run_events.RewardsFlat: "warning",
    run_events.RewardFell: "warning",
    run_events.ExplorationReduced: "info",
    run_events.SamplesRegenerated: "info",
    run_events.SamplesOutdated: "error",
    run_events.NodeMustWait: "info",
    run_events.NoticeReceived: "info",
    run_events.NoticeWithdrawn: "info",
    run_events.WeightsNotFetched: "warning",
    run_events.WorkerCannotServe: "error",
    run_events.WorkerFailed: "error",
    run_events.WorkerIsSick: "error",
    run_events.WorkTakenBack: "warning",
    run_events.RequestGivenUp: "error",
    run_events.DenoiseFailed: "warning",
    run_events.ScorerFailed: "warning",
    run_events.TrainersFound: "info",
    run_events.TrainersBuilt: "info",
    run_events.TrainerOutOfReach: "warning",
    run_events.TrainersLost: "warning",
}
"""The events that are told whatever they say. Nodes that come and go are the coordinator's to
tell."""

_PROGRESS_INTERVAL_S = 30.0
"""Seconds in which no more than one line of iterations and of validations is written."""


class EventLog:
    """See the module's docstring.

    Args:
        job: name of the job or session.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._progress = LogLimiter(_PROGRESS_INTERVAL_S)

    def event(self, event: RunEvent) -> None:
        """Something happened."""
        level = _level(event)
        if level is not None:
            getattr(log, level)(event.name, **{"job": self._job, **event.fields()})

    def iteration(self, metrics: IterationMetrics, now: float) -> None:
        """An iteration is done; lines that were left out since the last one are counted."""
        unlogged = self._progress.admit("iteration", now)
        if unlogged is not None:
            log.info(
                "iteration_done",
                job=self._job,
                completed=metrics.iteration + 1,
                reward_mean=metrics.reward_mean,
                unlogged=unlogged,
            )

    def validation(self, metrics: ValidationMetrics, now: float) -> None:
        """A weights version is validated; the same."""
        unlogged = self._progress.admit("validation", now)
        if unlogged is not None:
            log.info(
                "validated",
                job=self._job,
                weights_version=metrics.weights_version,
                score=metrics.score,
                unlogged=unlogged,
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
