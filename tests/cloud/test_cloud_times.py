import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.cloud.times import seconds_until

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T12:02:00Z",
        "2026-01-01T20:02:00+08:00",
        "2026-01-01T12:02:00",
        "Thu, 01 Jan 2026 12:02:00 GMT",
    ],
)
def test_the_ways_in_which_clouds_write_a_time_are_understood(text):
    assert seconds_until(text, NOON) == 120


def test_a_time_without_a_zone_is_utc_wherever_the_machine_is(monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "JST-9")
        time.tzset()
        assert seconds_until("2026-01-01T12:02:00", NOON) == 120
    time.tzset()


def test_a_past_time_is_negative():
    assert seconds_until("2026-01-01T11:59:00Z", NOON) == -60


@pytest.mark.parametrize("text", ["", "soon", "<html>", "2026-13-01T00:00:00Z", "12", "null"])
def test_what_is_no_time_is_none(text):
    assert seconds_until(text, NOON) is None


@given(st.text(alphabet="0123456789-:TZ+., JanThuGMT", max_size=40))
def test_no_text_raises(text):
    seconds_until(text, NOON)
