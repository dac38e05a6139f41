"""What must hold of a simulated cluster at any time, looked at every now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from spotlight_simulation.group_watch import GroupWatch
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster

_LONG_S = 8.0
"""How long trainers may be kept that others have taken the place of, while they can be told."""
_FILES_EVERY = 10
"""Looks between two at the journal and the ledgers."""


class ClusterWatch:
    """Puts what is wrong into the history: of SP groups, trainers, journals and ledgers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._groups = GroupWatch(cluster)
        self._newest: defaultdict[str, int] = defaultdict(int)
        """The highest term of trainers that were built, by job."""
        self._replaced: dict[str, float] = {}
        """When a process was first seen with a trainer that was replaced, and can be told."""
        self._looks = 0

    def look(self) -> None:
        """Now."""
        for what in (*self._groups.look(), *self._look_at_trainers()):
            self._cluster.history.violation(what)
        self._looks += 1
        if self._looks % _FILES_EVERY == 0:
            self._cluster.look_into_the_journal()
            self._cluster.ledgers.look()

    def _look_at_trainers(self) -> Iterator[str]:
        trainers, now = self._cluster.hardware.trainers, self._cluster.loop.time()
        for each in trainers:
            self._newest[each.job] = max(self._newest[each.job], each.term)
        replaced = {each.worker for each in trainers if each.term < self._newest[each.job]}
        if replaced:
            self._cluster.history.came_about("trainers were replaced that are still there")
        told = {worker for worker in replaced if self._can_be_told(worker)}
        self._replaced = {each: self._replaced.get(each, now) for each in sorted(told)}
        for worker, since in self._replaced.items():
            if now - since > _LONG_S:
                yield f"{worker} keeps a trainer that was replaced"

    def _can_be_told(self, worker: str) -> bool:
        cluster, node = self._cluster, worker.partition("/")[0]
        there = all(map(cluster.is_up, (COORDINATOR, node, worker)))
        return (
            there
            and not any(
                cluster.loop.is_frozen(cluster.processes[name].identity)
                for name in (COORDINATOR, node, worker)
            )
            and cluster.reaches(COORDINATOR, node)
            and cluster.reaches(node, COORDINATOR)
        )
