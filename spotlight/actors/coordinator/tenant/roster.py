"""The participants of a job: nodes, their workers, and which of them may be given work."""

from __future__ import annotations

from collections import Counter

from spotlight.actors.protocol import NodeReport, WorkerRefs
from spotlight.types import Record, StoreEndpoint


class Rank(Record, frozen=True):
    """A worker that trains, and where it is."""

    worker: WorkerRefs
    node: str
    store: StoreEndpoint
    """Of its node."""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.worker.worker

    @property
    def epoch(self) -> int:
        """It differs for every process that ever bears the name."""
        return self.worker.epoch


class Roster:
    """The nodes of a job as they join and leave."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeReport] = {}
        self.barred: frozenset[str] = frozenset()
        """Workers that train."""
        self.leaving: set[str] = set()
        """Nodes with notice."""
        self.failed_sources: Counter[str] = Counter()
        """How often nodes could not pull weights from another one, by its name, since one could."""

    def join(self, node: NodeReport) -> tuple[list[WorkerRefs], list[WorkerRefs]]:
        """Take a node's latest word; returns the workers that came and those that went."""
        known = self.nodes.get(node.node)
        before = {worker.epoch: worker for worker in known.workers} if known else {}
        after = {worker.epoch: worker for worker in node.workers}
        self.nodes[node.node] = node
        came = [worker for epoch, worker in after.items() if epoch not in before]
        went = [worker for epoch, worker in before.items() if epoch not in after]
        return came, went

    def leave(self, name: str) -> NodeReport | None:
        """A node is gone; returns what it was."""
        self.leaving.discard(name)
        self.failed_sources.pop(name, None)
        return self.nodes.pop(name, None)

    def reserved_nodes(self) -> list[NodeReport]:
        """Nodes whose workers can train."""
        return [
            node
            for node in self.nodes.values()
            if node.pool == "reserved" and node.node not in self.leaving
        ]

    def reserved(self) -> tuple[Rank, ...]:
        """Workers that can train, by name."""
        ranks = (
            Rank(worker, node.node, node.store)
            for node in self.reserved_nodes()
            for worker in node.workers
        )
        return tuple(sorted(ranks, key=lambda rank: rank.worker.worker))

    def free_workers(self) -> int:
        """Workers that may be given requests now."""
        names = (
            worker.worker
            for node in self.nodes.values()
            if node.node not in self.leaving
            for worker in node.workers
        )
        return sum(name not in self.barred for name in names)
