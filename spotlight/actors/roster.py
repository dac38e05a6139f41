"""Who takes part in a job: nodes, their workers, and which of them are barred because they
train.
"""

from __future__ import annotations

from spotlight.actors.messages import JoinNode, WorkerRefs
from spotlight.transport.tensors import StoreEndpoint


class Roster:
    """The nodes of a job as they join and leave."""

    def __init__(self) -> None:
        self.nodes: dict[str, JoinNode] = {}
        self.trainers: tuple[WorkerRefs, ...] = ()
        self.barred: frozenset[str] = frozenset()

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
        return self.nodes.pop(name, None)

    def appoint_trainers(self, ranks: int) -> bool:
        """Make the first reserved workers by name the trainer ranks; False while there are too few,
        or if it is done.
        """
        reserved = sorted(
            (w for node in self.nodes.values() if node.pool == "reserved" for w in node.workers),
            key=lambda worker: worker.worker,
        )
        if self.trainers or len(reserved) < ranks:
            return False
        self.trainers = tuple(reserved[:ranks])
        return True

    def trains(self, worker: WorkerRefs) -> bool:
        """Whether this very process is a trainer rank."""
        return any(trainer.epoch == worker.epoch for trainer in self.trainers)

    def free_workers(self) -> int:
        """Workers that may be given requests now."""
        names = (worker.worker for node in self.nodes.values() for worker in node.workers)
        return sum(name not in self.barred for name in names)

    def publisher_store(self) -> StoreEndpoint:
        """The store of the node of rank 0, where weights are published."""
        return next(n.store for n in self.nodes.values() if self.trainers[0] in n.workers)
