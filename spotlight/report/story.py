"""What happened to a run, in lines that people read: those events that matter, and what each
iteration and validation came to.
"""

from __future__ import annotations

import msgspec

from spotlight.record.run_events import RunEvent, RunStarted
from spotlight.record.run_metrics import IterationMetrics, RunMetrics, ValidationMetrics
from spotlight.report.charts import clock
from spotlight.report.formatting import count, duration, event_words, score


class StoryLine(msgspec.Struct, frozen=True):
    """One thing that happened."""

    time_s: float
    """Seconds of run time."""
    what: str
    details: str
    is_loss: bool = False
    """Whether something was lost, or failed."""

    def __str__(self) -> str:
        return f"{clock(self.time_s):>8}  {self.what:<20}  {self.details}".rstrip()


def line_of(record: RunEvent | RunMetrics) -> StoryLine | None:
    """How a record is told; None for what matters to nobody who did not ask for it."""
    match record:
        case IterationMetrics():
            return StoryLine(record.time_s, f"Iteration {record.iteration}", _iteration(record))
        case ValidationMetrics():
            images = count(record.images, "image")
            said = f"{score(record.score)} over {images}, version {record.weights_version}"
            return StoryLine(record.time_s, "Validation", said)
        case RunStarted(resumed_from_iteration=None):
            return StoryLine(record.time_s, "Run started", record.job)
        case RunEvent() if words := event_words(record):
            return StoryLine(record.time_s, *words)
    return None


def _iteration(record: IterationMetrics) -> str:
    said = [f"reward {score(record.reward_mean)}"]
    for name, seconds in (
        ("rollout", record.rollout_s),
        ("exploration", record.explore_s),
        ("training", record.train_s),
    ):
        if seconds:
            said.append(f"{name} {duration(seconds)}")
    if record.previews:
        said.append(count(record.previews, "preview"))
    return ", ".join(said)
