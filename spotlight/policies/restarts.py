"""Whether a worker whose process has ended is started again, and after which pause. Pure: time is
handed in, in seconds.

A life is bad if the process ended by itself, was ended as sick, or ended before the worker was
ready: one that runs out of memory while it loads is killed by its system. However long it took, the
next life is likely to end in the same way, so bad lives count in a row, the pauses grow, and after
a few of them the worker is given up. A worker that was ready and was killed from outside is well;
only if that happens again and again within a short time, it is given up, too.
"""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass

from spotlight.timings import NodeTimings

MOST_BAD_LIVES = 5
"""How many lives in a row may end badly before a worker is given up."""
_GROWTH = 4.0
"""Each pause is so many times as long as the one before."""
_MOST_KILLS = 3
"""A worker that is killed more often than this within `restart_window_s` is given up."""


@dataclass(frozen=True)
class Life:
    """How the life of a worker's process went."""

    exit_code: int
    """The negative number of the signal, if one ended it."""
    was_ready: bool
    """It could do what it was there for: it held weights of the job, or there was none."""
    reason: str = ""
    """Why it ended, if it said so itself, or its node ended it for a reason."""
    was_sick: bool = False
    """It was ended because it failed what others could do."""

    @property
    def is_bad(self) -> bool:
        """Whether the next one is likely to end in the same way."""
        return self.exit_code >= 0 or not self.was_ready or self.was_sick

    @property
    def explanation(self) -> str:
        """Why it ended, in words."""
        if self.reason:
            return self.reason
        when = "" if self.was_ready else " before it was ready"
        if self.exit_code >= 0:
            return f"its process ended with exit code {self.exit_code}{when}; see its log"
        name = _name_of(-self.exit_code)
        memory = "; perhaps the machine ran out of memory" if name == "SIGKILL" and when else ""
        return f"its process was ended by {name}{when}{memory}"


class Restarts:
    """The restarts of one worker."""

    def __init__(self, timings: NodeTimings) -> None:
        self._timings = timings
        self._kills: deque[float] = deque()
        self.bad_lives = 0
        """How many lives in a row have ended badly so far."""

    def pause_s(self, life: Life, now: float) -> float | None:
        """A life has ended: seconds until the next one; None if there shall be none."""
        if life.is_bad:
            self.bad_lives += 1
            if self.bad_lives >= MOST_BAD_LIVES:
                return None
            return self._timings.restart_pause_s * _GROWTH ** (self.bad_lives - 1)
        self.bad_lives = 0
        while self._kills and self._kills[0] < now - self._timings.restart_window_s:
            self._kills.popleft()
        self._kills.append(now)
        return self._timings.restart_pause_s if len(self._kills) <= _MOST_KILLS else None


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
