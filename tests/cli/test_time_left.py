"""How long a job has to go."""

from __future__ import annotations

import pytest

from spotlight.actors.protocol.users import JobStatus
from spotlight.cli.time_left import TimeLeft


def at(iteration: int, elapsed_s: float, **more: object) -> JobStatus:
    return JobStatus(job="a", iteration=iteration, iterations=10, elapsed_s=elapsed_s, **more)  # type: ignore[arg-type]


def test_at_first_the_pace_is_that_of_the_whole_run() -> None:
    assert TimeLeft().seen(at(4, 200.0)) == pytest.approx(300.0)


def test_nobody_can_say_before_the_first_iteration_or_after_the_last() -> None:
    assert TimeLeft().seen(at(0, 200.0)) is None
    assert TimeLeft().seen(at(10, 200.0)) is None
    assert TimeLeft().seen(at(4, 200.0, outcome="cancelled")) is None
    assert TimeLeft().seen(JobStatus(job="session", elapsed_s=9.0)) is None


def test_the_latest_iterations_count_and_the_loading_of_the_model_does_not() -> None:
    left = TimeLeft()
    for iteration in range(1, 6):  # 1,000 s to load, 10 s an iteration
        left.seen(at(iteration, 1000.0 + 10.0 * iteration))
    assert left.seen(at(5, 1054.0)) == pytest.approx(46.0)


def test_an_iteration_that_takes_long_makes_nothing_negative() -> None:
    left = TimeLeft()
    for iteration in (7, 8, 9):
        left.seen(at(iteration, 10.0 * iteration))
    assert left.seen(at(9, 500.0)) == 0.0


def test_a_run_that_goes_back_to_a_checkpoint_is_looked_on_at_anew() -> None:
    left = TimeLeft()
    for iteration in (4, 5, 6):
        left.seen(at(iteration, 10.0 * iteration))
    assert left.seen(at(5, 100.0)) == pytest.approx(100.0)
