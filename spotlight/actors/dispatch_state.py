"""What the dispatcher knows of its workers, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spotlight.actors.messages import Pull, PullScores, RequestKind


@dataclass
class Worker:
    """One worker process as the dispatcher sees it."""

    node: str
    pool: str
    epoch: int
    pull: Pull | None = None
    scores: PullScores | None = None
    leaving: bool = False
    """Its node has notice: it gets nothing more."""
    silent: bool = False
    """It let a lease expire and has not been heard since."""
    failures: int = 0
    """Denoising leases that it gave back or let expire."""
    score_failures: int = 0
    step_s: float | None = None
    """Seconds per denoising step of a batch, of late."""

    @property
    def usable(self) -> bool:
        """Whether anything may be granted to it."""
        return not self.leaving and not self.silent


@dataclass
class DispatchStatistics:
    """Counters for the user, read by the coordinator in the same process."""

    reissued: int = 0
    late: int = 0
    discarded: int = 0
    """Finished samples that were thrown away because newer weights were published."""
    commits: int = 0
    resumed: int = 0
    """Requests that went on from a commit."""
    recalled: int = 0
    quarantined: list[str] = field(default_factory=list)
    open: Counter[RequestKind] = field(default_factory=Counter)
    """Requests submitted and neither finished, given up nor cancelled."""
