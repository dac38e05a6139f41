"""What bills add up to."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from money_kit import HOUR_MS, bill

from spotlight.policies.money.bill import (
    account,
    exact,
    latest_bills,
    mean_price,
    on_demand,
    sources_of,
)
from spotlight.record.ledger import TIME_STATES, NodeBill


def test_an_hour_costs_the_price_of_an_hour() -> None:
    assert account([bill("spot-1", price=1.62, explore=HOUR_MS)]).spent == Fraction("1.62")


def test_a_price_is_the_decimal_that_was_written() -> None:
    assert exact(0.1) + exact(0.2) == exact(0.3)
    assert exact(1e-7) == Fraction(1, 10**7)


def test_time_without_a_price_costs_nothing_that_is_known() -> None:
    sums = account([bill("spot-1", price=None, explore=1500), bill("spot-2", idle=HOUR_MS)])
    assert (sums.spent, sums.unpriced_s) == (1, 1.5)


def test_nothing_is_spent_where_nothing_has_a_price() -> None:
    assert account([bill("spot-1", price=None, explore=1500)]).spent is None
    assert account([]).spent is None


def test_a_price_of_zero_is_spent_as_zero() -> None:
    assert account([bill("spot-1", price=0.0, explore=1500)]).spent == 0


def test_a_node_pays_both_prices_when_its_price_changed() -> None:
    sums = account(
        [bill("spot-1", price=1.0, explore=HOUR_MS), bill("spot-1", price=3.0, explore=HOUR_MS)]
    )
    assert sums.by_node() == {"spot-1": 4}


BILLS = st.lists(
    st.builds(
        lambda node, price, times: bill(node, price=price, **times),
        st.sampled_from(["spot-1", "spot-2", "reserved-1", "reserved-2"]),
        st.one_of(st.none(), st.floats(0, 100, allow_nan=False)),
        st.dictionaries(st.sampled_from(TIME_STATES), st.integers(0, 10**12)),
    ),
    max_size=8,
)


@given(BILLS)
def test_the_parts_add_up_to_the_total_exactly(bills: list[NodeBill]) -> None:
    sums = account(bills)
    total = sums.spent or 0
    assert sum(sums.by_pool().values()) == total
    assert sum(sums.by_node().values()) == total
    assert sum(sum(states.values()) for states in sums.by_state().values()) == total
    all_ms = sum(ms for each in bills for times in each.times.values() for ms in times.values())
    assert sums.total_ms() == all_ms
    assert sums.worked_ms(TIME_STATES) == all_ms


@given(BILLS, st.integers(0, 8))
def test_bills_cost_the_same_however_they_are_cut(bills: list[NodeBill], cut: int) -> None:
    first, second = account(bills[:cut]).spent or 0, account(bills[cut:]).spent or 0
    assert first + second == (account(bills).spent or 0)


def test_the_same_time_on_demand_costs_the_price_on_demand() -> None:
    bills = [
        bill("spot-1", price=1.0, on_demand=4.0, explore=HOUR_MS),
        bill("reserved-1", price=3.0, on_demand=5.0, train=HOUR_MS),
    ]
    assert on_demand(bills) == 9


def test_on_demand_cannot_be_said_if_one_price_is_not_known() -> None:
    known = bill("spot-1", price=1.0, on_demand=4.0, explore=HOUR_MS)
    assert on_demand([known, bill("spot-2", price=1.0, explore=1)]) is None
    assert on_demand([known, bill("spot-2", price=None, explore=1)]) is None
    assert on_demand([known, bill("spot-2", price=None)]) == 4
    assert on_demand([]) is None


def test_a_mean_price_is_weighted_by_time() -> None:
    bills = [bill("spot-1", price=1.0, idle=3000), bill("spot-2", price=5.0, idle=1000)]
    assert mean_price(bills, "spot") == 2
    assert mean_price(bills, "reserved") is None
    assert mean_price([*bills, bill("spot-3", price=None, idle=1)], "spot") is None


def test_the_latest_bill_of_a_node_has_its_price_now() -> None:
    before, now = bill("spot-1", price=1.0, to_at=10.0), bill("spot-1", price=2.0, to_at=20.0)
    assert latest_bills([now, before]) == [now]


def test_each_source_of_prices_is_said_once_with_its_price() -> None:
    bills = [
        bill("spot-1", price=1.5),
        bill("spot-2", price=1.5),
        bill("spot-3", price=9.0, on_demand=8.0),
        bill("reserved-1", price=None),
    ]
    assert sources_of(bills, "EUR") == (
        "reserved: unpriced",
        "spot: 1.5 EUR per GPU and hour (a test)",
        "spot: 9 EUR per GPU and hour (a test; above on demand, 8)",
    )
