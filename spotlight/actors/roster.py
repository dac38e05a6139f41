"""Who takes part in a job: nodes, their workers, and which of them may be given work."""

from __future__ import annotations

from collections.abc import Collection

from spotlight.actors.messages import JoinNode, WorkerRefs
from spotlight.transport.tensors import StoreEndpoint


class Roster:
    """The nodes of a job as they join and leave."""

    def __init__(self) -> None:
        self.nodes: dict[str, JoinNode] = {}
        self.barred: frozenset[str] = frozenset()
        """Workers that train."""
        self.leaving: set[str] = set()
        """Nodes with notice."""

    def join(self, node: JoinNode) -> tuple[list[WorkerRefs], list[WorkerRefs]]:
        """Take a node's latest word; returns the workers that came and those that went."""
        known = self.nodes.get(node.node)
        before = {worker.epoch: worker for worker in known.workers} if known else {}
        after = {worker.epoch: worker for worker in node.workers}
        self.nodes[node.node] = node
        came = [worker for epoch, worker in after.items() if epoch not in before]
        went = [worker for epoch, worker in before.items() if epoch not in after]
        return came, went

    def leave(self, name: str) -> JoinNode | None:
        """A node is gone; returns what it was."""
        self.leaving.discard(name)
        return self.nodes.pop(name, None)

    def trainers(self, ranks: int, before: Collection[int]) -> tuple[WorkerRefs, ...]:
        """Who shall train: those that did `before` (by epoch) if they are all there, else the first
        reserved workers by name; nobody while there are too few.
        """
        reserved = self.reserved_workers()
        again = {worker.epoch: worker for worker in reserved if worker.epoch in before}
        if before and len(again) == len(before) == ranks:
            return tuple(again[epoch] for epoch in before)
        return tuple(reserved[:ranks]) if len(reserved) >= ranks else ()

    def reserved_workers(self) -> list[WorkerRefs]:
        """Those that could train, by name."""
        workers = (w for n in self.nodes.values() if n.pool == "reserved" for w in n.workers)
        return sorted(workers, key=lambda worker: worker.worker)

    def free_workers(self) -> int:
        """Workers that may be given requests now."""
        names = (
            worker.worker
            for node in self.nodes.values()
            if node.node not in self.leaving
            for worker in node.workers
        )
        return sum(name not in self.barred for name in names)

    def store_of(self, worker: WorkerRefs) -> StoreEndpoint | None:
        """The store of a worker's node; None if the node is gone."""
        return next((n.store for n in self.nodes.values() if worker in n.workers), None)
