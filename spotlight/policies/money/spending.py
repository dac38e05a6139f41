"""How the money of a run was spent over its time, by the lines of its roll-ups and its ledger.

Between two of these it is taken to have been spent evenly. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from spotlight.record.ledger import Ledger, RollupLine

_HOUR_S = 3600.0


class _Point(NamedTuple):
    time_s: float
    at: float
    spent: float


class Spending:
    """What had been spent by a time of the run, or of the clock on the wall.

    Args:
        spent: all of it, by the ledger.
        lines: roll-ups that follow each other, of whatever levels, the oldest first. Those that the
            ledger does not account for are left out.
    """

    def __init__(self, ledger: Ledger, spent: float, lines: Sequence[RollupLine]) -> None:
        points = [_beginning(ledger, lines)]
        for line in lines:
            if line.number > ledger.number or line.end_s < points[-1].time_s:
                continue
            began_at = line.at - (line.end_s - line.start_s)
            if line.start_s > points[-1].time_s or began_at > points[-1].at:
                # Nothing was spent while there was no run, between an end and what went on.
                points.append(_later(points[-1], line.start_s, began_at, points[-1].spent))
            now = min(max(sum(line.spent.values()), points[-1].spent), spent)
            points.append(_later(points[-1], line.end_s, line.at, now))
        points.append(_later(points[-1], ledger.time_s, ledger.at, spent))
        self._points = points
        self._times = [point.time_s for point in points]
        self._ats = [point.at for point in points]

    def at_run_time(self, time_s: float) -> float:
        """What had been spent by a run time."""
        return self._between(self._times, time_s)

    def at(self, at: float) -> float:
        """What had been spent by a time in seconds since 1970 (UTC)."""
        return self._between(self._ats, at)

    def by_hour(self) -> tuple[tuple[float, float], ...]:
        """(beginning of an hour since 1970, what was spent in it), of hours with any. They add up
        to all that was spent."""
        spent: dict[float, float] = {}
        for before, after in zip(self._points, self._points[1:], strict=False):
            if after.spent <= before.spent:
                continue
            hour = before.at // _HOUR_S * _HOUR_S
            while True:
                end = min(hour + _HOUR_S, after.at)
                share = _share(max(hour, before.at), end, before.at, after.at)
                spent[hour] = spent.get(hour, 0.0) + share * (after.spent - before.spent)
                hour += _HOUR_S
                if hour >= after.at:
                    break
        return tuple(sorted(spent.items()))

    def _between(self, places: Sequence[float], place: float) -> float:
        index = bisect_right(places, place)
        if index == 0:
            return 0.0
        if index == len(places):
            return self._points[-1].spent
        before, after = self._points[index - 1], self._points[index]
        share = _share(places[index - 1], place, places[index - 1], places[index])
        return before.spent + share * (after.spent - before.spent)


def _beginning(ledger: Ledger, lines: Sequence[RollupLine]) -> _Point:
    """Where nothing was spent yet: the first bill may begin before the run, as a machine boots."""
    ats = [bill.from_at for bill in ledger.bills if bill.from_at > 0]
    if lines:
        ats.append(lines[0].at - (lines[0].end_s - lines[0].start_s))
    return _Point(0.0, min(ats, default=ledger.at - ledger.time_s), 0.0)


def _later(before: _Point, time_s: float, at: float, spent: float) -> _Point:
    """A point that is not before another; clocks on walls may jump."""
    return _Point(max(before.time_s, time_s), max(before.at, at), spent)


def _share(begin: float, end: float, of_begin: float, of_end: float) -> float:
    return (end - begin) / (of_end - of_begin) if of_end > of_begin else 1.0
