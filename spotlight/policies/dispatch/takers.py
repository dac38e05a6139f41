"""The workers that lead SP groups, and which of them can take a batch now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spotlight.policies.dispatch.events import Report
from spotlight.policies.dispatch.rows import Lease
from spotlight.policies.dispatch.waiting import WeightsKey


@dataclass(eq=False)
class Taker:
    """One worker process as the table sees it."""

    name: str
    epoch: int
    node: str
    pool: str
    report: Report | None = None
    """The latest; None until there is one, and after it could not be reached."""
    leaving: bool = False
    """Its node has notice: it gets nothing more."""
    is_sick: bool = False
    """It fails what others can do: it gets nothing until it is another process."""
    silent: bool = False
    """It let a lease expire and has not been heard since."""
    failures: int = 0
    """Leases that it gave back though it should not have, failed, or let expire."""
    step_s: dict[int, float] = field(default_factory=dict)
    """Seconds per denoising step of a batch, of late, by the members of the group it led."""
    regrouped_at: float = -math.inf
    """When its group changed its size."""
    free_since: float = -math.inf
    """When its group had denoised a batch, or had given it up."""
    leases: dict[int, Lease] = field(default_factory=dict)
    revoked: set[int] = field(default_factory=set)
    """Leases that it was told to drop, and may still name."""

    @property
    def members(self) -> int:
        """Of the group that it leads; 1 while it leads none."""
        return max(1, self.report.members) if self.report is not None else 1

    @property
    def load(self) -> int:
        """Leases that still keep its accelerator busy."""
        return sum(not lease.is_denoised for lease in self.leases.values())

    @property
    def not_begun(self) -> list[Lease]:
        """Leases that wait behind another one."""
        return [lease for _, lease in sorted(self.leases.items()) if not lease.is_denoised][1:]

    @property
    def weights(self) -> tuple[WeightsKey, ...]:
        """That its group holds."""
        if self.report is None:
            return ()
        return (
            *(WeightsKey(version, False) for version in self.report.rollout_versions),
            *(WeightsKey(version, True) for version in self.report.evaluation_versions),
        )


class Groups:
    """Who leads whom, in SP groups of several members, as the leaders say."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        """By leader, itself included."""

    def record(self, leader: str, report: Report) -> set[str]:
        """The latest word of a leader; returns the workers whose leader may have changed."""
        if report.members < 1:
            return set()
        members = {leader, *report.followers}
        before = set().union(*(self.forget(member) for member in members))
        if len(members) > 1:
            self._leader.update(dict.fromkeys(members, leader))
            self._members[leader] = members
        return (before | members) if len(members) > 1 or before else set()

    def forget(self, name: str) -> set[str]:
        """It is in no group any more; nor is anybody whom it led. Returns those who were."""
        leader = self._leader.pop(name, None)
        if leader is None:
            return set()
        if leader != name:
            self._members[leader].discard(name)
            return {name}
        members = self._members.pop(name)
        for follower in members:
            self._leader.pop(follower, None)
        return members

    def follows(self, name: str) -> bool:
        """Whether another one pulls for it."""
        return self._leader.get(name, name) != name

    def of(self, name: str) -> tuple[str, int]:
        """(leader, members) of its group; itself and 1 if it is in none of several."""
        leader = self._leader.get(name, name)
        return leader, len(self._members.get(leader, (name,)))

    @property
    def followers(self) -> int:
        """Workers for which others pull."""
        return len(self._leader) - len(self._members)


_Rank = tuple[int, int, int]
"""Leases to denoise, leases in all, failures."""


class ReadyTakers:
    """Workers that can take a batch now, by the weights that they hold: the least loaded first,
    then those that failed least, then those that have waited longest.
    """

    def __init__(self) -> None:
        self._by_weights: dict[WeightsKey, dict[_Rank, dict[str, Taker]]] = {}
        self._places: dict[str, tuple[_Rank, tuple[WeightsKey, ...]]] = {}
        self._credits: dict[str, int] = {}
        self._with_credits: Counter[int] = Counter()
        """How many of them have so many credits."""

    def put(self, taker: Taker) -> None:
        """It can take a batch; known already, it keeps its place unless something has changed."""
        assert taker.report is not None
        place = (taker.load, len(taker.leases), taker.failures), taker.weights
        if self._places.get(taker.name) != place:
            self.drop(taker.name)
            rank, weights = self._places[taker.name] = place
            for key in weights:
                self._by_weights.setdefault(key, {}).setdefault(rank, {})[taker.name] = taker
        if self._credits.get(taker.name) != taker.report.credits:
            self._forget_credits(taker.name)
            self._credits[taker.name] = taker.report.credits
            self._with_credits[taker.report.credits] += 1

    def drop(self, name: str) -> None:
        """It cannot any more."""
        self._forget_credits(name)
        rank, weights = self._places.pop(name, ((0, 0, 0), ()))
        for key in weights:
            ranks = self._by_weights[key]
            del ranks[rank][name]
            if not ranks[rank]:
                del ranks[rank]
            if not ranks:
                del self._by_weights[key]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def _forget_credits(self, name: str) -> None:
        credits = self._credits.pop(name, None)
        if credits is not None:
            self._with_credits[credits] -= 1
            if not self._with_credits[credits]:
                del self._with_credits[credits]

    def holding(self, key: WeightsKey, *, to_score: bool = False) -> Iterator[Taker]:
        """Those that hold such weights, the first to be served first. Nothing may be put or dropped
        meanwhile.

        Args:
            to_score: for what is denoised already: those that only score, and have as many leases
                as anybody has credits, are passed over together.
        """
        ranks = self._by_weights.get(key, {})
        enough = max(self._with_credits, default=0)
        for rank in sorted(ranks):
            load, leases, _ = rank
            if not (to_score and load == 0 and leases >= enough):
                yield from ranks[rank].values()

    def idle(self, key: WeightsKey) -> int:
        """How many of them have nothing to do."""
        ranks = self._by_weights.get(key, {})
        return sum(len(takers) for (load, _, _), takers in ranks.items() if not load)
