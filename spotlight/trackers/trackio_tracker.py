"""Logs a run to trackio, whose `trackio show` draws it on this machine. Where it keeps its files,
and with which Space it shares them, are trackio's own settings.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import trackio

from spotlight.record.run_events import RunEvent, RunFinished
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers.callback import IterationRecord
from spotlight.trackers.pictures import ValidationPictures, caption
from spotlight.trackers.scalars import iteration_scalars, validation_scalars
from spotlight.trackers.tracked_run import TrackedRun


class TrackioTracker:
    """See `Callback`."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = trackio.init(
            project=run.tracker.project,
            name=run.id,
            resume="allow",
            config=msgspec.to_builtins(run.job),
            embed=False,
        )

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """See `Callback`."""
        scalars = iteration_scalars(IterationRecord(metrics, loss))
        self._run.log(scalars, step=metrics.iteration)

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """See `Callback`."""
        self._run.log(validation_scalars(metrics), step=metrics.iteration)

    def on_pictures(self, pictures: ValidationPictures) -> None:
        """See `ShowsPictures`."""
        shown = {
            f"pictures/{one.name}": trackio.Image(str(one.file), caption=caption(one))
            for one in pictures.there()
        }
        if shown:
            self._run.log(shown, step=pictures.iteration)

    def on_event(self, event: RunEvent) -> None:
        """See `Callback`."""
        if isinstance(event, RunFinished):
            self._run.finish()
