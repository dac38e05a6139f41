"""What GPUs cost is read from tables, snapshots and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import UserError
from spotlight_simulation.market.price_tables import TABLES, read_prices

ROWS = (
    '{"currency": "USD", "offers": ['
    '{"provider": "aws", "where": "here", "instance": "p5", "usd_per_gpu_hour_on_demand": 6.88,'
    ' "usd_per_gpu_hour_spot": 1.5},'
    '{"provider": "aws", "where": "there", "instance": "p5", "usd_per_gpu_hour_on_demand": 6.88,'
    ' "usd_per_gpu_hour_spot": null},'
    '{"provider": "aws", "where": "below", "instance": "p5", "usd_per_gpu_hour_on_demand": 6.88,'
    ' "usd_per_gpu_hour_spot": SPOT}]}'
)


def written(folder: Path, text: str, name: str = "prices.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "discount"),
    [
        ("paper-69", 0.69),
        ("paper-73", 0.73),
        ("paper-77", 0.77),
        ("aws-p5", 0.764),
        ("gcp-2025-10", 0.770),
        ("gcp-2026-09", 0.401),
    ],
)
def test_a_table_has_the_discount_that_it_is_known_for(name: str, discount: float) -> None:
    prices = read_prices(name)
    share = prices.spot_per_gpu_hour / prices.reserved_per_gpu_hour
    assert 1 - share == pytest.approx(discount, abs=0.001)
    assert name in TABLES


def test_a_snapshot_is_found_by_its_name() -> None:
    prices = read_prices("aws/p5.48xlarge/us-east-2")
    assert (prices.reserved_per_gpu_hour, prices.currency) == (6.88, "USD")


def test_a_file_says_prices_as_a_job_does(tmp_path: Path) -> None:
    prices = read_prices(str(written(tmp_path, "{reserved: 3, spot: 1, currency: EUR}")))
    assert (prices.reserved_per_gpu_hour, prices.spot_per_gpu_hour) == (3.0, 1.0)
    assert prices.currency == "EUR"


def test_a_reserved_gpu_costs_what_one_on_demand_does_where_nothing_else_is_said(
    tmp_path: Path,
) -> None:
    prices = read_prices(str(written(tmp_path, "{on_demand: 4, spot: 1}")))
    assert prices.reserved_per_gpu_hour == 4.0


def test_a_row_of_a_list_of_offers_is_named_behind_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, ROWS.replace("SPOT", "1"), "prices.json")
    assert read_prices(f"{file}#aws/p5/here").spot_per_gpu_hour == 1.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{reserved: -1, spot: 2}", "reserved: must be at least 0, not -1"),
        ("{reserved: 1}", "says no spot price"),
        ("{spot: 1}", "says no reserved price"),
        ("{}", "says no reserved price"),
        ("{reserved: .nan, spot: 2}", "must be a finite number"),
        ("{reserved: 1, spot: 2, zone: a}", "zone"),
        (
            "{reserved: 1, spot: 2, currency: EUR, snapshot: aws/p5.48xlarge/us-east-2}",
            "a run has one currency",
        ),
        ("{reserved: 1, spot: 2, rows: [{node: a, spot: 1}]}", "leave rows out"),
    ],
)
def test_a_file_of_prices_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_prices(str(written(tmp_path, text)))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "spot", "said"),
    [
        ("there", "1", "says no spot price"),
        ("nowhere", "1", "has no offer `aws/p5/nowhere`; its first are aws/p5/below"),
        ("here", "-1", "is no list of offers"),
        ("here", "1e300", "is no list of offers"),
        ("below", '1, "currency": "EUR"', "says two currencies"),
    ],
)
def test_an_offer_that_cannot_be_had_is_refused(
    tmp_path: Path, row: str, spot: str, said: str
) -> None:
    file = written(tmp_path, ROWS.replace("SPOT", spot), "prices.json")
    with pytest.raises(UserError, match=said):
        read_prices(f"{file}#aws/p5/{row}")


def test_a_list_of_offers_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for text, said in (
        (ROWS.replace("SPOT", "1").replace("there", "here"), "has 2 offers `aws/p5/here`"),
        (ROWS.replace("SPOT", "1").replace("USD", "EUR"), "says two currencies"),
        ('{"currency": "USD", "offers": []}', "it has none at all"),
        ('{"other": ' * 100_000, "is no list of offers"),
    ):
        with pytest.raises(UserError, match=said):
            read_prices(f"{written(tmp_path, text, 'prices.json')}#aws/p5/here")


def test_a_name_that_nobody_knows_is_refused_with_the_tables() -> None:
    with pytest.raises(UserError, match="the tables are paper-69"):
        read_prices("zzz")


def test_a_name_that_is_nearly_that_of_a_table_is_answered_with_that_table() -> None:
    with pytest.raises(UserError, match="did you mean `paper-7"):
        read_prices("paper-70")


def test_a_name_like_no_other_is_answered_with_none_that_has_nothing_to_do_with_it() -> None:
    with pytest.raises(UserError) as refused:
        read_prices("zzz")
    assert "did you mean" not in str(refused.value)
