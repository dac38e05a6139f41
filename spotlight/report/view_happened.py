"""Which events of a run are shown as what happened, and which are marked across its curves."""

from __future__ import annotations

from typing import Literal

from spotlight.record.run_events import (
    CallbackTrouble,
    NodeLost,
    NoticeReceived,
    RewardFell,
    RewardsFlat,
    RunEvent,
    RunFinished,
    RunStarted,
    SegmentBegan,
    TrainersLost,
    TrainingFailed,
)
from spotlight.report.formatting import duration, event_words
from spotlight.report.run_view import Happened, Mark

_ERRORS = (RunFinished, TrainingFailed)
_LONGEST = 400
"""Most characters of what happened."""


def happened_of(event: RunEvent, *, is_first: bool = False) -> Happened | None:
    """None for what matters to nobody who did not ask for it.

    Args:
        is_first: whether nothing began before it.
    """
    if isinstance(event, RunStarted) and is_first:
        return Happened(event.time_s, "info", "Run started")
    words = event_words(event)
    if words is None:
        return None
    what, details, is_loss = words
    level: Literal["info", "warning", "error"] = "info"
    if is_loss:
        level = "error" if isinstance(event, _ERRORS) else "warning"
    said = " ".join(f"{what}: {details}".split())
    return Happened(event.time_s, level, said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…")


def mark_of(event: RunEvent) -> Mark | None:
    """What is drawn across the curves; where it is there is filled in later."""
    match event:
        case NoticeReceived(node=node, lead_s=lead_s):
            lead = "" if lead_s is None else f", {duration(lead_s)} before"
            return _mark(event, "notice", f"notice for {node}{lead}")
        case NodeLost(node=node):
            return _mark(event, "lost", f"{node} lost")
        case RunStarted():
            return _mark(event, "restart", "coordinator came back")
        case SegmentBegan(number=number, changes=changes):
            return _mark(event, "segment", f"segment {number}: {'; '.join(changes)}"[:_LONGEST])
        case TrainersLost():
            return _mark(event, "alert", "trainers lost")
        case RewardsFlat():
            return _mark(event, "alert", "all rewards equal")
        case RewardFell(reward=reward):
            return _mark(event, "alert", f"{reward} fell while the score rose")
        case CallbackTrouble(callback=name, failures=failures) if failures:
            return _mark(event, "alert", f"tracker {name} failed")
        case RunFinished(outcome="failed"):
            return _mark(event, "alert", "run failed")
    return None


def _mark(
    event: RunEvent,
    kind: Literal["notice", "lost", "restart", "segment", "alert"],
    text: str,
) -> Mark:
    return Mark(time_s=event.time_s, usd=None, iteration=0.0, kind=kind, text=text)
