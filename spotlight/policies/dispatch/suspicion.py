"""Which workers are sick: they fail what others can do.

A worker that fails several leases in a row, on different requests, is a suspect, and is held back
while somebody else is there: what it failed is for others to try, and no request is given up for
what suspects did to it. Once others have done one of these requests the worker is sick, and its
failures count against none of them. If all that are there are suspects, the requests are likely to
be at fault: nobody is held back, and requests that fail too often are given up.

The failures of scorers say nothing of a worker: scorers may be elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from spotlight.policies.dispatch.rows import Row

_FAILURES = 3
"""So many leases on different requests, failed in a row, make a suspect."""
_REMEMBERED = 256
"""Of what a worker has failed in a row, so many of the latest requests are remembered."""


@dataclass
class _Record:
    """What a worker has failed since it last did something."""

    leases: int = 0
    """On requests that it had not failed before."""
    rows: dict[str, Row] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    latest: float = 0.0
    """When it failed last."""


class Suspicion:
    """See the module's docstring; of the workers of a table, by name."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self.suspects: frozenset[str] = frozenset()

    def failed(self, worker: str, rows: Collection[Row], error: str, now: float) -> None:
        """Denoising these failed there."""
        record = self._records.setdefault(worker, _Record())
        record.leases += all(row.request.id not in record.rows for row in rows)
        record.rows.update((row.request.id, row) for row in rows)
        for oldest in list(record.rows)[:-_REMEMBERED]:
            del record.rows[oldest]
        record.errors[error] += 1
        record.latest = now
        if record.leases >= _FAILURES:
            self.suspects |= {worker}

    def done(self, worker: str, rows: Iterable[Row]) -> dict[str, str]:
        """A worker has done these; returns those that are known to be sick by that, with their most
        frequent error."""
        self.forget(worker)
        ids = {row.request.id for row in rows}
        return {
            name: self._records[name].errors.most_common(1)[0][0]
            for name in sorted(self.suspects)
            if not ids.isdisjoint(self._records[name].rows)
        }

    def failed_at(self, suspect: str) -> float:
        """When a suspect failed last."""
        return self._records[suspect].latest

    def forget(self, worker: str) -> list[Row]:
        """It did something, or is gone, or is known to be sick; returns what it had failed."""
        self.suspects -= {worker}
        record = self._records.pop(worker, _Record())
        return list(record.rows.values())
