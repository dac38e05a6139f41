"""What GPUs cost: named tables, the snapshots that ship with Spotlight, and files."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import msgspec

from spotlight.errors import JobError, UnreadableFile, UserError
from spotlight.files import MEBIBYTE, read_text
from spotlight.jobs.loading import section_from_text
from spotlight.jobs.price_snapshots import CURRENCY, find_offer
from spotlight.jobs.prices import PricesSpec
from spotlight.policies.money.prices import HIGHEST_PRICE
from spotlight_simulation.market.schedule import Prices

_P5 = "aws/p5.48xlarge/us-west-2"
_OF_PAPER = {"paper-69": 0.69, "paper-73": 0.73, "paper-77": 0.77}
"""Both ends and the middle of the discount that the paper says, off the price of a P5."""
_OF_SNAPSHOTS = {
    "aws-p5": _P5,
    "gcp-2025-10": "gcp/a3-highgpu-8g/us-central1",
    "gcp-2026-09": "gcp/a3-highgpu-1g/us-central1",
}
TABLES = (*_OF_PAPER, *_OF_SNAPSHOTS)
"""The names of the tables. Those without a discount of the paper's are one snapshot each."""
_LARGEST = 4 * MEBIBYTE

_Price = Annotated[float, msgspec.Meta(ge=0, le=HIGHEST_PRICE)]


class _Row(msgspec.Struct, frozen=True):
    """An offer in a list of them; a GPU on demand is what a reserved one costs."""

    provider: str
    where: str
    instance: str
    usd_per_gpu_hour_on_demand: _Price | None = None
    usd_per_gpu_hour_spot: _Price | None = None
    currency: str = CURRENCY

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.instance}/{self.where}"


class _Rows(msgspec.Struct, frozen=True):
    offers: tuple[_Row, ...]
    currency: str


def read_prices(name: str) -> Prices:
    """The prices of that name.

    Args:
        name: a table (`TABLES`), a snapshot that ships with Spotlight
            (`provider/instance/place`), a file with the fields of a job's section `prices`, or
            `FILE#provider/instance/place`, a row of a list of offers in JSON.

    Raises `UserError` for a name that nobody knows, and for prices that are missing or below 0.
    """
    if name in _OF_PAPER:
        reserved = find_offer(_P5).on_demand
        return _checked(name, CURRENCY, reserved, reserved * (1 - _OF_PAPER[name]))
    file, is_row, row = name.partition("#")
    if is_row:
        return _of_row(name, Path(file), row)
    if Path(name).is_file():
        return _of_file(Path(name))
    try:
        offer = find_offer(_OF_SNAPSHOTS.get(name, name))
    except LookupError as error:
        near = difflib.get_close_matches(name.lower(), TABLES, n=2)
        meant = f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
        raise UserError(
            f"{name}: no table, file or snapshot of prices has this name; the tables are"
            f" {', '.join(TABLES)}; {meant if near else error.args[0]}"
        ) from error
    return _checked(name, CURRENCY, offer.on_demand, offer.spot)


def _of_file(file: Path) -> Prices:
    spec = section_from_text(_text(file), PricesSpec, str(file))
    if any(row.node or row.since is not None for row in spec.rows):
        raise JobError(f"{file}: rows", "a replay has one price for each pool; leave rows out")
    prices = spec.as_list(file.name)
    reserved = prices.find("reserved", "", 0.0) or prices.find("on_demand", "", 0.0)
    spot = prices.find("spot", "", 0.0)
    return _checked(
        str(file), prices.currency, reserved and reserved[0], None if spot is None else spot[0]
    )


def _of_row(name: str, file: Path, row: str) -> Prices:
    try:
        rows = msgspec.json.decode(_text(file), type=_Rows)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{file}: is no list of offers: {error}") from error
    found = [offer for offer in rows.offers if offer.name == row]
    if not found:
        known = ", ".join(sorted({offer.name for offer in rows.offers})[:3])
        others = f"its first are {known}" if known else "it has none at all"
        raise UserError(f"{file}: has no offer `{row}`; {others}")
    if len(found) > 1:
        raise UserError(f"{file}: has {len(found)} offers `{row}`; remove all but one of them")
    (offer,) = found
    if {rows.currency, offer.currency} != {CURRENCY}:
        raise UserError(
            f"{name}: says two currencies, as `usd_per_gpu_hour_spot` is in {CURRENCY} and"
            " `currency` is not; say prices in another one as `reserved`, `spot` and `currency`"
        )
    prices = offer.usd_per_gpu_hour_on_demand, offer.usd_per_gpu_hour_spot
    return _checked(name, CURRENCY, *prices)


def _text(file: Path) -> str:
    try:
        return read_text(file, most=_LARGEST)
    except UnreadableFile as error:
        raise UserError(f"{file}: {error.problem}; give a file with prices") from error


def _checked(name: str, currency: str, reserved: float | None, spot: float | None) -> Prices:
    for pool, price in (("reserved", reserved), ("spot", spot)):
        if price is None:
            raise UserError(f"{name}: says no {pool} price; both are needed, per GPU and hour")
    assert reserved is not None and spot is not None
    return Prices(
        name=name,
        currency=currency,
        reserved_per_gpu_hour=reserved,
        spot_per_gpu_hour=spot,
    )
