"""What a pool's losses so far say about those to come. Pure: time is handed in, in seconds."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

_PRIOR_LOSSES = 1.0
_PRIOR_WORKER_S = 3600.0

_FREE_DEPARTURES = 2
_MEMORY_S = 300.0
_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 60.0


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

    The first departures within five minutes are free; after each further one the node waits twice
    as long, one minute at most.
    """

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
        wait = min(_FIRST_WAIT_S * 2.0 ** (excess - 1), _LONGEST_WAIT_S)
        return max(0.0, recent[-1] + wait - now)

    def _recent(self, node: str, now: float) -> deque[float]:
        recent = self._departures[node]
        while recent and recent[0] <= now - _MEMORY_S:
            recent.popleft()
        return recent
