"""At which pace the workers of a session make images."""

from __future__ import annotations

import pytest

from spotlight.actors.coordinator.session.recent_pace import RecentPace


def test_a_pace_is_that_of_the_last_minute() -> None:
    pace = RecentPace(0.0)
    assert pace.images_per_s(0.0) == 0.0
    pace.note(30, 10.0)
    assert pace.images_per_s(15.0) == pytest.approx(2.0), "since the beginning"
    pace.note(60, 100.0)
    assert pace.images_per_s(110.0) == pytest.approx(1.0)
