"""At which pace the workers of a session make images."""

from __future__ import annotations

from collections import deque

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
