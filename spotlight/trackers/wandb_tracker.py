"""Logs a run to Weights & Biases. A resumed run goes on with the same run there.

Who is logged in, the address of the server and `WANDB_MODE=offline` are wandb's own settings, taken
from the environment of the coordinator. Its files go to the run folder's `wandb/`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import wandb

from spotlight.record.run_events import RunEvent, RunFinished
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers.callback import IterationRecord
from spotlight.trackers.pictures import ValidationPictures, caption
from spotlight.trackers.scalars import iteration_scalars, validation_scalars
from spotlight.trackers.tracked_run import TrackedRun


class WandbTracker:
    """See `Callback`."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = wandb.init(
            project=run.tracker.project,
            name=run.folder.name,
            id=run.id,
            resume="allow",
            dir=run.folder,
            config=msgspec.to_builtins(run.job),
            settings=wandb.Settings(console="off", silent=True),
        )
        # What a resumed run does again comes with steps that were there before.
        self._run.define_metric("completed")
        self._run.define_metric("*", step_metric="completed")

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """See `Callback`."""
        scalars = iteration_scalars(IterationRecord(metrics, loss))
        self._run.log({"completed": metrics.iteration, **scalars})

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """See `Callback`."""
        self._run.log({"completed": metrics.iteration, **validation_scalars(metrics)})

    def on_pictures(self, pictures: ValidationPictures) -> None:
        """See `ShowsPictures`."""
        shown = [wandb.Image(str(one.file), caption=caption(one)) for one in pictures.there()]
        if shown:
            self._run.log({"completed": pictures.iteration, "pictures": shown})

    def on_event(self, event: RunEvent) -> None:
        """See `Callback`."""
        if isinstance(event, RunFinished):
            self._run.finish(exit_code=int(event.outcome == "failed"))
