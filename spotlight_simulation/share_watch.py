"""What must hold of several jobs on one simulated cluster at any time, looked at every now and
then: a worker is one job's, no node stands idle, and nobody is left without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from spotlight.actors.protocol.users import JobStatus
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.job_life import Run
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster

_LONG_S = 20.0
"""Two jobs may say for so long that they have a worker: one hears later than the other."""
_IDLE_S = 90.0
"""A node that is there may work for nobody for so long while a job runs: one that comes and goes
has to wait for a minute."""
_WITHOUT_S = 300.0
"""A job may have no node for so long while another has several: it may have had too much before,
and a quantum is ten times as long as the longest load."""


class ShareWatch(ClusterWatch):
    """Puts what is wrong into the history, also what is wrong of a cluster with one job.

    Args:
        runs: the jobs, whose users note how they are.
    """

    def __init__(self, cluster: Cluster, runs: Sequence[Run]) -> None:
        super().__init__(cluster)
        self._runs = runs
        self.session: JobStatus | None = None
        """How the session beside the jobs is; None if there is none, or none is known."""
        self._since: dict[str, float] = {}
        """The time since which each thing has been so that may not stay so."""

    def look(self) -> None:
        """Now."""
        super().look()
        now = self._cluster.loop.time()
        amiss = dict(self._amiss()) if self._can_be_asked() else {}
        self._since = {what: self._since.get(what, now) for what in sorted(amiss)}
        for what, since in self._since.items():
            if now - since > amiss[what]:
                self._cluster.history.violation(what)

    def _can_be_asked(self) -> bool:
        return self._is_there(COORDINATOR, COORDINATOR)

    def _is_there(self, name: str, node: str) -> bool:
        """Whether a process runs, and coordinator and node hear each other."""
        cluster = self._cluster
        return (
            cluster.is_up(name)
            and not cluster.loop.is_frozen(cluster.processes[name].identity)
            and cluster.reaches(COORDINATOR, node)
            and cluster.reaches(node, COORDINATOR)
        )

    def _amiss(self) -> Iterator[tuple[str, float]]:
        """What may be so for a while, and for how long."""
        nodes: dict[str, set[str]] = {}
        workers: Counter[str] = Counter()
        statuses = {run.scenario.job.name: run.status for run in self._runs}
        for name, status in [*statuses.items(), ("session", self.session)]:
            if status is not None and not status.outcome and status.phase != "queued":
                nodes[name] = {worker.node for worker in status.workers}
                workers.update(worker.name for worker in status.workers)
        for worker, count in workers.items():
            if count > 1:
                yield f"{worker} works for {count} jobs", _LONG_S
        if not nodes:
            return
        for spec in self._cluster.nodes:
            is_there = all(self._is_there(each, spec.name) for each in spec.processes)
            has_notice = self._cluster.cloud.has_notice(spec.name)
            if is_there and not has_notice and not any(spec.name in its for its in nodes.values()):
                yield f"{spec.name} works for nobody", _IDLE_S
        most = max(map(len, nodes.values()))
        for run in self._runs:
            name = run.scenario.job.name
            if run.scenario.weight and most > 1 and not nodes.get(name, {name}):
                yield f"{name} has no node, and another job has {most}", _WITHOUT_S
