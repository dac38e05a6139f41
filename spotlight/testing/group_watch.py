"""What must hold of the SP groups of a cluster at any time, seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from spotlight.actors.node.node import NodeScheduler
from spotlight.actors.node.regrouping import Grouping
from spotlight.actors.worker.group_leader import GroupLeader
from spotlight.testing.memory_cluster import Cluster
from spotlight.testing.processes import ActorT

_LONG_S = 30.0
"""So long may a group take to form, or to make a step; stopped processes aside."""


class GroupWatch:
    """Looks at a cluster every now and then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since: dict[str, float] = {}
        """Since when something is amiss that may be so for a while."""

    def look(self) -> Iterator[str]:
        """What is wrong now, in words."""
        amiss: set[str] = set()
        for node in self._cluster.nodes:
            for scheduler in self._actors(node.name, NodeScheduler):
                yield from self._look_at(node.name, scheduler._grouping, amiss)
        for circle in self._cluster.plant.circles:
            machine = circle.workers[0].partition("/")[0]
            if circle.awaited and not self._stands_still(machine):
                amiss.add(f"the group of {circle.workers} makes no step since {circle.moved_at}")
        now = self._cluster.loop.time()
        self._since = {what: self._since.get(what, now) for what in sorted(amiss)}
        yield from (what for what, since in self._since.items() if now - since > _LONG_S)

    def _look_at(self, node: str, grouping: Grouping, amiss: set[str]) -> Iterator[str]:
        """A node has every worker in one group; workers know no group that it has not planned, and
        two that are told of one epoch are told the same.
        """
        seated = Counter(worker for group in grouping._groups for worker in group)
        if seated != Counter(grouping._workers.keys()):
            yield f"{node} has its workers in groups {sorted(grouping._groups)}"
        told: dict[int, object] = {}
        for group, wanted in sorted(grouping._groups.items()):
            for worker in group:
                for leader in self._actors(worker, GroupLeader):
                    standing = leader._group
                    if leader._context.epoch != grouping._workers[worker].epoch:
                        continue  # the node has yet to hear that it is a new one
                    if standing.epoch > grouping._epoch:
                        yield f"{worker} is in epoch {standing.epoch}, not planned by {node}"
                    seats = standing.seats
                    if seats and told.setdefault(standing.epoch, seats) != seats:
                        yield f"epoch {standing.epoch} of {node} names two groups"
                    still = self._stands_still(node) or self._stands_still(worker)
                    if not still and not (standing.formed and standing.epoch == wanted):
                        amiss.add(f"{worker} is without a group")

    def _actors(self, name: str, kind: type[ActorT]) -> list[ActorT]:
        process = self._cluster.processes.get(name)
        return process.actors(kind) if process is not None else []

    def _stands_still(self, name: str) -> bool:
        process = self._cluster.processes[name]
        return self._cluster.loop.is_frozen(process.identity)
