"""Assigns waiting requests to free groups, and says which leases others should go on with.

This module does not know who wants a request, or what is saved of it; the table does.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice

from spotlight.policies.requests.blame import Suspicion
from spotlight.policies.requests.events import Report
from spotlight.policies.requests.gathering import Gathering
from spotlight.policies.requests.instructions import GrantLease, Instruction, RecallLeases
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.rows import (
    Lease,
    RequestState,
    Row,
    Taker,
    WeightsKey,
    weights_of,
)
from spotlight.policies.requests.waiting import Batch, Phases, Waiting
from spotlight.timings import DispatchTimings
from spotlight.types import RequestKind, SamplingSettings

_LOOK_AHEAD = 64
"""How many evaluations are looked through for those that make room."""

LEAVING, SLOW, URGENT = "its node leaves", "it is far too slow", "rollouts wait"


@dataclass(frozen=True)
class Backlog:
    """Work of one kind that is not denoised yet."""

    kind: RequestKind
    settings: SamplingSettings
    queued: int
    """How many requests nobody has."""
    leased: Mapping[str, int]
    """How many micro-batches each node has."""

    @property
    def batches(self) -> int:
        """How many micro-batches that is in all."""
        return micro_batches(self.queued, self.settings) + sum(self.leased.values())


def micro_batches(requests: int, settings: SamplingSettings) -> int:
    """How many micro-batches so many requests make."""
    return -(-requests // settings.micro_batch)


class Leases:
    """Leases by number, and at their holders. An operation costs the logarithm of their number.

    Args:
        first: the number of the first one; those of an earlier table of the same job must be below.
        lease_s: how long a lease lasts that is not renewed.
    """

    def __init__(self, first: int, lease_s: float) -> None:
        self._lease_s = lease_s
        self.next = first
        """The number of the next one."""
        self.adopts_from = 0
        """The first lease of an earlier table that counts: those below are of weights that were
        trained again."""
        self._by_number: dict[int, Lease] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Every lease stands here, with a deadline that it had."""

    def find(self, number: int, worker: str) -> Lease | None:
        """This worker's lease of that number, if it has it."""
        lease = self._by_number.get(number)
        return lease if lease is not None and lease.worker == worker else None

    def get(self, number: int) -> Lease | None:
        """The lease of that number, whoever has it."""
        return self._by_number.get(number)

    def all(self) -> list[Lease]:
        """Oldest first."""
        return list(self._by_number.values())

    def may_adopt(self, number: int) -> bool:
        """Whether an earlier table may have granted it for what is wanted, and nobody has it."""
        return self.adopts_from <= number < self.next and number not in self._by_number

    def open(
        self, taker: Taker, rows: Iterable[Row], now: float, number: int | None = None
    ) -> Lease:
        """A new lease, or one that an earlier table granted."""
        if number is None:
            number = self.next
            self.next += 1
        lease = Lease(number, taker.name, tuple(rows), now, now + self._lease_s)
        lease.is_denoised = all(row.is_denoised for row in lease.rows)
        self._by_number[number] = taker.leases[number] = lease
        heapq.heappush(self._deadlines, (lease.deadline, number))
        for row in lease.rows:
            row.state, row.lease = RequestState.LEASED, number
        return lease

    def renew(self, lease: Lease, now: float) -> None:
        """Its holder has it, and its loop turns."""
        lease.deadline, lease.is_known = now + self._lease_s, True

    def close(self, lease: Lease, taker: Taker) -> None:
        """It is over, whoever ended it; its rows are in no lease."""
        del self._by_number[lease.number], taker.leases[lease.number]
        for row in lease.rows:
            row.lease = 0

    def expired(self, now: float) -> list[Lease]:
        """Those past their deadline."""
        expired: dict[int, Lease] = {}  # one that was adopted under its old number stands twice
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            lease = self._by_number.get(number)
            if lease is None:
                continue
            if lease.deadline > now:
                heapq.heappush(self._deadlines, (lease.deadline, number))
            else:
                expired[number] = lease
        return list(expired.values())


class Groups:
    """Who leads whom, in SP groups of several members, as the leaders say."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}
        """Who leads a member of a group."""
        self._members: dict[str, set[str]] = {}
        """Who is in its group, by leader; that one included."""

    def record(self, leader: str, report: Report) -> set[str]:
        """The latest word of a leader; returns the workers whose leader may have changed."""
        if report.members < 1:
            return set()
        members = {leader, *report.followers}
        before = set().union(*(self.forget(member) for member in members))
        if len(members) > 1:
            self._leader.update(dict.fromkeys(members, leader))
            self._members[leader] = members
        return (before | members) if len(members) > 1 or before else set()

    def forget(self, name: str) -> set[str]:
        """It is in no group any more; nor is anybody whom it led. Returns those who were."""
        leader = self._leader.pop(name, None)
        if leader is None:
            return set()
        if leader != name:
            self._members[leader].discard(name)
            return {name}
        members = self._members.pop(name)
        for follower in members:
            self._leader.pop(follower, None)
        return members

    def follows(self, name: str) -> bool:
        """Whether another one pulls for it."""
        return self._leader.get(name, name) != name

    def of(self, name: str) -> tuple[str, int]:
        """(leader, members) of its group; itself and 1 if it is in none of several."""
        leader = self._leader.get(name, name)
        return leader, len(self._members.get(leader, (name,)))

    @property
    def followers(self) -> int:
        """How many workers others pull for."""
        return len(self._leader) - len(self._members)


_Rank = tuple[int, int, int]
"""How many leases a worker has to denoise, how many it has in all, and how many it failed."""


class ReadyTakers:
    """Workers that can take a batch now, by the weights that they hold: the least loaded first,
    then those that failed least, then those that have waited longest.
    """

    def __init__(self) -> None:
        self._by_weights: dict[WeightsKey, dict[_Rank, dict[str, Taker]]] = {}
        self._places: dict[str, tuple[_Rank, tuple[WeightsKey, ...]]] = {}
        self._credits: dict[str, int] = {}
        self._with_credits: Counter[int] = Counter()
        """How many of them have so many credits."""

    def set(self, taker: Taker, weights: tuple[WeightsKey, ...]) -> None:
        """It can take a batch of these weights, or none if there are none; known already, it keeps
        its place unless something has changed."""
        if not weights:
            return self.drop(taker.name)
        assert taker.report is not None
        place = (taker.load, len(taker.leases), taker.failures), weights
        if self._places.get(taker.name) != place:
            self.drop(taker.name)
            rank, weights = self._places[taker.name] = place
            for key in weights:
                self._by_weights.setdefault(key, {}).setdefault(rank, {})[taker.name] = taker
        if self._credits.get(taker.name) != taker.report.credits:
            self._forget_credits(taker.name)
            self._credits[taker.name] = taker.report.credits
            self._with_credits[taker.report.credits] += 1

    def drop(self, name: str) -> None:
        """It cannot any more."""
        self._forget_credits(name)
        rank, weights = self._places.pop(name, ((0, 0, 0), ()))
        for key in weights:
            ranks = self._by_weights[key]
            del ranks[rank][name]
            if not ranks[rank]:
                del ranks[rank]
            if not ranks:
                del self._by_weights[key]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def _forget_credits(self, name: str) -> None:
        credits = self._credits.pop(name, None)
        if credits is not None:
            self._with_credits[credits] -= 1
            if not self._with_credits[credits]:
                del self._with_credits[credits]

    def holding(self, key: WeightsKey, *, to_score: bool = False) -> Iterator[Taker]:
        """Those that hold such weights, the first to be served first. Nothing may be put or dropped
        meanwhile.

        Args:
            to_score: for what is denoised already: those that only score, and have as many leases
                as anybody has credits, are passed over together.
        """
        ranks = self._by_weights.get(key, {})
        enough = max(self._with_credits, default=0)
        for rank in sorted(ranks):
            load, leases, _ = rank
            if not (to_score and load == 0 and leases >= enough):
                yield from ranks[rank].values()

    def idle(self, key: WeightsKey) -> int:
        """How many of them have nothing to do."""
        ranks = self._by_weights.get(key, {})
        return sum(len(takers) for (load, _, _), takers in ranks.items() if not load)


class Recalls:
    """Which leases must be given back early, because another group should continue them.

    A lease of a node that leaves, or one that takes far too long, moves to a group that has nothing
    to do; an evaluation makes room for rollouts that wait.
    """

    def __init__(self, ask_again_s: float) -> None:
        self._ask_again_s = ask_again_s
        self._movable: defaultdict[WeightsKey, dict[int, tuple[Lease, str]]] = defaultdict(dict)
        """Leases that others should go on with, and why, by the weights that this takes."""
        self._evaluations: dict[int, Lease] = {}
        self._under_way: Counter[WeightsKey] = Counter()
        """How many leases were asked back for groups with nothing to do."""
        self._urgent = 0
        """How many evaluations were asked back to make room."""
        self._checks: list[tuple[float, int, Lease]] = []
        """When to look whether a lease is slow; the number tells equals apart."""
        self._looks = 0

    def opened(self, lease: Lease, now: float) -> None:
        """A lease begins."""
        if lease.request.kind == "evaluation":
            self._evaluations[lease.number] = lease
        self._check(lease, now)

    def closed(self, lease: Lease) -> None:
        """A lease is over."""
        self._evaluations.pop(lease.number, None)
        key = weights_of(lease.request)
        self._movable[key].pop(lease.number, None)
        if lease.recalled == URGENT:
            self._urgent -= 1
        elif lease.recalled:
            self._under_way[key] -= 1

    def leaves(self, lease: Lease) -> None:
        """Its node has notice."""
        if not lease.recalled:
            self._movable[weights_of(lease.request)][lease.number] = (lease, LEAVING)

    def stays(self, lease: Lease) -> None:
        """Its node is not taken after all."""
        if self._movable[weights_of(lease.request)].pop(lease.number, None) is not None:
            self._check(lease, 0.0)  # it may be slow as well

    def to_check(self, now: float) -> Iterator[Lease]:
        """Those of which it is time to say whether they are slow, for `judge`; some may be over."""
        while self._checks and self._checks[0][0] <= now:
            lease = heapq.heappop(self._checks)[2]
            if not (lease.is_denoised or lease.recalled):
                yield lease

    def judge(self, lease: Lease, slow_from: float | None, now: float) -> None:
        """Others should go on with a lease if it takes too long; otherwise it is looked at again.

        Args:
            slow_from: when it will have taken too long; None if that cannot be told yet.
        """
        if slow_from is not None and slow_from < now:
            self._movable[weights_of(lease.request)][lease.number] = (lease, SLOW)
        else:
            self._check(lease, max(slow_from or 0.0, now + self._ask_again_s))

    def _check(self, lease: Lease, at: float) -> None:
        self._looks += 1
        heapq.heappush(self._checks, (at, self._looks, lease))

    def weights(self) -> list[WeightsKey]:
        """The weights that a group needs which could go on with something."""
        return [key for key, leases in self._movable.items() if leases]

    def movable(self, key: WeightsKey, idle: int) -> Iterator[Lease]:
        """Leases for so many groups with nothing to do; each is marked as asked back."""
        for number in list(self._movable[key])[: max(0, idle - self._under_way[key])]:
            lease, reason = self._movable[key].pop(number)
            lease.recalled = reason
            self._under_way[key] += 1
            yield lease

    def evaluations(self, wanted: int, suits: Callable[[Lease], bool]) -> Iterator[Lease]:
        """Up to so many evaluations that make room, those asked already included; each is marked as
        asked back."""
        for lease in list(islice(self._evaluations.values(), _LOOK_AHEAD)):
            if self._urgent >= wanted:
                return
            if not lease.recalled and not lease.is_denoised and suits(lease):
                lease.recalled = URGENT
                self._urgent += 1
                yield lease


class Matching:
    """See the module's docstring.

    Args:
        phases: says how urgent a request is. Call `waiting.reorder` when that has changed.
        gathering: where those wait that are scored together, until all of them do.
        pace: what is known of how fast groups work.
        first_lease: see `Leases`.
        grants_from: when the first grant may be made.
    """

    def __init__(
        self,
        *,
        phases: Phases,
        gathering: Gathering,
        pace: Pace,
        first_lease: int,
        grants_from: float,
        timings: DispatchTimings,
    ) -> None:
        self.groups = Groups()
        self.pace = pace
        self.leases = Leases(first_lease, timings.lease_s)
        self.waiting = Waiting(phases, gathering)
        self.takers: dict[str, Taker] = {}
        """The workers that are there, by name."""
        self.suspicion = Suspicion()
        self._hold_back_s = timings.hold_back_s
        self._phases = phases
        self._grants_from = grants_from
        self._recalls = Recalls(timings.ask_again_s)
        self._ready = ReadyTakers()
        self._spare = ReadyTakers()
        """Those with nothing to do, by the weights for work of the other kind than theirs."""
        self._pullers: set[str] = set()
        """Workers that may be given requests: they neither leave nor train nor follow another."""
        self._barred: frozenset[str] = frozenset()
        """The workers that train."""
        self._computing: frozenset[str] = frozenset()
        """The workers that compute gradients before they do anything else."""
        self._versatile: frozenset[str] = frozenset()
        """The workers that do work of the other kind while there is none of theirs."""
        self._held_back: frozenset[str] = frozenset()
        """The suspects that get nothing for now."""
        self._pools: Counter[str] = Counter()
        """How many workers each pool has."""
        self._leased: defaultdict[tuple[RequestKind, SamplingSettings], Counter[str]]
        self._leased = defaultdict(Counter)
        """How many leases each node has yet to denoise, by kind and settings."""
        self._leases_left = 0
        """How many these are in all: a sum at every event would grow with the cluster."""

    # --- workers ---

    def add(self, taker: Taker) -> None:
        """A worker is there; it has said nothing yet."""
        self.takers[taker.name] = taker
        self._set_kinds(taker)
        self._pools[taker.pool] += 1
        self.refresh(taker.name)

    def remove(self, taker: Taker) -> None:
        """A worker is gone; it has no lease any more."""
        self._ready.drop(taker.name)
        self._spare.drop(taker.name)
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
        may = name in self._pullers and not (
            taker.silent or taker.is_sick or name in self._held_back
        )
        if report is None or not may or taker.load >= report.credits:
            self._ready.drop(name)
            self._spare.drop(name)
            return
        # What is denoised is scored beside gradients; of more, scoring falls ever further behind.
        denoises = len(taker.leases) < 2 * report.credits
        self._ready.set(taker, taker.weights if taker.computes or denoises else ())
        is_free = taker.load == 0 and (denoises or not taker.computes)
        self._spare.set(taker, taker.other_weights if is_free else ())

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

    def compute(self, names: Iterable[str], versatile: Iterable[str]) -> None:
        """The first of these compute gradients, all others denoise; those that are versatile do
        the other thing while there is nothing of that."""
        before = self._computing, self._versatile
        self._computing, self._versatile = frozenset(names), frozenset(versatile)
        for name in sorted((before[0] ^ self._computing) | (before[1] ^ self._versatile)):
            if name in self.takers:
                self._set_kinds(self.takers[name])
                self.refresh(name)

    def gradient_ended(self, taker: Taker, *, failed: bool) -> None:
        """A worker has computed one, or could not."""
        taker.failed_gradients = taker.failed_gradients + 1 if failed else 0
        self._set_kinds(taker)
        self.refresh(taker.name)

    def _set_kinds(self, taker: Taker) -> None:
        taker.computes = taker.name in self._computing and not taker.fails_gradients
        taker.is_versatile = taker.name in self._versatile

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
        if not (lease.is_denoised or lease.rows[0].is_gradient):
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
        if lease.rows[0].is_gradient:
            return
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
            for lease in self._recalls.to_check(now):
                if self.leases.get(lease.number) is lease:
                    slow_from = self.pace.slow_from(lease, self.takers[lease.worker], usual)
                    self._recalls.judge(lease, slow_from, now)

    def _next_grant(self, now: float) -> GrantLease | None:
        for takers in (self._ready, self._spare):
            for key in self.waiting.weights():
                for batch in self.waiting.firsts(key):
                    taker = self._first_taker(takers, key, batch)
                    if taker is not None:
                        return self._grant(taker, batch, now)
        return None

    def _first_taker(self, takers: ReadyTakers, key: WeightsKey, batch: Batch) -> Taker | None:
        failed = [name for name in batch.failed_at if name in self.takers]
        everyone = sum(not self.groups.follows(name) for name in failed) >= self._leaders
        for taker in takers.holding(key, to_score=batch.is_denoised):
            if taker.load > 0 and not self._queue_is_long(taker):
                return None  # near the end of a phase nothing waits behind a busy worker
            if not everyone and taker.name in batch.failed_at:
                continue
            if taker.computes and batch.is_random:
                continue  # gradients, which training waits for, would wait for it
            assert taker.report is not None
            if not batch.is_denoised or len(taker.leases) < taker.report.credits:
                return taker
        return None

    def _grant(self, taker: Taker, batch: Batch, now: float) -> GrantLease:
        assert taker.report is not None
        most = 1 if batch.first.is_gradient else taker.report.batch
        rows = batch.take(most, frozenset(taker.report.prompts))
        lease = self.open(taker, rows, now)
        commits = tuple(row.commit for row in rows)
        every = self.pace.commit_every(taker, lease.request.settings)
        requests = tuple(row.request for row in rows)
        return GrantLease(taker.name, lease.number, requests, commits, every)

    @property
    def _leaders(self) -> int:
        """How many workers nobody pulls for."""
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
            if self._phases.urgency(request)[0] == 0:  # rollouts
                wanted = micro_batches(self.waiting.rows(key), request.settings)
                recalled += self._recalls.evaluations(wanted, partial(self._makes_room, key))
        return [RecallLeases(lease.worker, (lease.number,)) for lease in recalled]

    def _makes_room(self, key: WeightsKey, lease: Lease) -> bool:
        """Whether its group could go on with what waits, and it is less urgent."""
        taker = self.takers[lease.worker]
        less_urgent = self._phases.urgency(lease.request)[0] > 0
        able = not taker.leaving and taker.name not in self._barred
        return less_urgent and able and key in taker.weights

    # --- what there is ---

    @property
    def free_groups(self) -> int:
        """How many SP groups are there to denoise now."""
        return len(self._pullers - self._computing)

    @property
    def previewing_groups(self) -> int:
        """The same with those that preview while there is no gradient to compute."""
        return len(self._previewing)

    def pullers(self) -> Iterator[Taker]:
        """Those that lead them."""
        return (self.takers[name] for name in sorted(self._previewing))

    @property
    def _previewing(self) -> set[str]:
        return self._pullers - (self._computing - self._versatile)

    def backlog(self) -> tuple[Backlog, ...]:
        """What is not denoised yet, by kind and settings."""
        queued = self.waiting.undenoised
        kinds = sorted(queued.keys() | self._leased.keys(), key=_in_order)
        return tuple(
            Backlog(*kind, queued[kind], dict(self._leased.get(kind, {}))) for kind in kinds
        )

    @property
    def batches_left(self) -> int:
        """How many micro-batches are not denoised yet."""
        queued = sum(micro_batches(n, kind[1]) for kind, n in self.waiting.undenoised.items())
        return queued + self._leases_left

    def kinds_left(self) -> frozenset[tuple[RequestKind, SamplingSettings]]:
        """The kinds and settings of work that is not denoised yet."""
        return frozenset(self.waiting.undenoised.keys() | self._leased.keys())


def _in_order(work: tuple[RequestKind, SamplingSettings]) -> tuple[int, str]:
    return ("rollout", "random", "preview", "evaluation").index(work[0]), repr(work[1])
