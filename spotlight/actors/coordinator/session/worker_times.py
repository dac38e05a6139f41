"""What the workers of a session did: for how long they were in which state, and at which pace."""

from __future__ import annotations

from collections import defaultdict, deque

from spotlight.actors.protocol import PoolUse
from spotlight.record.run_events import WorkerStateBegan
from spotlight.types import WorkerState

_PACE_S = 60.0
"""A pace is that of so many seconds."""


class RecentPace:
    """Images per second, of late.

    Args:
        began: when the first could have been made.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._made: deque[tuple[float, int]] = deque()
        """When, and how many."""

    def note(self, images: int, now: float) -> None:
        """So many are done."""
        if images:
            self._made.append((now, images))

    def images_per_s(self, now: float) -> float:
        """Over the last minute, or since the beginning if that is less."""
        while self._made and self._made[0][0] < now - _PACE_S:
            self._made.popleft()
        seconds = min(_PACE_S, now - self._began)
        return sum(count for _, count in self._made) / seconds if seconds > 0 else 0.0


class WorkerTimes:
    """Adds up what a ledger says; times are seconds on one clock."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, str, WorkerState]] = {}
        """When a worker entered the state that it is in, its pool, and the state; by name."""
        self._spent: defaultdict[str, defaultdict[str, float]] = defaultdict(
            lambda: defaultdict(float)
        )

    def note(self, began: WorkerStateBegan, now: float) -> None:
        """A worker is in another state, or gone."""
        self._end(began.worker, now)
        if began.state != "gone":
            self._since[began.worker] = now, began.pool, began.state

    def use(self, now: float) -> tuple[PoolUse, ...]:
        """Until now, by pool."""
        for worker, (_, pool, state) in list(self._since.items()):
            self._end(worker, now)
            self._since[worker] = now, pool, state
        return tuple(PoolUse(pool, dict(self._spent[pool])) for pool in sorted(self._spent))

    def _end(self, worker: str, now: float) -> None:
        known = self._since.pop(worker, None)
        if known is not None:
            since, pool, state = known
            self._spent[pool][state] += now - since
