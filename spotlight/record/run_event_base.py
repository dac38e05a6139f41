"""What all events of a run have in common; the events themselves are in `run_events`."""

from __future__ import annotations

from typing import Any

import msgspec

_HEAD = ("event", "time_s", "at")


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened in a run."""

    time_s: float = 0.0
    """Seconds of run time when it happened; filled in when the line is written."""
    at: float | None = None
    """The same moment in seconds since 1970 (UTC); filled in, too. None in older records."""

    @property
    def name(self) -> str:
        """The name of the event in its line."""
        return str(self.__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """What the event says, without its name and its times, as data for JSON."""
        said: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in said.items() if key not in _HEAD}
