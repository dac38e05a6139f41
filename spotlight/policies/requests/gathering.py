"""Requests whose images are scored together: once they are denoised they wait for one another.

Nobody waits for what is over: given up, not wanted any more, or finished by an earlier table. All
requests of a group must be submitted at once, or the first would not know of the others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from spotlight.policies.requests.rows import Row
from spotlight.types import Request


@dataclass
class _Group:
    open: int = 0
    """How many were submitted and are not over."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Those that wait, by seed."""


class Gathering:
    """See the module's docstring. An operation costs the same whatever the number of groups."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._changed: dict[Hashable, None] = {}
        """The groups that may be whole since the last look, in the order of their changes."""

    def submitted(self, row: Row) -> None:
        """Others wait for it, until it is over; nobody does if it is scored alone."""
        if row.request.scored_with:
            self._groups.setdefault(_key(row.request), _Group()).open += 1

    def over(self, row: Row) -> None:
        """Nobody waits for it any more, nor does it wait itself."""
        if not row.request.scored_with:
            return
        key = _key(row.request)
        self._groups[key].open -= 1
        self._changed[key] = None
        if not self._groups[key].open:
            del self._groups[key]

    def put(self, row: Row) -> None:
        """It is denoised, and waits for the others."""
        key = _key(row.request)
        self._groups[key].rows[row.request.seed] = row
        self._changed[key] = None

    def take(self, row: Row) -> None:
        """It does not wait any more."""
        del self._groups[_key(row.request)].rows[row.request.seed]

    def whole(self) -> list[list[Row]]:
        """The groups of which all that are not over wait here, each in the order of its seeds. They
        do not wait here any more."""
        found = []
        for key in self._changed:
            group = self._groups.get(key)
            if group is not None and len(group.rows) == group.open:
                rows, group.rows = group.rows, {}
                seeds = next(iter(rows.values())).request.scored_with
                found.append([rows[seed] for seed in seeds if seed in rows])
        self._changed.clear()
        return found


def _key(request: Request) -> Hashable:
    return (
        request.kind,
        request.iteration,
        request.weights_version,
        request.group,
        request.scored_with,
    )
