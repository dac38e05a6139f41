"""How the processes of a node's workers fare: whether they get ready, why they end, and whether
others are started in their place (`policies.restarts`).

What is wrong with a worker is in the node's reports until a process of it is ready. A worker that
was given up is tried again when another job runner has a job, or the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from spotlight.actors.protocol.down import JobPlan, SickWorker
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport, WorkerTrouble
from spotlight.actors.runtime import ActorRef
from spotlight.actors.runtime.launcher import ProcessHandle
from spotlight.policies.restarts import Life, Restarts
from spotlight.timings import NodeTimings

log = structlog.get_logger(__name__)


@dataclass
class _Worker:
    restarts: Restarts
    process: ProcessHandle | None = None
    """The latest process."""
    is_ready: bool = False
    """Whether that process was ready for the present job."""
    reason: str = ""
    """Why that process ends, as far as it is known."""
    is_sick: bool = False
    trouble: WorkerTrouble | None = None
    """None while nothing is known against it."""
    forgiven: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerLives:
    """See the module's docstring. `names` are those of all workers of the node."""

    def __init__(self, names: Collection[str], timings: NodeTimings) -> None:
        self._timings = timings
        self._workers = {name: _Worker(Restarts(timings)) for name in names}
        self._job: tuple[str, ActorRef] | None = None
        """The job that workers get ready for, and its runner."""

    @property
    def troubles(self) -> tuple[WorkerTrouble, ...]:
        """Of all workers with which something is wrong."""
        found = (worker.trouble for worker in self._workers.values())
        return tuple(trouble for trouble in found if trouble is not None)

    def is_awaited(self, name: str) -> bool:
        """Whether it may be up in a moment: nothing is known against it."""
        return self._workers[name].trouble is None

    def begin(self, name: str, process: ProcessHandle) -> None:
        """A process was started."""
        worker = self._workers[name]
        worker.process, worker.is_ready, worker.reason, worker.is_sick = process, False, "", False

    def follow_job(self, job: JobPlan | None) -> None:
        """Workers have yet to get ready for another job; those that were given up are tried again
        for another runner of one."""
        now = (job.job_id, job.membership.runner) if job is not None else None
        if now == self._job:
            return
        is_another = now is None or self._job is None or now[0] != self._job[0]
        self._job = now
        for worker in self._workers.values():
            if is_another:
                worker.is_ready = False
            if now is not None:
                worker.restarts = Restarts(self._timings)
                worker.forgiven.set()
                if worker.trouble is not None:
                    worker.trouble = WorkerTrouble(worker.trouble.worker, worker.trouble.reason)

    def note(self, report: WorkerReport) -> bool:
        """What a worker says of itself; whether nothing is wrong with it any more."""
        worker = self._workers[report.worker]
        if report.ends:
            worker.reason = report.cannot_serve
        has_nothing_to_do = self._job is None and not report.job_id
        if has_nothing_to_do or (report.rollout or report.evaluation):
            worker.is_ready = True
            recovered, worker.trouble = worker.trouble is not None, None
            return recovered
        return False

    def kill(self, name: str, reason: str, *, sick: bool = False) -> None:
        """End the latest process of a worker."""
        worker = self._workers[name]
        worker.reason, worker.is_sick = reason, sick
        if worker.process is not None:
            worker.process.kill()

    def end_sick(self, sick: Collection[SickWorker], refs: Collection[WorkerRefs]) -> None:
        """End those processes that fail what others can do; a later one of the name is another."""
        there = {one.worker: one.epoch for one in refs}
        for one in sick:
            if there.get(one.worker) == one.epoch and not self._workers[one.worker].is_sick:
                log.error("worker_is_sick", worker=one.worker, reason=one.reason)
                self.kill(one.worker, one.reason, sick=True)

    def end(self, name: str, exit_code: int) -> float | None:
        """The latest process of a worker has ended: the pause before the next one; None if there is
        none before `wait_forgiven` returns."""
        worker = self._workers[name]
        life = Life(exit_code, worker.is_ready, worker.reason, worker.is_sick)
        worker.process = None
        worker.forgiven.clear()
        pause_s = worker.restarts.pause_s(life, asyncio.get_running_loop().time())
        log.warning("worker_ended", worker=name, exit_code=exit_code, reason=life.explanation)
        if pause_s is None:
            log.error("worker_given_up", worker=name, reason=life.explanation)
        if life.is_bad or pause_s is None:
            tries, given_up = worker.restarts.bad_lives, pause_s is None
            worker.trouble = WorkerTrouble(name, life.explanation, tries, given_up)
        return pause_s

    async def wait_forgiven(self, name: str) -> None:
        """Return when a worker that was given up may be tried again."""
        await self._workers[name].forgiven.wait()
