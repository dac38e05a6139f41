"""The ledger: which worker was in which state for how long.

It writes each change to the run folder. A worker is in exactly one state at any time, so its states
add up to its time exactly. Scoring goes on beside other states; the time that it took is written
down with the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from spotlight.actors.protocol import WorkerRefs, WorkerReport, WorkerStatus
from spotlight.actors.runtime import ActorRef
from spotlight.record.run_events import RunEvent, WorkerCannotServe, WorkerStateBegan


class Ledger:
    """See the module's docstring.

    Args:
        record: writes an event with the present run time.
        pop_scoring_s: tells how long a worker has scored since it was called last.
    """

    def __init__(
        self, record: Callable[[RunEvent], None], pop_scoring_s: Callable[[str], float]
    ) -> None:
        self._record = record
        self._pop_scoring_s = pop_scoring_s
        self._statuses: dict[str, WorkerStatus] = {}
        self._leaders: dict[str, ActorRef] = {}
        self._problems: dict[str, str] = {}
        """Why workers cannot serve; empty if nothing is known against one."""
        self._ending: set[str] = set()
        """Workers whose processes end for that reason."""

    def __len__(self) -> int:
        return len(self._statuses)

    def may_report(self, worker: str, sender: ActorRef | None) -> bool:
        """Whether the sender may report what a worker does: its leader may. Of one that is gone
        nothing is written down, whoever reports.
        """
        return self._leaders.get(worker, sender) == sender

    def add(self, node: str, pool: str, workers: Iterable[WorkerRefs]) -> None:
        """Their time counts from here."""
        for worker in workers:
            self._leaders[worker.worker] = worker.leader
            self._enter(WorkerStatus(worker.worker, node, pool, "starting", ""))

    def remove(self, workers: Iterable[str]) -> None:
        """Their time ends here."""
        for name in workers:
            self._leaders.pop(name, None)
            self._problems.pop(name, None)
            self._ending.discard(name)
            known = self._statuses.pop(name, None)
            if known is not None:
                self._write(msgspec.structs.replace(known, state="gone"))

    def note(self, report: WorkerReport) -> None:
        """The worker is in this state from now on; what keeps it from work is written once."""
        known = self._statuses.get(report.worker)
        if known is None:
            return
        self._enter(msgspec.structs.replace(known, state=report.state, detail=report.detail))
        if report.cannot_serve and self._problems.get(report.worker) != report.cannot_serve:
            self._record(WorkerCannotServe(worker=report.worker, reason=report.cannot_serve))
        self._problems[report.worker] = report.cannot_serve
        if report.ends:
            self._ending.add(report.worker)

    @property
    def cannot_serve(self) -> dict[str, str]:
        """Why workers that are there, and stay, cannot serve."""
        problems = self._problems.items()
        return {name: why for name, why in problems if why and name not in self._ending}

    def statuses(self, group_of: Callable[[str], tuple[str, int]]) -> tuple[WorkerStatus, ...]:
        """What every worker does, by name; `group_of` says who leads its group and how many are
        in it.
        """
        for name, status in self._statuses.items():
            leader, members = group_of(name)
            leader = leader if members > 1 else ""
            if (status.leader, status.members) != (leader, members):
                together = msgspec.structs.replace(status, leader=leader, members=members)
                self._statuses[name] = together
        return tuple(self._statuses[name] for name in sorted(self._statuses))

    def _enter(self, status: WorkerStatus) -> None:
        known = self._statuses.get(status.name)
        self._statuses[status.name] = status
        if known is None or known.state != status.state:
            self._write(status)

    def _write(self, status: WorkerStatus) -> None:
        began = WorkerStateBegan(
            worker=status.name,
            node=status.node,
            pool=status.pool,
            state=status.state,
            scoring_s=round(self._pop_scoring_s(status.name), 4),
        )
        self._record(began)
