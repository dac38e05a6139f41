"""The operator's prices from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import JobError
from spotlight.jobs.price_files import read_prices


@pytest.mark.parametrize(
    "text", ["spot: 1.62\nreserved: 6.88\n", '{"spot": 1.62, "reserved": 6.88}']
)
def test_a_file_is_yaml_or_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "prices").write_text(text)
    prices = read_prices("--prices", tmp_path / "prices")
    price = prices.of("spot-1", "spot", None, 0.0)
    assert price is not None
    assert (price.usd_per_gpu_hour, price.source) == (1.62, "--prices prices")


def test_a_file_may_be_in_another_currency(tmp_path: Path) -> None:
    (tmp_path / "prices").write_text("{currency: EUR, spot: 1}")
    assert read_prices("--prices", tmp_path / "prices").currency == "EUR"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spott: 1", ": spott: unknown key; did you mean `spot`?"),
        ("spot: -1", ": spot: must be at least 0, not -1"),
        ("spot: .nan", ": spot: must be a finite number"),
        ("rows: [{spot: -1}]", ": rows[0].spot: must be at least 0"),
        ("- 1", ": must hold fields"),
        ("", ": must hold fields"),
        ("spot: [", ": is not valid YAML"),
        ("spot: 1\nspot: 2", "given twice"),
        ("snapshot: nowhere", ": snapshot: no snapshot `nowhere`"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_field(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(JobError) as caught:
        read_prices("--prices", file)
    assert str(caught.value).startswith(f"--prices {file}") and said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"--prices .*nothing"):
        read_prices("--prices", tmp_path / "nothing")
