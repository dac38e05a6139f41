"""The account of a job, or of the time without one: adds up what nodes say that their workers did.
Pure: times are handed in.

Nodes say how much time it was in all, so what they say may come twice, late or out of order, or
never, as long as a later word comes: what counts is by how much more it is than what the bills hold
already. Invariants: no time of a bill shrinks; the bills of a stretch of a process add up to the
latest that it said of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from spotlight.policies.ledger.node_times import MOST_STRETCHES
from spotlight.record.ledger import (
    Ledger,
    Milliseconds,
    NodeBill,
    Price,
    RollupLine,
    WorkerTimes,
)
from spotlight.types import Pool

SETTLED_AFTER_S = 86_400.0
"""Nothing new is said of a process that is gone for so long."""
_MS_PER_HOUR = 3_600_000


class Said(NamedTuple):
    """A node, as it says itself."""

    node: str
    pool: Pool
    process: str
    workers: int


class Book:
    """See the module's docstring.

    Args:
        ledger: what was written last.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._written = ledger
        self._settled = [bill for bill in ledger.bills if not bill.process]
        """Those of processes that are long gone."""
        self._stretches: defaultdict[tuple[str, int], list[NodeBill]] = defaultdict(list)
        """The others, by process and number; a stretch has one for each price that it had."""
        for bill in ledger.bills:
            if bill.process:
                self._stretches[bill.process, bill.number].append(bill)
        self._grown: dict[str, Milliseconds] = {}
        """The growth of the workers' time since it was written."""
        self._has_lost = False
        """Whether a process has gone since then."""
        self._there: set[str] = set()
        """Processes that are there, as far as was heard."""
        self._silent_since: dict[str, float] = {}
        """The times at which the others were first seen not to be there."""

    @property
    def has_news(self) -> bool:
        """Whether it is worth writing."""
        return self._has_lost or bool(self._grown)

    @property
    def written(self) -> Ledger:
        """What was written last."""
        return self._written

    def knows(self, process: str, number: int) -> bool:
        """Whether there is a bill of a stretch of a process."""
        return (process, number) in self._stretches

    def price_of(self, process: str, number: int) -> Price | None:
        """What a stretch costs that there is a bill of, by the latest."""
        return self._stretches[process, number][-1].price

    def seen_until(self, node: str) -> float:
        """When a node was there last, in seconds since 1970; 0 if never."""
        bills = [*self._settled, *(bill for its in self._stretches.values() for bill in its)]
        return max((bill.to_at for bill in bills if bill.node == node), default=0.0)

    def add(self, said: Said, times: WorkerTimes, price: Price | None, at: float) -> None:
        """What a node says of a stretch.

        Args:
            price: what it costs from now on.
            at: now, in seconds since 1970.
        """
        self._there.add(said.process)
        self._silent_since.pop(said.process, None)
        bills = self._stretches.get((said.process, times.number), [])
        growth = {
            worker: more
            for worker, states in times.workers.items()
            if (more := _growth(states, [bill.times.get(worker, {}) for bill in bills]))
        }
        if not growth:
            return
        _add(self._grown, growth)
        bills = self._stretches[said.process, times.number]
        if not bills or bills[-1].price != price:
            bills.append(_new_bill(said, times, price, growth, at))
        bill = bills[-1]
        bills[-1] = msgspec.structs.replace(
            bill,
            workers=said.workers,
            to_at=max(bill.to_at, at),
            is_there=True,
            times=_sum(bill.times, growth),
        )

    def gone(self, process: str) -> None:
        """A node's process is gone, as far as is known; it may come back, and say again what it
        did before."""
        self._there.discard(process)
        for (its, _), bills in self._stretches.items():
            if its == process and bills[-1].is_there:
                bills[:] = [msgspec.structs.replace(bill, is_there=False) for bill in bills]
                self._has_lost = True

    def draft(self, at: float, time_s: float, currency: str) -> tuple[Ledger, RollupLine]:
        """What is to be written now: the whole ledger, and what is new in it. It counts as written
        when `keep` says so.

        Args:
            at: now, in seconds since 1970.
            time_s: the run time now.
        """
        before = self._written
        time_s = max(time_s, before.time_s)
        self._settle(at)
        bills = [*self._settled, *(bill for its in self._stretches.values() for bill in its)]
        number = before.number + 1
        ledger = Ledger(number=number, at=at, time_s=time_s, currency=currency, bills=tuple(bills))
        line = RollupLine(
            number=number,
            start_s=before.time_s,
            end_s=time_s,
            at=at,
            times={worker: dict(states) for worker, states in self._grown.items()},
            spent=spent_by_pool(bills),
        )
        self._has_lost = False
        return ledger, line

    def keep(self, ledger: Ledger, line: RollupLine) -> None:
        """A draft is written, the latest one."""
        self._written = ledger
        left = {
            worker: {
                state: time_ms - line.times.get(worker, {}).get(state, 0)
                for state, time_ms in states.items()
            }
            for worker, states in self._grown.items()
        }
        self._grown = {
            worker: more
            for worker, states in left.items()
            if (more := {state: time_ms for state, time_ms in states.items() if time_ms})
        }

    def _settle(self, at: float) -> None:
        """One bill for all that nothing new can be said of, of a node and job at one price."""
        newest = {process: number for process, number in sorted(self._stretches)}
        for stretch, bills in list(self._stretches.items()):
            process, number = stretch
            is_told = number > newest[process] - MOST_STRETCHES
            if is_told and self._may_speak(process, at):
                continue
            for bill in bills:
                its = bill.node, bill.job, bill.price
                same = [one for one in self._settled if (one.node, one.job, one.price) == its]
                self._settled = [one for one in self._settled if one not in same]
                self._settled.append(_merged([*same, bill]))
            del self._stretches[stretch]

    def _may_speak(self, process: str, at: float) -> bool:
        """Whether something may still be said of a process."""
        is_there = process in self._there
        return is_there or at - self._silent_since.setdefault(process, at) <= SETTLED_AFTER_S


def _new_bill(
    said: Said,
    times: WorkerTimes,
    price: Price | None,
    growth: Mapping[str, Milliseconds],
    at: float,
) -> NodeBill:
    longest_ms = max(sum(states.values()) for states in growth.values())
    return NodeBill(
        node=said.node,
        pool=said.pool,
        job=times.job_id,
        process=said.process,
        number=times.number,
        workers=said.workers,
        from_at=at - longest_ms / 1000,
        to_at=at,
        price=price,
    )


def _merged(bills: Sequence[NodeBill]) -> NodeBill:
    """Of one node and job, at one price."""
    times: dict[str, Milliseconds] = {}
    for bill in bills:
        times = _sum(times, bill.times)
    return msgspec.structs.replace(
        bills[-1],
        process="",
        number=0,
        is_there=False,
        from_at=min(bill.from_at for bill in bills),
        to_at=max(bill.to_at for bill in bills),
        times=times,
    )


def spent_by_pool(bills: Iterable[NodeBill]) -> dict[str, float]:
    """What was spent, in each pool in which a price is known."""
    spent: defaultdict[str, float] = defaultdict(float)
    for bill in bills:
        if bill.price is not None:
            time_ms = sum(sum(times.values()) for times in bill.times.values())
            spent[bill.pool] += bill.price.usd_per_gpu_hour * time_ms / _MS_PER_HOUR
    return dict(spent)


def _growth(said: Milliseconds, known: Iterable[Milliseconds]) -> Milliseconds:
    """By how much more it is; what is less is an old word, or a false one."""
    growth: Milliseconds = {}
    for state, time_ms in said.items():
        more = time_ms - sum(times.get(state, 0) for times in known)
        if more > 0:
            growth[state] = more
    return growth


def _sum(
    times: Mapping[str, Milliseconds], more: Mapping[str, Milliseconds]
) -> dict[str, Milliseconds]:
    """By worker and state."""
    total = {worker: dict(states) for worker, states in times.items()}
    _add(total, more)
    return total


def _add(times: dict[str, Milliseconds], more: Mapping[str, Milliseconds]) -> None:
    for worker, states in more.items():
        its = times.setdefault(worker, {})
        for state, time_ms in states.items():
            its[state] = its.get(state, 0) + time_ms
