"""The plan of each worker of a node: sent at once, and again until the worker's report agrees.

Every plan of a worker has a number that grows with each change, so an old one changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import JobPlan, WorkerPlan
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler


@dataclass
class _Worker:
    refs: WorkerRefs
    number: int
    """The number of its latest plan."""
    has_spec_of: str = ""
    """The job whose spec it has."""


class WorkerPlans:
    """See the module's docstring.

    Args:
        node: tells on its behalf, and knows the SP group that a worker is to be in.
    """

    def __init__(self, node: NodeScheduler) -> None:
        self._node = node
        self._workers: dict[str, _Worker] = {}
        self._job: JobPlan | None = None
        self._stop_at: float | None = None
        """When workers are to have stopped, on the loop's clock; None while the node has no notice.
        """

    def add(self, refs: WorkerRefs) -> None:
        """A worker is up."""
        self._workers[refs.worker] = _Worker(refs, number=0)
        self.change(refs.worker)

    def remove(self, worker: str) -> None:
        """It is gone."""
        self._workers.pop(worker, None)

    def set_job(self, job: JobPlan | None) -> None:
        """The job, with its spec and where workers read its weights; None for none."""
        if job != self._job:
            self._job = job
            self.change(*self._workers)

    def set_stop(self, stop_at: float | None) -> None:
        """When to stop, on the loop's clock; None: go on."""
        if stop_at != self._stop_at:
            self._stop_at = stop_at
            self.change(*self._workers)

    def change(self, *workers: str) -> None:
        """Something is new for these: tell them."""
        for name in workers:
            worker = self._workers.get(name)
            if worker is not None:
                worker.number += 1
                try_tell(self._node, worker.refs.leader, self.plan_of(name))

    def plan_of(self, name: str) -> WorkerPlan:
        """What a worker is to do now."""
        worker, job = self._workers[name], self._job
        if job is not None and worker.has_spec_of == job.job_id:
            job = msgspec.structs.replace(job, spec=None)
        stop_in_s = None
        if self._stop_at is not None:
            stop_in_s = max(0.0, self._stop_at - asyncio.get_running_loop().time())
        return WorkerPlan(
            worker.number, job, self._node.group_of(name), stop_in_s, self._node.own_store
        )

    def note(self, report: WorkerReport) -> None:
        """A worker says which job it knows."""
        if report.worker in self._workers:
            self._workers[report.worker].has_spec_of = report.job_id

    def is_drained(self, report: WorkerReport) -> bool:
        """Whether nothing is left there that could be lost, now that it knows of the notice."""
        worker = self._workers.get(report.worker)
        knows = worker is not None and report.plan == worker.number
        return knows and self._stop_at is not None and report.drained
