"""Axes with round ticks, and charts that are well-formed XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.report import charts
from spotlight.report.charts import Series

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(numbers, numbers)
def test_a_nice_axis_covers_its_data_with_a_few_ticks(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    axis = charts.nice_axis(low, high, str)
    slack = 1e-6 * max(1.0, high - low)
    assert axis.low <= low + slack and axis.high >= high - slack
    assert 1 <= len(axis.ticks) <= 8
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in axis.ticks)


def test_ticks_are_round_numbers() -> None:
    assert charts.nice_axis(0, 0.83, str).ticks == pytest.approx((0, 0.25, 0.5, 0.75, 1.0))
    assert charts.nice_axis(0, 39, str, count=6, widen=False).ticks == (0, 10, 20, 30)


def test_long_times_show_hours() -> None:
    assert charts.clock(3 * 3600 + 65) == "3:01:05"


def _parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup)


def test_a_line_chart_has_a_line_a_band_and_a_title_per_point() -> None:
    x = charts.nice_axis(0, 2, str)
    y = charts.nice_axis(0, 1, str)
    line = Series(
        "rollout",
        ((0, 0.1), (1, 0.5), (2, 0.9)),
        ("one", "two <&>", "three"),
        ((0, 0.2), (0.4, 0.6), (0.8, 2.0)),
        dots=True,
    )
    root = _parsed(charts.line_chart([line], x, y, description='of "all"'))
    assert [title.text for title in root.iter("title")] == ["one", "two <&>", "three"]
    assert [path.get("class") for path in root.iter("path")] == ["b c-rollout", "l c-rollout"]
    assert next(root.iter("svg")).get("aria-label") == 'of "all"'


def test_a_band_is_cut_off_at_the_axis() -> None:
    x, y = charts.nice_axis(0, 1, str), charts.nice_axis(0, 1, str)
    line = Series("rollout", ((0, 0.5), (1, 0.5)), ("", ""), ((-5, 5), (-5, 5)))
    band = next(_parsed(charts.line_chart([line], x, y, description="")).iter("path"))
    heights = {float(pair.split()[1]) for pair in (band.get("d") or "")[1:-1].split("L")}
    assert heights == {0.0, 200.0}


def test_a_line_of_one_point_is_a_dot() -> None:
    axis = charts.nice_axis(0, 1, str)
    line = Series("rollout", ((0.5, 0.5),), ("only",))
    root = _parsed(charts.line_chart([line], axis, axis, description=""))
    assert "dot" in (next(root.iter("circle")).get("class") or "")
