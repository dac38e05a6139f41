"""Who says what a GPU costs, and whose word counts."""

from __future__ import annotations

import pytest

from spotlight.policies.money.prices import PriceList, PriceRow, Prices
from spotlight.record.ledger import Price

SAID = Price(3.0, 5.0, "whatever it says")
JOB = PriceList((PriceRow(6.88, 1.62, 7.0, source="the job"),))
OPERATOR = PriceList((PriceRow(spot=1.5, source="--prices"),))


def named(price: float, source: str) -> PriceList:
    return PriceList((PriceRow(spot=price, node="spot-1", source=source),))


@pytest.mark.parametrize(
    ("operator", "said", "job", "expected"),
    [
        (named(1.1, "named"), SAID, JOB, 1.1),
        (OPERATOR, SAID, JOB, 3.0),
        (OPERATOR, None, named(1.2, "named"), 1.5),
        (PriceList(), None, JOB, 1.62),
        (PriceList(), None, PriceList((*JOB.rows, *named(1.2, "named").rows)), 1.2),
    ],
    ids=[
        "the operator names the node",
        "the node says it",
        "the operator says it of all",
        "the job says it of all",
        "the job names the node",
    ],
)
def test_the_first_who_knows_says_what_a_node_costs(
    operator: PriceList, said: Price | None, job: PriceList, expected: float
) -> None:
    price = Prices(operator, job).of("spot-1", "spot", said, 0.0)
    assert price is not None and price.usd_per_gpu_hour == expected


def test_what_nobody_says_is_not_known() -> None:
    assert Prices(job=PriceList((PriceRow(reserved=2.0),))).of("spot-1", "spot", None, 0.0) is None
    assert Prices().of("reserved-0", "reserved", None, 0.0) is None


def test_a_price_of_another_node_or_pool_does_not_count() -> None:
    prices = Prices(named(1.1, "named"))
    assert prices.of("spot-2", "spot", None, 0.0) is None
    assert prices.of("spot-1", "reserved", None, 0.0) is None


def test_a_price_counts_from_its_time_on() -> None:
    prices = Prices(
        job=PriceList(
            (PriceRow(spot=1.0), PriceRow(spot=2.0, since=100.0), PriceRow(spot=3.0, since=200.0))
        )
    )
    found = [prices.of("spot-1", "spot", None, at) for at in (99.9, 100.0, 250.0)]
    assert [each and each.usd_per_gpu_hour for each in found] == [1.0, 2.0, 3.0]


def test_a_price_from_a_time_on_is_not_known_before() -> None:
    prices = Prices(job=PriceList((PriceRow(spot=2.0, since=100.0),)))
    assert prices.of("spot-1", "spot", None, 99.0) is None


def test_a_price_of_zero_is_a_price() -> None:
    price = Prices(job=PriceList((PriceRow(spot=0.0),))).of("spot-1", "spot", None, 0.0)
    assert price == Price(0.0)


def test_a_price_says_where_it_is_from() -> None:
    price = Prices(job=JOB).of("spot-1", "spot", None, 0.0)
    assert price is not None and price.source == "the job"


def test_the_price_on_demand_is_looked_up_by_itself() -> None:
    price = Prices(job=JOB).of("spot-1", "spot", Price(3.0), 0.0)
    assert price is not None and (price.usd_per_gpu_hour, price.on_demand) == (3.0, 7.0)


def test_what_a_node_says_in_dollars_does_not_count_in_another_currency() -> None:
    prices = Prices(job=PriceList(JOB.rows, "EUR"), currency="EUR")
    price = prices.of("spot-1", "spot", SAID, 0.0)
    assert price is not None and price.usd_per_gpu_hour == 1.62
    assert "EUR" in prices.refuses(SAID) and not prices.refuses(None)
    assert not Prices().refuses(SAID)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
def test_what_a_node_says_that_can_be_no_price_does_not_count(value: float) -> None:
    assert Prices().of("spot-1", "spot", Price(value), 0.0) is None
    assert Prices().of("spot-1", "spot", Price(1.0, value), 0.0) == Price(1.0, None, "node")
    assert not Prices().can_price([Price(value)])


def test_a_price_above_on_demand_or_of_zero_is_taken_and_said() -> None:
    prices = Prices(job=PriceList((PriceRow(reserved=9.0, spot=0.0, on_demand=7.0),)))
    assert prices.of("reserved-0", "reserved", None, 0.0) == Price(9.0, 7.0)
    above, zero = prices.remarks()
    assert "reserved price (9) is above on demand (7)" in above
    assert "spot price is 0" in zero


def test_usual_prices_are_not_remarked_on() -> None:
    assert Prices(OPERATOR, JOB).remarks() == ()


@pytest.mark.parametrize(
    ("prices", "said", "can"),
    [
        (Prices(), [None], False),
        (Prices(), [None, SAID], True),
        (Prices(currency="EUR"), [SAID], False),
        (Prices(job=PriceList((PriceRow(on_demand=3.0),))), [], False),
        (Prices(OPERATOR), [], True),
    ],
    ids=["nobody", "a node", "a node in another currency", "on demand alone", "the operator"],
)
def test_it_is_known_whether_anything_has_a_price(
    prices: Prices, said: list[Price | None], can: bool
) -> None:
    assert prices.can_price(said) == can
