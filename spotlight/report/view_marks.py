"""What is marked across the curves: bounded, by making one of those of a kind that are close to one
another."""

from __future__ import annotations

import msgspec

from spotlight.report.run_view import Mark

MOST_MARKS = 256
_FIRST_WIDTH_S = 0.5


class KeptMarks:
    """At most one mark of a kind in each part of the time; the parts become twice as long whenever
    there are too many marks."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self._width_s = _FIRST_WIDTH_S
        self._marks: dict[tuple[int, str], tuple[Mark, int]] = {}
        """The first of each part and kind, and how many there are of them."""

    def add(self, mark: Mark) -> None:
        """The next one."""
        self._count(mark, 1)
        while len(self._marks) > self._most:
            self._width_s *= 2
            marks, self._marks = self._marks, {}
            for kept, count in marks.values():
                self._count(kept, count)

    def all(self) -> tuple[Mark, ...]:
        """All of them in order of time, with what they stand for in words."""
        told = (_worded(mark, count) for mark, count in self._marks.values())
        return tuple(sorted(told, key=lambda mark: mark.time_s))

    def _count(self, mark: Mark, count: int) -> None:
        place = int(mark.time_s / self._width_s), mark.kind
        first, before = self._marks.get(place, (mark, 0))
        self._marks[place] = first, before + count


def _worded(mark: Mark, count: int) -> Mark:
    if count == 1:
        return mark
    return msgspec.structs.replace(mark, text=f"{mark.text}, and {count - 1} more")
