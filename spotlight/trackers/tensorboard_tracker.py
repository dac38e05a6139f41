"""Writes a run's metrics for TensorBoard, into the run folder's `tensorboard/`: one step for each
iteration. `tensorboard --logdir runs` then shows all runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorboardX import SummaryWriter
from tensorboardX.proto.summary_pb2 import Summary

from spotlight.record.run_events import RunEvent, RunFinished
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers.callback import IterationRecord
from spotlight.trackers.pictures import LARGEST, ValidationPictures, size_of
from spotlight.trackers.scalars import iteration_scalars, validation_scalars
from spotlight.trackers.tracked_run import TrackedRun


class TensorBoardTracker:
    """See `Callback`."""

    def __init__(self, run: TrackedRun) -> None:
        self._writer = SummaryWriter(str(run.folder / "tensorboard"))

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """See `Callback`."""
        self._write(iteration_scalars(IterationRecord(metrics, loss)), metrics.iteration)

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """See `Callback`."""
        self._write(validation_scalars(metrics), metrics.iteration)

    def on_pictures(self, pictures: ValidationPictures) -> None:
        """See `ShowsPictures`. They are written as they are: nothing is decoded."""
        for shown in pictures.there():
            data = shown.file.read_bytes()
            size = size_of(data)
            if size is None or len(data) > LARGEST:
                continue
            image = Summary.Image(
                width=size[0], height=size[1], colorspace=3, encoded_image_string=data
            )
            value = Summary.Value(tag=f"pictures/{shown.name} {shown.prompt}"[:200], image=image)
            self._writer.file_writer.add_summary(Summary(value=[value]), pictures.iteration)
        self._writer.flush()

    def on_event(self, event: RunEvent) -> None:
        """See `Callback`."""
        if isinstance(event, RunFinished):
            self._writer.close()

    def _write(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
