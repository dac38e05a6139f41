"""Whether a job's prices and budgets can be kept to, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spotlight.errors import JobError
from spotlight.jobs import JobSpec
from spotlight.jobs.prices import prices_of
from spotlight.policies.money.bill import account
from spotlight.policies.money.budget import Budget
from spotlight.policies.money.prices import Prices
from spotlight.record.ledger import Price
from spotlight.store.ledger_file import read_ledger


def check_money(job: JobSpec, given: Prices, said: Sequence[Price | None] = ()) -> Prices:
    """The prices of a job. Raises `JobError` if they are in two currencies, or if there is a budget
    of money and nothing has a price.

    Args:
        given: those of the operator, for all jobs.
        said: what the nodes that are there say that they cost.
    """
    prices = prices_of(job.prices, given)
    if job.budget.usd is not None and not prices.can_price(said):
        raise JobError(
            "budget.usd",
            "cannot be kept to, since nothing has a price: say it in the job (`prices`), by"
            " `--prices` or by a node's `--usd-per-hour`, or leave it out (`budget.hours` needs no"
            " price)",
        )
    return prices


def check_budget_left(job: JobSpec, folder: Path) -> None:
    """Raise `JobError` if a run that is to go on has spent a budget already."""
    if job.budget.usd is None and job.budget.hours is None:
        return
    ledger = read_ledger(folder)
    spent = account(ledger.bills).spent
    budget = Budget(job.budget.usd, job.budget.hours, ledger.currency)
    for field, is_spent, text in budget.standings(
        None if spent is None else float(spent), ledger.time_s
    ):
        if is_spent:
            raise JobError(field, f"{text} already; raise it with --set {field}=...")
