"""When a score will be reached."""

from __future__ import annotations

import pytest

from spotlight.report.trend import seconds_to


def test_a_steady_rise_goes_on() -> None:
    scores = [(0.0, 0.2), (10.0, 0.3), (20.0, 0.4), (30.0, 0.5)]
    assert seconds_to(0.7, scores) == pytest.approx(20.0)


def test_a_target_that_was_reached_is_no_time_away() -> None:
    assert seconds_to(0.3, [(0.0, 0.2), (10.0, 0.35), (20.0, 0.28)]) == 0.0


@pytest.mark.parametrize(
    "scores",
    [
        [],
        [(0.0, 0.2), (10.0, 0.3)],
        [(0.0, 0.4), (10.0, 0.3), (20.0, 0.2)],
        [(0.0, 0.2), (10.0, 0.5), (20.0, 0.1), (30.0, 0.5), (40.0, 0.25)],
        [(5.0, 0.2), (5.0, 0.3), (5.0, 0.4)],
    ],
    ids=["none", "two", "falling", "noise", "at once"],
)
def test_without_a_trend_nothing_is_said(scores: list[tuple[float, float]]) -> None:
    assert seconds_to(0.9, scores) is None


def test_what_is_too_far_away_is_not_said() -> None:
    assert seconds_to(0.9, [(0.0, 0.200), (10.0, 0.201), (20.0, 0.202)]) is None


def test_old_scores_say_nothing_of_the_trend() -> None:
    flat = [(float(time), 0.2) for time in range(100)]
    rise = [(100.0 + time, 0.2 + 0.02 * time) for time in range(6)]
    assert seconds_to(0.4, flat + rise) == pytest.approx(5.0)
