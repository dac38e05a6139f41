"""A spot pool that is lost twice in one iteration, as the table of requests sees it, for
`benchmarks.control_plane`: nothing else is measured, and nothing waits."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable

from benchmarks.control_plane_farm import offer
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.protocol.up import Completed, HeldLease, Pull
from spotlight.policies.requests.instructions import GrantLease, Instruction, RequestsFinished
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.step_times import StepTimes
from spotlight.types import Request, RequestId, SamplingSettings

_OF_NODE = 8
_CREDITS, _BATCH = 2, 2
"""What every report says, as a leader's does."""
_EPOCH = 1
_SETTINGS = SamplingSettings(
    kind="ode", steps=10, height=32, width=64, noise_level=0.0, micro_batch=_BATCH
)


def _request(seed: int) -> Request:
    name = str(RequestId("rollout", 0, 0, 0, seed))
    return Request(name, "rollout", 0, 0, "a prompt", seed, 0, _SETTINGS)


class _Pool:
    """A table, and workers that hold what they are granted."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._table = RequestTable(pace=Pace(StepProfile("model", StepTimes())))
        self.granted: deque[GrantLease] = deque()
        """What is held, in the order of the grants."""
        self._held: defaultdict[str, dict[int, GrantLease]] = defaultdict(dict)
        """The same, by worker and lease."""
        self.finished = 0
        self._now = 0.0
        self._names: tuple[str, ...] = ()

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, GrantLease):
                self.granted.append(each)
                self._held[each.worker][each.lease] = each
            elif isinstance(each, RequestsFinished):
                self.finished += len(each.results)

    def submit(self, requests: int) -> None:
        """They wait."""
        self._carry_out(self._table.submit(map(_request, range(requests)), self._now))

    def join(self, pool: int) -> None:
        """Other machines than before come, and take what waits."""
        self._names = tuple(
            f"p{pool}-n{number // _OF_NODE}/{number % _OF_NODE}" for number in range(self._workers)
        )
        for name in self._names:
            node = name.partition("/")[0]
            self._carry_out(self._table.add_worker(name, _EPOCH, node, "spot", name, self._now))
        for _ in ("it takes what waits", "it says what it holds, or the loss is not laid to that"):
            for name in self._names:
                self._report(name)

    def lose(self) -> None:
        """All are out of reach, one after the other."""
        self.granted.clear()
        self._held.clear()
        for name in self._names:
            self._carry_out(
                self._table.lose_worker(
                    name, "out of reach", announced=False, ended=False, now=self._now
                )
            )

    def complete(self) -> int:
        """The longest-held lease is done, and its worker says so; returns the number of events."""
        self._now += 0.001
        grant = self.granted.popleft()
        del self._held[grant.worker][grant.lease]
        ids = tuple(request.id for request in grant.requests)
        where = offer(f"samples/{grant.worker}/{_EPOCH}-{grant.lease}")
        rewards = ((0.5,),) * len(ids)
        done = Completed(grant.worker, _EPOCH, grant.lease, ids, where, rewards, 10, 1.0)
        self._carry_out(self._table.complete(grant.worker, _EPOCH, done, self._now))
        self._report(grant.worker)
        return 2

    def _report(self, name: str) -> None:
        leases = tuple(
            HeldLease(lease, tuple(request.id for request in grant.requests))
            for lease, grant in self._held[name].items()
        )
        pull = Pull(name, _EPOCH, 1, _CREDITS, _BATCH, (0,), (), (), leases)
        self._carry_out(self._table.report(name, _EPOCH, pull, self._now))


def double_loss(workers: int) -> dict[str, float]:
    """Every worker holds a batch and is lost, twice: each of these requests is leased alone then.

    `double_loss_cpu_s` is from the first loss until the third pool holds what it can take, and
    `event_ms_after` what a completion or a report takes from then on, until all is done.
    """
    pool, requests = _Pool(workers), _BATCH * workers + workers // 4
    pool.submit(requests)
    pool.join(0)
    began = time.process_time()
    for again in (1, 2):
        pool.lose()
        pool.join(again)
    lost_s, events = time.process_time() - began, 0
    assert all(len(grant.requests) == 1 for grant in pool.granted), "they are leased alone"
    began = time.process_time()
    while pool.granted:
        events += pool.complete()
    after_s = time.process_time() - began
    assert pool.finished == requests, f"{pool.finished} of {requests} are done"
    return {"double_loss_cpu_s": lost_s, "event_ms_after": 1000 * after_s / events}
