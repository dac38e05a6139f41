"""Who is at fault when something fails: a request, or the worker that had it.

A request that fails at several workers, or is lost with several nodes, is given up. A worker that
fails several leases in a row, on different requests, is a suspect, and is held back while somebody
else is there: what it failed is for others to try, and no request is given up for what suspects did
to it. Once others have done one of these requests the worker is sick, and its failures count
against none of them. If all that are there are suspects, the requests are likely to be at fault:
nobody is held back, and requests that fail too often are given up.

The failures of scorers say nothing of a worker: scorers may be elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from spotlight.policies.requests.rows import Lease, Row

_MAX_FAILURES = 3
"""A request whose denoising failed so often is given up."""
_GIVEN_UP_AFTER = 3
"""A request that was lost with so many nodes is given up."""
_FAILURES = 3
"""How many leases on different requests, failed in a row, make a suspect."""
_REMEMBERED = 256
"""How many of the latest requests that a worker has failed in a row are remembered."""


class Blame:
    """The failures of workers and losses of nodes that requests may have caused.

    Args:
        score_attempts: how often a request is scored before it is given up.
        avoid_s: a worker at which a request failed gets it again only after so long, while there
            are others.
    """

    def __init__(self, score_attempts: int, avoid_s: float) -> None:
        self._score_attempts = score_attempts
        self._avoid_s = avoid_s
        self._suspects: dict[str, Row] = {}
        """The rows that were held when a node was lost, by the ids of their requests."""
        self._lost_with: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        """The same rows, by node and id."""
        self._avoiding: deque[tuple[float, Row]] = deque()
        """The rows that failed somewhere, and until when they are kept from there."""

    def failed(
        self, rows: Iterable[Row], worker: str, what: str, now: float, suspects: Collection[str]
    ) -> list[Row]:
        """Denoising or scoring these failed there; returns those that failed too often, wherever
        that was the fault of the requests: not at `suspects`.
        """
        too_often = []
        for row in rows:
            if what == "scoring":
                row.score_failures += 1
            else:
                row.failures_at[worker] = row.failures_at.get(worker, 0) + 1
            row.failed_at |= {worker}
            self._avoiding.append((now + self._avoid_s, row))
            failures = sum(n for name, n in row.failures_at.items() if name not in suspects)
            if failures >= _MAX_FAILURES or row.score_failures >= self._score_attempts:
                too_often.append(row)
        return too_often

    def pardoned(self, now: float) -> list[Row]:
        """Rows that have kept away from workers for long enough."""
        rows = []
        while self._avoiding and self._avoiding[0][0] <= now:
            row = self._avoiding.popleft()[1]
            if row.failed_at:
                rows.append(row)
        return rows

    def lost(self, leases: Sequence[Lease], node: str, *, ended: bool) -> list[Row]:
        """A worker of the node is gone with these leases; returns the rows that were lost with too
        many nodes. Unless it is known to have ended, only what it is known to have held counts.
        """
        rows = [row for it in leases if ended or it.is_known for row in it.rows]
        for row in rows:
            row.lost_with.add(node)
            self._suspects[row.request.id] = self._lost_with[node][row.request.id] = row
        return [row for row in rows if len(row.lost_with) >= _GIVEN_UP_AFTER]

    def absolve(self, node: str) -> None:
        """The node was not lost, but out of reach."""
        for row in self._lost_with.pop(node, {}).values():
            row.lost_with.discard(node)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These are over."""
        for request_id in request_ids:
            row = self._suspects.pop(request_id, None)
            for node in row.lost_with if row is not None else ():
                self._lost_with[node].pop(request_id, None)
                if not self._lost_with[node]:
                    del self._lost_with[node]


@dataclass
class _Record:
    """What a worker has failed since it last did something."""

    leases: int = 0
    """How many leases it failed, on requests that it had not failed before."""
    rows: dict[str, Row] = field(default_factory=dict)
    """The latest requests that it failed, by id."""
    errors: Counter[str] = field(default_factory=Counter)
    """How often it failed, by what was said of it."""
    latest: float = 0.0
    """When it failed last."""


class Suspicion:
    """Which workers of a table are sick, as the module's docstring says."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self.suspects: frozenset[str] = frozenset()
        """The workers that may be sick."""

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
