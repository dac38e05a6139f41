"""What a job may say of prices and budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from smallest_job import SMALLEST, problem_of, with_field

from spotlight.errors import JobError
from spotlight.jobs import JobSpec, job_from_data, job_to_yaml, parse_job
from spotlight.jobs.price_snapshots import find_offer, offers
from spotlight.jobs.prices import prices_of
from spotlight.jobs.resuming import job_with
from spotlight.policies.money.prices import PriceList, PriceRow, Prices


def priced(**prices: Any) -> JobSpec:
    return job_from_data({**SMALLEST, "prices": prices})


def spot_price(job: JobSpec, *, node: str = "spot-1", at: float = 0.0) -> float | None:
    price = prices_of(job.prices, Prices()).of(node, "spot", None, at)
    return None if price is None else price.usd_per_gpu_hour


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("prices.spot", -1, "must be at least 0, not -1"),
        ("prices.spot", float("nan"), "must be a finite number, not nan"),
        ("prices.spot", float("inf"), "must be a finite number, not inf"),
        ("prices.spot", 1e7, "must be at most 1,000,000, not 10,000,000"),
        ("prices.spot", "cheap", "must be a number, not of type `str`"),
        ("prices.spott", 1, "unknown key; did you mean `spot`?"),
        ("prices.currency", "usd", "must be three capital letters, such as `USD`, not `usd`"),
        ("budget.usd", 0, "must be above 0, not 0"),
        ("budget.usd", -3, "must be above 0, not -3"),
        ("budget.hours", 0, "must be above 0, not 0"),
        ("budget.hours", float("nan"), "must be a finite number, not nan"),
        ("validation.target", float("inf"), "must be a finite number, not inf"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(path: str, value: Any, problem: str) -> None:
    found = problem_of(with_field(path, value))
    assert (found.path, found.problem) == (path, problem)


@pytest.mark.parametrize(
    ("row", "field", "problem"),
    [
        ({"spot": -1}, "spot", "must be at least 0"),
        ({"spot": float("nan")}, "spot", "must be a finite number"),
        ({"pool": "spot"}, "pool", "unknown key"),
        ({"node": "spot-1"}, "reserved", "at least one of"),
        ({"node": "no name", "spot": 1}, "node", "must be the name of a node"),
        ({"since": "tomorrow", "spot": 1}, "since", "must be a time with its zone"),
        ({"since": "2026-11-26T12:00:00", "spot": 1}, "since", "must be a time with its zone"),
        ({"since": 17, "spot": 1}, "since", "must be a time with its zone"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused_at_its_field(
    row: dict[str, Any], field: str, problem: str
) -> None:
    found = problem_of(with_field("prices", {"rows": [row]}))
    assert found.path == f"prices.rows[0].{field}"
    assert problem in found.problem


def test_a_job_has_no_prices_unless_it_says_them() -> None:
    assert spot_price(job_from_data(SMALLEST)) is None


def test_rows_are_of_times_and_nodes() -> None:
    since = datetime(2026, 11, 26, 12, tzinfo=UTC)
    job = priced(spot=1.0, rows=[{"since": since, "spot": 2.0}, {"node": "spot-9", "spot": 3.0}])
    assert spot_price(job, at=since.timestamp() - 1) == 1.0
    assert spot_price(job, at=since.timestamp()) == 2.0
    assert spot_price(job, node="spot-9", at=since.timestamp()) == 3.0


def test_times_of_rows_are_written_in_yaml_as_people_do() -> None:
    text = (
        job_to_yaml(job_from_data(SMALLEST)).partition("prices:")[0]
        + "prices: {rows: [{since: 2026-11-26T12:00:00Z, spot: 2.0}]}"
    )
    job = parse_job(text)
    assert parse_job(job_to_yaml(job)) == job
    assert job_from_data(msgspec.json.decode(msgspec.json.encode(job))) == job
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=JobSpec) == job


def test_a_snapshot_fills_what_the_job_does_not_say() -> None:
    job = priced(spot=1.0, snapshot="aws/p5.48xlarge/us-west-2/usw2-az1")
    prices = prices_of(job.prices, Prices())
    assert spot_price(job) == 1.0
    reserved = prices.of("reserved-0", "reserved", None, 0.0)
    assert reserved is not None and (reserved.usd_per_gpu_hour, reserved.on_demand) == (6.88, 6.88)
    assert "not live" in reserved.source and "us-west-2" in reserved.source


def test_the_snapshot_of_a_region_is_a_zone_of_it() -> None:
    offer = find_offer("aws/p5.48xlarge/us-east-2")
    assert offer.name.startswith("aws/p5.48xlarge/us-east-2/") and offer.name in offers()


def test_every_snapshot_has_a_source_and_a_date_and_can_be_priced() -> None:
    for name, offer in offers().items():
        assert offer.source and offer.observed and "not live" in offer.source_line()
        assert prices_of(priced(snapshot=name).prices, Prices()).can_price()


def test_a_snapshot_that_is_not_there_offers_the_nearest() -> None:
    found = problem_of(with_field("prices.snapshot", "aws/p5.48xlarge/us-east-9"))
    assert found.path == "prices.snapshot"
    assert "did you mean `aws/p5.48xlarge/us-east-2`" in found.problem


def test_a_snapshot_that_is_like_none_says_how_they_are_named() -> None:
    problem = problem_of(with_field("prices.snapshot", "?")).problem
    assert "did you mean" not in problem
    assert "`provider/instance/place`" in problem


def test_a_snapshot_in_another_currency_is_refused() -> None:
    prices = {"currency": "EUR", "snapshot": "aws/p5.48xlarge/us-east-2"}
    assert problem_of(with_field("prices", prices)).path == "prices.currency"


def test_two_currencies_are_refused() -> None:
    operator = Prices(PriceList((PriceRow(spot=1.0),), "EUR"), currency="EUR")
    with pytest.raises(JobError, match=r"prices\.currency: is USD, but .* in EUR"):
        prices_of(priced(spot=1.0).prices, operator)


def test_a_job_without_prices_takes_the_currency_of_the_operator() -> None:
    operator = Prices(PriceList((PriceRow(spot=1.0),), "EUR"), currency="EUR")
    assert prices_of(job_from_data(SMALLEST).prices, operator).currency == "EUR"


@pytest.mark.parametrize(
    "change", ["budget.usd=5", "prices.spot=2.5", "validation.target=0.9", "budget.hours=null"]
)
def test_money_may_be_said_anew_when_a_run_goes_on(change: str) -> None:
    job = priced(spot=1.0)
    assert job_with(job, [change]) != job or change == "budget.hours=null"


def test_the_rest_of_validation_stays_as_it_was() -> None:
    with pytest.raises(JobError, match=r"validation\.seeds"):
        job_with(priced(spot=1.0), ["validation.seeds=2"])
