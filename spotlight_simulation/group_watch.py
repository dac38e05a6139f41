"""What must hold of the SP groups of a cluster at any time, by what nodes and leaders log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from spotlight_simulation.memory_cluster import Cluster

_LONG_S = 30.0
"""How long a group may take to form, or to make a step; stopped processes aside."""


class GroupWatch:
    """Looks at a cluster every now and then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since: dict[str, float] = {}
        """When something was first amiss that may be so for a while."""

    def look(self) -> Iterator[str]:
        """What is wrong now, in words."""
        amiss: set[str] = set()
        for node in self._cluster.nodes:
            if self._cluster.is_up(node.name):
                yield from self._look_at(node.name, amiss)
        for group in self._cluster.hardware.sp_groups:
            workers = sorted(group.workers.values())
            machine = workers[0].partition("/")[0]
            if group.awaited and not self._stands_still(machine):
                amiss.add(f"the group of {workers} makes no step since {group.moved_at}")
        now = self._cluster.loop.time()
        self._since = {what: self._since.get(what, now) for what in sorted(amiss)}
        yield from (what for what, since in self._since.items() if now - since > _LONG_S)

    def _look_at(self, node: str, amiss: set[str]) -> Iterator[str]:
        """A node has every worker in one group; workers know no group that it has not planned, and
        two that are told of one epoch are told the same.
        """
        cluster = self._cluster
        plan = cluster.logs.nodes[cluster.processes[node].identity]
        seated = Counter(worker for group in plan.groups for worker in group)
        if seated != Counter(plan.workers.keys()):
            yield f"{node} has its workers in groups {sorted(plan.groups)}"
        told: dict[int, object] = {}
        for group, wanted in sorted(plan.groups.items()):
            for worker in filter(cluster.is_up, group):
                process = cluster.processes[worker]
                if process.context is None or process.context.epoch != plan.workers[worker]:
                    continue  # the node has yet to hear that it is a new one
                said = cluster.logs.workers[process.identity]
                epoch = said.order.epoch if said.order is not None else 0
                if epoch > plan.epoch:
                    yield f"{worker} is in epoch {epoch}, not planned by {node}"
                seats = said.order.seats if said.order is not None else ()
                if seats and told.setdefault(epoch, seats) != seats:
                    yield f"epoch {epoch} of {node} names two groups"
                still = self._stands_still(node) or self._stands_still(worker)
                if not still and not (said.formed and epoch == wanted):
                    amiss.add(f"{worker} is without a group")

    def _stands_still(self, name: str) -> bool:
        process = self._cluster.processes[name]
        return self._cluster.loop.is_frozen(process.identity)
