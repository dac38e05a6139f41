"""What is marked across the curves: bounded, by making one of neighbours of the same kind."""

from __future__ import annotations

from spotlight.report.run_view import Mark

MOST_MARKS = 256


class KeptMarks:
    """Marks in the order in which they came."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self._marks: list[tuple[Mark, int]] = []
        """Each with how many it stands for."""

    def add(self, mark: Mark) -> None:
        """The next one."""
        self._marks.append((mark, 1))
        if len(self._marks) > self._most:
            self._fold()

    def all(self) -> tuple[Mark, ...]:
        """All of them, with what they stand for in words."""
        return tuple(_worded(mark, count) for mark, count in self._marks)

    def _fold(self) -> None:
        """The second half as it is, of the first half pairs of a kind."""
        older, newer = self._marks[: self._most // 2], self._marks[self._most // 2 :]
        kept: list[tuple[Mark, int]] = []
        open_places: dict[str, int] = {}
        """Where the latest mark of a kind is that may take another one."""
        for mark, count in older:
            place = open_places.pop(mark.kind, None)
            if place is None:
                open_places[mark.kind] = len(kept)
                kept.append((mark, count))
            else:
                kept[place] = (kept[place][0], kept[place][1] + count)
        self._marks = kept + newer


def _worded(mark: Mark, count: int) -> Mark:
    if count == 1:
        return mark
    return Mark(
        time_s=mark.time_s,
        usd=mark.usd,
        iteration=mark.iteration,
        kind=mark.kind,
        text=f"{mark.text}, and {count - 1} more",
    )
