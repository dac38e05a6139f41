"""What a pool's losses so far say about those to come. Pure: time is handed in, in seconds."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from spotlight.timings import RejoinTimings

_PRIOR_LOSSES = 1.0
_PRIOR_WORKER_S = 3600.0

_FREE_DEPARTURES = 2


@dataclass
class LossRate:
    """How often a worker of one pool is lost: the posterior mean of a Poisson process whose Gamma
    prior says once in an hour.
    """

    losses: int = 0
    worker_s: float = 0.0
    """Time that workers of the pool were watched, all together."""

    @property
    def per_s(self) -> float:
        """Expected losses of one worker per second."""
        return (_PRIOR_LOSSES + self.losses) / (_PRIOR_WORKER_S + self.worker_s)


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
