"""A leader's knowledge of the SP group that its member is in."""

from __future__ import annotations

from spotlight.actors.protocol.down import GroupPlan, Seat
from spotlight.actors.protocol.up import WorkerReport
from spotlight.actors.runtime import ActorRef

Versions = tuple[frozenset[int], frozenset[int]]
"""Held for rollouts, and for evaluations."""


class SPGroupView:
    """A group of one before the first plan.

    Invariant: a group serves what all its members have reported to hold, and nothing before it has
    formed.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._plan: GroupPlan | None = None
        self._formed = True
        self._held: dict[str, Versions] = {}

    @property
    def epoch(self) -> int:
        """Of the latest plan; 0 before the first."""
        return self._plan.epoch if self._plan is not None else 0

    @property
    def formed(self) -> bool:
        """Whether the group of the latest plan can denoise."""
        return self._formed

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Those of the latest plan."""
        return self._plan.seats if self._plan is not None else ()

    @property
    def first(self) -> Seat | None:
        """Rank 0, if that is another worker."""
        seats = self.seats
        return seats[0] if seats and seats[0].worker != self._worker else None

    @property
    def followers(self) -> tuple[str, ...]:
        """The workers that this one leads."""
        return () if self.first is not None else tuple(seat.worker for seat in self.seats[1:])

    def plan(self, group: GroupPlan) -> bool:
        """The node's latest plan; False if it is known, or an old one."""
        if group.epoch <= self.epoch:
            return False
        self._plan, self._formed = group, False
        self._held.clear()
        return True

    def note_member(self, report: WorkerReport) -> None:
        """The own member says whether the group stands; of another group it says nothing."""
        self._formed = report.formed and report.group == self.epoch

    def note_follower(self, report: WorkerReport, sender: ActorRef | None) -> bool:
        """A follower says what it holds; False if that is of another epoch, or nobody's."""
        known = [(seat.worker, seat.leader) for seat in self.seats if self.first is None]
        if report.group != self.epoch or (report.worker, sender) not in known[1:]:
            return False
        self._held[report.worker] = (frozenset(report.rollout), frozenset(report.evaluation))
        return True

    def serves(self, rollout: set[int], evaluation: set[int]) -> Versions:
        """What the group can denoise with, given what the own member holds."""
        nothing: Versions = (frozenset(), frozenset())
        if not self._formed or self.first is not None:
            return nothing
        held = [self._held.get(worker, nothing) for worker in self.followers]
        return (
            frozenset(rollout).intersection(*(versions[0] for versions in held)),
            frozenset(evaluation).intersection(*(versions[1] for versions in held)),
        )
