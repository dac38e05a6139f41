"""What a run has cost, at its end."""

from __future__ import annotations

from spotlight.cli.money_rows import money_rows
from spotlight.report.run_view import MoneyPart, WhatIf

PART = MoneyPart(
    spent=12.5,
    by_pool={"reserved": 10.0, "spot": 2.5},
    per_iteration=0.25,
    to_target=7.0,
    unpriced_s=90.0,
    otherwise=(
        WhatIf(name="on demand", usd=30.0, assumption="As it was."),
        WhatIf(name="data-parallel on spot", usd=None, assumption="Cannot be said: no price."),
    ),
)


def test_all_that_is_known_of_the_money_is_said() -> None:
    assert dict(money_rows(PART)) == {
        "spent": "$12.50, reserved $10.00, spot $2.50, $0.25 an iteration,"
        " and 1 m 30 s of worker time without a price",
        "to the target": "$7.00",
        "otherwise": "on demand $30.00; the report says what each assumes",
    }


def test_nothing_is_said_of_a_run_without_prices() -> None:
    assert list(money_rows(MoneyPart(unpriced_s=90.0))) == []


def test_what_is_not_known_is_left_out() -> None:
    assert dict(money_rows(MoneyPart(spent=1.0, currency="EUR"))) == {"spent": "1.00 EUR"}
