"""How long a job has to go, by what was seen of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotlight.actors.protocol.users import JobStatus

_REMEMBERED = 8
"""The pace is that of the latest iterations, at most so many."""


class TimeLeft:
    """The time that a job needs for the iterations that it still has to do, at the pace of the
    latest ones that were looked on at. Before two of these have ended it is the pace since the run
    began. Pure."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED + 1)
        """Iterations that were done, and the run time at which this was seen first."""
        self._newest: int | None = None

    def seen(self, status: JobStatus) -> float | None:
        """Seconds until the end, by this and what was seen before; None if nobody can say."""
        done, now = status.iteration, status.elapsed_s
        if self._newest is not None and done < self._newest:  # it goes on from an earlier one
            self._ends.clear()
        elif self._newest is not None and done > self._newest:
            self._ends.append((done, now))
        self._newest = done
        if status.outcome or not 0 < done < status.iterations:
            return None
        if len(self._ends) < 2:
            return now / done * (status.iterations - done)
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        pace = (ended - began) / (last - first)
        return max(0.0, pace * (status.iterations - last) - (now - ended))
