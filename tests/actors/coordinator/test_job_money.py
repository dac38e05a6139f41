"""What a job costs, and what it may cost: on virtual time, with nodes that say what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from job_kit import job
from town_kit import Town, events

from spotlight.actors.protocol.users import JobAccepted, JobRefused, JobStatus, SubmitJob
from spotlight.jobs import JobSpec
from spotlight.policies.ledger.book import spent_by_pool
from spotlight.record.ledger import Price
from spotlight.store.ledger_file import read_ledger

pytestmark = pytest.mark.virtual_time

PRICES = {"reserved": 3600.0, "spot": 3600.0}
"""A dollar for a second of a worker."""


def priced(**sections: Any) -> JobSpec:
    """A job of some minutes."""
    return job(**{"prices": PRICES, "iterations": 12, **sections})


@pytest.fixture
def counting(town: Town) -> Town:
    town.world.counts_time = True
    return town


async def test_a_job_that_has_spent_its_budget_stops_and_can_be_gone_on_with(
    counting: Town,
) -> None:
    spec = priced(budget={"usd": 200})
    end = await counting.run(spec)
    assert end.outcome == "cancelled"
    assert "of the $200.00 of `budget.usd` are spent" in end.reason
    assert f"spotlight resume {end.run_folder} --set budget.usd=" in end.reason
    assert end.spent is not None and 200 <= end.spent < 260
    (near,) = events(end.run_folder, "budget_near")
    assert near["budget"] == "budget.usd" and near["limit"] == 200
    more = await counting.submit(spec, end.run_folder, resume=True)
    assert isinstance(more, JobRefused)
    assert "already; raise it with --set budget.usd=" in more.reason


async def test_people_are_warned_in_the_status_before_a_budget_is_spent(counting: Town) -> None:
    accepted = await counting.submit(priced(budget={"hours": 0.05}))
    assert isinstance(accepted, JobAccepted)
    warned = await counting.wait(lambda now: any("budget" in said for said in now.troubles))
    assert not warned.outcome
    assert any("of `budget.hours` are used" in said for said in warned.troubles)
    end = await counting.ended()
    assert (end.outcome, "budget.hours" in end.reason) == ("cancelled", True)


async def test_a_job_within_its_budget_ends_as_any_other(counting: Town) -> None:
    end = await counting.run(priced(budget={"usd": 1e6, "hours": 100}, iterations=2))
    assert (end.outcome, end.troubles) == ("finished", ())
    assert events(end.run_folder, "budget_near") == []


async def test_a_budget_of_money_is_refused_where_nothing_has_a_price(counting: Town) -> None:
    refused = await counting.submit(job(budget={"usd": 1}))
    assert isinstance(refused, JobRefused)
    assert refused.reason.startswith("budget.usd: cannot be kept to")


async def test_a_price_that_a_node_says_is_enough_for_a_budget(town: Town) -> None:
    town.world.counts_time = True
    town.world.prices = {"spot": Price(3600.0)}
    await town.join("another", "spot")
    end = await town.run(job(budget={"usd": 100}, iterations=12))
    assert end.outcome == "cancelled"


async def test_it_is_said_once_that_a_budget_does_not_count_time_without_a_price(
    counting: Town,
) -> None:
    end = await counting.run(job(prices={"spot": 1}, budget={"usd": 100}, iterations=2))
    (unpriced,) = events(end.run_folder, "node_unpriced")
    assert (unpriced["node"], unpriced["pool"]) == ("reserved", "reserved")
    assert any("counts priced time only" in said for said in end.troubles)


async def test_the_status_says_what_was_spent_and_by_which_prices(counting: Town) -> None:
    await counting.submit(priced(prices={**PRICES, "on_demand": 1.0}))

    def has_cost(now: JobStatus) -> bool:
        return now.spent is not None

    now = await counting.wait(has_cost)
    assert now.currency == "USD"
    assert now.price_sources[0] == "the job"
    assert "above on demand" in now.price_sources[1]


async def test_the_last_status_says_what_the_ledger_does(counting: Town) -> None:
    end = await counting.run(priced(iterations=2))
    bills = read_ledger(Path(end.run_folder)).bills
    assert end.spent == pytest.approx(sum(spent_by_pool(bills).values()))


async def test_a_job_without_prices_has_no_cost_that_is_known(counting: Town) -> None:
    end = await counting.run(job(iterations=2))
    assert (end.spent, end.price_sources) == (None, ())


async def test_a_budget_of_hours_also_ends_a_job_of_whose_nodes_nothing_is_known(
    town: Town,
) -> None:
    end = await town.run(priced(budget={"hours": 0.02}))
    assert (end.outcome, "budget.hours" in end.reason) == ("cancelled", True)


async def test_a_job_that_was_stopped_goes_on_with_a_higher_budget(counting: Town) -> None:
    spec = priced(budget={"usd": 200})
    end = await counting.run(spec)
    more_of_it = priced(budget={"usd": 1e6})
    message = SubmitJob(more_of_it, end.run_folder, True, changes=("budget.usd=1e6",))
    accepted = await counting.ask(message)
    assert isinstance(accepted, JobAccepted), accepted
    more = await counting.ended()
    assert more.outcome == "finished"
    assert end.spent is not None and more.spent is not None and more.spent > end.spent
