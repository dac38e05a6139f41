"""When money was spent."""

from __future__ import annotations

import pytest
from money_kit import T0, line

from spotlight.policies.money.spending import Spending

FIRST_HOUR = T0 // 3600 * 3600


def spending(*lines: tuple[float, float, float], from_at: float = T0) -> Spending:
    found = Spending(from_at)
    for each in lines:
        found.add(line(*each))
    return found


def test_money_is_spent_evenly_between_two_lines() -> None:
    found = spending((0, 100, 1.0), (100, 200, 4.0))
    found.settle(200.0, T0 + 200, 4.0)
    assert [found.at_run_time(at) for at in (-1, 0, 50, 100, 150, 200, 999)] == [
        0.0, 0.0, 0.5, 1.0, 2.5, 4.0, 4.0,
    ]  # fmt: skip


def test_what_came_after_the_last_line_counts() -> None:
    found = spending((0, 100, 1.0))
    found.settle(200.0, T0 + 200, 3.0)
    assert found.at_run_time(150) == 2.0


def test_hours_add_up_to_all_that_was_spent() -> None:
    found = spending((0, 3600, 36.0), (3600, 9000, 90.0))
    found.settle(9500.0, T0 + 9500, 95.0)
    hours = found.by_hour()
    assert sum(spent for _, spent in hours) == pytest.approx(95.0)
    assert [hour for hour, _ in hours] == [FIRST_HOUR + 3600 * index for index in range(4)]
    assert hours[0][1] == pytest.approx(0.01 * (FIRST_HOUR + 3600 - T0))
    assert hours[1][1] == pytest.approx(36.0)


def test_nothing_is_spent_between_an_end_and_what_goes_on() -> None:
    day = 86_400.0
    found = spending((0, 100, 1.0))
    found.add(line(100, 200, 2.0, at=T0 + day + 200))
    found.settle(200.0, T0 + day + 200, 2.0)
    hours = dict(found.by_hour())
    assert set(hours) == {FIRST_HOUR, (T0 + day) // 3600 * 3600}
    assert found.at_run_time(150) == 1.5


def test_what_was_spent_before_the_lines_that_are_left_counts() -> None:
    found = spending((1000, 1100, 11.0))
    found.settle(1100.0, T0 + 1100, 11.0)
    assert found.at_run_time(550) == pytest.approx(5.5)
    assert sum(spent for _, spent in found.by_hour()) == pytest.approx(11.0)


def test_a_clock_that_jumps_back_loses_no_money() -> None:
    found = spending((0, 100, 1.0))
    found.add(line(100, 200, 2.0, at=T0 - 7200))
    found.settle(200.0, T0 - 7200, 2.0)
    assert sum(spent for _, spent in found.by_hour()) == pytest.approx(2.0)
    assert found.at_run_time(200) == 2.0


def test_a_clock_that_jumps_ahead_loses_no_money() -> None:
    found = spending((0, 100, 1.0))
    found.add(line(100, 200, 2.0, at=T0 + 36_000))
    found.settle(200.0, T0 + 36_000, 2.0)
    assert sum(spent for _, spent in found.by_hour()) == pytest.approx(2.0)


def test_memory_is_bounded_over_a_long_run() -> None:
    found = spending(*((10.0 * n, 10.0 * n + 10, n + 1.0) for n in range(20_000)))
    found.settle(200_000.0, T0 + 200_000, 20_000.0)
    assert found.at_run_time(100_000) == pytest.approx(10_000, rel=1e-3)
    assert sum(spent for _, spent in found.by_hour()) == pytest.approx(20_000)
