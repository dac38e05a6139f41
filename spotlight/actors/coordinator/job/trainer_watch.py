"""Whether the trainer ranks of a job are there: what nodes say of them, and what they answer
themselves when their node is out of reach.

What follows when one is lost is the job runner's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.tenant.rank import Rank, reserved_ranks
from spotlight.actors.protocol import NodeReport, TrainerReport
from spotlight.policies.trainer_ranks import RankWatch
from spotlight.record.run_events import TrainerOutOfReach


class TrainerWatch:
    """See the module's docstring.

    Args:
        roster: of the job's nodes.
        former: the ranks of an earlier coordinator of this run, which are looked for; none if
            others are to be appointed.
        patience_s: how long a rank may be out of reach.
        wanted: how many ranks the job has.
        event: writes an event to the run folder.
        lost: called with the rank that is lost, and why.
    """

    def __init__(
        self,
        team: TrainerTeam,
        roster: Roster,
        *,
        former: tuple[Rank, ...],
        patience_s: float,
        wanted: int,
        event: Callable[[TrainerOutOfReach], None],
        lost: Callable[[Rank, str], None],
    ) -> None:
        self._team = team
        self._roster = roster
        self._patience_s = patience_s
        self._wanted = wanted
        self._event = event
        self._lost = lost
        self._watch = RankWatch(patience_s)
        self._left: dict[str, bool] = {}
        """Nodes that are not there, and whether that was announced."""
        self.former = former
        self._watch.lose_sight(_epochs(former), self._now())

    def candidates(self) -> tuple[Rank, ...]:
        """Who shall train now: the former ranks, once all are there, or else the first reserved
        workers; nobody while there are too few.
        """
        if self.former:
            return () if self._watch.silent else self.former
        reserved = reserved_ranks(self._roster)
        return reserved[: self._wanted] if len(reserved) >= self._wanted else ()

    def joined(self, node: NodeReport) -> None:
        """A node is there, with those of its ranks that are."""
        self._left.pop(node.node, None)
        there = {worker.epoch for worker in node.workers}
        for rank in self._ranks():
            if rank.node == node.node and rank.worker.epoch not in there:
                self._lost(rank, "its process ended")
            elif rank.node == node.node:
                self._watch.see((rank.worker.epoch,))

    def out_of_reach(self, node: str, reason: str, *, announced: bool) -> None:
        """A node is out of reach, or (`announced`) has left after a notice; its ranks may be
        well."""
        self._left[node] = announced
        ranks = [rank for rank in self._ranks() if rank.node == node]
        for rank in ranks:
            worker, patience_s = rank.worker.worker, self._patience_s
            self._event(TrainerOutOfReach(worker=worker, reason=reason, patience_s=patience_s))
        self._watch.lose_sight(_epochs(ranks), self._now())

    def check(self) -> None:
        """Ask those that are out of reach, and give those up that have been so for too long."""
        for rank in self._silent():
            self._team.inquire(rank, partial(self._answered, rank))
        given_up = self._watch.given_up(self._now())
        for rank in self._ranks():
            if rank.worker.epoch in given_up:
                self._lost(rank, f"nobody has heard of it for {self._patience_s:g} s")

    def note(self) -> str:
        """What the job waits for, in words; empty if for nothing."""
        if silent := self._silent():
            names = ", ".join(rank.worker.worker for rank in silent)
            left = all(self._left.get(rank.node) for rank in silent)
            why = "has left after a notice" if left else "is out of reach"
            return (
                f"{names} trains, and its node {why}; others take over when"
                f" nothing was heard of the trainer itself for {self._patience_s:g} s"
            )
        if not self._team.ranks and not self.former:
            there = len(reserved_ranks(self._roster))
            return f"waits for reserved workers for training: {there} of {self._wanted} are there"
        return ""

    def _answered(self, rank: Rank, answer: TrainerReport) -> None:
        if rank not in self._silent():
            return
        if answer.term:
            self._watch.answered(rank.worker.epoch, self._now())
        else:
            self._lost(rank, "it does not train any more")

    def _silent(self) -> list[Rank]:
        return [rank for rank in self._ranks() if rank.worker.epoch in self._watch.silent]

    def _ranks(self) -> tuple[Rank, ...]:
        return self._team.ranks or self.former

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _epochs(ranks: Collection[Rank]) -> list[int]:
    return [rank.worker.epoch for rank in ranks]
