"""Events are written as lines and read again as the very same records."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from spotlight.record.run_events import (
    EVENTS,
    LeasesExpired,
    RunEvent,
    WorkerLost,
    decode_event,
    encode_event,
)

SAMPLES: dict[Any, Any] = {str: "x", bool: True, int: 3, float: 0.5, tuple[str, ...]: ("a", "b")}


def sample(kind: type[RunEvent]) -> RunEvent:
    """One with a value in every field."""
    values = {}
    for name, hint in get_type_hints(kind).items():
        if name != "time_s":
            options = get_args(hint)
            values[name] = SAMPLES.get(hint) or SAMPLES.get(options[0], options[0])
    if kind is WorkerLost:
        values["requests_reissued"] = {"rollout": 2}
    return kind(**values)


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_read_as_it_was_written(name: str) -> None:
    event = sample(EVENTS[name])
    line = json.dumps(encode_event(event, 1.5)).encode()
    assert decode_event(line) == msgspec.structs.replace(event, time_s=1.5)
    assert event.name == name


def test_a_line_begins_with_time_and_name() -> None:
    line = encode_event(LeasesExpired(items=2), 1.5)
    assert list(line.items()) == [("time_s", 1.5), ("event", "leases_expired"), ("items", 2)]
