"""An event of each kind."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from spotlight.record.run_events import RunEvent, WorkerLost

SAMPLES: dict[Any, Any] = {str: "x", bool: True, int: 3, float: 0.5, tuple[str, ...]: ("a", "b")}


def sample_event(kind: type[RunEvent]) -> RunEvent:
    """One with a value in every field."""
    values = {}
    for name, hint in get_type_hints(kind).items():
        if name not in ("time_s", "at"):
            options = get_args(hint)
            values[name] = SAMPLES.get(hint) or SAMPLES.get(options[0], options[0])
    if kind is WorkerLost:
        values["requests_handed_on"] = {"rollout": 2}
    return kind(**values)
