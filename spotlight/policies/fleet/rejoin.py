"""When a node that keeps coming and going may be given work again. Pure: time is handed in, in
seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from spotlight.timings import RejoinTimings

_FREE_DEPARTURES = 2


@dataclass
class JoinBackoff:
    """Keeps a node that comes and goes from being given work that it will lose.

    The first departures within a while are free; after each further one the node waits twice as
    long, up to a limit.
    """

    timings: RejoinTimings = RejoinTimings()
    _departures: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def left(self, node: str, now: float) -> None:
        """The node is gone."""
        self._recent(node, now).append(now)

    def wait_s(self, node: str, now: float) -> float:
        """How long from now the node must wait."""
        recent = self._recent(node, now)
        excess = len(recent) - _FREE_DEPARTURES
        if excess <= 0:
            if not recent:
                del self._departures[node]
            return 0.0
        wait = min(self.timings.first_wait_s * 2.0 ** (excess - 1), self.timings.longest_wait_s)
        return max(0.0, recent[-1] + wait - now)

    def _recent(self, node: str, now: float) -> deque[float]:
        recent = self._departures[node]
        while recent and recent[0] <= now - self.timings.memory_s:
            recent.popleft()
        return recent
