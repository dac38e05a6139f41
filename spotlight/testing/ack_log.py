"""Remembers what simulated coordinators have made durable, across their kills, to see that nothing
of it is lost or done again."""

from __future__ import annotations

from collections.abc import Mapping

from spotlight.actors.protocol import Grant
from spotlight.policies.dispatch.rows import SavedRow
from spotlight.testing.history import History


class AckLog:
    """Commits and completions by request, each with the newest lease that there was when it was
    accepted: only later grants can be expected to know of it. Its methods are called with what
    coordinators log.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[str, tuple[int, int]] = {}
        """Step and newest lease."""
        self._completed: dict[str, int] = {}
        self._newest = 0
        """Lease."""

    def granted(self, lease: int) -> None:
        """A lease begins."""
        self._newest = max(self._newest, lease)

    def saving(self, rows: Mapping[str, SavedRow | None]) -> None:
        """A coordinator is about to write these. What it takes back is forgotten before it does,
        since it may be killed as soon as that is durable.
        """
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                self._committed.pop(request_id, None)
                self._completed.pop(request_id, None)

    def saved(self, rows: Mapping[str, SavedRow | None]) -> None:
        """They are durable."""
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                continue
            if row.rewards is None:
                self._committed[request_id] = (row.commit.step, self._newest)
            elif request_id in self._completed:
                self._history.violation(f"{request_id} counts twice")
            else:
                self._completed[request_id] = self._newest

    def taking_all_back(self) -> None:
        """A coordinator is about to go back to an earlier iteration."""
        self._committed.clear()
        self._completed.clear()

    def beginning(self) -> None:
        """A coordinator begins something else: requests and leases bear the same names again."""
        self.taking_all_back()
        self._newest = 0

    def check(self, granted: Grant) -> None:
        """A member begins a batch: what was accepted before its grant must not be done again."""
        for request, saved in zip(granted.requests, granted.commits, strict=True):
            step, newest = self._committed.get(request.id, (0, 0))
            if newest < granted.lease and (saved.step if saved is not None else 0) < step:
                self._history.violation(
                    f"{request.id} is granted without its commit of step {step}"
                )
            if self._completed.get(request.id, granted.lease) < granted.lease:
                self._history.violation(f"{request.id} is granted after its completion")
