"""What GPUs cost, as a job says it, or a file of the operator with the same fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import msgspec

from spotlight.errors import JobError
from spotlight.jobs.fields import Section, require
from spotlight.jobs.price_snapshots import CURRENCY, Offer, find_offer
from spotlight.policies.money.prices import HIGHEST_PRICE, PriceList, PriceRow, Prices
from spotlight.types import NAME_OF_NODE

MOST_ROWS = 10_000

GpuHour = Annotated[float, msgspec.Meta(ge=0, le=HIGHEST_PRICE)]


class PriceRowSpec(Section, frozen=True, kw_only=True):
    """Prices that differ from those above: from a time on, or of one node."""

    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The row counts from this time on, with its zone, such as `2026-11-26T12:00:00Z`; always when
    absent. If several fit, the one that began last counts."""
    node: str = ""
    """The name of the node that it is of; all when empty. Rows with a name come first. It is for
    nodes that cost otherwise than their pool."""
    reserved: GpuHour | None = None
    """Price of a reserved GPU for an hour; it is for contracts that change."""
    spot: GpuHour | None = None
    """Price of a spot GPU for an hour."""
    on_demand: GpuHour | None = None
    """Price of such a GPU on demand for an hour; it is for prices that change."""

    def __post_init__(self) -> None:
        require(
            not self.node or re.fullmatch(NAME_OF_NODE, self.node) is not None,
            "node",
            "must be the name of a node: at most 100 letters, digits, `-`, `_` and (not first) `.`",
        )
        require(
            (self.reserved, self.spot, self.on_demand) != (None, None, None),
            "reserved",
            "a row must say at least one of `reserved`, `spot` and `on_demand`",
        )


class PricesSpec(Section, frozen=True, kw_only=True):
    """What a GPU costs for an hour, so that the run can say what it costs; a machine without GPUs
    pays for its workers instead. What a coordinator's `--prices` and a node's `--usd-per-hour` say
    comes first ([money](money.md))."""

    currency: str = CURRENCY
    """Three capital letters. All prices of a run are in one currency; nodes say theirs in USD.
    Others are for those who pay in them."""
    reserved: GpuHour | None = None
    """Price of a reserved GPU for an hour; not known when absent, which is not free."""
    spot: GpuHour | None = None
    """Price of a spot GPU for an hour; not known when absent, which is not free."""
    on_demand: GpuHour | None = None
    """Price of such a GPU on demand for an hour, to say what the run would have cost so."""
    snapshot: str = ""
    """Prices that ship with Spotlight, for what is not said here: `provider/instance/place`, such
    as `aws/p5.48xlarge/us-east-2`. They were seen once, at the date in their row, and are never
    live; a reserved GPU has the price on demand. They are for first guesses."""
    rows: tuple[PriceRowSpec, ...] = ()
    """Prices from a time on, and of single nodes."""

    def __post_init__(self) -> None:
        require(len(self.rows) <= MOST_ROWS, "rows", f"at most {MOST_ROWS:,} are possible")
        require(
            re.fullmatch("[A-Z]{3}", self.currency) is not None,
            "currency",
            f"must be three capital letters, such as `{CURRENCY}`, not `{self.currency}`",
        )
        if self.snapshot:
            self._offer()
            require(
                self.currency == CURRENCY,
                "currency",
                f"is {self.currency}, but the snapshot is in {CURRENCY}: a run has one currency;"
                " leave one of them out",
            )

    def _offer(self) -> Offer | None:
        try:
            return find_offer(self.snapshot) if self.snapshot else None
        except LookupError as error:
            raise ValueError(f"snapshot|{error.args[0]}") from error

    def as_list(self, source: str) -> PriceList:
        """The same as a list of prices from this source."""
        return PriceList(tuple(self._rows(source)), self.currency)

    def _rows(self, source: str) -> Iterator[PriceRow]:
        own = self.reserved, self.spot, self.on_demand
        if own != (None, None, None):
            yield PriceRow(*own, source=source)
        for row in self.rows:
            since = {} if row.since is None else {"since": row.since.timestamp()}
            prices = row.reserved, row.spot, row.on_demand
            yield PriceRow(*prices, **since, node=row.node, source=source)
        if (offer := self._offer()) is not None:
            on_demand = offer.on_demand
            yield PriceRow(on_demand, offer.spot, on_demand, source=offer.source_line())


def prices_of(spec: PricesSpec, given: Prices) -> Prices:
    """The prices of a job with those that are `given` for all; raises `JobError` where they are in
    two currencies."""
    operator, job = given.operator, spec.as_list("the job")
    if operator.rows and job.rows and operator.currency != job.currency:
        raise JobError(
            "prices.currency",
            f"is {job.currency}, but the coordinator's prices are in {operator.currency}: a run"
            " has one currency; say them in the same, or leave `prices` out",
        )
    return Prices(operator, job, job.currency if job.rows else operator.currency)
