"""The callback protocol: three methods, which are given the very records of the run folder, and one
that a tracker may have besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from spotlight.record.run_events import RunEvent
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers.pictures import ValidationPictures


class Callback(Protocol):
    """What is told of a run while it goes on.

    The methods are called in the order in which things happened, one at a time, in a thread of
    their own: they may take their time. Whatever they raise is logged and counted, and the run goes
    on; `spotlight.errors.StopJob` ends the job instead. The first call is `on_event` with
    `RunStarted`, the last one `on_event` with `RunFinished`, unless the coordinator ends before the
    job: the next one makes the callbacks anew, and goes on with `RunStarted`.
    """

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """An iteration is over; `loss` has the further metrics of its update."""
        ...

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """A weights version is validated."""
        ...

    def on_event(self, event: RunEvent) -> None:
        """Something else happened; `event.name` says what."""
        ...


@runtime_checkable
class ShowsPictures(Protocol):
    """A tracker of a job that shows pictures, too."""

    def on_pictures(self, pictures: ValidationPictures) -> None:
        """The pictures of a validation are in the run folder."""
        ...


class IterationRecord(NamedTuple):
    """The line of an iteration in `metrics.jsonl`."""

    metrics: IterationMetrics
    loss: Mapping[str, float]
    """The further metrics of its update."""


RunRecords = IterationRecord | ValidationMetrics | RunEvent
"""What a run writes down."""
Told = RunRecords | ValidationPictures
"""What callbacks are told of."""


def deliver(record: Told, callback: Callback) -> None:
    """Call the method that the record is for."""
    match record:
        case IterationRecord(metrics, loss):
            callback.on_iteration(metrics, loss)
        case ValidationMetrics():
            callback.on_validation(record)
        case ValidationPictures():
            if isinstance(callback, ShowsPictures):
                callback.on_pictures(record)
        case RunEvent():
            callback.on_event(record)
