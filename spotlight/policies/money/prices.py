"""What a GPU of a node costs at a time.

Several may say so. For each figure, what comes first here and is known wins:

1. a row with the node's name in the operator's list (`--prices`),
2. what the node says of itself (`--usd-per-hour`),
3. what the operator's list says of its pool,
4. what the job says (`prices`), first by the node's name, then of its pool,
5. the snapshot that the operator's list or the job names; it is a part of that list.

What nobody says is not known: such time is unpriced, which is not free. All lists are in one
currency. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from spotlight.record.ledger import Price
from spotlight.types import Pool

Figure = Literal["reserved", "spot", "on_demand"]
SAID_IN = "USD"
"""The currency in which nodes say what they cost."""
HIGHEST_PRICE = 1e6
"""A GPU that costs more for an hour, in any currency, is a slip."""
_SAID_BY_NODE = "node"
"""The source of what it says, whose own words are not repeated."""


@dataclass(frozen=True)
class PriceRow:
    """Prices of a GPU for an hour; None where the row says nothing."""

    reserved: float | None = None
    spot: float | None = None
    on_demand: float | None = None
    since: float = -math.inf
    """The row counts from this time on, in seconds since 1970 (UTC)."""
    node: str = ""
    """The row is of this node alone; empty for all."""
    source: str = ""


@dataclass(frozen=True)
class PriceList:
    """What somebody says of prices. Of rows that fit, those with the node's name come first, then
    the one that began last; of equal ones the first."""

    rows: tuple[PriceRow, ...] = ()
    currency: str = SAID_IN

    def find(self, figure: Figure, node: str, at: float) -> tuple[float, str] | None:
        """A figure and its source, by rows that name the node or are of all; None if it is not
        known."""
        return self.of_node(figure, node, at) or self._latest(figure, "", at)

    def of_node(self, figure: Figure, node: str, at: float) -> tuple[float, str] | None:
        """The same, by rows that name the node alone."""
        return self._latest(figure, node, at) if node else None

    def _latest(self, figure: Figure, node: str, at: float) -> tuple[float, str] | None:
        found: PriceRow | None = None
        for row in self.rows:
            fits = row.node == node and row.since <= at and getattr(row, figure) is not None
            if fits and (found is None or row.since > found.since):
                found = row
        return None if found is None else (getattr(found, figure), found.source)

    def sources(self) -> tuple[str, ...]:
        """Where its prices are from, each once."""
        return tuple(dict.fromkeys(row.source for row in self.rows if row.source))


@dataclass(frozen=True)
class Prices:
    """Prices by node, pool and time, in one currency."""

    operator: PriceList = PriceList()
    job: PriceList = PriceList()
    currency: str = SAID_IN
    """The currency of the account."""

    def of(self, node: str, pool: Pool, said: Price | None, at: float) -> Price | None:
        """The price of a GPU of a node; None if it is not known.

        Args:
            said: what the node itself says that it costs.
            at: seconds since 1970 (UTC).
        """
        price = self._first(pool, node, at, said.usd_per_gpu_hour if said else None)
        if price is None:
            return None
        on_demand = self._first("on_demand", node, at, said.on_demand if said else None)
        value, source = price
        return Price(value, None if on_demand is None else on_demand[0], source)

    def _first(
        self, figure: Figure, node: str, at: float, said: float | None
    ) -> tuple[float, str] | None:
        found = self.operator.of_node(figure, node, at)
        if found is None and _can_be(said) and self.currency == SAID_IN:
            found = said, _SAID_BY_NODE
        return found or self.operator.find(figure, node, at) or self.job.find(figure, node, at)

    def can_price(self, said: Sequence[Price | None] = ()) -> bool:
        """Whether there is a price of anything, by these lists or by what nodes say."""
        by_node = self.currency == SAID_IN and any(
            price is not None and _can_be(price.usd_per_gpu_hour) for price in said
        )
        rows = (*self.operator.rows, *self.job.rows)
        return by_node or any(row.reserved is not None or row.spot is not None for row in rows)

    def remarks(self) -> tuple[str, ...]:
        """What is taken as it is, but may be a slip."""
        return tuple(dict.fromkeys(_remarks((*self.operator.rows, *self.job.rows))))

    def sources(self) -> tuple[str, ...]:
        """Where the prices of the lists are from, each once."""
        return tuple(dict.fromkeys((*self.operator.sources(), *self.job.sources())))

    def refuses(self, said: Price | None) -> str:
        """Why what a node says does not count; empty if it does."""
        if said is None or self.currency == SAID_IN:
            return ""
        return (
            f"a node says its price in {SAID_IN}, but this account is in {self.currency}: give it"
            " in `prices` by the node's name"
        )


def _can_be(said: float | None) -> TypeGuard[float]:
    """Whether what a node says is a price: it comes from another machine."""
    return said is not None and math.isfinite(said) and 0 <= said <= HIGHEST_PRICE


def _remarks(rows: Sequence[PriceRow]) -> Iterator[str]:
    known = [row.on_demand for row in rows if row.on_demand is not None]
    for row in rows:
        whose = f" of node {row.node}" if row.node else ""
        for pool in ("reserved", "spot"):
            price: float | None = getattr(row, pool)
            if price == 0:
                yield f"the {pool} price{whose} is 0: taken as it is, such time costs nothing"
            on_demand = row.on_demand if row.on_demand is not None else max(known, default=None)
            if price is not None and on_demand is not None and price > on_demand:
                yield (
                    f"the {pool} price{whose} ({price:g}) is above on demand ({on_demand:g}):"
                    " taken as it is"
                )
