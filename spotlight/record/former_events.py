"""What earlier versions of Spotlight called events and their fields: run folders of theirs are read
as if today's had written them.
"""

from __future__ import annotations

import re
from typing import Any

_EVENTS = {
    "late_results": "results_ignored",
    "leases_expired": "work_taken_back",
    "request_quarantined": "request_given_up",
    "worker_quarantined": "worker_is_sick",
}
_FIELDS = {"requests_reissued": "requests_handed_on"}
_IN_A_LINE = re.compile(rb'"(' + "|".join((*_EVENTS, *_FIELDS)).encode() + rb')"')


def has_former_names(line: bytes) -> bool:
    """Whether a line may be one to read through `as_today`."""
    return _IN_A_LINE.search(line) is not None


def event_today(name: str) -> str:
    """What an event of that name is called today."""
    return _EVENTS.get(name, name)


def as_today(event: dict[str, Any]) -> dict[str, Any]:
    """The data of an event's line under today's names."""
    named = {_FIELDS.get(key, key): value for key, value in event.items()}
    name = named.get("event")
    return {**named, "event": event_today(name)} if isinstance(name, str) else named
