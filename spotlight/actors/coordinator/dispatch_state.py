"""What the dispatcher knows of its workers, and what it counts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from spotlight.actors.protocol import Pull, PullScores, WorkerRefs
from spotlight.types import RequestKind, SamplingSettings


@dataclass
class Worker:
    """One worker process as the dispatcher sees it."""

    node: str
    pool: str
    refs: WorkerRefs
    pull: Pull | None = None
    scores: PullScores | None = None
    leaving: bool = False
    """Its node has notice: it gets nothing more."""
    silent: bool = False
    """It let a lease expire and has not been heard since."""
    failures: int = 0
    """Denoising leases that it gave back or let expire."""
    score_failures: int = 0
    step_s: dict[int, float] = field(default_factory=dict)
    """Seconds per denoising step of a batch, of late, by the members of the group it led."""
    regrouped_at: float = -math.inf
    """When its group changed its size."""

    @property
    def usable(self) -> bool:
        """Whether anything may be granted to it."""
        return not self.leaving and not self.silent

    @property
    def members(self) -> int:
        """Of the group that it leads; 1 while it leads none."""
        return max(1, self.pull.members) if self.pull is not None else 1


class Groups:
    """Who leads whom, in SP groups of several members, as the leaders say."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        """By leader, itself included."""

    def hear(self, pull: Pull) -> None:
        """The latest word of a leader; one whose member follows another's says nothing of this."""
        name = pull.worker
        if pull.members < 1:
            return
        members = {name, *pull.followers}
        for member in members:
            self.forget(member)
        if len(members) > 1:
            self._leader.update(dict.fromkeys(members, name))
            self._members[name] = members

    def forget(self, name: str) -> None:
        """It is in no group any more; nor is anybody whom it led."""
        leader = self._leader.pop(name, None)
        if leader == name:
            for follower in self._members.pop(name):
                self._leader.pop(follower, None)
        elif leader is not None:
            self._members[leader].discard(name)

    def follows(self, name: str) -> bool:
        """Whether another one pulls for it."""
        return self._leader.get(name, name) != name

    def of(self, name: str) -> tuple[str, int]:
        """(leader, members) of its group; itself and 1 if it is in none of several."""
        leader = self._leader.get(name, name)
        return leader, len(self._members.get(leader, (name,)))


@dataclass(frozen=True)
class Backlog:
    """Work of one kind that is not denoised yet."""

    kind: RequestKind
    settings: SamplingSettings
    queued: int
    """Requests that nobody has."""
    leased: Counter[str]
    """Micro-batches by the node that has them."""

    @property
    def batches(self) -> int:
        """Micro-batches in all."""
        return micro_batches(self.queued, self.settings) + self.leased.total()


def micro_batches(requests: int, settings: SamplingSettings) -> int:
    """How many so many requests make."""
    return -(-requests // settings.micro_batch)


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
    scoring_s: float = 0.0
    """Time that scoring took, all workers together."""
    quarantined: list[str] = field(default_factory=list)
    open: Counter[RequestKind] = field(default_factory=Counter)
    """Requests submitted and neither finished, given up nor cancelled."""
    backlog: tuple[Backlog, ...] = ()
    unsubmitted: int = 0
    """Candidates that may yet be previewed: the explorer queues only a few at a time."""
    groups: Groups = field(default_factory=Groups)
