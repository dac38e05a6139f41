"""What a node's command line says that it costs."""

from __future__ import annotations

import math

from spotlight.errors import UserError
from spotlight.policies.money.prices import HIGHEST_PRICE
from spotlight.record.ledger import Price


def node_price(usd_per_hour: float | None, on_demand: float | None, workers: int) -> Price | None:
    """The price of one of its GPUs, by what the whole machine costs; None if that is not said.
    Raises `UserError` that names the option."""
    if usd_per_hour is None:
        if on_demand is not None:
            raise UserError(
                "--on-demand-usd-per-hour: needs --usd-per-hour, which says what the machine costs"
            )
        return None
    _require("--usd-per-hour", usd_per_hour)
    if on_demand is not None:
        _require("--on-demand-usd-per-hour", on_demand)
    return Price(usd_per_hour / workers, None if on_demand is None else on_demand / workers, "node")


def price_remark(price: Price | None) -> str:
    """What of it may be a slip, though it is taken as it is; empty if nothing."""
    if price is None:
        return ""
    if price.on_demand is not None and price.usd_per_gpu_hour > price.on_demand:
        return "--usd-per-hour is above --on-demand-usd-per-hour: taken as it is"
    if price.usd_per_gpu_hour == 0:
        return "--usd-per-hour is 0: taken as it is, this machine costs nothing"
    return ""


def _require(option: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= HIGHEST_PRICE):
        raise UserError(
            f"{option} {value:g}: must be a number from 0 to {HIGHEST_PRICE:,.0f}, in dollars for"
            " an hour of the whole machine"
        )
