"""Assigns waiting requests to free groups.

This module does not know who wants a request, or what is saved of it; the table does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from spotlight.policies.dispatch.instructions import GrantLease, Instruction, RecallLeases
from spotlight.policies.dispatch.leases import Leases
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.recalls import Recalls
from spotlight.policies.dispatch.rows import Lease, RequestState, Row
from spotlight.policies.dispatch.suspicion import Suspicion
from spotlight.policies.dispatch.takers import Groups, ReadyTakers, Taker
from spotlight.policies.dispatch.waiting import Batch, Waiting, WeightsKey
from spotlight.timings import DispatchTimings
from spotlight.types import Request, RequestKind, SamplingSettings


@dataclass(frozen=True)
class Backlog:
    """Work of one kind that is not denoised yet."""

    kind: RequestKind
    settings: SamplingSettings
    queued: int
    """Requests that nobody has."""
    leased: Mapping[str, int]
    """Micro-batches by the node that has them."""

    @property
    def batches(self) -> int:
        """Micro-batches in all."""
        return micro_batches(self.queued, self.settings) + sum(self.leased.values())


def micro_batches(requests: int, settings: SamplingSettings) -> int:
    """How many so many requests make."""
    return -(-requests // settings.micro_batch)


class Matching:
    """See the module's docstring.

    Args:
        urgency: of a request; smaller goes first. Call `waiting.reorder` when it has changed.
        first_lease: see `Leases`.
        grants_from: when the first grant may be made.
    """

    def __init__(
        self,
        *,
        urgency: Callable[[Request], tuple[int, ...]],
        pace: Pace,
        first_lease: int,
        grants_from: float,
        timings: DispatchTimings,
    ) -> None:
        self.groups = Groups()
        self.pace = pace
        self.leases = Leases(first_lease, timings.lease_s)
        self.waiting = Waiting(urgency)
        self.takers: dict[str, Taker] = {}
        self.suspicion = Suspicion()
        self._hold_back_s = timings.hold_back_s
        self._urgency = urgency
        self._grants_from = grants_from
        self._recalls = Recalls(timings.ask_again_s)
        self._ready = ReadyTakers()
        self._pullers: set[str] = set()
        """Workers that may be given requests: they neither leave nor train nor follow another."""
        self._barred: frozenset[str] = frozenset()
        self._held_back: frozenset[str] = frozenset()
        """Suspects that get nothing for now."""
        self._pools: Counter[str] = Counter()
        self._leased: defaultdict[tuple[RequestKind, SamplingSettings], Counter[str]]
        self._leased = defaultdict(Counter)
        """Leases that are yet to be denoised, by node."""
        self._leases_left = 0
        """All of these: a sum over nodes at every event would grow with the cluster."""

    # --- workers ---

    def add(self, taker: Taker) -> None:
        """A worker is there; it has said nothing yet."""
        self.takers[taker.name] = taker
        self._pools[taker.pool] += 1
        self.refresh(taker.name)

    def remove(self, taker: Taker) -> None:
        """A worker is gone; it has no lease any more."""
        self._ready.drop(taker.name)
        self._pullers.discard(taker.name)
        del self.takers[taker.name]
        self._pools[taker.pool] -= 1
        for name in sorted(self.groups.forget(taker.name)):
            self.refresh(name)

    def refresh(self, name: str) -> None:
        """What a worker can take may have changed."""
        taker = self.takers.get(name)
        if taker is None:
            return
        if taker.leaving or name in self._barred or self.groups.follows(name):
            self._pullers.discard(name)
        else:
            self._pullers.add(name)
        report = taker.report
        if (
            report is not None
            and name in self._pullers
            and taker.load < report.credits
            and len(taker.leases) < 2 * report.credits  # or scoring falls ever further behind
            and not (taker.silent or taker.is_sick or name in self._held_back)
        ):
            self._ready.put(taker)
        else:
            self._ready.drop(name)

    def heard(self, taker: Taker, now: float) -> None:
        """A worker has reported."""
        assert taker.report is not None
        for name in sorted(self.groups.record(taker.name, taker.report)):
            self.refresh(name)
        self.refresh(taker.name)

    def bar(self, names: Iterable[str]) -> None:
        """These get nothing; all others may."""
        before, self._barred = self._barred, frozenset(names)
        for name in sorted(before ^ self._barred):
            self.refresh(name)

    def set_leaving(self, taker: Taker, leaving: bool) -> None:
        """Its node has notice, or is not taken after all."""
        taker.leaving = leaving
        for lease in taker.leases.values():
            if leaving:
                self._recalls.leaves(lease)
            else:
                self._recalls.stays(lease)
        self.refresh(taker.name)

    def held_back(self, now: float) -> frozenset[str]:
        """Suspects that get nothing for a while after each failure, as somebody else is there."""
        suspects = self.suspicion.suspects
        if not suspects or not any(
            name not in suspects
            and not (taker.leaving or taker.is_sick or self.groups.follows(name))
            for name, taker in self.takers.items()
        ):
            return frozenset()
        since = now - self._hold_back_s
        return frozenset(name for name in suspects if self.suspicion.failed_at(name) > since)

    def _hold_back(self, now: float) -> None:
        before, self._held_back = self._held_back, self.held_back(now)
        for name in sorted(before ^ self._held_back):
            self.refresh(name)

    def watch_pools(self, seconds: float) -> None:
        """So much time has passed without the loss of those that are there."""
        self.pace.watched(self._pools, seconds)

    # --- leases ---

    def open(
        self, taker: Taker, rows: Iterable[Row], now: float, number: int | None = None
    ) -> Lease:
        """A lease on rows that wait: a new one, or that of an earlier table."""
        rows = tuple(rows)
        for row in rows:
            self.waiting.remove(row)
            row.attempts += 1
            row.resumed_at = row.steps_done
        lease = self.leases.open(taker, rows, now, number)
        self._recalls.opened(lease, now)
        if taker.leaving:
            self._recalls.leaves(lease)
        if not lease.is_denoised:
            self._leased[lease.request.kind, lease.request.settings][taker.node] += 1
            self._leases_left += 1
        self.refresh(taker.name)
        return lease

    def denoised(self, lease: Lease) -> None:
        """Its images only wait for their rewards: the group is free for others."""
        taker = self.takers[lease.worker]
        self._count_denoised(lease, taker)
        lease.is_denoised = True
        self.refresh(taker.name)

    def close(self, lease: Lease) -> None:
        """A lease is over; its rows are in no lease, and nowhere else."""
        taker = self.takers[lease.worker]
        if not lease.is_denoised:
            self._count_denoised(lease, taker)
        self._recalls.closed(lease)
        self.leases.close(lease, taker)
        self.refresh(taker.name)

    def queue(self, rows: Iterable[Row], *, ahead: bool) -> None:
        """These wait from now on; `ahead` of their equals they have waited longest."""
        for row in reversed(tuple(rows)) if ahead else rows:
            row.state = RequestState.QUEUED
            self.waiting.add(row, ahead=ahead)

    def pardon(self, row: Row) -> None:
        """No worker is kept from it any more."""
        self._change(row, lambda: setattr(row, "failed_at", frozenset()))

    def absolve(self, row: Row, worker: str) -> None:
        """What it failed there says nothing of it."""
        self._change(row, lambda: row.failures_at.pop(worker, 0))

    def _change(self, row: Row, change: Callable[[], object]) -> None:
        """Change a row that may wait: it may share a lease with others then."""
        waits = self.waiting.holds(row)
        if waits:
            self.waiting.remove(row)
        change()
        if waits:
            self.waiting.add(row, ahead=True)

    def _count_denoised(self, lease: Lease, taker: Taker) -> None:
        key = lease.request.kind, lease.request.settings
        self._leases_left -= 1
        self._leased[key][taker.node] -= 1
        if not self._leased[key][taker.node]:
            del self._leased[key][taker.node]
        if not self._leased[key]:
            del self._leased[key]

    # --- who gets what ---

    def match(self, now: float) -> list[Instruction]:
        """Grant what can be granted, and ask back what others should go on with."""
        if now < self._grants_from:
            return []
        self._hold_back(now)
        out: list[Instruction] = []
        while (grant := self._next_grant(now)) is not None:
            out.append(grant)
        out += self._ask_back()
        return out

    def look_for_slow(self, now: float) -> None:
        """Find leases that take far too long, so that others go on with them."""
        if len(self.takers) > 1:
            usual = cache(self.pace.usual_step_s)  # most leases are of the same work
            self._recalls.look(
                now,
                lambda lease: self.leases.get(lease.number) is lease,
                lambda lease: self.pace.slow_from(lease, self.takers[lease.worker], usual),
            )

    def _next_grant(self, now: float) -> GrantLease | None:
        for key in self.waiting.weights():
            for batch in self.waiting.firsts(key):
                taker = self._first_taker(key, batch)
                if taker is not None:
                    return self._grant(taker, batch, now)
        return None

    def _first_taker(self, key: WeightsKey, batch: Batch) -> Taker | None:
        failed = [name for name in batch.failed_at if name in self.takers]
        everyone = sum(not self.groups.follows(name) for name in failed) >= self._leaders
        for taker in self._ready.holding(key, to_score=batch.is_denoised):
            if taker.load > 0 and not self._queue_is_long(taker):
                return None  # near the end of a phase nothing waits behind a busy worker
            if not everyone and taker.name in batch.failed_at:
                continue
            assert taker.report is not None
            if not batch.is_denoised or len(taker.leases) < taker.report.credits:
                return taker
        return None

    def _grant(self, taker: Taker, batch: Batch, now: float) -> GrantLease:
        assert taker.report is not None
        rows = batch.take(taker.report.batch, frozenset(taker.report.prompts))
        lease = self.open(taker, rows, now)
        commits = tuple(row.commit for row in rows)
        every = self.pace.commit_every(taker, lease.request.settings)
        requests = tuple(row.request for row in rows)
        return GrantLease(taker.name, lease.number, requests, commits, every)

    @property
    def _leaders(self) -> int:
        """Workers that nobody pulls for."""
        return len(self.takers) - self.groups.followers

    def _queue_is_long(self, taker: Taker) -> bool:
        """Even if every worker takes a batch. Less urgent requests do not count: for their sake
        nobody takes a second batch of what others could begin at once."""
        assert taker.report is not None
        return self.waiting.most_urgent > taker.report.batch * self._leaders

    def _ask_back(self) -> list[Instruction]:
        recalled: list[Lease] = []
        for key in self._recalls.weights():
            if not self.waiting.rows(key):
                recalled += self._recalls.movable(key, self._ready.idle(key))
        for key in self.waiting.weights():
            request = self.waiting.firsts(key)[0].first.request
            if self._urgency(request)[0] == 0:  # rollouts
                wanted = micro_batches(self.waiting.rows(key), request.settings)
                recalled += self._recalls.evaluations(wanted, partial(self._makes_room, key))
        return [RecallLeases(lease.worker, (lease.number,)) for lease in recalled]

    def _makes_room(self, key: WeightsKey, lease: Lease) -> bool:
        """Whether its group could go on with what waits, and it is less urgent."""
        taker = self.takers[lease.worker]
        less_urgent = self._urgency(lease.request)[0] > 0
        able = not taker.leaving and taker.name not in self._barred
        return less_urgent and able and key in taker.weights

    # --- what there is ---

    @property
    def free_groups(self) -> int:
        """SP groups that may be given requests now."""
        return len(self._pullers)

    def backlog(self) -> tuple[Backlog, ...]:
        """What is not denoised yet, by kind and settings."""
        queued = self.waiting.undenoised
        kinds = sorted(queued.keys() | self._leased.keys(), key=_in_order)
        return tuple(
            Backlog(*kind, queued[kind], dict(self._leased.get(kind, {}))) for kind in kinds
        )

    @property
    def batches_left(self) -> int:
        """Micro-batches that are not denoised yet."""
        queued = sum(micro_batches(n, kind[1]) for kind, n in self.waiting.undenoised.items())
        return queued + self._leases_left

    def kinds_left(self) -> frozenset[tuple[RequestKind, SamplingSettings]]:
        """Of work that is not denoised yet."""
        return frozenset(self.waiting.undenoised.keys() | self._leased.keys())


def _in_order(work: tuple[RequestKind, SamplingSettings]) -> tuple[int, str]:
    return ("rollout", "preview", "evaluation").index(work[0]), repr(work[1])
