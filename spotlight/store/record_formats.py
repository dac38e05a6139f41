"""The formats of the journal's records, by kind.

The kind of a record is its key up to the first slash. A kind whose content changes so that this
version could not read what an earlier one wrote gets a step here, which makes the former content
into the present one; its format is one more than its steps. Every record is stored with its format,
and is brought up when a journal is opened. A new field with a default needs no step.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Step = Callable[[object], object]
"""Makes the plain data of a record into those of the next format."""


def _without_worth(data: object) -> object:
    """0.1.0 kept other sums for what a choice among previews is worth: a run tells it anew."""
    if isinstance(data, dict):
        for record in (data, data.get("explored")):
            if isinstance(record, dict):
                record.pop("worth", None)
    return data


STEPS: dict[str, tuple[Step, ...]] = {
    "progress": (_without_worth,),
    "before_last": (_without_worth,),
}
"""The steps from each format to the next, by kind. A step is never removed: run folders live for
years."""


class NewerRecord(ValueError):
    """A record is of a format that only a newer version knows."""


def format_of(key: str) -> int:
    """The format in which this version writes a record with such a key; the first is 1."""
    return len(_steps(key)) + 1


def brought_up(key: str, form: int, body: bytes) -> bytes:
    """The body of a record in the format of this version, made from what it was in `form`.

    Raises `NewerRecord`, and `msgspec.MsgspecError` where the body is no JSON.
    """
    steps = _steps(key)
    if form > len(steps) + 1:
        raise NewerRecord(f"the record {key} has format {form}, and is read up to {len(steps) + 1}")
    missing = steps[form - 1 :]
    if not missing:
        return body
    data = msgspec.json.decode(body)
    for step in missing:
        data = step(data)
    return msgspec.json.encode(data)


def _steps(key: str) -> tuple[Step, ...]:
    return STEPS.get(key.partition("/")[0], ())
