"""How a run stands with its budgets."""

from __future__ import annotations

import pytest

from spotlight.policies.money.budget import Budget, how_to_go_on
from spotlight.policies.money.words import money


def test_nothing_is_said_of_a_budget_of_which_little_is_used() -> None:
    assert Budget(usd=10.0, hours=2.0).standings(7.99, 5000.0) == []


def test_a_budget_is_told_of_from_four_fifths_on() -> None:
    (standing,) = Budget(usd=10.0).standings(8.0, 0.0)
    assert standing == ("budget.usd", False, "$8.00 of the $10.00 of `budget.usd` are used")


def test_a_budget_is_spent_when_all_of_it_is() -> None:
    (standing,) = Budget(hours=2.0).standings(None, 7200.0)
    assert standing == ("budget.hours", True, "2 h of the 2 h of `budget.hours` are spent")


def test_the_budget_that_is_spent_comes_first() -> None:
    found = Budget(usd=10.0, hours=1.0).standings(9.0, 3700.0)
    assert [(each.field, each.is_spent) for each in found] == [
        ("budget.hours", True),
        ("budget.usd", False),
    ]


def test_a_budget_of_money_does_not_count_what_has_no_price() -> None:
    assert Budget(usd=0.01).standings(None, 1e9) == []


def test_a_job_without_a_budget_may_cost_anything() -> None:
    assert Budget().standings(1e9, 1e9) == []


def test_it_is_said_how_to_go_on() -> None:
    assert "spotlight resume runs/a --set budget.usd=" in how_to_go_on("budget.usd", "runs/a")


@pytest.mark.parametrize(
    ("amount", "currency", "said"),
    [
        (0.0, "USD", "$0.00"),
        (0.00213, "USD", "$0.0021"),
        (0.015, "USD", "$0.015"),
        (1e-12, "USD", "$0.00000000"),
        (12.345, "USD", "$12.35"),
        (-3.0, "USD", "-$3.00"),
        (12345.6, "USD", "$12,346"),
        (3.5, "EUR", "3.50 EUR"),
    ],
)
def test_money_is_said_with_the_digits_that_it_needs(
    amount: float, currency: str, said: str
) -> None:
    assert money(amount, currency) == said
