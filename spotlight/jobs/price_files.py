"""Reads the prices of an operator from a file."""

from __future__ import annotations

from pathlib import Path

from spotlight.errors import JobError, UnreadableFile
from spotlight.files import MEBIBYTE, read_text
from spotlight.jobs.loading import section_from_text
from spotlight.jobs.prices import PricesSpec
from spotlight.policies.money.prices import Prices

_LARGEST = 4 * MEBIBYTE
"""Bytes of such a file: one with thousands of rows has less."""


def read_prices(option: str, path: Path) -> Prices:
    """The operator's list from a file, YAML or JSON, with the fields of a job's section `prices`;
    raises `JobError` naming the option and the field."""
    try:
        text = read_text(path, most=_LARGEST)
    except UnreadableFile as error:
        raise JobError(
            f"{option} {path}", f"{error.problem}; give a file (YAML or JSON) with prices"
        ) from error
    spec = section_from_text(text, PricesSpec, f"{option} {path}")
    prices = spec.as_list(f"{option} {path.name}")
    return Prices(operator=prices, currency=prices.currency)
