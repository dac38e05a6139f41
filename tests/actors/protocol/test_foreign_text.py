"""What other processes say in words is cleaned as it is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from spotlight.actors.protocol.down import NodeRefused
from spotlight.actors.protocol.sessions import FailedSample, SessionRefused
from spotlight.actors.protocol.trainer import TrainerReport
from spotlight.actors.protocol.up import LeaseFailed, NodeNotice, WorkerReport, WorkerTrouble
from spotlight.actors.protocol.users import CancelJob, JobRefused, JobStatus
from spotlight.text import LONGEST_ERROR

FOREIGN = "\x1b[2J\x1b]0;title\x07gone\u202e\n\x00" + "x" * 100_000
SAID: list[tuple[type, dict[str, Any], str]] = [
    (WorkerReport, {"worker": "n/0", "epoch": 1}, "cannot_serve"),
    (WorkerReport, {"worker": "n/0", "epoch": 1}, "failure"),
    (WorkerReport, {"worker": "n/0", "epoch": 1}, "detail"),
    (WorkerTrouble, {"worker": "n/0"}, "reason"),
    (NodeNotice, {"lead_s": None}, "source"),
    (LeaseFailed, {"worker": "n/0", "epoch": 1, "lease": 1}, "error"),
    (TrainerReport, {}, "error"),
    (FailedSample, {"seed": 1}, "reason"),
    (CancelJob, {}, "reason"),
    (JobRefused, {}, "reason"),
    (NodeRefused, {}, "reason"),
    (SessionRefused, {}, "reason"),
    (JobStatus, {}, "reason"),
    (JobStatus, {}, "note"),
]


@pytest.mark.parametrize(
    ("kind", "others", "field"), SAID, ids=lambda value: getattr(value, "__name__", None)
)
def test_words_of_others_are_one_short_line(kind: type, others: dict[str, Any], field: str) -> None:
    tag = {"type": kind.__name__} if msgspec.inspect.type_info(kind).tag else {}  # type: ignore[union-attr]
    raw = msgspec.msgpack.encode({**tag, **others, field: FOREIGN})
    words = getattr(msgspec.msgpack.decode(raw, type=kind), field)
    assert words.startswith("gone x")
    assert words.isprintable()
    assert len(words) <= LONGEST_ERROR
