"""The failures of workers and losses of nodes that requests may have caused."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence

from spotlight.policies.dispatch.rows import Lease, Row

_MAX_FAILURES = 3
_QUARANTINE_AFTER = 3


class Blame:
    """See the module's docstring.

    Args:
        score_attempts: how often a request is scored before it is given up.
        avoid_s: a worker at which a request failed gets it again only after so long, while there
            are others.
    """

    def __init__(self, score_attempts: int, avoid_s: float) -> None:
        self._score_attempts = score_attempts
        self._avoid_s = avoid_s
        self._suspects: dict[str, Row] = {}
        """Requests that were held when a node was lost."""
        self._lost_with: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        """The same, by the nodes."""
        self._avoiding: deque[tuple[float, Row]] = deque()
        """Rows that failed somewhere, and until when they are kept from there."""

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
        return [row for row in rows if len(row.lost_with) >= _QUARANTINE_AFTER]

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
