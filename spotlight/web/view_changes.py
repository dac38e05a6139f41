"""What changed from one view of a run to the next, as viewers are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from spotlight.report.run_view import RunView

_FIELDS = tuple(field.name for field in msgspec.structs.fields(RunView))


def change_between(old: RunView, new: RunView) -> dict[str, Any]:
    """The fields that changed, whole; of `rows` those from the first that differs on, with its
    index as `rows_from`. Empty if nothing changed."""
    changed = {
        name: getattr(new, name)
        for name in _FIELDS
        if name != "rows" and getattr(old, name) != getattr(new, name)
    }
    if old.rows != new.rows:
        first = _first_difference(old.rows, new.rows)
        changed |= {"rows_from": first, "rows": new.rows[first:]}
    return changed


def _first_difference(old: Sequence[object], new: Sequence[object]) -> int:
    both = zip(old, new, strict=False)
    return next(
        (index for index, (one, other) in enumerate(both) if one != other),
        min(len(old), len(new)),
    )
