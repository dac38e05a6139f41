"""What the workers of a node do, as the node counts it: every millisecond of every worker, from the
start of the node's machine or process until now, has one state and belongs to one job or to none.
Pure: times, in seconds, are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from spotlight.record.ledger import Milliseconds, TimeState, WorkerTimes
from spotlight.types import WorkerState

MOST_STRETCHES = 16
"""The node tells of the latest stretches only: a coordinator hears of each within seconds."""


class NodeTimes:
    """See the module's docstring.

    Args:
        workers: the names of the node's workers.
        now: on the node's clock.
        before_s: for how long machine and process have been there already.
    """

    def __init__(self, workers: Collection[str], now: float, before_s: float = 0.0) -> None:
        self._counted_ms = _whole(now) - _whole(before_s)
        """The moment until which time is counted, on the node's clock."""
        self._doing: dict[str, TimeState] = dict.fromkeys(workers, "starting")
        self._is_leaving = False
        self._stretches: deque[WorkerTimes] = deque(maxlen=MOST_STRETCHES)
        self._begin("", 0)

    def work_for(self, job_id: str, now: float) -> bool:
        """The node works for this job from now on, or for none; whether that is another."""
        if self._stretches[-1].job_id == job_id:
            return False
        self._count(now)
        self._begin(job_id, self._stretches[-1].number + 1)
        return True

    def does(self, worker: str, state: WorkerState, now: float) -> None:
        """A worker is in this state from now on; `gone` while there is no process of it."""
        self._count(now)
        self._doing[worker] = "lost" if state == "gone" else state

    def leaves(self, is_leaving: bool, now: float) -> None:
        """The node has notice, or has not: what is idle with notice drains."""
        if self._is_leaving != is_leaving:
            self._count(now)
            self._is_leaving = is_leaving

    def told(self, now: float) -> tuple[WorkerTimes, ...]:
        """The latest stretches, oldest first."""
        self._count(now)
        return tuple(
            WorkerTimes(
                stretch.number,
                stretch.job_id,
                {worker: times.copy() for worker, times in stretch.workers.items()},
            )
            for stretch in self._stretches
        )

    def _begin(self, job_id: str, number: int) -> None:
        self._stretches.append(WorkerTimes(number, job_id, {name: {} for name in self._doing}))

    def _count(self, now: float) -> None:
        passed, workers = _whole(now) - self._counted_ms, self._stretches[-1].workers
        if passed <= 0:
            return
        self._counted_ms += passed
        for worker, state in self._doing.items():
            _add(workers[worker], self._counts_as(state), passed)

    def _counts_as(self, state: TimeState) -> TimeState:
        return "draining" if state == "idle" and self._is_leaving else state


def _add(times: Milliseconds, state: TimeState, passed: int) -> None:
    times[state] = times.get(state, 0) + passed


def _whole(seconds: float) -> int:
    """In milliseconds."""
    return round(seconds * 1000)
