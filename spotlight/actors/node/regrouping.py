"""The SP groups of one node: who is in which, and when that changes.

`policies/grouping` decides which groups are best; this module keeps what that decision needs. The
node tells workers of their groups until they report them.

Invariants:
- Every worker is in exactly one group; one that just started is alone.
- A group's epoch is larger than all before it on this node, and is never used twice.
- Only workers that are ready for the job, and answer, are grouped with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.protocol.down import Demand, GroupPlan, Seat
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.policies.grouping.degrees import layout
from spotlight.policies.grouping.plan import Place, plan_groups
from spotlight.policies.grouping.throughput import WorkClass
from spotlight.timings import NodeTimings

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

log = structlog.get_logger(__name__)

_Group = tuple[str, ...]

_FAILURES = 3


class Grouping:
    """See the module's docstring.

    Args:
        node: hears of every worker whose group is another one now.
        name: of the node.
    """

    def __init__(self, node: NodeScheduler, name: str, timings: NodeTimings) -> None:
        self._timings = timings
        self._node = node
        self._log = LimitedLog(log)
        self._name = name
        self._workers: dict[str, WorkerRefs] = {}
        self._ready_for: dict[str, str] = {}
        self._silent: set[str] = set()
        self._faulty: dict[str, float] = {}
        """When they may be grouped again."""
        self._failures: dict[frozenset[str], list[float]] = {}
        """When groups of these workers failed lately."""
        self._demand: Demand | None = None
        self._work: list[WorkClass] = []
        self._groups: dict[_Group, int] = {}
        """Their epochs; 0 for a worker that was never told of another group."""
        self._plans: dict[str, GroupPlan] = {}
        """The latest of each worker."""
        self._reported: dict[str, int] = {}
        """The latest epoch that each worker has reported."""
        self._leaving: dict[str, set[str]] = {}
        """The workers with whom each may still be ending a step: those of the groups it is to
        leave."""
        self._epoch = 0

    # --- what happens ---

    def add(self, refs: WorkerRefs) -> None:
        """A worker is up."""
        self.remove(refs.worker)
        self._workers[refs.worker] = refs
        self._groups[(refs.worker,)] = 0
        self._log_plan()

    def remove(self, worker: str) -> None:
        """A worker's process has ended."""
        if self._workers.pop(worker, None) is not None:
            self._ready_for.pop(worker, None)
            self._plans.pop(worker, None)
            self._reported.pop(worker, None)
            self._leaving.pop(worker, None)
            self._faulty.pop(worker, None)
            self._silent.discard(worker)
            self._plan(lost=(worker,))

    def lose_sight(self, worker: str) -> None:
        """A worker does not answer; perhaps it will."""
        if worker in self._workers and worker not in self._silent:
            self._log.warning("worker_silent", about=worker, worker=worker)
            self._silent.add(worker)
            self._plan(lost=(worker,))

    def note(self, report: WorkerReport) -> None:
        """A worker answers, or is ready for a job; or its group did not form, or broke."""
        worker = report.worker
        if worker not in self._workers:
            return
        changed = False
        if worker in self._silent:
            changed = True
            self._log.info("worker_answers", about=worker, worker=worker)
            self._silent.discard(worker)
        if self._ready_for.get(worker) != report.ready_for:
            changed = True
            log.debug("worker_ready", worker=worker, job=report.ready_for)
            self._ready_for[worker] = report.ready_for
        self._reported[worker] = report.group
        plan = self._plans.get(worker)
        if plan is not None and report.group == plan.epoch and report.formed:
            self._leaving.pop(worker, None)
        if changed:
            self._plan()
        if report.failure:
            self._note_failure(report)

    def plan_of(self, worker: str) -> GroupPlan | None:
        """The group that it is to be in; None if that was never another than itself alone."""
        return self._plans.get(worker)

    def set_demand(self, demand: Demand) -> None:
        """What the groups should be good for; numbers that cannot be change nothing."""
        try:
            self._work = [WorkClass(it.batches, it.steps, it.step_s) for it in demand.classes]
        except ValueError as error:
            self._log.error("demand_refused", about=str(error), reason=str(error))
            return
        self._demand = demand
        self._plan()

    def end_job(self) -> None:
        """Nothing is asked for any more."""
        self._demand = None
        self._plan()

    def is_grouped(self, worker: str) -> bool:
        """Whether it denoises with others, or may still be ending a step with them."""
        return bool(self._leaving.get(worker)) or any(
            worker in group and len(group) > 1 for group in self._groups
        )

    # --- planning ---

    def _plan(self, lost: Collection[str] = (), broken: _Group = ()) -> None:
        """Plan anew, and tell those whose group changes.

        Args:
            lost: gone or silent; whoever is in a group with them, or is just leaving one, must not
                wait for a step to end.
            broken: a group that is no more, though its workers may be there.
        """
        planned = self._planned()
        before = {worker: group for group in self._groups for worker in group}
        stuck = {worker for worker, others in self._leaving.items() if not others.isdisjoint(lost)}
        kept = {
            group: epoch
            for group, epoch in self._groups.items()
            if group in planned and group != broken and stuck.isdisjoint(group)
        }
        self._groups = kept
        for group in planned:
            if group in kept:
                continue
            self._epoch += 1
            self._groups[group] = self._epoch
            if len(group) > 1:
                log.info("group_planned", epoch=self._epoch, workers=group)
            for worker in group:
                last = before.get(worker, ())
                at_once = last == broken or worker in stuck or any(it in lost for it in last)
                self._leaving.setdefault(worker, set()).update({*last} - {worker})
                self._set_plan(worker, group, self._epoch, at_once)
        self._log_plan()

    def _log_plan(self) -> None:
        workers = {name: refs.epoch for name, refs in self._workers.items()}
        log.debug("groups_planned", epoch=self._epoch, groups=dict(self._groups), workers=workers)

    def _planned(self) -> list[_Group]:
        demand, present = self._demand, sorted(self._workers)
        if demand is None:
            return [(worker,) for worker in present]
        together = [worker for worker in present if self._may_share(worker, demand)]
        groups = plan_groups(
            [Place(worker, self._name, self._name) for worker in together],
            self._work,
            seconds_left=demand.seconds_left,
            current=list(self._groups),
            wanted=demand.degree,
        )
        return [*groups, *((worker,) for worker in present if worker not in together)]

    def _may_share(self, worker: str, demand: Demand) -> bool:
        return (
            self._ready_for.get(worker) == demand.job_id
            and worker not in demand.apart
            and worker not in self._silent
            and self._faulty.get(worker, 0.0) <= self._now()
        )

    def _set_plan(self, worker: str, group: _Group, epoch: int, at_once: bool) -> None:
        last = self._plans.get(worker)
        if last is not None and last.epoch > self._reported.get(worker, 0):
            at_once = at_once or last.at_once  # it may not have heard of that
        refs = [self._workers[name] for name in group]
        seats = tuple(Seat(it.worker, it.leader, it.member) for it in refs)
        ring = layout(len(group), self._demand.heads)[0] if self._demand is not None else 1
        self._plans[worker] = GroupPlan(epoch, seats, ring, at_once)
        self._node.group_planned(worker)

    # --- failures ---

    def _note_failure(self, report: WorkerReport) -> None:
        """What comes from an older epoch changes nothing."""
        group = self._group_of_epoch(report.group)
        if group is None or report.group == 0:
            epoch = report.group
            self._log.info("old_epoch_refused", about=epoch, epoch=epoch, now=self._epoch)
            return
        self._log.warning(
            "group_failed",
            about=(report.group, report.failure),
            epoch=report.group,
            reason=report.failure,
            culprits=report.culprits,
        )
        culprits = [worker for worker in report.culprits if worker in self._workers]
        self._node.run_task(self._plan_after_failure(group, report.group, culprits))

    async def _plan_after_failure(
        self, group: _Group, epoch: int, culprits: Collection[str]
    ) -> None:
        if not culprits:
            await asyncio.sleep(self._timings.regroup_pause_s)
        if self._groups.get(group) != epoch:
            return  # by now there is another plan
        alone = culprits or (group if self._fails_often(group) else ())
        for worker in alone:
            self._faulty[worker] = self._now() + self._timings.fault_s
        self._plan(lost=culprits, broken=group)
        if alone:
            await asyncio.sleep(self._timings.fault_s)
            self._plan()

    def _fails_often(self, group: _Group) -> bool:
        now, key = self._now(), frozenset(group)
        self._failures[key] = [*self._failures.get(key, ()), now]
        for other, times in list(self._failures.items()):
            recent = [each for each in times if each >= now - self._timings.failure_window_s]
            if recent:
                self._failures[other] = recent
            else:
                del self._failures[other]
        return len(self._failures[key]) >= _FAILURES

    def _group_of_epoch(self, epoch: int) -> _Group | None:
        return next((group for group, known in self._groups.items() if known == epoch), None)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
