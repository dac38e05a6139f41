"""A node's way out after a preemption notice. Pure: times, in seconds, are handed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from spotlight.timings import DepartureTimings

LONGEST_NOTICE_S = 86_400.0
"""The longest notice that a user may give."""
SHARING = "sharing"
"""The source of the notice of a node that is to work for another job, or that a user drains: it is
not taken, and comes back as soon as it has given its work back."""
_MARGIN = 0.2


def stop_in_s(lead_s: float, longest_margin_s: float) -> float:
    """When to stop denoising, so that what is left of `lead_s` is enough to deliver the last
    commits.
    """
    return max(0.0, lead_s - min(longest_margin_s, _MARGIN * lead_s))


@dataclass(frozen=True)
class Standing:
    """A notice that has not been withdrawn."""

    source: str
    lead_s: float | None
    """Seconds until the node is taken, as the notice says."""
    deadline: float


@dataclass
class Departure:
    """Which notices stand, and what is still to do before the node may go.

    Notices come by several ways (`via`), and of each way only the latest stands. The earliest
    deadline counts.
    """

    timings: DepartureTimings = DepartureTimings()
    left: bool = False
    """Everything is done."""
    _standing: dict[str, Standing] = field(default_factory=dict)
    _drained: set[str] = field(default_factory=set)

    @property
    def notice(self) -> Standing | None:
        """The most urgent notice; None if the node may stay."""
        return min(self._standing.values(), key=lambda it: it.deadline, default=None)

    def give(self, via: str, source: str, lead_s: float | None, now: float) -> None:
        """Notice is given."""
        left_s = self.timings.unknown_lead_s if lead_s is None else lead_s
        self._standing[via] = Standing(source, lead_s, now + left_s)

    def stands(self, via: str) -> bool:
        """Whether what came this way still holds."""
        return via in self._standing

    def withdraw(self, via: str) -> bool:
        """What came this way does not hold any more; False if nothing did."""
        return self._standing.pop(via, None) is not None

    def stop_in_s(self, now: float) -> float:
        """When to stop denoising, from now; only while notice is given."""
        assert self.notice is not None
        return stop_in_s(max(0.0, self.notice.deadline - now), self.timings.longest_margin_s)

    def drained(self, worker: str) -> None:
        """Nothing is left there that could be lost."""
        self._drained.add(worker)

    def restarted(self, worker: str) -> None:
        """A worker is gone, or a new process: whether it holds something is open."""
        self._drained.discard(worker)

    def may_leave(self, workers: Iterable[str]) -> bool:
        """Whether the node has nothing more to do; true once."""
        if self.notice is None or self.left or not self._drained.issuperset(workers):
            return False
        self.left = True
        return True

    def stay(self) -> None:
        """The node is not taken after all."""
        self.left = False
        self._standing.clear()
        self._drained.clear()
