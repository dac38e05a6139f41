"""How the money of a run was spent over its time, by the lines of its roll-ups and its ledger.

Between two of these it is taken to have been spent evenly. Of a long run fewer points are kept, so
that memory is bounded. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from spotlight.record.ledger import RollupLine

_HOUR_S = 3600.0
_MOST_POINTS = 4096
MOST_HOURS = 24 * 62
"""The latest hours are told, so many."""


class _Point(NamedTuple):
    time_s: float
    at: float
    spent: float


class Spending:
    """What had been spent by a time of the run, and in each hour of the clock on the wall.

    Args:
        from_at: when the first was spent, in seconds since 1970 (UTC).
    """

    def __init__(self, from_at: float) -> None:
        self._points = [_Point(0.0, from_at, 0.0)]
        self._hours: dict[float, float] = {}
        self._end = self._points[0]

    def add(self, line: RollupLine) -> None:
        """The next line of the roll-ups, of whatever level: in order, and no time twice."""
        last = self._points[-1]
        if line.end_s < last.time_s or not line.spent:
            return
        began_at = line.at - (line.end_s - line.start_s)
        if last.spent and line.start_s <= last.time_s and began_at > last.at:
            # Nothing was spent while there was no run, between an end and what went on.
            last = self._append(_Point(last.time_s, began_at, last.spent))
        spent = max(sum(line.spent.values()), last.spent)
        point = self._append(_Point(line.end_s, max(last.at, line.at), spent))
        _spread(self._hours, last, point)
        while len(self._hours) > MOST_HOURS:
            del self._hours[next(iter(self._hours))]

    def settle(self, time_s: float, at: float, spent: float) -> None:
        """What the ledger says that was spent in all, and by when."""
        last = self._points[-1]
        self._end = _Point(max(last.time_s, time_s), max(last.at, at), max(last.spent, spent))

    def at_run_time(self, time_s: float) -> float:
        """What had been spent by a run time."""
        points = self._points
        index = bisect_right(points, time_s, key=lambda point: point.time_s)
        if index == 0:
            return 0.0
        before = points[index - 1]
        after = points[index] if index < len(points) else self._end
        if after.time_s <= before.time_s or time_s >= after.time_s:
            return max(before.spent, after.spent)
        share = (time_s - before.time_s) / (after.time_s - before.time_s)
        return before.spent + share * (after.spent - before.spent)

    def by_hour(self) -> tuple[tuple[float, float], ...]:
        """(beginning of an hour since 1970, what was spent in it), of hours with any. They add up
        to all that was spent, unless there are more of them than are told."""
        hours = dict(self._hours)
        _spread(hours, self._points[-1], self._end)
        return tuple(sorted(hours.items())[-MOST_HOURS:])

    def _append(self, point: _Point) -> _Point:
        self._points.append(point)
        if len(self._points) > _MOST_POINTS:
            self._points = [*self._points[:-1:2], point]
        return point


def _spread(hours: dict[float, float], before: _Point, after: _Point) -> None:
    """Add what was spent between two points to the hours in which that was."""
    spent = after.spent - before.spent
    if spent <= 0:
        return
    hour = before.at // _HOUR_S * _HOUR_S
    passed_s = after.at - before.at
    while True:
        begin, end = max(hour, before.at), min(hour + _HOUR_S, after.at)
        share = (end - begin) / passed_s if passed_s > 0 else 1.0
        hours[hour] = hours.get(hour, 0.0) + share * spent
        hour += _HOUR_S
        if hour >= after.at:
            return
