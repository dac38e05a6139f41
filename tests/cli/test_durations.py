from __future__ import annotations

import pytest

from spotlight.cli.durations import seconds_of
from spotlight.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800.0), ("24h", 86_400.0), ("7d", 604_800.0), ("1.5h", 5400.0), (" 10s ", 10.0)],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert seconds_of("--ttl", text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "24", "h", "24 h", "-1h", "+1h", "1e3h", "1h30m", "24H", "1w", "inf", "nan", "٣h", ".5h"],
)
def test_what_is_no_duration_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(UserError, match=r"^--ttl: .* is no duration; .*30m, 24h or 7d"):
        seconds_of("--ttl", text)


@pytest.mark.parametrize("text", ["0s", "0.0h", "11d", "999999999d"])
def test_a_duration_that_is_nothing_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="more than nothing and at most 10d"):
        seconds_of("--ttl", text, most_s=864_000.0)
