"""What a leader knows of the SP group that its member is in."""

from __future__ import annotations

from spotlight.actors.protocol import FormGroup, GroupFailed, HeldVersions, Seat
from spotlight.actors.runtime import ActorRef

Versions = tuple[frozenset[int], frozenset[int]]
"""Held for rollouts, and for evaluations."""


class SPGroupView:
    """A group of one before the first order.

    Invariant: a group serves what all its members have said that they hold, and nothing before it
    has formed.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._order: FormGroup | None = None
        self._formed = True
        self._held: dict[str, Versions] = {}
        self.failure: GroupFailed | None = None
        """Why there is no group, until there is another order."""

    @property
    def epoch(self) -> int:
        """Of the latest order; 0 before the first."""
        return self._order.epoch if self._order is not None else 0

    @property
    def formed(self) -> bool:
        """Whether the group of the latest order can denoise."""
        return self._formed

    @property
    def first(self) -> Seat | None:
        """Rank 0, if that is another worker."""
        seats = self._order.seats if self._order is not None else ()
        return seats[0] if seats and seats[0].worker != self._worker else None

    @property
    def followers(self) -> tuple[str, ...]:
        """The workers that this one leads."""
        if self._order is None or self.first is not None:
            return ()
        return tuple(seat.worker for seat in self._order.seats[1:])

    def take(self, order: FormGroup) -> bool:
        """The node's latest order; False if it is an old one."""
        if order.epoch <= self.epoch:
            return False
        self._order, self._formed, self.failure = order, False, None
        self._held.clear()
        return True

    def form(self, epoch: int) -> bool:
        """The member says that the group has formed; False if there is another by now."""
        self._formed = self._formed or epoch == self.epoch
        return epoch == self.epoch

    def fail(self, message: GroupFailed) -> bool:
        """The member says that the group is no more; False if there is another by now."""
        if message.epoch == self.epoch:
            self._formed, self.failure = False, message
        return message.epoch == self.epoch

    def hear(self, message: HeldVersions, sender: ActorRef | None) -> bool:
        """A follower says what it holds; False if that is of another epoch, or nobody's."""
        if message.epoch != self.epoch or message.worker not in self.followers:
            return False
        seats = self._order.seats if self._order is not None else ()
        if (message.worker, sender) not in [(seat.worker, seat.leader) for seat in seats]:
            return False
        self._held[message.worker] = (frozenset(message.rollout), frozenset(message.evaluation))
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
