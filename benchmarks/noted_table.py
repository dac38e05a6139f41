"""A table of requests that remembers when what counted, and a pace that remembers what it said, for
`benchmarks.preemption`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable

from benchmarks.preemption_bound import Saved
from spotlight.policies.requests.events import CommittedBatch, Report
from spotlight.policies.requests.instructions import Instruction
from spotlight.policies.requests.pace import Pace, Profile
from spotlight.policies.requests.rows import Taker
from spotlight.policies.requests.table import RequestTable
from spotlight.types import SamplingSettings


class NotedPace(Pace):
    """Remembers the commit interval of every lease."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.every: dict[int, int] = {}
        """The interval of each lease; 0 for only when it must stop."""
        self.fixed: int | None = None
        """The interval of all leases from now on; None for what is best."""
        self.resumed = 0
        """Requests of which others went on denoising."""

    def commit_every(self, taker: Taker, settings: SamplingSettings) -> int:
        """See `Pace.commit_every`."""
        best = super().commit_every(taker, settings)
        lease = taker.leases[max(taker.leases)]  # which is being granted
        self.every[lease.number] = best if self.fixed is None else self.fixed
        self.resumed += sum(0 < row.steps_done < settings.steps for row in lease.rows)
        return self.every[lease.number]


class NotedTable(RequestTable):
    """Remembers the commits that counted, and who can take work."""

    def __init__(self, *, pace: Pace) -> None:
        super().__init__(pace=pace)
        self.saved: defaultdict[str, list[Saved]] = defaultdict(list)
        """What was saved of each request."""
        self.able: set[str] = set()
        """Workers that pull, and hold weights."""
        self._epochs: dict[str, int] = {}

    def add_worker(
        self, name: str, epoch: int, node: str, pool: str, leader: Hashable, now: float
    ) -> list[Instruction]:
        """See `RequestTable.add_worker`."""
        if self._epochs.get(name) != epoch:
            self._epochs[name] = epoch
            self.able.discard(name)
        return super().add_worker(name, epoch, node, pool, leader, now)

    def lose_worker(
        self, name: str, reason: str, *, announced: bool, ended: bool, now: float
    ) -> list[Instruction]:
        """See `RequestTable.lose_worker`."""
        self._epochs.pop(name, None)
        self.able.discard(name)
        return super().lose_worker(name, reason, announced=announced, ended=ended, now=now)

    def report(self, name: str, epoch: int, report: Report, now: float) -> list[Instruction]:
        """See `RequestTable.report`."""
        if self._epochs.get(name) == epoch and report.credits and report.rollout_versions:
            self.able.add(name)
        else:
            self.able.discard(name)
        return super().report(name, epoch, report, now)

    def commit(self, name: str, epoch: int, batch: CommittedBatch, now: float) -> list[Instruction]:
        """See `RequestTable.commit`."""
        before = {request_id: self.steps_done(request_id) for request_id in batch.requests}
        instructions = super().commit(name, epoch, batch, now)
        commit = Saved(batch.lease, batch.step, time.monotonic())
        for request_id, steps in before.items():
            if self.steps_done(request_id) > steps:
                self.saved[request_id].append(commit)
        return instructions
