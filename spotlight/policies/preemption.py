"""What a pool's losses so far say about those to come."""

from __future__ import annotations

from dataclasses import dataclass

_PRIOR_LOSSES = 1.0
_PRIOR_WORKER_S = 3600.0


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
