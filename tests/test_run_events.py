"""Events are written as lines and read again as the very same records."""

from __future__ import annotations

import json

import msgspec
import pytest

from spotlight.record.run_events import (
    EVENTS,
    RequestGivenUp,
    ResultsIgnored,
    RunEvent,
    WorkerIsSick,
    WorkerLost,
    WorkTakenBack,
    decode_event,
    encode_event,
    name_of,
)
from tests.event_samples import sample_event


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_read_as_it_was_written(name: str) -> None:
    event = sample_event(EVENTS[name])
    line = json.dumps(encode_event(event, 1.5, 1_790_000_000.25)).encode()
    assert decode_event(line) == msgspec.structs.replace(event, time_s=1.5, at=1_790_000_000.25)
    assert event.name == name


@pytest.mark.parametrize(
    ("line", "today"),
    [
        (b'{"event":"late_results","worker":"a","lease":7}', ResultsIgnored(worker="a", lease=7)),
        (b'{"event":"leases_expired","items":2}', WorkTakenBack(items=2)),
        (
            b'{"event":"request_quarantined","request":"r","prompt":"p"}',
            RequestGivenUp(request="r", prompt="p"),
        ),
        (
            b'{"event":"worker_quarantined","worker":"a","reason":"it fails"}',
            WorkerIsSick(worker="a", reason="it fails"),
        ),
        (
            b'{"event":"worker_lost","worker":"a","requests_reissued":{"rollout":3}}',
            WorkerLost(worker="a", requests_handed_on={"rollout": 3}),
        ),
    ],
    ids=["results", "leases", "request", "worker", "lost"],
)
def test_what_had_another_name_before_is_read(line: bytes, today: RunEvent) -> None:
    assert decode_event(line) == today
    assert name_of(line) == today.name


def test_a_prompt_that_is_a_former_name_stays_as_it_is() -> None:
    event = RequestGivenUp(request="late_results", prompt="requests_reissued")
    assert decode_event(json.dumps(encode_event(event, 0.0)).encode()) == event


def test_a_line_begins_with_times_and_name() -> None:
    line = encode_event(WorkTakenBack(items=2), 1.5, 7.0)
    said = [("time_s", 1.5), ("at", 7.0), ("event", "work_taken_back"), ("items", 2)]
    assert list(line.items()) == said


def test_a_line_of_an_earlier_version_has_no_date() -> None:
    event = decode_event(b'{"time_s":1.5,"event":"work_taken_back","items":2}')
    assert event == WorkTakenBack(time_s=1.5, items=2) and event.at is None
