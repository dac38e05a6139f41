"""Lines of roll-ups made of others: several become one, and of one a part. No millisecond is lost
or counted twice, in whatever order that is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from spotlight.record.ledger import Milliseconds, RollupLine


class Bucket:
    """Lines that follow each other, as they become one."""

    def __init__(self) -> None:
        self.count = 0
        """How many lines of the finest level are in it."""
        self.start_s = 0.0
        self._last: RollupLine | None = None
        self._end_s = 0.0
        self._times: dict[str, Milliseconds] = {}
        self._is_own = False
        """Whether the times may be changed: those of a first line are its own."""

    def add(self, line: RollupLine, count: int = 1) -> None:
        """The next line, which is made of so many of the finest level."""
        if self._last is None:
            self.start_s, self._times = line.start_s, line.times
        else:
            self._add_times(line)
        self._last, self._end_s = line, max(line.end_s, self._end_s)
        self.count += count

    def _add_times(self, line: RollupLine) -> None:
        if not self._is_own:
            self._times = {worker: spent.copy() for worker, spent in self._times.items()}
            self._is_own = True
        times = self._times
        for worker, spent in line.times.items():
            known = times.get(worker)
            if known is None:
                times[worker] = spent.copy()
                continue
            for state, milliseconds in spent.items():
                known[state] = known.get(state, 0) + milliseconds

    def line(self) -> RollupLine:
        """All of it as one; there must be something in it."""
        last = self._last
        assert last is not None, "nothing was added"
        return RollupLine(
            number=last.number,
            start_s=self.start_s,
            end_s=self._end_s,
            at=last.at,
            times=self._times,
            spent=last.spent,
        )


def part_of(line: RollupLine, from_s: float, to_s: float) -> RollupLine:
    """What lies between these times of a line that touches them: every count in proportion, as if
    it had come evenly. The parts of a line that is cut into several add up to it."""
    start_s, end_s = max(line.start_s, from_s), min(line.end_s, to_s)
    if (start_s, end_s) == (line.start_s, line.end_s):
        return line
    length = line.end_s - line.start_s
    low, high = (start_s - line.start_s) / length, (end_s - line.start_s) / length
    return RollupLine(
        number=line.number,
        start_s=start_s,
        end_s=end_s,
        at=line.at - (line.end_s - end_s),
        times={
            worker: {state: int(ms * high) - int(ms * low) for state, ms in spent.items()}
            for worker, spent in line.times.items()
        },
        spent=line.spent,
    )


def merged(
    lines: Iterable[RollupLine], start_s: float, end_s: float, most: int
) -> Iterator[RollupLine]:
    """At most so many lines: neighbours are one if they begin in the same of so many equal parts of
    the time between. A line that is longer stays whole: what it says of a moment is its mean."""
    length_s = (end_s - start_s) or 1.0

    def part(line: RollupLine) -> int:
        return min(most - 1, int((line.start_s - start_s) / length_s * most))

    for _, neighbours in groupby(lines, key=part):
        bucket = Bucket()
        for line in neighbours:
            bucket.add(line)
        yield bucket.line()
