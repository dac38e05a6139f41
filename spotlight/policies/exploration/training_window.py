"""How long the next training step will take, so that exploration fills it and no more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable


class WindowPredictor:
    """A lower quantile of the last durations: better to stop a little early than to delay
    publication.

    Before the first measurement no end is predicted: the time is infinite, and exploration goes on
    until it is told that training is over.
    """

    def __init__(
        self, durations: Iterable[float] = (), *, quantile: float = 0.25, memory: int = 8
    ) -> None:
        self._quantile = quantile
        self._durations: deque[float] = deque(durations, maxlen=memory)

    @property
    def durations(self) -> tuple[float, ...]:
        """What the prediction rests on, oldest first."""
        return tuple(self._durations)

    def record(self, seconds: float) -> None:
        """A training step took this long."""
        self._durations.append(seconds)

    def predict(self) -> float:
        """Seconds."""
        if not self._durations:
            return math.inf
        ordered = sorted(self._durations)
        return ordered[int(self._quantile * (len(ordered) - 1))]
