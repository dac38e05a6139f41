"""Whether budgets can be kept to, before a job begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotlight.errors import JobError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.policies.money.prices import Prices
from spotlight.preflight.budget_checks import check_budget_left, check_money
from spotlight.record.ledger import Ledger, NodeBill, Price
from spotlight.store.ledger_file import write_ledger


def job(**sections: Any) -> JobSpec:
    return job_from_data(
        {
            "name": "first",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
            },
            "sampler": {"height": 32, "width": 64},
            **sections,
        }
    )


def test_a_budget_of_money_needs_a_price() -> None:
    with pytest.raises(JobError, match=r"budget\.usd: cannot be kept to"):
        check_money(job(budget={"usd": 1}), Prices(), [None])


def test_any_price_will_do_for_a_budget() -> None:
    check_money(job(budget={"usd": 1}), Prices(), [None, Price(1.0)])
    check_money(job(budget={"usd": 1}, prices={"spot": 1}), Prices())


def test_a_budget_of_hours_needs_no_price() -> None:
    check_money(job(budget={"hours": 1}), Prices())


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    """The folder of a run of two hours that cost 4 dollars."""
    times: Any = {"spot-1/0": {"explore": 7_200_000}}
    bill = NodeBill(
        node="spot-1", pool="spot", process="a", workers=1, from_at=0.0, to_at=7200.0,
        price=Price(2.0), times=times,
    )  # fmt: skip
    write_ledger(tmp_path, Ledger(number=1, at=7200.0, time_s=7200.0, bills=(bill,)))
    return tmp_path


@pytest.mark.parametrize(
    ("budget", "field"), [({"usd": 4}, "budget.usd"), ({"usd": 5, "hours": 2}, "budget.hours")]
)
def test_a_run_that_has_spent_its_budget_goes_on_with_a_higher_one_only(
    spent: Path, budget: dict[str, float], field: str
) -> None:
    with pytest.raises(JobError, match=f"{field}: .* spent already; raise it with --set {field}="):
        check_budget_left(job(budget=budget), spent)


def test_a_run_goes_on_while_some_of_its_budget_is_left(spent: Path, tmp_path: Path) -> None:
    check_budget_left(job(budget={"usd": 4.5, "hours": 3}), spent)
    check_budget_left(job(), spent)
    check_budget_left(job(budget={"usd": 1}), tmp_path / "new")
