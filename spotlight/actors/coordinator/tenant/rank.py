"""Workers that train, or could."""

from __future__ import annotations

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.types import Record, StoreEndpoint


class Rank(Record, frozen=True):
    """A worker that trains, and where it is."""

    worker: WorkerRefs
    node: str
    store: StoreEndpoint
    """The store of its node."""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.worker.worker

    @property
    def epoch(self) -> int:
        """It differs for every process that ever bears the name."""
        return self.worker.epoch


def reserved_ranks(roster: Roster) -> tuple[Rank, ...]:
    """Workers of a roster that can train, by name."""
    ranks = (
        Rank(worker, node.node, node.store)
        for node in roster.reserved_nodes()
        for worker in node.workers
    )
    return tuple(sorted(ranks, key=lambda rank: rank.worker.worker))
