"""What a run has cost, by its ledger: exact sums of time and price.

Time is whole milliseconds of a worker, and prices are the decimal fractions as which they were
written, so sums are exact: the parts of a bill add up to its total, however they are cut. Time
without a price counts as such, and never as 0. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from spotlight.record.ledger import Milliseconds, NodeBill

_MS_PER_HOUR = 3_600_000
_MOST_SOURCES = 50

Part = tuple[str, str, str]
"""A pool, a node and a state."""


@lru_cache(maxsize=4096)
def exact(price: float) -> Fraction:
    """A price as it was written: 1.62 is 162/100."""
    return Fraction(repr(price))


@dataclass
class Account:
    """Time and money of some bills."""

    money: dict[Part, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    """What priced time cost, by pool, node and state."""
    priced_ms: dict[Part, int] = field(default_factory=lambda: defaultdict(int))
    unpriced_ms: dict[Part, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def spent(self) -> Fraction | None:
        """All of it; None if nothing has a price."""
        return sum(self.money.values(), Fraction()) if self.money else None

    @property
    def unpriced_s(self) -> float:
        """Seconds of workers without a price."""
        return sum(self.unpriced_ms.values()) / 1000

    def by_pool(self) -> dict[str, Fraction]:
        """Money by pool."""
        return _summed((pool, money) for (pool, _, _), money in self.money.items())

    def by_node(self) -> dict[str, Fraction]:
        """Money by node."""
        return _summed((node, money) for (_, node, _), money in self.money.items())

    def by_state(self) -> dict[str, dict[str, Fraction]]:
        """Money by pool and state."""
        states: dict[str, dict[str, Fraction]] = {}
        for (pool, _, state), money in self.money.items():
            of_pool = states.setdefault(pool, {})
            of_pool[state] = of_pool.get(state, Fraction()) + money
        return states

    def paid_for(self, pool: str, state: str) -> Fraction | None:
        """What the time of a pool in a state cost; None unless all of it has a price."""
        if any(
            of == pool and what == state and ms for (of, _, what), ms in self.unpriced_ms.items()
        ):
            return None
        return self.by_state().get(pool, {}).get(state)

    def worked_ms(self, states: Iterable[str], pool: str = "") -> int:
        """Time in these states, priced or not, of a pool or of all."""
        wanted = frozenset(states)
        return sum(
            ms
            for times in (self.priced_ms, self.unpriced_ms)
            for (of, _, state), ms in times.items()
            if state in wanted and pool in ("", of)
        )

    def total_ms(self, pool: str = "") -> int:
        """All time, priced or not, of a pool or of all."""
        return sum(
            ms
            for times in (self.priced_ms, self.unpriced_ms)
            for (of, _, _), ms in times.items()
            if pool in ("", of)
        )


def account(bills: Iterable[NodeBill]) -> Account:
    """The sums of some bills."""
    found = Account()
    for bill in bills:
        price = None if bill.price is None else exact(bill.price.usd_per_gpu_hour) / _MS_PER_HOUR
        for state, ms in by_state(bill.times.values()).items():
            part = (bill.pool, bill.node, state)
            if price is None:
                found.unpriced_ms[part] += ms
            else:
                found.priced_ms[part] += ms
                found.money[part] += price * ms
    return found


def by_state(workers: Iterable[Milliseconds]) -> dict[str, int]:
    """Time of all workers, by state."""
    times: dict[str, int] = defaultdict(int)
    for worker in workers:
        for state, ms in worker.items():
            times[state] += ms
    return times


def on_demand(bills: Sequence[NodeBill]) -> Fraction | None:
    """What the same time would have cost on demand; None if that is not known of all of it, or
    there is none."""
    total, is_any = Fraction(), False
    for bill in bills:
        ms = sum(by_state(bill.times.values()).values())
        if not ms:
            continue
        if bill.price is None or bill.price.on_demand is None:
            return None
        total += exact(bill.price.on_demand) / _MS_PER_HOUR * ms
        is_any = True
    return total if is_any else None


def mean_price(bills: Iterable[NodeBill], pool: str, *, demand: bool = False) -> Fraction | None:
    """The mean price of a GPU hour of a pool, weighted by time; None if any of it has none.

    Args:
        demand: the price on demand is meant.
    """
    money, total_ms = Fraction(), 0
    for bill in bills:
        ms = sum(by_state(bill.times.values()).values())
        if bill.pool != pool or not ms:
            continue
        price = bill.price and (bill.price.on_demand if demand else bill.price.usd_per_gpu_hour)
        if price is None:
            return None
        money, total_ms = money + exact(price) * ms, total_ms + ms
    return money / total_ms if total_ms else None


def latest_bills(bills: Iterable[NodeBill]) -> list[NodeBill]:
    """The latest bill of each node: its price now, and whether it is there."""
    latest: dict[str, NodeBill] = {}
    for bill in bills:
        before = latest.get(bill.node)
        if before is None or (bill.to_at, bill.from_at) >= (before.to_at, before.from_at):
            latest[bill.node] = bill
    return list(latest.values())


def sources_of(bills: Iterable[NodeBill], currency: str) -> tuple[str, ...]:
    """Where the prices are from, each with the pool and the price, and what may be a slip."""
    said = dict.fromkeys(_source(bill, currency) for bill in bills)
    return tuple(sorted(said))[:_MOST_SOURCES]


def _source(bill: NodeBill, currency: str) -> str:
    price = bill.price
    if price is None:
        return f"{bill.pool}: unpriced"
    is_above = price.on_demand is not None and price.usd_per_gpu_hour > price.on_demand
    slip = f"; above on demand, {price.on_demand:g}" if is_above else ""
    source = price.source or "unknown source"
    return f"{bill.pool}: {price.usd_per_gpu_hour:g} {currency} per GPU and hour ({source}{slip})"


def _summed(parts: Iterable[tuple[str, Fraction]]) -> dict[str, Fraction]:
    sums: dict[str, Fraction] = defaultdict(Fraction)
    for name, money in parts:
        sums[name] += money
    return dict(sums)
