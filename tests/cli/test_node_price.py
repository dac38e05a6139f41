"""What a node's command line says that it costs."""

from __future__ import annotations

import math

import pytest

from spotlight.cli.node_price import node_price, price_remark
from spotlight.errors import UserError
from spotlight.record.ledger import Price


def test_a_gpu_costs_its_share_of_the_machine() -> None:
    assert node_price(16.0, 32.0, 8) == Price(2.0, 4.0, "node")


def test_a_machine_whose_price_is_not_said_has_none() -> None:
    assert node_price(None, None, 8) is None


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e9])
def test_a_price_that_cannot_be_is_refused_by_its_option(value: float) -> None:
    with pytest.raises(UserError, match=r"--usd-per-hour .*: must be a number from 0"):
        node_price(value, None, 1)
    with pytest.raises(UserError, match=r"--on-demand-usd-per-hour .*: must be a number from 0"):
        node_price(1.0, value, 1)


def test_the_price_on_demand_alone_is_refused() -> None:
    with pytest.raises(UserError, match="needs --usd-per-hour"):
        node_price(None, 3.0, 1)


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (Price(3.0, 2.0), "above"),
        (Price(0.0, 2.0), "is 0"),
        (Price(2.0, 2.0), ""),
        (Price(2.0), ""),
        (None, ""),
    ],
)
def test_what_may_be_a_slip_is_taken_and_said(price: Price | None, said: str) -> None:
    assert said in price_remark(price) and bool(said) == bool(price_remark(price))
